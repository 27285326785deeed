"""Quizzes 9 to 12: operations and bytes of a product, of the query projection, of the KV cache, and of summarising."""

from typing import Any

from headway.config import model_config
from headway.costs import count_pass, decode_state
from headway.costs.formula import symbols
from headway.costs.operations import product, product_elements, product_flops
from headway.exercises.polynomials import Monomial, Polynomial, describe_monomial, parse_polynomial
from headway.exercises.quiz import FormulaAnswer, FormulaPart, Quiz, Solution, Verdict

# ── 9: a product of two matrices ──────────────────────────────────────────────────────────────────────────────────


def _formula(text: str, names: str = "bnsmkdL") -> Polynomial:
    return parse_polynomial(text, names)


FIRST_ADDITION = "that is exact: a sum of {} products takes one addition less. The lecture counts {}."


def solve_product() -> Solution:
    # The functions of costs/operations.py only add and multiply, so they take formulas as well as numbers.
    n_m_k: Any = [Polynomial.symbol(name) for name in "nmk"]
    flops: Any = product_flops(*n_m_k)
    elements: Any = product_elements(*n_m_k)
    sizes = {"n": 3, "m": 4, "k": 5}
    operations = FormulaPart(
        "operations",
        flops,
        also_right=[(_formula("nk(2m-1)"), FIRST_ADDITION.format("m", flops))],
        wrong=[
            (_formula("nmk"), "you counted a multiplication with its addition as one operation. Each of the nk "
                              "entries of AB "
                              "takes m multiplications and m additions."),
            (_formula("nk"), "nk is the number of entries of AB. Each is a sum of m products."),
            (_formula("n²mk"), "every entry is computed once: there are nk of them, each a sum of m products."),
        ],
    )  # fmt: skip
    moved = FormulaPart(
        "elements read and written",
        elements,
        wrong=[
            (_formula("nm+mk"), "you counted what is read. AB, n × k, is written too."),
            (_formula("nk"), "you counted what is written. A and B are read too."),
            (_formula("nm+mk+nm"), "the result has n × k entries, not n × m."),
            (_formula("nm+mk+mk"), "the result has n × k entries, not m × k."),
            (_formula("nm+mk+nmk"), "the result has n × k entries. nmk is half the operations."),
            (_formula("nmk"), "that is half the operations. Add the entries of A, of B and of AB."),
        ],
    )
    method = "AB has nk entries, each a sum of m products; A has nm entries, B mk."
    answer = FormulaAnswer("nmk", [operations, moved], sizes, method=method)
    explanation = (
        f"Each of the n k entries of AB takes m multiplications and m additions: {flops} operations. A is read, B is "
        f"read, AB is written: {elements} elements. A slide has another last term; the result is n × k. For n = "
        "3, m = 4, "
        f"k = 5: {product_flops(**sizes)} operations and {product_elements(**sizes)} elements."
    )
    return Solution(answer, explanation)


PRODUCT = Quiz(
    9,
    "product",
    "operations and IO of a product",
    "E",
    "A is n × m and B is m × k. How many operations (multiplications and additions) does AB take, and how many "
    "elements are read and written?",
    "two formulas in n, m and k, or their values for n = 3, m = 4, k = 5",
    solve_product,
)

# ── 10: the query projection ──────────────────────────────────────────────────────────────────────────────────────

SLIDE_CONSTANT = "the slides drop the constant: exactly it is {}, a multiplication and an addition each."


def solve_projection() -> Solution:
    n, d, k = symbols("n d k")
    width_of_a_head = _formula("d/m")
    one_head = Polynomial.of(product("queries of one head", "layer", n, d, k).flops).substituted("k", width_of_a_head)
    all_heads_product = product("queries of all heads", "layer", n, d, d)
    all_heads, moved = Polynomial.of(all_heads_product.flops), Polynomial.of(all_heads_product.elements)
    halves = [formula * Polynomial.constant(1) * _formula("1/2") for formula in (one_head, all_heads)]
    one = FormulaPart(
        "operations of one head",
        one_head,
        also_right=[
            (halves[0], SLIDE_CONSTANT.format(one_head)),
            (_formula("bn(2d-1)d/m"), FIRST_ADDITION.format("d", one_head)),
        ],
        wrong=[
            (halves[1], "that is all heads. One head has d/m columns of W^Q."),
            (all_heads, "that is all heads. One head has d/m columns of W^Q."),
            (_formula("bnd/m"), "you counted the outputs, bn · d/m. Each is a sum over d inputs."),
        ],
    )
    everything = FormulaPart(
        "operations of all heads",
        all_heads,
        also_right=[
            (halves[1], SLIDE_CONSTANT.format(all_heads)),
            (_formula("bn(2d-1)d"), FIRST_ADDITION.format("d", all_heads)),
        ],
        wrong=[
            (_formula("bnd²m"), "you multiplied by the heads twice: m heads of d/m columns are d columns."),
            (_formula("2bnd²m"), "you multiplied by the heads twice: m heads of d/m columns are d columns."),
            (halves[0], "that is one head. All m heads together have d columns."),
            (one_head, "that is one head. All m heads together have d columns."),
        ],
    )
    read_and_written = FormulaPart(
        "elements of all heads",
        moved,
        wrong=[
            (_formula("2bnd"), "you forgot to read the weights W^Q, d × d."),
            (_formula("bnd+d²"), "the inputs, bnd, are read and the queries, bnd, are written."),
            (_formula("bnd²"), "those are the operations. Count the entries of X, of W^Q and of Q."),
        ],
    )
    method = "X is bn × d; the W^Q of one head is d × d/m, and of all heads d × d."
    answer = FormulaAnswer("bndm", [one, everything, read_and_written], method=method, n_optional=1)
    explanation = (
        f"X is bn × d. One head's W^Q is d × d/m: {one_head} operations. All m heads together are one product with a "
        f"d × d matrix: {all_heads} operations, whatever m is, and {moved} elements: X, Q and W^Q. "
        "The slides drop the factor 2: bnd²/m and bnd²."
    )
    return Solution(answer, explanation)


PROJECTION = Quiz(
    10,
    "projection",
    "cost of the query projection",
    "E",
    "b texts of n tokens, width d, m heads. How many operations does the Q projection take for one head, and for all "
    "heads? How many elements do all heads read and write? (The slides drop the factor 2 of operations; so may you.)",
    "three formulas in b, n, d and m",
    solve_projection,
)

# ── 11: the KV cache ──────────────────────────────────────────────────────────────────────────────────────────────


def solve_kv_cache() -> Solution:
    state = decode_state(model_config("gpt2"), seq_len=1024, bytes_per_element=2)
    assert state is not None
    elements = Polynomial.of(state.elements).without("b")  # one text
    part = FormulaPart(
        "elements",
        elements,
        also_right=[(Polynomial.of(state.elements), "with a batch of b texts.")],
        wrong=[
            (_formula("ndL"), "You counted keys or values. Both are kept."),
            (_formula("2nd"), "You counted one layer. All L layers have keys and values of their own."),
            (_formula("nd"), "You counted the keys of one layer. Values are kept too, in all L layers."),
            (_formula("3ndL"), "Queries are not kept: only the newest token asks."),
            (_formula("4ndL"), "In 16 bits that would be the bytes. The quiz asks for numbers."),
            (_formula("n²L"), "That is the size of the attention weights. They are not kept."),
            (_formula("2n²dL"), "One key and one value per token, not per pair of tokens."),
        ],
    )
    method = "A key and a value of d numbers for each of n tokens in each of L layers."
    explanation = (
        f"Each of n tokens has a key and a value of d numbers in each of L layers: {elements}. GPT-2 small, "
        "with d = 768 "
        f"and L = 12, keeps {state.elements.evaluate(state.sizes):,} numbers for 1,024 tokens: "
        f"{state.nbytes / 1e6:.1f} MB in 16 bits. The number of heads "
        "does not matter, unless heads share keys and values (grouped-query attention)."
    )  # fmt: skip
    sizes = {"b": 1, "n": 1024, "d": 768, "L": 12}
    return Solution(FormulaAnswer("bndL", [part], sizes, may_round=True, method=method), explanation)


KV_CACHE = Quiz(
    11,
    "kv-cache",
    "memory of the KV cache",
    "E",
    "How many numbers does the KV cache of one text hold after n tokens, in a decoder of L layers and width d?",
    "a formula in n, d and L, or its value for n = 1024, d = 768, L = 12",
    solve_kv_cache,
)

# ── 12: summarising ───────────────────────────────────────────────────────────────────────────────────────────────

REASONS = {
    "s² d": "the encoder's self-attention: every source token attends to every other",
    "n² d": "the decoder's self-attention: every target token attends to those before it",
    "n s d": "cross-attention: every target token attends to every source token",
    "s d²": "the encoder's projections and feed-forward networks; keys and values of cross-attention",
    "n d²": "the decoder's projections and feed-forward networks",
}


class SummaryAnswer:
    """Formulas whose constants do not matter. Terms that are linear in the lengths may be left out, and d too."""

    def __init__(self, monomials: frozenset[Monomial]):
        self.precise = monomials
        self.with_d = frozenset(m for m in monomials if _lengths(m) == 2)
        self.without_d = frozenset(_without(m, "d") for m in self.with_d)

    def __str__(self) -> str:
        return " + ".join(describe_monomial(m) for m in sorted(self.without_d, key=_lecture_order))

    def grade(self, text: str) -> Verdict:
        student_terms = parse_polynomial(text, "bnsd").without("b").monomials
        linear = frozenset(_without(m, "d") for m in self.precise)
        has_d = any(name == "d" for m in student_terms for name, _ in m)
        required, allowed = (self.with_d, self.precise) if has_d else (self.without_d, linear)
        missing, extra = required - student_terms, student_terms - allowed
        if not missing and not extra:
            return Verdict(True, "")
        full_names = {_without(m, "d"): m for m in self.with_d} if not has_d else {m: m for m in self.with_d}
        reasons = [f"{describe_monomial(m)} is missing: {REASONS[describe_monomial(full_names[m])]}." for m in missing]
        reasons += [f"{describe_monomial(m)} does not occur: {_why_not(m)}." for m in extra]
        return Verdict(False, "\n".join(sorted(reasons)))


def _why_not(monomial: Monomial) -> str:
    return "nothing pairs that many tokens" if _lengths(monomial) else "leave out what does not grow with n or s"


def _lengths(monomial: Monomial) -> int:
    return sum(power for name, power in monomial if name in "ns")


def _lecture_order(monomial: Monomial) -> tuple[int, str, int]:
    """n² d, n d², s² d, s d², n s d: the target, the source, both."""
    lengths = "".join(name for name, _ in monomial if name in "ns")
    return len(lengths), lengths, -_lengths(monomial)


def _without(monomial: Monomial, symbol: str) -> Monomial:
    return tuple((name, power) for name, power in monomial if name != symbol)


def solve_summary() -> Solution:
    forward = count_pass(model_config("transformer-base"), seq_len=100, source_len=1000)
    assert forward is not None
    layers = [o for o in forward.operations if o.is_product and o.stage != "output"]
    total = sum((Polynomial.of(operation.flops) for operation in layers), Polynomial({})).without("b")
    answer = SummaryAnswer(total.monomials)
    precise = " + ".join(describe_monomial(m) for m in sorted(total.monomials, key=_lecture_order))
    coefficients = dict.fromkeys(REASONS, 0)
    for operation in layers:
        for monomial, coefficient in Polynomial.of(operation.flops).terms.items():
            coefficients[describe_monomial(_without(monomial, "b"))] += operation.repeats * int(coefficient)
    flops = {name: n * parse_polynomial(name, "nsd").evaluate(**forward.sizes) for name, n in coefficients.items()}
    crossing = coefficients["s d²"] / coefficients["s² d"]
    width = forward.sizes["d"]
    rows = [f"  {name:<6}{float(flops[name]) / 1e9:6.2f} GFLOPs   {reason}" for name, reason in REASONS.items()]
    explanation = (
        f"Precisely: {precise}, with constants dropped. transformer-base, 1,000 source tokens and 100 target tokens:\n"
        + "\n".join(rows)
        + f"\nThe quadratic term of the source overtakes its linear one at s = {crossing:g} d = "
        f"{crossing * width:,.0f} tokens."
    )
    return Solution(answer, explanation)


SUMMARY = Quiz(
    12,
    "summary",
    "cost of summarising",
    "E",
    "An encoder-decoder summarises s source tokens in n target tokens. How does its cost grow with n and s? Drop "
    "constants; you may drop d too.",
    "a formula in n and s (and d)",
    solve_summary,
)
