"""Position codes: the numbers of the lectures, and equality with what models add."""

import json
import math

import numpy as np
import pytest
import torch

import headway
from headway.analysis.plotting import use_theme
from headway.analysis.position_plots import depends_on_distance_only, plot, render_text, to_dict
from headway.analysis.positions import KINDS, PositionCode, binary_code, position_code, rotated_scores
from headway.errors import HeadwayError, InputError
from headway.nn.positions import Rotary


def test_the_least_distance_between_two_rows_of_the_lectures_code_is_1_966():
    code = position_code("sinusoidal")
    assert (code.length, code.width) == (51, 130)
    rows = [[f(pos / 10_000 ** (2 * k / 130)) for k in range(65) for f in (math.sin, math.cos)] for pos in range(51)]
    table = np.array(rows)
    np.testing.assert_allclose(code.table.numpy(), table, atol=1e-5)
    distances = [np.linalg.norm(table[i] - table[j]) for i in range(51) for j in range(i)]
    least, first, second = code.least_distance
    assert least == pytest.approx(min(distances), abs=1e-5)
    assert (round(least, 3), first, second) == (1.966, 0, 1)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_frequencies_fall_along_the_vector_from_1_towards_1_over_10000(kind):
    omega = position_code(kind, width=130).frequencies
    assert (omega.diff() < 0).all()
    np.testing.assert_allclose(omega.numpy(), [10_000 ** (-2 * k / 130) for k in range(65)], rtol=1e-5)


def test_the_dot_product_of_two_rows_depends_on_their_distance_only():
    code = position_code("sinusoidal", length=40, width=32)
    for distance, (least, mean, greatest) in enumerate(code.similarity_by_distance()):
        expected = sum(math.cos(distance / 10_000 ** (2 * k / 32)) for k in range(16))
        assert (least, mean, greatest) == pytest.approx((expected, expected, expected), abs=1e-4)
    assert depends_on_distance_only(code)
    assert not depends_on_distance_only(position_code("learned", length=40, width=32))


@pytest.mark.parametrize("seed", range(5))
def test_a_rotated_query_and_key_see_only_their_distance(seed):
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
    scores = rotated_scores(Rotary(16, 10_000.0), 30, q, k)
    for offset in range(-29, 30):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scores, scores.T, atol=1e-2)  # the sign of the distance matters


def test_bits_count_and_neighbours_may_differ_in_all_of_them():
    table = binary_code(51)
    assert table.shape == (51, 6)
    assert [sum(int(bit) << i for i, bit in enumerate(row)) for row in table] == list(range(51))
    code = position_code("binary", length=64)
    assert code.least_distance[0] == 1.0
    assert code.similarity[31, 32] == 0  # 011111 and 100000 agree in no bit, though they are neighbours
    assert code.similarity_by_distance()[1][::2] == (0.0, 5.0)


def test_alibi_falls_by_a_slope_per_head():
    offsets, bias = position_code("alibi", n_heads=4, length=10).bias_by_offset()
    assert offsets == list(range(-9, 1))
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        np.testing.assert_allclose(bias[head], [slope * offset for offset in offsets], rtol=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"])
def test_a_model_shows_its_own_positions(kind):
    model = headway.create("gpt", vocab_size=9, d_model=8, n_heads=2, n_layers=1, context=6, positions=kind)
    code = position_code(model=model)
    assert code.kind == kind
    assert code.origin == ("model" if kind in ("learned", "per-layer", "relative") else "formula")
    if kind in ("learned", "per-layer"):
        assert torch.equal(code.table, model.positions.weight.detach())
    if kind == "relative":
        offsets, bias = code.bias_by_offset()
        assert offsets == [-5, -4, -3, -2, -1, 0]
        assert torch.equal(bias, model.positions.weight.detach())
    if kind in ("rotary", "sinusoidal"):
        assert code.width == (4 if kind == "rotary" else 8)
        assert code.length == 51  # a formula has no end


def test_a_bidirectional_model_has_offsets_on_both_sides():
    model = headway.create("bert", vocab_size=9, d_model=8, n_heads=2, n_layers=1, context=6, positions="relative")
    offsets, bias = position_code(model=model, length=4).bias_by_offset()
    assert offsets == [-3, -2, -1, 0, 1, 2, 3]
    assert torch.equal(bias, model.positions.weight[:, 2:9].detach())


def test_an_encoder_decoder_has_a_table_on_each_side():
    model = headway.create("transformer", vocab_size=9, d_model=8, n_heads=2, n_layers=1, context=6,
                           positions="learned")  # fmt: skip
    for side in ("encoder", "decoder"):
        own = getattr(model, side).positions.weight.detach()
        assert torch.equal(position_code(model=model, side=side).table, own)
    with pytest.raises(InputError, match="no side named 'encodr'; choose from encoder, decoder"):
        position_code(model=model, side="encodr")


def test_values_out_of_range_and_wrong_kinds_are_answered():
    gpt = headway.create("gpt", vocab_size=9, d_model=8, n_heads=2, n_layers=1, context=6, positions="learned")
    lstm = headway.create("lstm", vocab_size=9, d_model=8, n_layers=1)
    for arguments, message in [
        ({"kind": "sinusodal"}, "no positions named 'sinusodal'; .* Did you mean 'sinusoidal'?"),
        ({"length": 1}, "length=1 must be between 2 and 2,048"),
        ({"length": 10**6}, "length=1000000 must be between 2 and 2,048"),
        ({"width": 0}, "width=0 must be between 1 and 8,192"),
        ({"kind": "alibi", "n_heads": 500}, "n_heads=500 must be between 1 and 128"),
        ({"kind": "rotary", "width": 7}, "width=7 is odd, .* use 8"),
        ({"model": gpt, "length": 7}, "length=7 is more than the 6 positions of this model: choose at most 6"),
        ({"model": gpt, "kind": "alibi"}, "this model has learned positions, not alibi"),
        ({"model": gpt, "width": 8}, "a model has its own width and heads"),
        ({"model": gpt, "side": "encoder"}, "a GPT has one stack of layers: leave side='encoder' out"),
        ({"model": lstm}, "an LSTM has no position encoding: use a gpt, bert or transformer"),
        ({"side": "encoder"}, "side='encoder' is one of a model"),
    ]:
        with pytest.raises(HeadwayError, match=message):
            position_code(**arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_text_json_and_pictures(kind, tmp_path):
    code = position_code(kind, length=12, width=None if kind == "binary" else 8, n_heads=9)
    assert isinstance(code, PositionCode)
    text = render_text(code)
    assert ("bias added to the scores" in text) == (kind in ("relative", "alibi"))
    assert ("least distance between two rows" in text) == (kind not in ("relative", "alibi"))
    assert "-0.000\n" not in text
    assert json.loads(json.dumps(to_dict(code)))["kind"] == kind
    if kind not in ("per-layer", "rotary"):  # drawn as learned and sinusoidal are
        with use_theme("dark" if kind in ("binary", "relative") else "light"):
            plot(code, tmp_path / "positions.png", model="tiny")
        assert (tmp_path / "positions.png").stat().st_size > 10_000


def test_initial_values_are_the_same_every_time_and_leave_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = position_code("learned", length=4, width=6), position_code("learned", length=4, width=6)
    assert torch.equal(first.table, second.table)
    assert torch.equal(torch.get_rng_state(), before)
    assert float(first.table.std()) == pytest.approx(0.02, rel=0.5)
