"""Tools of all figures: text that fonts can show, labels that do not collide, and an untouched session."""

import random
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.colors import to_rgb, to_rgba

from headway.analysis.plotting import (
    THEMES,
    figure_style,
    figure_text,
    new_figure,
    open_figure,
    shorten,
    spread,
    theme,
    use_theme,
)
from headway.analysis.token_labels import visible
from headway.errors import InputError


def test_text_without_a_glyph_becomes_its_code_and_dollars_are_no_math():
    assert figure_text("a·⏎␣…é") == "a·⏎␣…é"
    assert figure_text("\ue000") == r"\ue000"  # a private code point, which no font has
    assert figure_text("$x$") == r"\$x\$"


def test_spaces_and_control_characters_are_visible():
    assert visible(" a\n\tb\x07") == r"·a⏎⇥b\x07"


def test_texts_are_shortened_to_one_line():
    assert shorten("two\n  words", 20) == "two words"
    assert shorten("a long sentence", 8) == "a long…"


@pytest.mark.parametrize("seed", range(30))
def test_labels_are_spread_by_the_gap_and_keep_their_order(seed):
    rng = random.Random(seed)
    positions = [rng.random() for _ in range(8)]
    moved = spread(positions, 0.1)
    order = sorted(range(8), key=positions.__getitem__)
    assert all(moved[b] - moved[a] >= 0.1 - 1e-9 for a, b in pairwise(order))
    assert sum(moved) == pytest.approx(sum(positions))  # groups stay around their mean
    assert spread([0.0, 0.5, 1.0], 0.1) == [0.0, 0.5, 1.0]  # nothing moves without need


def test_figures_leave_the_backend_and_the_settings_of_the_session_alone(tmp_path):
    backend, size = matplotlib.rcParams["backend"], matplotlib.rcParams["font.size"]
    with open_figure(tmp_path / "a.png", width=2, height=2) as figure:
        figure.subplots().plot([1, 2])
    assert (matplotlib.rcParams["backend"], matplotlib.rcParams["font.size"]) == (backend, size)
    with matplotlib.rc_context({"font.size": 40}), figure_style():  # and do not depend on them
        assert new_figure(2, 2).text(0, 0, "a").get_fontsize() == 9


def test_a_theme_changes_every_colour_and_ends_with_its_block(tmp_path):
    assert theme() is THEMES["light"]
    with use_theme("dark"):
        with open_figure(tmp_path / "dark.png", width=2, height=2) as figure:
            axes = figure.subplots()
            assert axes.get_facecolor() == to_rgba(THEMES["dark"].background)
            assert axes.xaxis.label.get_color() == THEMES["dark"].text
            axes.imshow([[0.0, 1.0]], cmap=theme().diverging)
        assert theme() is THEMES["dark"]
    assert theme() is THEMES["light"]
    with pytest.raises(InputError, match="no theme named 'blue': choose light or dark"), use_theme("blue"):
        pass


@pytest.mark.parametrize("name", THEMES)
def test_lines_and_text_stand_out_from_the_background(name):
    """At least 2.2 to 1 by WCAG's contrast, and 7 to 1 for text."""

    def luminance(colour):
        channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]

    def contrast(a, b):
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    chosen = THEMES[name]
    assert all(contrast(colour, chosen.background) > 2.2 for colour in chosen.colours)
    assert contrast(chosen.text, chosen.background) > 7
    assert contrast(chosen.grey, chosen.background) > 4
