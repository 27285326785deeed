"""Pictures and tables of attention maps: what they say, checked without looking."""

import dataclasses
import warnings
from itertools import pairwise

import pytest
import torch

import headway
from headway.analysis.attention import AttentionMap, TextAttention, text_attention
from headway.analysis.attention_plots import MAX_PIXELS, draw, has_small_panels, plot, render_text
from headway.analysis.plotting import figure_style, new_figure
from headway.errors import InputError
from headway.tokenizers import train as train_tokenizer


def made_up(n_rows, n_columns=None, *, causal=False, layers=1, heads=1, side="encoder", label="w{}"):
    """Maps of random weights, with made-up labels."""
    n_columns = n_columns or n_rows
    mask = torch.ones(n_rows, n_columns, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    scores = torch.randn(layers, heads, n_rows, n_columns, generator=torch.Generator().manual_seed(0))
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    maps = [AttentionMap(side, i, list(range(heads)), weights[i], mask) for i in range(layers)]
    rows, columns = ([label.format(i) for i in range(n)] for n in (n_rows, n_columns))
    return TextAttention(maps, rows, columns, text=" ".join(rows), target="the target" if side == "cross" else None)


def drawn(attention, *, model="demo", size=(6, 5)):
    with figure_style():
        figure = new_figure(*size)
        draw(figure, attention, model=model)
        figure.draw_without_rendering()
    return figure


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def hatched(axes):
    return [patch for patch in axes.patches if patch.get_hatch()]


def test_a_causal_model_has_its_future_hatched_and_an_encoder_has_not():
    figure, encoder_figure = drawn(made_up(5, causal=True)), drawn(made_up(5))
    (causal,), (encoder,) = panels(figure), panels(encoder_figure)
    (patch,) = hatched(causal)
    for row in range(5):
        for column in range(5):
            assert patch.get_path().contains_point((column, row)) == (column > row)
    assert causal.images[0].get_array().mask.sum() == 10  # masked cells have no colour
    assert hatched(encoder) == []
    assert "masked" in figure.get_supxlabel()
    assert "masked" not in encoder_figure.get_supxlabel()


def test_the_title_names_model_text_layer_and_head_and_axes_are_named():
    attention = made_up(3, 4, side="cross")
    figure = drawn(attention, model="en-de")
    assert figure.get_suptitle() == "en-de: cross-attention, layer 0, head 0\n“w0 w1 w2” → “the target”"
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("token being written", "source token")
    assert [axes.get_ylabel() for axes in figure.axes if not axes.images] == ["attention weight"]  # the colour bar
    figure = drawn(made_up(4, heads=3))
    assert [axes.get_title() for axes in panels(figure)] == ["head 0", "head 1", "head 2"]
    figure = drawn(made_up(4, heads=2, layers=2))
    assert [(axes.get_title(), axes.get_ylabel()) for axes in panels(figure)] == [
        ("head 0", "layer 0"), ("head 1", ""), ("", "layer 1"), ("", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("n_heads", [5, 8])
def test_the_heads_of_a_layer_are_small_multiples_with_one_colour_bar(n_heads):
    figure = drawn(made_up(4, heads=n_heads), size=(9, 7))
    assert len(panels(figure)) == n_heads
    assert len(figure.axes) == n_heads + 1
    assert len({axes.images[0].get_clim() for axes in panels(figure)}) == 1


LABELS = [(4, "w{}"), (4, "a-label-that-is-cut-{}"), (40, "long-label-{}"), (300, "w{}")]


@pytest.mark.parametrize(("n", "label"), LABELS)
def test_tick_labels_never_touch(n, label):
    attention = made_up(n, causal=True, heads=2, label=label)
    figure = drawn(attention, size=(9, 6))
    for axes in panels(figure):
        for axis in (axes.xaxis, axes.yaxis):
            boxes = [tick.get_window_extent() for tick in axis.get_ticklabels() if tick.get_visible()]
            assert not any(box.overlaps(following) for box, following in pairwise(boxes))
    shown = [tick.get_text() for tick in panels(figure)[0].get_yticklabels()]
    assert len(shown) >= min(n, 4)
    assert shown[0] == attention.rows[0] or shown[0].endswith("…")


def test_pictures_of_long_texts_are_capped_in_pixels(tmp_path):
    from PIL import Image

    with Image.open(plot(made_up(250, causal=True), tmp_path / "long.png")) as image:
        assert max(image.size) <= MAX_PIXELS
    with pytest.raises(InputError, match="90 layers × 90 heads are too many panels for one picture: choose a layer"):
        plot(made_up(3, layers=90, heads=90), tmp_path / "grid.png")


def test_every_character_is_drawn_without_a_missing_glyph(tmp_path):
    attention = made_up(4, label="·⏎$x$ 中\u0007😀{}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot(attention, tmp_path / "glyphs.png", model="模型 $1")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_the_same_byte_for_byte(tmp_path, suffix):
    files = [plot(made_up(4, causal=True), tmp_path / f"{name}.{suffix}", model="demo") for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_small_weights_are_drawn_on_a_scale_of_their_own():
    def scale(attention):
        return panels(drawn(attention))[0].images[0].get_clim()[1]

    sharp = AttentionMap("encoder", 0, [0], torch.eye(6)[None], torch.ones(6, 6, dtype=torch.bool))
    assert scale(TextAttention([sharp], list("abcdef"), list("abcdef"), "abcdef")) == 1
    assert scale(made_up(100)) < 0.3


def test_long_rows_have_a_colour_scale_that_shows_small_weights():
    def colour(attention, weight):
        return panels(drawn(attention))[0].images[0].norm(weight)

    assert colour(made_up(5), 0.1) == pytest.approx(0.1)
    long = made_up(60)
    highest = panels(drawn(long))[0].images[0].get_clim()[1]
    assert colour(long, highest / 4) == pytest.approx(0.5)


def test_narrow_marks_are_quoted():
    attention = dataclasses.replace(made_up(3), rows=["a", ",", "·'"])
    shown = [tick.get_text() for tick in panels(drawn(attention))[0].get_yticklabels()]
    assert shown == ["a", "‘,’", "‘·'’"]


def test_many_panels_of_long_texts_are_small():
    assert has_small_panels(made_up(250, layers=4, heads=4))
    assert not has_small_panels(made_up(250))
    assert not has_small_panels(made_up(20, layers=4, heads=4))


def test_the_table_lists_no_future_tokens_and_fits_the_width():
    attention = made_up(6, causal=True, label="token-{}")
    lines = render_text(attention.maps[0], attention.rows, attention.columns, n_best=9, width=200).splitlines()
    for i, line in enumerate(lines):
        assert [f"token-{j}" in line for j in range(6)] == [j <= i for j in range(6)]
    for width in (30, 50, 80):
        text = render_text(attention.maps[0], attention.rows, attention.columns, n_best=6, width=width)
        assert max(map(len, text.splitlines())) <= width


def test_rows_of_cross_attention_are_the_tokens_being_written():
    tokenizer = train_tokenizer("char", ["abc"])
    model = headway.create(
        "transformer", vocab_size=tokenizer.vocab_size, d_model=8, n_heads=2, n_layers=1, context=16,
        eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id,
    )  # fmt: skip
    model.tokenizer = tokenizer
    cross = text_attention(model, "abc", "ca")
    assert cross.rows == ["c", "a", "<|endoftext|>"]
    assert cross.columns == ["a", "b", "c", "<|endoftext|>"]
    assert cross.maps[0].weights.shape == (2, 3, 4)
    decoder = text_attention(model, "abc", "ca", side="decoder")
    assert decoder.rows == decoder.columns == ["start", "c", "a"]
    assert torch.equal(decoder.maps[0].mask, torch.ones(3, 3, dtype=torch.bool).tril())
    assert cross.maps[0].mask.all()
    assert text_attention(model, "abc", side="encoder").maps[0].mask.all()


def test_the_row_of_cls_is_marked_in_the_table_and_framed_in_the_picture():
    attention = dataclasses.replace(made_up(4, layers=2, heads=2), cls_row=0, second_text="and more")
    lines = render_text(attention.maps[0], attention.rows, attention.columns, cls_row=0).splitlines()
    assert [line[0] for line in lines] == ["▸", " ", " ", " "]
    unmarked = render_text(attention.maps[0], attention.rows, attention.columns).splitlines()
    assert [line[1:] for line in lines] == [line[1:] for line in unmarked]
    figure = drawn(attention)
    for axes in panels(figure):
        (frame,) = axes.patches
        assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((-0.5, -0.5), 4, 1)
    assert "framed: [CLS]" in figure.get_supylabel()
    assert "“and more”" in "".join(text.get_text() for text in figure.texts) + str(figure.get_suptitle())
    plain = drawn(made_up(4))
    assert not panels(plain)[0].patches
    assert "framed" not in plain.get_supylabel()
