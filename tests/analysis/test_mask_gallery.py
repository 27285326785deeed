"""The five masks are those of nn/masks.py, and say what they are for."""

import math

import pytest
import torch

from headway.analysis import example_masks
from headway.analysis.mask_gallery import KINDS, draw, render_text
from headway.analysis.plotting import figure_style, new_figure
from headway.errors import InputError
from headway.nn import masks


def by_kind(**options):
    return {example.kind: example for example in example_masks(**options)}


def test_the_causal_mask_is_0_on_and_below_the_diagonal_and_minus_infinity_above():
    (example,) = example_masks(["causal"], size=4)
    inf = -math.inf
    assert example.additive.tolist() == [[0, inf, inf, inf], [0, 0, inf, inf], [0, 0, 0, inf], [0, 0, 0, 0]]
    assert render_text([example], as_numbers=True).splitlines()[-4:] == [
        "  x1  0 −∞ −∞ −∞",
        "  x2  0  0 −∞ −∞",
        "  x3  0  0  0 −∞",
        "  x4  0  0  0  0",
    ]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_masks_hide_what_they_say(size):
    found = by_kind(size=size, window=2)
    assert list(found) == list(KINDS) == ["causal", "padding", "cross", "document", "sliding"]
    assert torch.equal(found["sliding"].mask, masks.sliding_window(size, window=2))
    for kind in ("padding", "cross"):
        is_real = torch.tensor([label != "pad" for label in found[kind].columns])
        assert torch.equal(found[kind].mask, is_real.expand(found[kind].mask.shape))
    same_text = torch.tensor([[a[0] == b[0] for b in found["document"].columns] for a in found["document"].rows])
    assert torch.equal(found["document"].mask, same_text & masks.causal(size))
    for example in found.values():
        assert example.mask.shape == (len(example.rows), len(example.columns))
        assert example.purpose.endswith(".")


def test_the_code_beside_a_mask_makes_it():
    for kind in ("causal", "sliding"):
        (example,) = example_masks([kind], size=6)
        assert torch.equal(eval(example.code, {"masks": masks}), example.mask)


def test_wrong_kinds_and_sizes_are_refused():
    with pytest.raises(InputError, match=r"no mask named 'slide'\. Did you mean 'sliding'\? There are: causal, "):
        example_masks(["slide"])
    with pytest.raises(InputError, match="size=0: choose 1 to 40 tokens"):
        example_masks(size=0)
    with pytest.raises(InputError, match="window=0: a token attends at least to itself"):
        example_masks(window=0)


def test_the_picture_hatches_what_is_masked_and_has_one_legend():
    examples = example_masks()
    with figure_style():
        figure = new_figure(8, 6)
        draw(figure, examples)
    panels = figure.axes[:5]
    assert [axes.get_title() for axes in panels] == list(KINDS)
    for axes, example in zip(panels, examples, strict=True):
        cells = [text.get_text() for text in axes.texts]
        assert cells == ["0" if x else "−∞" for row in example.mask.tolist() for x in row]
        (patch,) = axes.patches
        assert patch.get_hatch()
    assert figure.axes[5].get_legend() is not None  # in the free place: it covers no mask
