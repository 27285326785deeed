"""`headway quiz`: computed answers are the lectures' numbers, and wrong answers are met with what is wrong."""

import doctest
import functools
import importlib
import io
import json
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InputError
from headway.exercises import QUIZZES, attention_quizzes, find_quiz, forgetting_quiz, model_quizzes, quiz
from headway.exercises.polynomials import parse_polynomial
from headway.nn import masks
from tests.cli.running import run

RIGHT = {  # the lectures' answers, in the words of a student
    "scaled-scores": ["0.88,0.12", "0.88 0.12", "[0.8808; 0.1192]", "88%, 12%", "0.88v₁ + 0.12v₂", "0.88*v1+0.12*v2"],
    "softmax-axis": ["a", "(a)", "rows", "row-wise"],
    "causal-mask": ["b", "B", "second"],
    "swap": ["0.1,0.2,1.3,0.1,0.2,1.3", "[[0.1, 0.2, 1.3], [0.1, 0.2, 1.3]]", "0.1 0.2 1.3"],
    "frequencies": ["b", "fall", "falling", "they fall", "decrease"],
    "optimised": ["b,c,e,g", "gbce", "W_q, W_k, W_v, W_1, W_2, embedding", "W_q W_k W₁ embedding"],
    "why-mask": ["c", "past"],
    "encoder-layer": ["d", "last", "the last"],
    "product": ["2nmk, nm+mk+nk", "2*n*m*k; n*(m+k) + m*k", "120, 47", "n*k*(2m-1), nm+mk+nk", "105, 47"],
    "projection": [
        *("2bnd²/m, 2bnd², 2bnd+d²", "bnd·d/m, bnd^2, d² + 2bnd", "bnd²/m, bnd²"),
        "bn(2d-1)d/m, bn(2d-1)d, 2bnd+d²",
    ],
    "kv-cache": [
        *("2ndL", "2*L*d*n", "2 n d l", "2bndL", "2*n*768*12", "18874368", "2*1,024*768*12", "18.9M", "19 million"),
        *("18,874,368", "18_874_368", "18 874 368", "18'874'368", "18\u202f874\u202f368", "1.8874368e7"),
    ],
    "summary": [
        "n²+s²+ns",
        "n^2 + s^2 + n s",
        "n²d+nd²+s²d+sd²+nsd",
        "(n+s)²",
        "n²d + s²d + nsd",
        "n²+s²+ns+n+s",
        "O(n²+s²+ns)",
    ],
    "forgetting": ["1,1,-1.36", "[1, 1], -4/3", "1 1 −1.3", "2,2,-2.6", "1,1.01,-1.3"],
    "gpt3-size": [
        *("173,946,175,488", "173946175488", "173 946 175 488", "173_946_175_488", "1.739e11", "174,604,259,328"),
        *("174B", "174 B", "174 billion", "≈ 174 Billion", "0.174 trillion", "174000 million", "174,000M"),
        *("12*12288^2*96", "12 · 12,288² · 96", "12*12288**2*96", "(4+8)*12288*12288*96", "96*1811939328"),
        *("12d²L", "12 d^2 L", "12*d**2*l", "L(4d²+8d²)", "12 d² · 96", "12d²L + 50257d + 2048d"),
    ],
    "temperature": ["0.99995", "0.99995,0.0000454,0", "0.99995 0.00005 0", "99.995%", "1 - 4.54e-5"],
}
WRONG = {  # an answer, and what it is met with
    "scaled-scores": {
        "0.12,0.88": "order",
        "1,0": "√d_k",
        "0.562,0.438": "divided by d_k",
        "14,12": "Now take their softmax",
        "0.54,0.46": "sum of the scores",
        "0.5,0.5": "Divide both scores by",
    },
    "softmax-axis": {"b": "Softmax over columns", "all": "sum to less than 1"},
    "causal-mask": {"a": "future", "c": "0/0"},
    "swap": {
        "0.1,0.2,1.3,0.1,0.6,0.5": "kept the weights",
        "0.1,0.6,0.5": "kept the weights",
        "0.1,0.2,1.3,0.1,1.3,0.2": "two entries",
        "0.1,1.3,0.2": "two entries",
        "1,1,1,1,1,1": "Multiply each x_j",
        "1,1,1": "Multiply each x_j",
    },
    "frequencies": {"a": "denominator", "same": "period"},
    "optimised": {"b,c,d,e,g": "without parameters", "b": "(g) missing", "abcdefgh": "data"},
    "why-mask": {"a": "softmax does that", "b": "all n² scores", "d": "same in every step"},
    "encoder-layer": {"a": "Figure 1", "first": "context", "c": "averaged"},
    "product": {
        "nmk, nm+mk+nk": "multiplication with its addition",
        "2nmk, nm+mk": "written too",
        "2nmk, nm+mk+nm": "n × k entries",
        "7, 47": "AB has nk entries",
    },
    "projection": {
        "bnd², bnd², 2bnd+d²": "all heads",
        "2bnd²/m, 2bnd²m, 2bnd+d²": "twice",
        "bnd²/m, bnd², 2bnd": "W^Q",
    },
    "kv-cache": {
        "ndL": "Both",
        "9.4M": "Both",
        "2nd": "one layer",
        "3ndL": "Queries",
        "7": "key and a value",
        "18874369": "key and a value",  # not rounded
        "18.8M": "key and a value",
        "20M": "key and a value",
    },
    "summary": {"n²+s²": "cross-attention", "n²+ns": "encoder's", "n³+n²+s²+ns": "does not occur", "nd²": "is missing"},
    "forgetting": {"1,1,-1.1": "(0,1)", "1,1,-5": "both have seen a 1", "0,0,1": "(0,0)", "1,0,-0.6": "(1,0)"},
    "gpt3-size": {
        "1,811,939,328": "one layer",
        "175B": "rounded size of the whole model",
        "175 billion": "rounded size of the whole model",
        "1.7e11": "three digits",
        "176B": "three digits",
        "12d²": "one layer",
        "12dL": "forgot the square",
        "12*12288*96^2": "squared L",
        "4d²L": "attention alone",
        "57982058496": "attention alone",
        "231928233984": "cross",
        "7": "12 · 12288² · 96",
    },
    "temperature": {
        "0.867": "without temperature",
        "0.867,0.117,0.016": "without temperature",
        "0.472": "multiplied",
        "0.472,0.316,0.212": "multiplied",
        "0.3,0.3,0.4": "Divide by the temperature",
        "1": "never reaches 1",
        "1.0,0,0": "never reaches 1",
        "0.9999": "not to five digits",
        "0.99999": "not to five digits",
        "99.9%": "not to five digits",
        "0.9999,0.0001,0": "not to five digits",
        "15,5,-5": "softmax",
    },
}  # fmt: skip
UNREADABLE = [
    ("scaled-scores", "yes"),
    ("scaled-scores", "1,2,3"),
    ("softmax-axis", "z"),
    ("softmax-axis", ""),
    ("softmax-axis", "a,b"),
    ("optimised", "a,z"),
    ("product", "2nmk"),
    ("product", "2xyz, 3"),
    ("product", "2nm(k, 3"),
    ("kv-cache", "n^99"),
    ("kv-cache", "18874368, 1"),
    ("kv-cache", "1e999999999"),
    ("kv-cache", "(((9^12)^12)^12)^12"),
    ("kv-cache", "(((n^12)^12)^12)^12"),
    ("kv-cache", "n/0"),
    ("gpt3-size", "12x²L"),
    ("gpt3-size", "12d²L, 3"),
    ("gpt3-size", "__import__('os')"),
    ("gpt3-size", "12**12**12"),
    ("gpt3-size", "((((12288^12)^12)^12)^12)^12"),
    ("gpt3-size", "((((d^12)^12)^12)^12)^12"),
    ("forgetting", "1"),
    ("forgetting", "1e999,1,1"),
]


solution_of = functools.cache(lambda name: QUIZZES[name].solve())


def test_there_are_fifteen_in_the_order_of_the_lectures():
    assert [q.number for q in QUIZZES.values()] == list(range(1, 16))
    assert RIGHT.keys() == WRONG.keys() == QUIZZES.keys()
    assert {q.lecture for q in QUIZZES.values()} <= set("ABCDE")


@pytest.mark.parametrize(("name", "answer"), [(name, a) for name, answers in RIGHT.items() for a in answers])
def test_the_lectures_answer_is_right(name, answer):
    verdict = QUIZZES[name].grade(answer)
    assert verdict.is_right, verdict.feedback


@pytest.mark.parametrize("name", QUIZZES)
def test_the_printed_answer_is_right(name):
    solution = QUIZZES[name].solve()
    assert solution.answer.grade(str(solution.answer)).is_right
    assert solution.explanation


@pytest.mark.parametrize(
    ("name", "answer", "reason"), [(name, a, why) for name, answers in WRONG.items() for a, why in answers.items()]
)
def test_a_wrong_answer_is_met_with_what_is_wrong(name, answer, reason):
    verdict = QUIZZES[name].grade(answer)
    assert not verdict.is_right
    assert reason in verdict.feedback


@given(st.sampled_from(["swap", "temperature", "scaled-scores"]), st.lists(st.integers(-9, 99), max_size=7))
def test_an_answer_is_refused_for_its_count_not_for_its_numbers(name, numbers):
    is_judged = len(numbers) in {"swap": (3, 6), "temperature": (1, 3), "scaled-scores": (2,)}[name]
    try:
        solution_of(name).answer.grade(",".join(map(str, numbers)))
    except InputError:
        assert not is_judged
    else:
        assert is_judged


@pytest.mark.parametrize(("name", "answer"), UNREADABLE)
def test_an_answer_that_cannot_be_read_is_an_error(name, answer):
    with pytest.raises(InputError):
        QUIZZES[name].grade(answer)


# ── answers are computed ──────────────────────────────────────────────────────────────────────────────────────────


def test_another_scale_in_attention_changes_the_answer(monkeypatch):
    def unscaled(q, k, v, **options):
        weights = (q @ k.transpose(-2, -1)).softmax(-2)
        return weights @ v, weights

    monkeypatch.setattr(attention_quizzes, "dot_product_attention", unscaled)
    assert not QUIZZES["scaled-scores"].grade("0.88,0.12").is_right
    assert QUIZZES["softmax-axis"].grade("columns").is_right


def test_another_mask_changes_the_answer(monkeypatch):
    monkeypatch.setattr(masks, "causal", lambda n, *_, **__: torch.ones(n, n, dtype=torch.bool).triu())
    assert QUIZZES["causal-mask"].grade("a").is_right


def test_another_position_encoding_changes_the_answer(monkeypatch):
    monkeypatch.setattr(model_quizzes, "sinusoid", lambda pos, d: sinusoid_rising(pos, d))
    assert QUIZZES["frequencies"].grade("rise").is_right


def sinusoid_rising(pos, d):
    angle = pos[:, None] * torch.linspace(0.1, 1, d // 2)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def test_learned_positions_are_optimised(monkeypatch):
    config = model_quizzes.model_config("transformer", {"positions": "learned", "d_model": 64, "n_heads": 2})
    summary = model_quizzes.summarize_model(config)
    monkeypatch.setattr(model_quizzes, "optimised_summary", lambda: summary)
    assert QUIZZES["optimised"].grade("b,c,e,f,g").is_right


# ── the numbers of the lectures ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("scaled-scores", ["0.8808", "0.1192", "14 and 12"]),
        ("swap", ["[0.1, 0.2, 1.3]", "[0.1, 0.6, 0.5]"]),
        ("frequencies", ["1.966"]),
        ("kv-cache", ["18,874,368", "37.7 MB"]),
        ("product", ["120 operations and 47 elements"]),
        ("summary", ["n² d + n d² + s² d + s d² + n s d"]),
        ("forgetting", ["0.212, 0.026, 0.0032"]),
        ("gpt3-size", ["173,946,175,488", "174,604,259,328"]),
        ("temperature", ["[15, 5, -5]", "0.99995"]),
    ],
)
def test_the_explanation_has_the_lectures_numbers(name, numbers):
    explanation = QUIZZES[name].solve().explanation
    assert all(number in explanation for number in numbers)


def test_swapped_tokens_differ_once_positions_are_added():
    explanation = QUIZZES["swap"].solve().explanation
    before, after = (part.split("]")[0] for part in explanation.split("weights, x₄' is [")[1].split("before and ["))
    assert before != after


def test_a_trace_shrinks_by_half_the_slope_of_the_sigmoid():
    """At the fixed point h = σ(h/2) the factor tends to ½ h (1 − h), just below an eighth."""
    h = 0.5
    for _ in range(100):
        h = 1 / (1 + math.exp(-h / 2))
    trace = forgetting_quiz.trace_of_a_one(12)
    assert trace[-1] / trace[-2] == pytest.approx(h * (1 - h) / 2, rel=1e-3)
    assert [round(value, 3) for value in trace[:3]] == [0.212, 0.026, 0.003]
    assert forgetting_quiz.trace_of_a_one(1, settled=False)[0] == pytest.approx(1 / (1 + math.exp(-1)) - 0.5)


@given(st.tuples(*[st.floats(-20, 20)] * 3))
def test_no_output_layer_remembers_two_steps(weights):
    """The argument of the explanation: some sequence of one or two pairs fails, whatever the weights."""
    failure = forgetting_quiz.first_failure(weights)
    assert failure is not None
    assert len(failure[0]) <= 2


# ── formulas and numbers as students type them ────────────────────────────────────────────────────────────────────


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_formula_has_the_value_of_the_python_expression(n, m, k):
    texts = {"2nmk": 2 * n * m * k, "n(m+k)²-3": n * (m + k) ** 2 - 3, "n·m/2 + k**2": n * m / 2 + k * k, "-n+m": m - n}
    for text, value in texts.items():
        assert float(parse_polynomial(text, "nmk").evaluate(n=n, m=m, k=k)) == value


PIECES = [
    *"nmkdLsb0123456789²^()/*+-−,; a%._'≈=[]",
    *("1e9", "1e999", "e-5", "nan", "\N{INFINITY}", "½", "\u0663", "99999999999999999999999"),
    *("**", "^12", "/0", "((((", "O(", "1,000", "1 000", "12,288", "billion", "bn", "W_q", "v1", "\u202f", "\x00"),
]
N_TEXTS = 2_000


def random_text(name: str, rng: random.Random) -> str:
    """Pieces in any order, few or many, or an answer with some of its characters replaced."""
    if rng.random() < 0.5:
        return "".join(rng.choices(PIECES, k=rng.choice((3, 6, 12, 300))))
    characters = list(rng.choice([*RIGHT[name], *WRONG[name]]))
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(characters))
        characters[start : start + rng.randint(0, 1)] = rng.choices(PIECES, k=rng.randint(0, 2))
    return "".join(characters)


@pytest.mark.parametrize("name", QUIZZES)
def test_any_text_is_judged_or_refused(name):
    rng, outcomes = random.Random(0), set()
    for _ in range(N_TEXTS):
        text = random_text(name, rng)
        try:
            verdict = solution_of(name).answer.grade(text)
        except InputError:
            outcomes.add("unreadable")
        else:
            assert verdict.is_right or verdict.feedback
            outcomes.add("right" if verdict.is_right else "wrong")
    assert outcomes == {"right", "wrong", "unreadable"}


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("n*k*(2m-1)", "2 n m k − n k"),
        ("-n-m", "−n − m"),
        ("1-n", "1 − n"),
        ("n-n", "0"),
        ("-3/2", "−3/2"),
        ("n-d/m²", "n − d/m²"),
        ("2 O(n²) + O(m)", "2 n² + m"),
    ],
)
def test_a_formula_is_printed_with_its_signs(text, printed):
    formula = parse_polynomial(text, "nmkd")
    assert str(formula) == printed
    assert parse_polynomial(printed, "nmkd").terms == formula.terms


def test_additions_but_one_are_counted_exactly():
    """n k sums of m products, as a loop counts their operations."""
    feedback = QUIZZES["product"].grade("nk(2m-1), nm+mk+nk").feedback
    assert "The lecture counts 2 n m k" in feedback
    n, m, k = 3, 4, 5
    n_operations = sum(m + (m - 1) for _ in range(n * k))
    assert QUIZZES["product"].grade(f"{n_operations}, 47").feedback == feedback


def test_long_formulas_are_refused():
    for text in ("n" * 500, "((((n+m+k)^12)^12)^12)^12", "(" * 150):
        with pytest.raises(InputError):
            parse_polynomial(text, "nmk")


def test_digits_are_joined_only_where_no_list_is_meant():
    assert quiz.parse_numbers("100,200") == quiz.parse_numbers("100 200") == [100, 200]
    assert quiz.parse_numbers("100_200, 4/3") == [100200, pytest.approx(4 / 3)]
    assert QUIZZES["forgetting"].grade("100,100,-136").is_right
    for text in ("100,200", "100 200", "100'200", "1.002e5", "100.2k", "100.2 thousand", "= 100*1,002"):
        assert quiz.parse_numbers(text, is_single=True) == [100200]
    assert quiz.parse_numbers("0.867,0.117", is_single=True) == [0.867, 0.117]
    assert quiz.parse_numbers("0,999", is_single=True) == [0, 999]  # no number is grouped like this


@pytest.mark.parametrize("module", ["exercises.polynomials", "exercises.quiz", "exercises.quizzes"])
def test_doctests_hold(module):
    failed, n = doctest.testmod(importlib.import_module(f"headway.{module}"))
    assert n > 0
    assert failed == 0


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_list_has_number_name_topic_and_lecture(capsys):
    code, out, _ = run("quiz --list", capsys)
    assert code == 0
    assert out.splitlines()[13].split() == ["13", "forgetting", "C", "an", "RNN", "that", "forgets"]
    assert json.loads(run("quiz --list --json", capsys)[1])["quizzes"][0]["name"] == "scaled-scores"
    assert run("quiz", capsys)[1] == out


def test_exit_codes_and_feedback(capsys):
    code, out, _ = run("quiz 1 --answer 0.88,0.12", capsys)
    assert (code, out.splitlines()[0]) == (0, "right")
    assert "0.8808" in out
    code, out, err = run("quiz scaled-scores --answer 1,0", capsys)
    assert (code, out.splitlines()[0]) == (1, "wrong")
    assert "0.88" not in out  # what is wrong, not the answer
    assert "--solution" in err
    code, out, err = run("quiz 1 --answer abc", capsys)
    assert (code, out) == (2, "")
    assert "not a number" in err


def test_an_unknown_quiz_is_met_with_the_nearest_name(capsys):
    code, _, err = run("quiz forgeting", capsys)
    assert code == 2
    assert "Did you mean 'forgetting'?" in " ".join(err.split())
    assert find_quiz("7").name == "why-mask"
    with pytest.raises(InputError, match="from 1 to 15"):
        find_quiz("16")


def test_without_a_terminal_the_solution_is_printed(capsys):
    code, out, _ = run("quiz 14", capsys)
    assert code == 0
    assert "answer: 173,946,175,488" in out
    assert out == run("quiz 14 --solution", capsys)[1]
    report = json.loads(run("quiz 14 --answer 175B --json", capsys)[1])
    assert (report["right"], report["answer"], report["given"]) == (False, "173,946,175,488", "175B")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("typed", "code"), [("nonsense\n1,0\n0.88, 0.12\n", 0), ("1,0\n\n", 1), ("", 1)])
def test_in_a_terminal_it_asks_until_the_answer_is_right(typed, code, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    found, out, err = run("quiz 1", capsys)
    assert found == code
    assert "Your answer (two numbers" in out
    if "1,0" in typed:
        assert "wrong" in out
    assert ("nonsense" in err) == ("nonsense" in typed)
    assert "0.8808" in out  # the explanation, in the end


def test_text_is_wrapped_but_not_tables():
    text = quiz.wrap_text("one two three four\n  a table that stays wide\n\nfive", 9)
    assert text == "one two\nthree\nfour\n  a table that stays wide\n\nfive"
