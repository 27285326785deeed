"""`check_homework`: a right solution passes, and each planted mistake is named, in its part only.

Mistakes are planted by changing lines of examples/own_transformer.py, each in several spellings.
"""

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.errors import HeadwayError
from headway.exercises.homework import MISTAKES, check, check_homework, diagnosis, parts, reference
from headway.exercises.homework.student_code import imported_file
from headway.nn import dot_product_attention, masks
from headway.nn.positions import sinusoid
from tests.cli.running import run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SOLUTION = (EXAMPLES / "own_transformer.py").read_text(encoding="utf-8")
BLANKS = EXAMPLES / "homework" / "homework.py"

SCORES = "scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))"
MASK = "scores = scores.masked_fill(~mask, -math.inf)"
SOFTMAX = "weights = scores.softmax(dim=-1)  # each query's weights sum to 1"
MASKED_SOFTMAX = f"    if mask is not None:\n        {MASK}\n    {SOFTMAX}\n"
TRIANGLE = "torch.ones(1, n, n, dtype=torch.bool).tril()"
CONNECTION = "output: Tensor = x + self.dropout(sublayer(self.norm(x)))"
LINEARS = "self.linears = clones(nn.Linear(d_model, d_model), 4)  # W^Q, W^K, W^V and W^O"
HEADS = "heads, _ = attention(q, k, v, mask, self.dropout)  # (B, H, T, K)"
SPLIT = "return x.view(x.size(0), -1, self.n_heads, self.d_head).transpose(1, 2)"
LAYERS = "for layer in self.layers:\n            x = layer(x, mask)\n        output: Tensor = self.norm(x)"
POSITION = "position = torch.arange(max_length).unsqueeze(1)  # (T, 1)"

OWN_HEADS = (  # attention written anew inside MultiHeadAttention
    "scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))\n"
    "        if mask is not None:\n            scores = scores.masked_fill(mask == 0, {fill})\n"
    "        heads = scores.softmax({axis}) @ v"
)

# Mistake → part, and the changes that plant it: each a tuple of old and new text.
PLANTED = {
    "no scale": [
        ("attention", SCORES, "scores = query @ key.transpose(-2, -1)"),
        ("attention", SCORES, "scores = torch.einsum('...td,...sd->...ts', query, key) / 1.0"),
        ("multi-head attention", HEADS, "heads, _ = attention(q * math.sqrt(q.size(-1)), k, v, mask, self.dropout)"),
    ],
    "mask after softmax": [
        ("attention", MASKED_SOFTMAX, "    weights = scores.softmax(dim=-1)\n    if mask is not None:\n"
                                      "        weights = weights.masked_fill(~mask, 0.0)\n"),
        ("attention", MASKED_SOFTMAX, "    weights = scores.softmax(dim=-1)\n    if mask is not None:\n"
                                      "        weights = weights * mask\n"),
        ("attention", MASKED_SOFTMAX, "    weights = scores.softmax(dim=-1)\n    if mask is not None:\n"
                                      "        weights = weights.masked_fill(~mask, -1e9)\n"),
        ("attention", MASKED_SOFTMAX, "    weights = scores.softmax(dim=-1)\n    if mask is not None:\n"
                                      "        weights = weights.masked_fill(~mask, -math.inf)\n"),
    ],
    "softmax over the wrong axis": [
        ("attention", "scores.softmax(dim=-1)", "scores.softmax(dim=-2)"),
        ("attention", "scores.softmax(dim=-1)", "F.softmax(scores, dim=1)"),
        ("attention", "scores.softmax(dim=-1)", "scores.softmax(0)"),
        ("attention", "scores.softmax(dim=-1)", "scores.transpose(-2, -1).softmax(-1).transpose(-2, -1)"),
        ("attention", MASKED_SOFTMAX, "    if mask is not None:\n        scores = scores + (~mask) * -1e9\n"
                                      "    weights = scores.softmax(dim=-2)\n"),
        *(("multi-head attention", HEADS, OWN_HEADS.format(axis=axis, fill=fill))
          for axis in (1, -2, 0) for fill in (-1e9, "-math.inf")),
        ("generator", "F.log_softmax(self.projection(x), dim=-1)", "F.log_softmax(self.projection(x), dim=1)"),
    ],
    "mask inverted": [
        ("attention", MASK, "scores = scores.masked_fill(mask, -math.inf)"),
        ("attention", MASK, "scores = scores.masked_fill(mask, -1e9)"),
        ("attention", MASK, "scores = scores.masked_fill(mask != 0, torch.finfo(scores.dtype).min)"),
        ("multi-head attention", HEADS, OWN_HEADS.replace("== 0", "== 1").format(axis=-1, fill=-1e9)),
    ],
    "mask fills with +∞": [("attention", MASK, "scores = scores.masked_fill(~mask, 1e9)")],
    "mask fills with 0": [
        ("attention", MASK, "scores = scores.masked_fill(~mask, 0)"),
        ("attention", MASK, "scores = scores.masked_fill(~mask, 1e-9)"),
        ("attention", MASK, "scores = scores * mask"),
    ],
    "no √d on embeddings": [
        ("embeddings", "return x * math.sqrt(self.d_model)", "return x"),
        ("embeddings", "self.d_model = d_model", "self.d_model = 1"),
    ],
    "swapped Q and K": [
        ("attention", SCORES, "scores = key @ query.transpose(-2, -1) / math.sqrt(query.size(-1))"),
        ("attention", SCORES, "query, key = key, query\n    " + SCORES),
        ("multi-head attention", "to_query, to_key, to_value, to_output = self.linears",
         "to_key, to_query, to_value, to_output = self.linears"),
        ("multi-head attention", "attention(q, k, v,", "attention(k, q, v,"),
        ("multi-head attention", "        q = self", "        query, key = key, query\n        q = self"),
        ("decoder layer", "self.cross_attention(x, memory, memory, source_mask)",
         "self.cross_attention(memory, x, memory, source_mask)"),
        ("decoder layer", "self.cross_attention(x, memory, memory, source_mask)",
         "self.cross_attention(memory, x, x, source_mask)"),
    ],
    "missing residual": [
        ("sublayer", CONNECTION, "output: Tensor = self.dropout(sublayer(self.norm(x)))"),
        ("sublayer", CONNECTION, "output: Tensor = self.norm(x)\n        output = self.dropout(sublayer(output))"),
        ("sublayer", CONNECTION, "output: Tensor = self.norm(self.dropout(sublayer(x)))"),
        ("encoder layer", "x = self.sublayers[0](x, lambda x: self.self_attention(x, x, x, mask))",
         "x = self.self_attention(x, x, x, mask)"),
        ("encoder layer", "output: Tensor = self.sublayers[1](x, self.feed_forward)",
         "output: Tensor = self.feed_forward(self.sublayers[1].norm(x))"),
        ("decoder layer", "x = self.sublayers[1](x, lambda x: self.cross_attention(x, memory, memory, source_mask))",
         "x = self.cross_attention(self.sublayers[1].norm(x), memory, memory, source_mask)"),
    ],
    "norm order": [
        ("sublayer", CONNECTION, "output: Tensor = self.norm(x + self.dropout(sublayer(x)))"),
        ("sublayer", CONNECTION, "output: Tensor = x + self.dropout(self.norm(sublayer(x)))"),
        ("sublayer", CONNECTION, "x = self.norm(x)\n        output: Tensor = x + self.dropout(sublayer(x))"),
        ("sublayer", CONNECTION, "x = x + self.dropout(sublayer(x))\n        output: Tensor = self.norm(x)"),
        ("sublayer", CONNECTION, "output: Tensor = self.norm(x) + self.dropout(sublayer(x))"),
        ("sublayer", CONNECTION, "output: Tensor = self.norm(x + self.dropout(sublayer(self.norm(x))))"),
        ("encoder", LAYERS, "output: Tensor = self.norm(x)\n        for layer in self.layers:\n"
                            "            output = layer(output, mask)"),
    ],
    "mask off by one": [
        ("mask", TRIANGLE, "torch.ones(1, n, n, dtype=torch.bool).tril(1)"),
        ("mask", TRIANGLE, "torch.ones(1, n, n, dtype=torch.bool).tril(diagonal=-1)"),
        ("mask", TRIANGLE, "~torch.ones(1, n, n, dtype=torch.bool).triu(2)"),
        ("mask", TRIANGLE, "torch.triu(torch.ones(1, n, n), diagonal=0) == 0"),
        ("mask", TRIANGLE, "torch.arange(n)[None, None] < torch.arange(n)[None, :, None]"),
        *(("attention", MASK, f"mask = {moved}\n        {MASK}") for moved in (
            "mask.roll(1, -1)", "mask.roll(-1, -1)", "mask.roll(1, -2)", "F.pad(mask, (1, 0))[..., :-1]",
            "mask & torch.ones_like(mask).tril(-1)", "mask & torch.ones_like(scores, dtype=torch.bool).tril(-1)",
            "mask | torch.ones_like(scores, dtype=torch.bool).tril(1)")),
        ("attention", MASK, "scores = scores.masked_fill(~mask.roll(1, -1), -1e9)"),
        ("multi-head attention", "mask = mask.unsqueeze(1)", "mask = F.pad(mask, (0, 1))[..., 1:].unsqueeze(1)"),
        ("multi-head attention", HEADS, OWN_HEADS.replace("mask == 0", "mask.roll(-1, -2) == 0")
                                                 .format(axis=-1, fill=-1e9)),
        ("decoder layer", "self.self_attention(x, x, x, target_mask)",
         "self.self_attention(x, x, x, None if target_mask is None else target_mask | target_mask.roll(-1, -2))"),
        ("decoder layer", "self.self_attention(x, x, x, target_mask)",
         "self.self_attention(x, x, x, None if target_mask is None else F.pad(target_mask, (0, 1))[..., 1:])"),
        ("encoder layer", "self.self_attention(x, x, x, mask)",
         "self.self_attention(x, x, x, None if mask is None else mask.roll(1, -1))"),
        ("decoder", "x = layer(x, memory, source_mask, target_mask)",
         "x = layer(x, memory, source_mask, None if target_mask is None else target_mask.roll(1, -1))"),
    ],
    "shared head weights": [
        ("multi-head attention", SPLIT, SPLIT + "[:, :1].expand(-1, self.n_heads, -1, -1)"),
        ("multi-head attention", HEADS, HEADS + "\n        heads = heads[:, :1].repeat(1, self.n_heads, 1, 1)"),
        ("multi-head attention", "q = self.split_heads(to_query(query))",
         "q = self.split_heads(to_query(query)[..., : self.d_head].repeat(1, 1, self.n_heads))"),
        ("multi-head attention", HEADS, HEADS + "\n        heads = heads[:, 1:2].expand_as(heads)"),
        ("multi-head attention", "to_query(query)",
         "F.linear(query, to_query.weight[: self.d_head].repeat(self.n_heads, 1), to_query.bias)"),
        ("multi-head attention", LINEARS, "self.linears = nn.ModuleList([nn.Linear(d_model, d_model)] * 4)"),
        ("multi-head attention", LINEARS, LINEARS + "\n        for linear in self.linears[:3]:\n            "
         "linear.weight.data = linear.weight.data[: self.d_head].repeat(n_heads, 1)"),
        ("multi-head attention", LINEARS,
         "self.linears = nn.ModuleList([nn.Linear(d_model, self.d_head) for _ in range(3)])\n"
         "        self.linears.append(nn.Linear(d_model, d_model))"),
        ("multi-head attention", "to_query, to_key, to_value, to_output = self.linears",
         "to_query, _, _, to_output = self.linears\n        to_key = to_value = to_query"),
        ("clones", "return nn.ModuleList(copy.deepcopy(module) for _ in range(n))",
         "return nn.ModuleList(module for _ in range(n))"),
    ],
    "positional encoding off by one": [
        ("positional encoding", POSITION, "position = torch.arange(1, max_length + 1).unsqueeze(1)"),
        ("positional encoding", "self.encoding[: x.size(1)]", "self.encoding[1 : x.size(1) + 1]"),
        ("positional encoding", POSITION, "position = torch.arange(-1, max_length - 1).unsqueeze(1)"),
        ("positional encoding", "torch.arange(0, d_model, 2)", "torch.arange(2, d_model + 2, 2)"),
        ("positional encoding", "self.encoding[: x.size(1)]", "self.encoding[: x.size(1) - 1]"),
        ("positional encoding", "torch.arange(0, d_model, 2)", "torch.arange(1, d_model, 2)"),
        ("positional encoding", "self.encoding[: x.size(1)]", "self.encoding.roll(1, 0)[: x.size(1)]"),
        ("positional encoding", "torch.sin(position * frequency)", "torch.sin((position + 1) * frequency)"),
    ],
}  # fmt: skip
CASES = [(mistake, *change) for mistake, changes in PLANTED.items() for change in changes]


def changed(old: str, new: str, text: str = SOLUTION) -> str:
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


def report_on(tmp_path, text):
    file = tmp_path / "solution.py"
    file.write_text(text, encoding="utf-8")
    return check_homework(file)


def test_the_lectures_implementation_passes():
    report = check_homework(EXAMPLES / "own_transformer.py")
    assert report.passed, report
    assert not report.mistakes


@pytest.mark.parametrize(("mistake", "part", "old", "new"), CASES)
def test_a_planted_mistake_is_named_in_its_part_and_nowhere_else(mistake, part, old, new, tmp_path):
    report = report_on(tmp_path, changed(old, new))
    assert report.mistakes == [mistake], report
    assert [result.name for result in report.results if result.status != "right"] == [part], report
    assert mistake in str(report)
    assert report[part].message


ADD_POSITIONS = "output: Tensor = self.dropout(x + self.encoding[: x.size(1)])"
IN_PLACE = {
    "attention": (SCORES, "query /= math.sqrt(query.size(-1))\n    scores = query @ key.transpose(-2, -1)"),
    "masked scores": (MASK, "scores.masked_fill_(~mask, -math.inf)"),
    "positional encoding": (ADD_POSITIONS, "x += self.encoding[: x.size(1)]\n        output: Tensor = self.dropout(x)"),
    "sublayer": (CONNECTION, "x += self.dropout(sublayer(self.norm(x)))\n        output: Tensor = x"),
    "encoder layer": ("output: Tensor = self.sublayers[1](x, self.feed_forward)",
                      "x += self.feed_forward(self.sublayers[1].norm(x))\n        output: Tensor = x"),
    "decoder layer": ("output: Tensor = self.sublayers[2](x, self.feed_forward)",
                      "x += self.feed_forward(self.sublayers[2].norm(x))\n        output: Tensor = x"),
}  # fmt: skip


@pytest.mark.parametrize("place", IN_PLACE)
def test_a_right_solution_may_work_in_place(place, tmp_path):
    report = report_on(tmp_path, changed(*IN_PLACE[place]))
    assert report.passed, report


def test_a_mistake_in_place_is_named(tmp_path):
    shifted = "x += self.encoding[1 : x.size(1) + 1]\n        output: Tensor = self.dropout(x)"
    assert report_on(tmp_path, changed(ADD_POSITIONS, shifted)).mistakes == ["positional encoding off by one"]
    alone = "x = self.dropout(sublayer(self.norm(x)))\n        x += 0\n        output: Tensor = x"
    assert report_on(tmp_path, changed(CONNECTION, alone)).mistakes == ["missing residual"]


def test_a_part_that_changes_its_mask_is_told(tmp_path):
    report = report_on(tmp_path, changed(MASK, "mask.logical_not_()\n        scores.masked_fill_(mask, -math.inf)"))
    assert "changes the mask that it is given" in report["attention"].message
    assert [result.name for result in report.results if result.status != "right"] == ["attention"]


@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.symbol)
def test_every_call_has_inputs_of_its_own(part):
    """Code that wipes what it is given gets the same again."""
    seen = []

    def wipe(*inputs, **_):
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.dtype != torch.bool]
        seen.append([x.clone() for x in tensors])
        for x in tensors:
            x.zero_()
        return torch.zeros(1)

    for _ in range(2):
        for case in part.cases.values():
            case([wipe, wipe] if part.symbol == "clones" else wipe)
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert all(torch.equal(x, y) for xs, ys in zip(first, second, strict=True) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("hidden", ["(~mask)", "(1 - mask.float())"])
def test_nan_is_not_taken_for_a_known_mistake(hidden, tmp_path):
    added = f"scores = scores + {hidden} * -math.inf"
    result = report_on(tmp_path, changed(MASK, added))["attention"]
    assert (result.status, result.mistakes) == ("wrong", ())
    assert "your weights are NaN: 0 times −∞" in result.message
    assert "masked_fill(~mask, −∞)" in result.message
    own = OWN_HEADS.replace("scores.masked_fill(mask == 0, {fill})", f"scores + {hidden} * -math.inf").format(axis=-1)
    result = report_on(tmp_path, changed(HEADS, own))["multi-head attention"]
    assert (result.status, result.mistakes) == ("wrong", ())
    assert "your output is NaN: 0 times −∞" in result.message


def test_a_mistake_beside_nan_is_named(tmp_path):
    text = changed(MASK, "scores = scores + (~mask) * -math.inf", changed("softmax(dim=-1)", "softmax(dim=-2)"))
    result = report_on(tmp_path, text)["attention"]
    assert result.mistakes == ("softmax over the wrong axis",)
    assert "NaN" in result.message


def test_remedies_speak_of_the_part(tmp_path):
    message = report_on(tmp_path, changed("F.log_softmax(self.projection(x), dim=-1)",
                                          "F.log_softmax(self.projection(x), dim=1)"))["generator"].message  # fmt: skip
    assert "over the vocabulary, the last axis: log_softmax(dim=-1)" in message
    assert "quer" not in message
    message = report_on(tmp_path, changed(MASK, "scores = scores.masked_fill(~mask, 1e-9)"))["attention"].message
    assert message.startswith("You fill with 0 (or a number near 0), not −∞")


def test_two_mistakes_in_one_part_are_both_named(tmp_path):
    text = changed(SCORES, "scores = query @ key.transpose(-2, -1)", changed("softmax(dim=-1)", "softmax(dim=-2)"))
    report = report_on(tmp_path, text)
    assert sorted(report["attention"].mistakes) == ["no scale", "softmax over the wrong axis"]


def test_mistakes_in_several_parts_are_named_apart(tmp_path):
    text = changed("x * math.sqrt(self.d_model)", "x", changed(TRIANGLE, "torch.ones(1, n, n).tril(1) > 0"))
    report = report_on(tmp_path, changed(CONNECTION, "output: Tensor = self.dropout(sublayer(self.norm(x)))", text))
    assert report.mistakes == ["mask off by one", "no √d on embeddings", "missing residual"]
    assert report["whole model"].status == "right"
    assert "causal_mask, Embeddings, SublayerConnection" in report["whole model"].message


def test_an_unknown_mistake_is_located(tmp_path):
    report = report_on(tmp_path, changed("return weights @ value, weights", "return weights @ value + 0.25, weights"))
    result = report["attention"]
    assert (result.status, result.mistakes) == ("wrong", ())
    assert result.difference == pytest.approx(0.25, abs=1e-5)
    assert "output[" in result.message
    assert "240 of 240 numbers differ" in result.message


def test_a_mistake_in_the_assembly_is_named(tmp_path):
    text = changed("target_mask = causal_mask(target.size(1))", "target_mask = None")
    assert report_on(tmp_path, text)["whole model"].mistakes == ("no causal mask",)
    text = changed("new(attend), new(attend), new(feed_forward)", "attend, attend, new(feed_forward)")
    result = report_on(tmp_path, text)["whole model"]
    assert result.mistakes == ("shared weights",)
    assert "self_attention.linears.0.weight and" in result.message
    assert result.message.startswith("decoder.layers.0.")  # a name, as it is


def test_the_side_without_a_root_is_told(tmp_path):
    for side in ("source", "target"):
        old = f"Embeddings({side}_vocab, d_model),"
        result = report_on(tmp_path, changed(old, old.replace("),", ").table,")))["whole model"]
        assert result.mistakes == ("no √d on embeddings",)
        assert f"The vectors of the {side} are the rows of the table" in result.message


def test_heads_that_share_a_projection_in_another_way_are_named(tmp_path):
    averaged = "x.view(x.size(0), -1, self.n_heads, self.d_head).mean(2, keepdim=True).transpose(1, 2)"
    text = changed(SPLIT, f"return {averaged}.expand(-1, self.n_heads, -1, -1)")
    assert report_on(tmp_path, text).mistakes == ["shared head weights"]


def test_blanks_are_not_done_yet_and_the_rest_is_checked(tmp_path):
    assert {result.status for result in check_homework(BLANKS).results} == {"not done yet"}
    report = report_on(tmp_path, changed("    scores = query", "    raise NotImplementedError\n    scores = query"))
    assert {result.status for result in report.results if result.name != "attention"} == {"right"}
    assert report["attention"].status == "not done yet"
    line = report["attention"].line
    assert (tmp_path / "solution.py").read_text().splitlines()[line - 1].strip() == "raise NotImplementedError"
    report = report_on(tmp_path, changed("return F.log_softmax(self.projection(x), dim=-1)", "pass"))
    assert report["generator"].status == "not done yet"  # it returns None


def test_a_crash_is_reported_with_its_line(tmp_path):
    report = report_on(tmp_path, changed("F.relu(self.up(x))", "F.relu(self.upp(x))"))
    result = report["feed-forward"]
    assert result.status == "crashed"
    assert f"solution.py, line {result.line}: AttributeError" in result.message
    assert "self.upp" in (tmp_path / "solution.py").read_text().splitlines()[result.line - 1]
    assert [r.name for r in report.results if r.status != "right"] == ["feed-forward"]


def test_a_mistake_beside_a_crash_is_named(tmp_path):
    moved = "self.self_attention(x, x, x, target_mask | target_mask.roll(-1, -2))"  # there may be none
    result = report_on(tmp_path, changed("self.self_attention(x, x, x, target_mask)", moved))["decoder layer"]
    assert (result.status, result.mistakes) == ("crashed", ("mask off by one",))
    assert "AttributeError" in result.message
    assert "You use the target mask" in result.message


def test_missing_names_and_other_parameters_are_told(tmp_path):
    report = report_on(
        tmp_path, SOLUTION.replace("class FeedForward(", "class FFN(").replace("= FeedForward(", "= FFN(")
    )
    assert (report["FeedForward"].status, report["whole model"].status) == ("missing", "right")
    result = report_on(tmp_path, changed("nn.Linear(d_model, d_ff)", "nn.Linear(d_model, d_ff, bias=False)"))[
        "FeedForward"
    ]
    assert "Missing: up.bias (32,)" in result.message


def test_renamed_modules_are_matched_in_order(tmp_path):
    assert report_on(tmp_path, SOLUTION.replace("self.linears", "self.projections")).passed


NAMES = ("to_query, to_key, to_value, to_output = self.linears",
         "to_query, to_key, to_value, to_output = self.wq, self.wk, self.wv, self.wo")  # fmt: skip


def with_own_names(*names):
    made = "\n        ".join(f"self.{name} = nn.Linear(d_model, d_model)" for name in names)
    return changed(*NAMES, changed(LINEARS, made))


def test_projections_in_another_order_are_told_and_not_diagnosed(tmp_path):
    assert report_on(tmp_path, with_own_names("wq", "wk", "wv", "wo")).passed
    for order in (("wo", "wv", "wk", "wq"), ("wk", "wq", "wv", "wo")):
        result = report_on(tmp_path, with_own_names(*order))["multi-head attention"]
        assert (result.status, result.mistakes) == ("wrong", ())
        assert "right if W^Q, W^K, W^V and W^O are wq, wk, wv, wo" in result.message
        assert "matched by order when names differ: keep the names of homework.py" in result.message
    swapped = with_own_names("wq", "wk", "wv", "wo").replace("self.wq, self.wk,", "self.wk, self.wq,")
    assert report_on(tmp_path, swapped).mistakes == ["swapped Q and K"]
    swapped = changed("to_query, to_key, to_value, to_output", "to_key, to_query, to_value, to_output")
    assert report_on(tmp_path, swapped.replace("self.linears", "self.maps")).mistakes == ["swapped Q and K"]
    text = changed("to_output(concatenated)", "to_output(concatenated) + 1", with_own_names(*order))
    assert "in another order" in report_on(tmp_path, text)["multi-head attention"].message


def test_joint_projections_are_not_called_shared(tmp_path):
    text = changed(LINEARS, "self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)")
    body = "wq, wk, wv = self.qkv.weight.chunk(3)\n        bq, bk, bv = self.qkv.bias.chunk(3)\n        "
    text = changed(NAMES[0], body + "to_query, to_key, to_value = (lambda x, w=w, b=b: F.linear(x, w, b) for w, b in "
                   "((wq, bq), (wk, bk), (wv, bv)))\n        to_output = self.out", text)  # fmt: skip
    result = report_on(tmp_path, text)["multi-head attention"]
    assert (result.status, result.mistakes) == ("wrong", ())
    assert "Its parameters are not those of examples/homework/homework.py; keep __init__" in result.message
    assert "Not expected: qkv.weight (72, 24)" in result.message


def test_code_that_does_not_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "PART_SECONDS", 0.6)  # enough for a right part on a slow machine
    loop = "    while True:\n        try:\n            query + 1\n        except Exception:\n            pass\n"
    report = report_on(tmp_path, changed("    scores = query", loop + "    scores = query"))
    assert report["attention"].status == "crashed"
    assert "TimeoutError: it takes more than 0.6 seconds" in report["attention"].message
    assert report["attention"].line is not None
    assert {result.status for result in report.results if result.name != "attention"} == {"right"}


def test_parts_after_one_that_did_not_end_get_less_time(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "PART_SECONDS", 0.6)
    monkeypatch.setattr(check, "LATE_SECONDS", 0.5)  # enough for a right part on a slow machine
    text = changed("    scores = query", "    while True:\n        pass\n    scores = query")
    text = changed("        output: Tensor = self.dropout(x + self", "        while True:\n            pass\n        "
                   "output: Tensor = self.dropout(x + self", text)  # fmt: skip
    report = report_on(tmp_path, text)
    assert "more than 0.6 seconds" in report["attention"].message  # all of its cases together
    assert "more than 0.5 seconds" in report["positional encoding"].message
    assert report["whole model"].status == "right"


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        ("torch.ones(1, n, n).tril()", "It returns float32, expected bool"),
        ("torch.ones(1, n, n).tril().long()", "It returns int64, expected bool"),
        ("torch.ones(n, n, dtype=torch.bool).tril()", "it returns shape (5, 5), expected (1, 5, 5)"),
    ],
)
def test_a_mask_of_another_form_is_the_masks_fault(new, fault, tmp_path):
    report = report_on(tmp_path, changed(TRIANGLE, new))
    assert fault in report["mask"].message
    assert [result.name for result in report.results if result.status != "right"] == ["mask"]
    result = report_on(tmp_path, changed(TRIANGLE, new.replace("tril()", "tril(1)")))["mask"]
    assert result.mistakes == ("mask off by one",)
    assert fault in result.message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:", "line 1: SyntaxError"),
        ("import nothing_at_all", "ModuleNotFoundError"),
        ("exit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_an_error(text, problem, tmp_path):
    with pytest.raises(HeadwayError, match=problem):
        report_on(tmp_path, text)
    assert "headway_homework" not in sys.modules


def test_an_edit_of_the_same_size_in_the_same_second_is_seen(tmp_path, monkeypatch):
    """Python would take the .pyc of the file before the edit."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "solution.py"
    for value in (1, 2):
        file.write_text(f"VALUE = {value}\n")
        os.utime(file, (10**9, 10**9))
        with imported_file(file) as module:
            assert vars(module)["VALUE"] == value


def test_only_python_files_are_run(tmp_path):
    (tmp_path / "solution.txt").write_text("raise SystemError")
    with pytest.raises(HeadwayError, match="not a Python file"):
        check_homework(tmp_path / "solution.txt")
    with pytest.raises(HeadwayError, match="no file"):
        check_homework(tmp_path / "none.py")


def test_the_command_prints_a_report_and_json(tmp_path, capsys):
    file = tmp_path / "mine.py"
    shutil.copy(EXAMPLES / "own_transformer.py", file)
    code, out, _ = run(f"check homework {file}", capsys)
    assert (code, out.splitlines()[-1]) == (0, "homework: 14 right")
    file.write_text("print('hello')\n" + changed(SCORES, "scores = query @ key.transpose(-2, -1)"))
    code, out, err = run(f"check homework {file} --json", capsys)
    report = json.loads(out)  # what the student's code prints goes elsewhere
    assert "hello" in err
    assert code == 1
    assert (report["passed"], report["mistakes"]) == (False, ["no scale"])
    assert [part["status"] for part in report["parts"]].count("right") == 13


# ── the reference ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_reference_is_headways_own():
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)
    mask = reference.reference_causal_mask(5)
    assert torch.equal(mask[0], masks.causal(5))
    for ours, theirs in zip(reference.reference_attention(q, k, v, mask), dot_product_attention(q, k, v, mask=mask),
                            strict=True):  # fmt: skip
        assert_close(ours, theirs)
    zeros = torch.zeros(1, 9, 24)
    assert_close(reference.ReferencePositionalEncoding(24)(zeros)[0], sinusoid(torch.arange(9), 24))
    assert_close(reference.ReferenceEmbeddings(7, 16).table.weight.shape, headway.nn.Embedding(7, 16).weight.shape)


@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.symbol)
def test_every_known_mistake_of_a_part_changes_its_output(part):
    right = check._build_reference(part)
    expected = diagnosis.with_mistakes(part, right, ())
    for key in part.mistakes + part.rare if part.symbol != "make_model" else ():
        wrong = diagnosis.with_mistakes(part, right, (key,))
        assert not diagnosis.has_outputs(diagnosis.Trial(expected), wrong, None), key


def test_every_known_mistake_belongs_to_a_part():
    known = {key for part in parts.PARTS if part.symbol != "make_model" for key in part.mistakes + part.rare}
    of_the_model = {"no causal mask", "no √d on embeddings, source", "no √d on embeddings, target"}
    assert set(MISTAKES) - known == of_the_model
    assert known <= set(MISTAKES)
    assert set(PLANTED) <= {mistake.name for mistake in MISTAKES.values()}


def signatures(file):
    """Name → arguments, of every function and class, and the methods of classes."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        getattr(node, "name", ""): [
            ast.unparse(part.args) for part in ast.walk(node) if isinstance(part, ast.FunctionDef)
        ]
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_the_homework_has_the_signatures_of_the_solution():
    blanks, solution = signatures(BLANKS), signatures(EXAMPLES / "own_transformer.py")
    assert blanks == {name: solution[name] for name in blanks}
    assert {part.symbol for part in parts.PARTS} <= blanks.keys()
    text = (BLANKS.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"`{part.symbol}(" in text and f"| {part.name} |" in text for part in parts.PARTS)
