"""Beam search against its definition in plain loops, transformers, and exhaustive search."""

import itertools
import math
import random

import pytest
import torch
import transformers

import headway
from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis, beam_search
from headway.sampling import Pipeline
from tests.models.variants import gpt
from tests.reference import sampling as samplers
from tests.reference import search as reference


class Table:
    """A model that is a lookup table: logits by the last token and the length of the text (otherwise two texts with the
    same steps in another order would be equal up to rounding). It implements the core of the contract alone."""

    def __init__(self, V, seed, levels=None):
        rng = random.Random(seed)
        new_row = (lambda: rng.sample(levels * V, V)) if levels else (lambda: [rng.gauss(0, 2) for _ in range(V)])
        self.logits = [[[float(x) for x in new_row()] for _ in range(V)] for _ in range(20)]

    def logits_after(self, tokens):
        return self.logits[len(tokens)][tokens[-1]]

    def start(self, batch_size):
        return TableState([[] for _ in range(batch_size)])

    def step(self, ids, state):
        rows = [row + new for row, new in zip(state.rows, ids.tolist(), strict=True)]
        return torch.tensor([[self.logits_after(row)] for row in rows], dtype=torch.float64), TableState(rows)


class TableState:
    def __init__(self, rows):
        self.rows = rows

    def reorder(self, rows):
        return TableState([list(self.rows[i]) for i in torch.as_tensor(rows).tolist()])


@pytest.mark.parametrize("seed", range(120))
def test_it_equals_the_definition(seed):
    """Also with many equal values, where ties must be broken in the same order."""
    rng = random.Random(seed)
    V = rng.randint(3, 9)
    model = Table(V, seed, levels=[-1, 0, 1] if seed % 3 == 0 else None)
    prompts = [[rng.randrange(V) for _ in range(3)] for _ in range(rng.randint(1, 3))]
    B, L = rng.randint(1, 5), rng.randint(1, 7)
    eos = rng.sample(range(V), rng.randint(0, 2))
    options = {
        "length_penalty": rng.choice([0.0, 1.0, 0.6, 2.0, -0.5]),
        "length_norm": rng.choice(["power", "gnmt"]),
        "early_stopping": rng.choice([True, False, "never"]),
        "n_best": rng.randint(1, B),
    }
    by_row = beam_search(model, torch.tensor(prompts), num_beams=B, max_new_tokens=L, eos_ids=eos, **options)
    for prompt, hypotheses in zip(prompts, by_row, strict=True):
        expected = reference.beam(
            lambda tokens, prompt=prompt: model.logits_after(prompt + tokens),
            B=B, L=L, eos=eos, alpha=options["length_penalty"], norm=options["length_norm"],
            early=options["early_stopping"], n_best=options["n_best"],
        )  # fmt: skip
        assert [h.tokens for h in hypotheses] == [e[0] for e in expected]
        for h, (_, score, log_prob, ended) in zip(hypotheses, expected, strict=True):
            assert h.score == pytest.approx(score, abs=1e-5)
            assert h.log_prob == pytest.approx(log_prob, abs=1e-5)
            assert h.ended == ended


@pytest.mark.parametrize("seed", range(20))
def test_constraints_and_penalties_act_on_log_probabilities(seed):
    rng = random.Random(seed)
    model, prompt = Table(6, seed), [rng.randrange(6) for _ in range(4)]
    stages = [
        {"stage": "no_repeat_ngram", "n": 2},
        {"stage": "min_new_tokens", "min_new": 2, "eos_ids": [0]},
        {"stage": "repetition_penalty", "penalty": 1.4},
        {"stage": "frequency_penalty", "penalty": 0.3},
    ]
    [hypotheses] = beam_search(model, prompt, num_beams=3, max_new_tokens=5, eos_ids=[0], n_best=3, pipeline=stages)
    expected = reference.beam(
        lambda tokens: model.logits_after(prompt + tokens),
        B=3, L=5, eos=[0], n_best=3,
        adjust=lambda lp, tokens: samplers.apply(stages, lp, history=prompt + tokens, n_prompt=len(prompt)),
    )  # fmt: skip
    assert [h.tokens for h in hypotheses] == [e[0] for e in expected]
    assert [h.score for h in hypotheses] == pytest.approx([e[1] for e in expected], abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_with_a_beam_for_every_prefix_it_is_exhaustive_search(seed):
    V, L, model = 3, 4, Table(3, seed)
    [hypotheses] = beam_search(model, [0, 1], num_beams=V**L, max_new_tokens=L, length_penalty=0.0, n_best=V**L)
    log_probs = {}
    for tokens in itertools.product(range(V), repeat=L):
        total, text = 0.0, [0, 1]
        for token in tokens:
            total += reference.log_softmax(model.logits_after(text))[token]
            text.append(token)
        log_probs[tokens] = total
    assert hypotheses[0].tokens == list(max(log_probs, key=log_probs.get))
    assert {tuple(h.tokens): pytest.approx(h.score, abs=1e-5) for h in hypotheses} == log_probs
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    assert all(h.score == h.log_prob for h in hypotheses)  # no length penalty


@pytest.mark.parametrize("early", [True, False, "never"])
def test_one_beam_is_greedy(early):
    model = Table(7, 1)
    text = [0, 1]
    for _ in range(9):
        row = model.logits_after(text)
        text.append(row.index(max(row)))
        if text[-1] == 3:
            break
    [[h]] = beam_search(model, [0, 1], num_beams=1, max_new_tokens=9, eos_ids=[3], early_stopping=early)
    assert h.tokens == text[2:]


def test_ragged_prompts_of_a_gpt_equal_the_definition():
    """Batched and with a cache, against the definition, which runs the whole text for every token."""
    model = gpt(n_layers=2)
    prompts = [[1, 2, 3], [7], [5, 5, 9, 2, 8]]
    by_row = beam_search(model, prompts, num_beams=4, max_new_tokens=8, eos_ids=[3, 11], n_best=4)
    for prompt, hypotheses in zip(prompts, by_row, strict=True):
        expected = reference.beam(
            lambda tokens, prompt=prompt: model(torch.tensor([prompt + tokens]))[0, -1].tolist(),
            B=4, L=8, eos=[3, 11], n_best=4,
        )  # fmt: skip
        assert [h.tokens for h in hypotheses] == [e[0] for e in expected]
        assert [h.score for h in hypotheses] == pytest.approx([e[1] for e in expected], abs=1e-4)


def test_an_encoder_decoder_takes_the_state_of_its_sources():
    shape = {"n_encoder_layers": 1, "n_decoder_layers": 1, "n_heads": 2, "d_model": 16, "d_ff": 32}
    model = headway.create("transformer", vocab_size=23, context=32, **shape).eval()
    source = torch.randint(23, (2, 5))
    options = {"num_beams": 3, "max_new_tokens": 6, "eos_ids": [2], "n_best": 3}
    together = beam_search(model, [[1], [1]], state=model.start(source=source), **options)
    for i in range(2):
        alone = beam_search(model, [1], state=model.start(source=source[i : i + 1]), **options)
        assert [h.tokens for h in alone[0]] == [h.tokens for h in together[i]]


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.7])
def test_transformers_finds_the_same_texts(tmp_path, early, alpha):
    torch.manual_seed(3)
    model = headway.create("gpt", vocab_size=31, context=40, n_layers=2, n_heads=2, d_model=16, bos_id=1, eos_id=2)
    with torch.no_grad():
        model.embedding.weight.mul_(25)
    model.save(tmp_path / "m")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    prompt = torch.randint(3, 31, (6, 5))
    by_row = beam_search(
        model.eval(), prompt, num_beams=4, max_new_tokens=10, eos_ids=[2], length_penalty=alpha,
        early_stopping=early, n_best=4,
    )  # fmt: skip
    out = theirs.generate(
        prompt, attention_mask=torch.ones_like(prompt), num_beams=4, num_return_sequences=4, max_new_tokens=10,
        do_sample=False, length_penalty=alpha, early_stopping=early, eos_token_id=2, pad_token_id=0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    for row in range(6):
        for rank, h in enumerate(by_row[row]):
            sequence = out.sequences[4 * row + rank, 5:].tolist()
            assert sequence[: len(h.tokens)] == h.tokens
            assert not any(sequence[len(h.tokens) :])
            assert h.score == pytest.approx(out.sequences_scores[4 * row + rank].item(), abs=1e-4)


def test_wrong_requests_name_the_rule():
    model = Table(5, 0)
    for options, message in [
        ({"num_beams": 0}, "num_beams=0 must be a whole number of 1 or more"),
        ({"n_best": 6}, "n_best=6 must be a whole number from 1 to 5"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"length_norm": "log"}, "length_norm='log' must be one of power, gnmt"),
        ({"length_penalty": math.inf}, "length_penalty=inf must be a number"),
        ({"early_stopping": "yes"}, "early_stopping='yes'"),
        ({"pipeline": [{"stage": "top_k", "k": 3}]}, "top_k with beam search"),
        ({"pipeline": [{"stage": "mirostat_v2", "tau": 3.0}]}, "mirostat_v2 with beam search"),
    ]:
        with pytest.raises(ConfigError, match=message):
            beam_search(model, [0, 1], **{"max_new_tokens": 3, **options})
    with pytest.raises(InputError, match="at least one token"):
        beam_search(model, [[0, 1], []], max_new_tokens=3)


def test_a_hypothesis_that_reaches_the_length_limit_has_not_ended():
    [[h]] = beam_search(Table(4, 2), [0, 1], num_beams=2, max_new_tokens=3)
    assert isinstance(h, Hypothesis)
    assert len(h.tokens) == 3
    assert not h.ended
    assert h.tokens_without_eos == h.tokens


def test_log_probabilities_are_summed_in_float64():
    """Three steps of −20,000, and of a thousandth less."""

    class ExtremeTable(Table):
        def logits_after(self, tokens):
            return [0.0, -20000.0, -20000.001]

    banned = [{"stage": "logit_bias", "bias": {0: -math.inf}}]
    options = {"num_beams": 3, "n_best": 3, "max_new_tokens": 3, "length_penalty": 0.0}
    [hypotheses] = beam_search(ExtremeTable(3, 0), [0], pipeline=banned, **options)
    assert [h.log_prob for h in hypotheses] == pytest.approx([-60000.0, -60000.001, -60000.001], abs=1e-7)


def test_ids_may_be_tensors_sets_or_numbers():
    model = Table(7, 1)
    expected = beam_search(model, [0, 1], num_beams=3, max_new_tokens=6, eos_ids=[3, 4])
    for ids in ((3, 4), {3, 4}, torch.tensor([3, 4])):
        assert beam_search(model, torch.tensor([0, 1]), num_beams=3, max_new_tokens=6, eos_ids=ids) == expected
    assert beam_search(model, [0, 1], num_beams=3, max_new_tokens=6, eos_ids=3, early_stopping=1) == beam_search(
        model, [[0, 1]], num_beams=3, max_new_tokens=6, eos_ids=[3], early_stopping=True
    )
    for alpha in (1e4, -1e4):
        assert beam_search(model, [0, 1], num_beams=2, max_new_tokens=4, length_penalty=alpha)
    with pytest.raises(InputError, match="must be a list of token ids; encode text"):
        beam_search(model, "the", max_new_tokens=3)


def test_a_setting_per_prompt_applies_to_its_beams():
    model = Table(6, 5)
    penalties = [{"stage": "repetition_penalty", "penalty": [1.1, 3.0]}]
    together = beam_search(model, [[0, 1], [2, 3]], num_beams=3, max_new_tokens=5, pipeline=penalties, n_best=3)
    for i, (prompt, penalty) in enumerate((([0, 1], 1.1), ([2, 3], 3.0))):
        alone = [{"stage": "repetition_penalty", "penalty": penalty}]
        assert beam_search(model, prompt, num_beams=3, max_new_tokens=5, pipeline=alone, n_best=3)[0] == together[i]


def test_a_wrong_number_of_settings_is_refused():
    for penalties in ([1.1, 1.2, 1.3], [1.1, 1.2]):
        with pytest.raises(ConfigError, match="one value, or one per prompt"):
            beam_search(
                Table(5, 1), [0], max_new_tokens=3, pipeline=[{"stage": "repetition_penalty", "penalty": penalties}]
            )
    mixed = Pipeline.for_rows([[{"stage": "presence_penalty", "penalty": 1.0}], [{"stage": "no_repeat_ngram", "n": 1}]])
    assert len(beam_search(Table(5, 1), [[0], [1]], max_new_tokens=3, pipeline=mixed)) == 2


def test_samplers_that_are_off_are_accepted():
    off = [{"stage": "top_k", "k": 0}, {"stage": "temperature", "temperature": 1}]
    assert beam_search(Table(5, 1), [0], max_new_tokens=3, pipeline=off) == beam_search(
        Table(5, 1), [0], max_new_tokens=3
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_traced_search_finds_the_same_and_its_steps_add_up(seed):
    rng = random.Random(seed)
    V, B, L = rng.randint(4, 9), rng.randint(1, 4), rng.randint(2, 6)
    model, prompts = Table(V, seed), [[rng.randrange(V)] for _ in range(2)]
    options = {"num_beams": B, "max_new_tokens": L, "eos_ids": [0], "length_penalty": 0.7, "n_best": B}
    steps = []
    traced = beam_search(model, prompts, on_step=steps.append, **options)
    assert traced == beam_search(model, prompts, **options)
    for row, prompt in enumerate(prompts):
        live = [([], 0.0)]  # tokens and log-probability of the beams before the step
        row_steps = [step for step in steps if step.row == row]
        for length, step in enumerate(row_steps, start=1):
            assert step.length == length
            assert len(step.candidates) <= 2 * B
            for candidate in step.candidates:
                *prefix, token = candidate.tokens
                parent_tokens, parent_log_prob = live[candidate.parent]
                log_p = torch.tensor(model.logits_after(prompt + prefix)).double().log_softmax(-1)
                assert parent_tokens == prefix
                assert candidate.token_log_prob == pytest.approx(log_p[token].item(), abs=1e-6)
                assert candidate.log_prob == pytest.approx(parent_log_prob + candidate.token_log_prob, abs=1e-6)
                assert candidate.score == pytest.approx(candidate.log_prob / length**0.7)
            fates = [candidate.fate for candidate in step.candidates]
            assert fates.count("live") <= B
            assert all(c.tokens[-1] != 0 for c in step.candidates if c.fate == "live")
            live = [(c.tokens, c.log_prob) for c in step.candidates if c.fate == "live"]
        assert [step.is_done for step in row_steps] == [False] * (len(row_steps) - 1) + [True]
        ended = {tuple(c.tokens): c.score for step in row_steps for c in step.candidates if c.fate == "finished"}
        best = sorted(ended.items(), key=lambda item: -item[1])[:B]
        assert [tuple(h.tokens) for h in traced[row]] == [tokens for tokens, _ in best]


def test_rows_of_unequal_length_are_traced_under_their_own_number():
    steps = []
    beam_search(Table(5, 1), [[1], [2, 3]], num_beams=2, max_new_tokens=3, on_step=steps.append)
    assert {step.row for step in steps} == {0, 1}
