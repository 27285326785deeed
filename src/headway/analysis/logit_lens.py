"""The logit lens: what each layer would predict, if its hidden states were unembedded (nostalgebraist 2020).

    logits_l = unembed(norm(h_l)),  l = 0 … L          h_0: the embeddings; norm: the model's final one

The layers of a Transformer add to one residual stream, so the output matrix can read it at any depth. The last row is
the model's own output. The lens works for a GPT, for the decoder of an encoder-decoder, and for a BERT with a masked-LM
head, at its [MASK] tokens. The layers of a recurrent stack have no common basis, so they have no lens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.cells import cell_len, set_cell_size
from torch import Tensor, nn

from headway.analysis.attention_plots import NARROW
from headway.analysis.plotting import figure_text, open_figure, set_title, shorten, theme
from headway.analysis.token_labels import token_label, token_labels
from headway.errors import InputError
from headway.generation.source import decoder_start_id, encode_sources, require_translator
from headway.generation.translate import translate
from headway.models import GPT, MaskedLM, Transformer
from headway.models.adapter import refuse_path
from headway.models.base import described, eval_mode
from headway.nn.block import Blocks

MAX_LABEL = 12  # characters of a token, in a cell
MAX_PICTURE_TOKENS = 20  # of a longer text, a picture has the last tokens
CELL_WIDTH, CELL_HEIGHT = 0.74, 0.36  # inches
MAX_TITLE_TEXT = 90  # characters of a text in the title
DARK_CELL = 0.62  # from this fraction of the colours on, the text in a cell has the colour of the background


class LensToken(NamedTuple):
    token: str
    probability: float


@dataclass(frozen=True)
class LogitLens:
    """What each layer predicts at each position."""

    layers: list[str]  # "embedding", "layer 0", …; the last is the model's output
    positions: list[int]  # indices of the tokens at which it predicts
    tokens: list[str]  # the tokens there: the next one is predicted, or behind [MASK] the one that it hides
    top: list[list[list[LensToken]]]  # layer → position → the most probable tokens
    p_output: list[list[float]]  # layer → position → the probability of the token that the output finds most probable
    text: str
    target: str | None = None  # of an encoder-decoder
    preposition: str = "after"  # a masked LM predicts at its tokens, not after them


class _LensParts(NamedTuple):
    """What the lens needs of a model."""

    blocks: Blocks
    unembed: Any  # hidden states (T, D) behind a block → logits (T, V)


def lens_parts(model: Any) -> _LensParts:
    """The blocks of a model, and the function from the output of any of them to logits."""
    refuse_path(model)
    if isinstance(model, GPT):
        return _LensParts(model.blocks, lambda hidden: model.unembed(model.norm(hidden)))
    if isinstance(model, Transformer):
        return _LensParts(model.decoder.blocks, lambda hidden: model.unembed(model.decoder.norm(hidden)))
    if isinstance(model, MaskedLM):
        encoder = model.encoder
        return _LensParts(
            encoder.blocks,
            lambda hidden: F.linear(model.transform(encoder.norm(hidden)), model.table, model.bias),
        )
    raise InputError(
        f"no logit lens for {described(model)}: its layers cannot be unembedded one by one; use a gpt, a transformer, "
        f"or a bert with a masked-LM head (headway train bert-pydocs)"
    )


@contextmanager
def _captured_hidden_states(blocks: Blocks) -> Iterator[list[Tensor]]:
    """The input of the first block and the output of every block, each (B, T, D), of a forward pass in the block."""
    hidden: list[Tensor] = []
    layers = list(blocks)
    hooks = [layers[0].register_forward_pre_hook(lambda _, args: hidden.append(args[0]))] if layers else []
    hooks += [layer.register_forward_hook(lambda _, args, output: hidden.append(output)) for layer in layers]
    try:
        yield hidden
    finally:
        for hook in hooks:
            hook.remove()


def layer_logits(model: Any, ids: Sequence[int], *, source: Sequence[int] | None = None) -> Iterator[Tensor]:
    """The logits (T, V) of each layer, from the embeddings to the output, one after the other. For an encoder-decoder,
    `ids` are the decoder's input."""
    blocks, unembed = lens_parts(model)
    if not len(blocks):
        raise InputError("a model without layers has nothing between its embeddings and its output: use n_layers=1")
    kwargs = {} if source is None else {"source": torch.tensor([list(source)], device=model.device)}
    if isinstance(model, Transformer) and source is None:
        raise InputError("an encoder-decoder predicts from a source: layer_logits(model, ids, source=…)")
    with eval_mode(model), torch.inference_mode():
        with _captured_hidden_states(blocks) as captured:
            nn.Module.__call__(model, torch.tensor([list(ids)], device=model.device), **kwargs)
        for hidden in captured:
            yield unembed(hidden[0]).float().cpu()


def logit_lens(model: Any, text: str, target: str | None = None, *, top: int = 3) -> LogitLens:
    """What each layer predicts after each token of a text: the `top` most probable tokens.

    For an encoder-decoder, `text` is the source and `target` its translation; without one the model translates. A BERT
    predicts at the [MASK] tokens of the text.
    """
    lens_parts(model)
    if top < 1:
        raise InputError(f"top={top} must be at least 1")
    if target is not None and not isinstance(model, Transformer):
        raise InputError(f"{described(model)} has no source: pass one text, without a target")
    tokenizer = model.tokenizer
    source: list[int] | None = None
    if isinstance(model, Transformer):
        require_translator(model)
        if not text.strip():
            raise InputError("an empty text has no tokens to translate")
        (source,) = encode_sources(model, tokenizer, [text])
        target = translate(model, text)[0].text if target is None else target
        ids = [decoder_start_id(model), *tokenizer.encode(target)]
        labels = ["start", *token_labels(tokenizer, ids[1:], target)]
    elif isinstance(model, MaskedLM):
        ids = tokenizer.build_inputs(_masked_ids(tokenizer, text))[0]
        labels = token_labels(tokenizer, ids)
    else:
        ids = tokenizer.encode_prompt(text)
        labels = token_labels(tokenizer, ids, text)
    positions = list(range(len(ids)))
    if isinstance(model, MaskedLM):
        positions = [i for i in positions if ids[i] == tokenizer.mask_id]
    probs = [
        logits[positions, : tokenizer.vocab_size].softmax(dim=-1) for logits in layer_logits(model, ids, source=source)
    ]
    predicted = probs[-1].argmax(dim=-1)  # (T,)
    labelled: dict[int, str] = {}

    def label(id: int) -> str:
        if id not in labelled:
            labelled[id] = token_label(tokenizer, id)
        return labelled[id]

    def best(p: Tensor) -> list[list[LensToken]]:
        values, indices = p.topk(min(top, p.shape[-1]))
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        return [[LensToken(label(id), value) for id, value in zip(*row, strict=True)] for row in pairs]

    return LogitLens(
        layers=["embedding", *(f"layer {i}" for i in range(len(probs) - 1))],
        positions=positions,
        tokens=[labels[i] for i in positions],
        top=[best(p) for p in probs],
        p_output=[p.gather(1, predicted[:, None])[:, 0].tolist() for p in probs],
        text=text,
        target=target,
        preposition="at" if isinstance(model, MaskedLM) else "after",
    )


def _masked_ids(tokenizer: Any, text: str) -> list[int]:
    mask = tokenizer.special_tokens["mask"]
    if mask is None:
        raise InputError("the tokenizer of this model has no mask token: use the tokenizer that it was trained with")
    ids: list[int] = tokenizer.encode_with_masks(text)
    if tokenizer.mask_id not in ids:
        raise InputError(f"the text has no {mask}: write {mask} where the model is to predict a token")
    return ids


def check_position(lens: LogitLens, position: int | None) -> int:
    """The index into `lens.positions` of a token's position; None is the last."""
    if position is None:
        return len(lens.positions) - 1
    if position not in lens.positions:
        known = f"0 to {lens.positions[-1]}" if len(lens.positions) == lens.positions[-1] + 1 else _listed(lens)
        raise InputError(f"position {position} does not exist: choose {known}")
    return lens.positions.index(position)


def _listed(lens: LogitLens) -> str:
    return ", ".join(map(str, lens.positions))


# ── text and picture ──────────────────────────────────────────────────────────────────────────────────────────────


def render_text(lens: LogitLens, *, position: int | None = None, width: int = 80) -> str:
    """A row per token and a column per layer, with its most probable token; then all of `top` at one position, by
    default the last. Layers that do not fit into `width` characters continue below."""
    chosen = check_position(lens, position)
    label_width = max(cell_len(_cut(token)) for token in [lens.preposition, *lens.tokens])
    cells = [[f"{_cut(best[0].token)} {best[0].probability:.0%}" for best in layer] for layer in lens.top]
    sizes = [max(map(cell_len, [name, *column])) for name, column in zip(lens.layers, cells, strict=True)]
    blocks: list[list[int]] = [[]]
    for i in range(len(lens.layers)):
        if blocks[-1] and label_width + 2 + sum(2 + sizes[j] for j in (*blocks[-1], i)) > width:
            blocks.append([])
        blocks[-1].append(i)

    def line(label: str, row: Sequence[str], block: Sequence[int]) -> str:
        padded = "".join(f"  {set_cell_size(row[i], sizes[i])}" for i in block)
        return f"  {set_cell_size(_cut(label), label_width)}{padded}".rstrip()

    tables = [
        "\n".join(
            [line(lens.preposition, lens.layers, block)]
            + [line(token, [column[t] for column in cells], block) for t, token in enumerate(lens.tokens)]
        )
        for block in blocks
    ]
    where = f"{_cut(lens.tokens[chosen])} (position {lens.positions[chosen]})"
    return "\n\n".join([*tables, f"{lens.preposition} {where}\n{_candidates(lens, chosen)}"])


def _candidates(lens: LogitLens, chosen: int) -> str:
    name_width = max(map(len, lens.layers))
    rows = [[f"{_cut(best.token)} {best.probability:.1%}" for best in layer[chosen]] for layer in lens.top]
    sizes = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        f"  {name:<{name_width}}"
        + "".join(f"  {set_cell_size(cell, size)}" for cell, size in zip(row, sizes, strict=True)).rstrip()
        for name, row in zip(lens.layers, rows, strict=True)
    )


def _cut(token: str) -> str:
    return token if cell_len(token) <= MAX_LABEL else set_cell_size(token, MAX_LABEL - 1) + "…"


def plot(lens: LogitLens, file: str | Path, *, model: str = "") -> Path:
    """Write a picture: a row per layer, the output on top, a column per token. Each cell has the layer's most probable
    token on the colour of its probability; it is framed if the output predicts the same."""
    n_tokens = min(len(lens.tokens), MAX_PICTURE_TOKENS)
    width = max(5.5, 1.9 + CELL_WIDTH * n_tokens)
    with open_figure(file, width=width, height=1.5 + CELL_HEIGHT * len(lens.layers)) as figure:
        draw(figure, lens, model=model)
    return Path(file)


def draw(figure: Any, lens: LogitLens, *, model: str = "") -> None:
    """Draw the lens into an empty figure."""
    from matplotlib.patches import Rectangle

    first = max(0, len(lens.tokens) - MAX_PICTURE_TOKENS)
    axes = figure.subplots()
    rows = [layer[first:] for layer in lens.top][::-1]  # the output on top
    values = [[best[0].probability for best in row] for row in rows]
    image = axes.imshow(values, cmap=theme().sequential, vmin=0, vmax=1, aspect="auto")
    for y, row in enumerate(rows):
        for x, best in enumerate(row):
            is_dark = best[0].probability > DARK_CELL
            is_output = best[0].token == rows[0][x][0].token
            axes.text(
                x, y, _cell_text(best[0].token), ha="center", va="center", fontsize=7.5,
                color=theme().background if is_dark else theme().text, fontweight="bold" if is_output else "normal",
            )  # fmt: skip
            if is_output:
                axes.add_patch(Rectangle((x - 0.46, y - 0.43), 0.92, 0.86, fill=False, edgecolor=theme().colour(1)))
    axes.spines[:].set_visible(True)
    axes.tick_params(length=0)
    axes.set_yticks(range(len(rows)), labels=[f"{lens.layers[-1]} = output", *lens.layers[-2::-1]])
    axes.set_xticks(range(len(lens.tokens) - first), labels=[_cell_text(t) for t in lens.tokens[first:]])
    shown = f" (the last {MAX_PICTURE_TOKENS} of {len(lens.tokens)})" if first else ""
    axes.set_xlabel(f"{lens.preposition} this token{shown}; framed: the token that the output predicts")
    figure.colorbar(image, ax=axes, label="probability", pad=0.01, aspect=12)
    text = f"“{shorten(lens.text, MAX_TITLE_TEXT)}”"
    if lens.target is not None:
        text += f" → “{shorten(lens.target, MAX_TITLE_TEXT)}”"
    set_title(figure, f"{model}: what each layer predicts" if model else "What each layer predicts", text)


def _cell_text(token: str) -> str:
    """A token in a picture, in quotes if it is of narrow marks alone: a comma in the middle of a cell is a speck."""
    return figure_text(f"‘{token}’" if NARROW.issuperset(token.strip("·")) else _cut(token))
