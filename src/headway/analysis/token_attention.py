"""Where a word attends: the words it attends to, ranked, and which head attends to which.

Words may have several tokens. Attention *from* a word is the mean over its tokens and attention *to* a word the sum
over its tokens, so that the weights of a word still sum to 1 (Clark et al. 2019, §4.1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from headway.analysis.attention import attention_maps
from headway.analysis.attention_inputs import TextPiece, attention_inputs
from headway.analysis.attention_plots import SIDES, axis_label, cut_label
from headway.analysis.plotting import figure_text, fit_tick_labels, hatch_cells, open_figure, set_title, shorten, theme
from headway.analysis.token_labels import visible
from headway.data.words import split_words
from headway.errors import InputError, count, suggest
from headway.tokenizers import Tokenizer

MAX_BAR = 24  # characters of a bar
MAX_TITLE_TEXT = 70  # characters of the text in the title
MAX_LISTED_WORDS = 60  # of the text, in the error about a word that it does not contain
ROW = 0.17  # inches: a label fits
HEAD_WIDTH = 0.14  # inches: of a head's column, if there are few
MAX_HEADS_WIDTH = 6.0  # inches


class TextUnit(NamedTuple):
    """A word of a text with its tokens, or a token that belongs to no word, such as [CLS]."""

    label: str
    tokens: list[int]


@dataclass(frozen=True, eq=False)
class WordAttention:
    """How much one word attends to every word, in the layers and heads asked for."""

    word: str
    occurrence: int  # from 1
    n_occurrences: int
    tokens: list[str]  # of the word
    attended: list[str]  # the words attended to, in the order of the text
    itself: int | None  # the word among those attended to; None in cross-attention
    side: str
    layers: list[int]
    heads: list[int]
    weights: Tensor  # (layers, heads, attended); each row sums to 1
    visible: list[bool]  # of the words attended to, those that are not masked
    n_tokens: int  # of the longer of rows and columns
    text: str
    target: str | None = None  # of an encoder-decoder
    second_text: str | None = None  # of an encoder that reads a pair

    @property
    def mean(self) -> Tensor:
        """(attended,) averaged over layers and heads."""
        return self.weights.mean(dim=(0, 1))

    def ranked(self) -> list[int]:
        """The words that may be attended to, the largest mean weight first."""
        order = self.mean.argsort(descending=True, stable=True).tolist()
        return [i for i in order if self.visible[i]]

    def strongest_head(self, attended: int) -> tuple[int, int, float]:
        """The layer and head that attend most to a word, and its weight."""
        weights = self.weights[:, :, attended]
        layer, head = divmod(int(weights.argmax()), len(self.heads))
        return self.layers[layer], self.heads[head], float(weights[layer, head])

    def most_attended(self) -> list[list[tuple[str, float]]]:
        """For each layer and head, the word with the largest weight: (layers, heads)."""
        best = self.weights.max(dim=-1)
        return [
            [(self.attended[i], w) for i, w in zip(indices, values, strict=True)]
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON; `ranked` has the words and their mean weights, largest first."""
        mean = self.mean.tolist()
        values = {name: getattr(self, name) for name in ("word", "occurrence", "n_occurrences", "tokens", "attended",
                                                         "itself", "side", "layers", "heads", "visible")}  # fmt: skip
        ranked = [
            {"word": self.attended[i], "index": i, "weight": mean[i], "strongest_head": self.strongest_head(i)}
            for i in self.ranked()
        ]
        return {**values, "weights": self.weights.tolist(), "ranked": ranked}


def word_attention(
    model: Any,
    text: str,
    word: str,
    target: str | None = None,
    *,
    occurrence: int | None = None,
    side: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> WordAttention:
    """How much `word` attends to the words of the text. If it occurs several times, the last counts, or the one with
    the number `occurrence`, from 1. In cross-attention it is a word of the target.

    A word is matched as it is written, or else without regard to case; if no word matches, a token does, and attention
    to tokens is shown. The other arguments are those of `text_attention`.
    """
    inputs = attention_inputs(model, text, target, side=side)
    tokenizer = model.tokenizer
    matches, units = _find(tokenizer, inputs.rows, inputs.row_texts, word)
    if not matches:
        words = list(dict.fromkeys(w.text for piece in inputs.row_texts for w in split_words(piece.text)))
        listed = ", ".join(words[:MAX_LISTED_WORDS]) + (", …" if len(words) > MAX_LISTED_WORDS else "")
        owner = "text" if inputs.target is None or side == "encoder" else "translation"
        if not words:
            raise InputError(f"{word!r} is not a word of the {owner}, which is empty: give one as TARGET")
        raise InputError(f"{word!r} is not a word of the {owner}.{suggest(word, words)} Its words: {listed}")
    number = len(matches) if occurrence is None else occurrence
    if not 1 <= number <= len(matches):
        raise InputError(
            f"occurrence {number} of {word!r} does not exist: it occurs {count(len(matches), 'time')}; choose 1 to "
            f"{len(matches)}"
        )
    match = matches[number - 1]
    is_word = match in units
    columns = (
        text_units(tokenizer, inputs.columns, inputs.column_texts)
        if is_word
        else [TextUnit(label, [i]) for i, label in enumerate(inputs.columns)]
    )
    maps = attention_maps(
        model, inputs.ids, source=inputs.source, segments=inputs.segments, side=inputs.side, layers=layers, heads=heads
    )
    from_word = torch.stack([m.weights[:, match.tokens].mean(dim=1) for m in maps])  # (layers, heads, S)
    is_visible = maps[0].mask[match.tokens].any(dim=0)
    itself = None if inputs.side == "cross" else next(i for i, c in enumerate(columns) if c.tokens[0] in match.tokens)
    return WordAttention(
        word=match.label,
        occurrence=number,
        n_occurrences=len(matches),
        tokens=[inputs.rows[i] for i in match.tokens],
        attended=[unit.label for unit in columns],
        itself=itself,
        side=inputs.side,
        layers=[m.layer for m in maps],
        heads=maps[0].heads,
        weights=torch.stack([from_word[:, :, unit.tokens].sum(dim=-1) for unit in columns], dim=-1),
        visible=[bool(is_visible[unit.tokens].any()) for unit in columns],
        n_tokens=max(len(inputs.rows), len(inputs.columns)),
        text=text,
        target=inputs.target,
        second_text=inputs.second_text,
    )


def _find(
    tokenizer: Tokenizer, labels: Sequence[str], texts: Sequence[TextPiece], word: str
) -> tuple[list[TextUnit], list[TextUnit]]:
    """The units that match the word, and all units of the text."""
    units = text_units(tokenizer, labels, texts)
    tokens = [TextUnit(label, [i]) for i, label in enumerate(labels)]
    for choices in (units, tokens):
        for key in (str, str.casefold):
            names = {key(word), key(visible(word))}
            if matches := [unit for unit in choices if key(unit.label) in names]:
                return matches, units
    return [], units


def text_units(tokenizer: Tokenizer, labels: Sequence[str], texts: Sequence[TextPiece]) -> list[TextUnit]:
    """The tokens grouped by word, in order. A token that spans several words belongs to the one it has most of."""
    word_of: dict[int, tuple[int, int, str]] = {}  # token → its text, its word, and the word's letters
    for number, (text, first_token) in enumerate(texts):
        words = split_words(text)
        for i, (start, end) in enumerate(tokenizer.encode_with_offsets(text).offsets):
            overlaps = [min(end, word.end) - max(start, word.start) for word in words]
            best = max(range(len(words)), key=overlaps.__getitem__, default=None)
            if best is not None and overlaps[best] > 0:
                word_of[first_token + i] = (number, best, words[best].text)
    units: list[TextUnit] = []
    previous = None
    for token, label in enumerate(labels):
        word = word_of.get(token)
        if word is not None and word == previous:
            units[-1].tokens.append(token)
        else:
            units.append(TextUnit(label if word is None else word[2], [token]))
        previous = word
    return units


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(attention: WordAttention, *, n_best: int = 10, width: int = 80) -> str:
    """The words attended to, as bars, each with the head that attends to it most; then each head's favourite."""
    return "\n\n".join([_heading(attention), _ranking(attention, n_best), _heads(attention, width)])


def _heading(attention: WordAttention) -> str:
    where = "" if attention.n_occurrences == 1 else f" ({attention.occurrence} of {attention.n_occurrences})"
    pieces = "" if len(attention.tokens) == 1 else f", tokens {' '.join(attention.tokens)}"
    return f"“{attention.word}”{where}{pieces}: {SIDES[attention.side]}, {_heads_shown(attention)}"


def _heads_shown(attention: WordAttention) -> str:
    n = len(attention.layers) * len(attention.heads)
    if n == 1:
        return f"layer {attention.layers[0]}, head {attention.heads[0]}"
    if len(attention.layers) == 1:
        return f"layer {attention.layers[0]}, mean of {n} heads"
    if len(attention.heads) == 1:
        return f"head {attention.heads[0]}, mean of {n} layers"
    return f"mean of {len(attention.layers)} layers × {len(attention.heads)} heads"


def _ranking(attention: WordAttention, n_best: int) -> str:
    ranked, mean = attention.ranked(), attention.mean.tolist()
    shown = ranked[:n_best]
    labels = [cut_label(attention.attended[i]) + (" (itself)" if i == attention.itself else "") for i in shown]
    label_width = max(map(cell_len, labels))
    largest = max(mean[i] for i in shown)
    several = len(attention.layers) * len(attention.heads) > 1
    layer_width, head_width = len(str(attention.layers[-1])), len(str(attention.heads[-1]))
    lines = []
    for label, i in zip(labels, shown, strict=True):
        bar = "█" * max(1, round(MAX_BAR * mean[i] / largest)) if mean[i] > 0 else ""
        layer, head, weight = attention.strongest_head(i)
        strongest = f"layer {layer:<{layer_width}}  head {head:<{head_width}}  {weight:4.0%}"
        most = f"   most in {strongest}" if several else ""
        lines.append(f"  {set_cell_size(label, label_width)}  {mean[i]:4.0%}  {bar:{MAX_BAR}}{most}".rstrip())
    if len(ranked) > len(shown):
        lines.append(f"  {len(ranked) - len(shown)} more: {sum(mean[i] for i in ranked[n_best:]):.0%} together")
    return "\n".join(lines)


def _heads(attention: WordAttention, width: int) -> str:
    """A paragraph per layer: each head and the word it attends to most."""
    lines = ["most attended word of each head"]
    for layer, best in zip(attention.layers, attention.most_attended(), strict=True):
        cells = [f"{head} {cut_label(word)} {w:.0%}" for head, (word, w) in zip(attention.heads, best, strict=True)]
        start = f"  layer {layer:<2}"
        line = start
        for cell in cells:
            if cell_len(line) + 2 + cell_len(cell) > width and line != start:
                lines.append(line)
                line = " " * len(start)
            line += f"  {cell}"
        lines.append(line)
    return "\n".join(lines)


# ── picture ───────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(attention: WordAttention, file: str | Path, *, model: str = "") -> Path:
    """Write a picture: a row per word, a column per layer and head, and the mean as bars beside it."""
    n_heads = len(attention.layers) * len(attention.heads)
    heads_width = min(MAX_HEADS_WIDTH, max(1.2, HEAD_WIDTH * n_heads))
    labels = 0.075 * max(cell_len(axis_label(label)) for label in attention.attended)
    height = min(28.0, ROW * len(attention.attended)) + 1.6
    with open_figure(file, width=heads_width + labels + 3.6, height=max(3.0, height)) as figure:
        draw(figure, attention, model=model, heads_width=heads_width)
    return Path(file)


def draw(figure: Any, attention: WordAttention, *, model: str = "", heads_width: float = 4.0) -> None:
    """Draw the picture into an empty figure."""
    from matplotlib.colors import PowerNorm

    weights = attention.weights.flatten(0, 1).T  # (attended, layers × heads)
    hidden = ~torch.tensor(attention.visible)
    highest = max(0.05, float(weights.max()))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[heads_width, 1.8])
    # Slightly concave colours: small weights show, and large ones still stand out.
    image = left.imshow(weights.masked_fill(hidden[:, None], math.nan).numpy(), cmap=theme().sequential,
                        norm=PowerNorm(0.75, vmin=0, vmax=highest), aspect="auto")  # fmt: skip
    hatch_cells(left, hidden[:, None].expand(weights.shape).tolist())
    _label_heads(left, attention)
    right.barh(range(len(attention.attended)), attention.mean.tolist(), color=theme().colour(0), height=0.7)
    for i, value in enumerate(attention.mean.tolist()):
        if attention.visible[i]:
            right.text(value, i, f" {value:.0%}", verticalalignment="center", fontsize=7, color=theme().text)
    right.set_xlim(0, 1.25 * max(attention.mean.tolist()))
    right.set_title("mean of the heads" if weights.shape[1] > 1 else "weight")
    right.set_xlabel("attention weight")
    right.tick_params(labelleft=False, left=False)
    right.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    right.locator_params(axis="x", nbins=3)
    for axes in (left, right):
        axes.spines[:].set_visible(True)
    names = [axis_label(w) + (" ◂" if i == attention.itself else "") for i, w in enumerate(attention.attended)]
    left.yaxis.set_ticks(range(len(names)), labels=names)
    left.tick_params(axis="y", length=2, labelsize=7.5)
    marks = ["◂ the word itself"] * (attention.itself is not None) + ["hatched: masked"] * bool(hidden.any())
    mark = f" ({', '.join(marks)})" if marks else ""
    left.set_ylabel(("source word" if attention.side == "cross" else "word attended to") + mark)
    figure.colorbar(image, ax=[left, right], pad=0.02, aspect=40, label="attention weight of a head")
    set_title(figure, *_title(attention, model))
    fit_tick_labels([left])


def _label_heads(axes: Any, attention: WordAttention) -> None:
    """A column per head; layers are separated by lines and named in their middle."""
    n_layers, n_heads = len(attention.layers), len(attention.heads)
    if n_layers == 1:
        axes.set_xticks(range(n_heads), labels=[str(head) for head in attention.heads])
        axes.set_xlabel(f"head of layer {attention.layers[0]}")
        return
    axes.set_xticks([n_heads * i + (n_heads - 1) / 2 for i in range(n_layers)], labels=list(map(str, attention.layers)))
    axes.tick_params(axis="x", length=0)
    for i in range(1, n_layers):
        axes.axvline(n_heads * i - 0.5, color=theme().text, linewidth=0.8)
    heads = f"head {attention.heads[0]}" if n_heads == 1 else f"heads {attention.heads[0]} to {attention.heads[-1]}"
    axes.set_xlabel(f"layer, with a column for each of {heads}" if n_heads > 1 else f"layer ({heads})")


def _title(attention: WordAttention, model: str) -> list[str]:
    where = "" if attention.n_occurrences == 1 else f" ({attention.occurrence} of {attention.n_occurrences})"
    kind = f"{model}: {SIDES[attention.side]}" if model else SIDES[attention.side].capitalize()
    text = shorten(attention.text, MAX_TITLE_TEXT)
    if attention.target is not None and attention.side != "encoder":
        text += f"” → “{shorten(attention.target, MAX_TITLE_TEXT)}"
    if attention.second_text is not None:
        text += f"” + “{shorten(attention.second_text, MAX_TITLE_TEXT)}"
    return [figure_text(f"{kind}, where “{attention.word}”{where} attends"), f"“{text}”"]
