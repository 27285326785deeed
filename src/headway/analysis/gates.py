"""The gates of a recurrent model over a text: what it writes, keeps and shows, token by token.

    lstm, peephole    input (write), forget (1: keep, 0: erase), output (show), and |c|, the length of the cell
    gru               reset (0: ignore the past), update (1: keep, 0: replace), and |h|, the length of the hidden state

The values come from `Recurrent.iter_steps` (nn/recurrent.py), on the inputs that the layer gets in a forward pass of
the whole model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.analysis.plotting import MARKERS, figure_text, fit_tick_labels, open_figure, set_title, shorten, theme
from headway.analysis.token_labels import token_labels
from headway.errors import InputError, index_error
from headway.generation.source import encode_sources
from headway.models import RNN, Bahdanau, BiLSTM, Seq2Seq
from headway.models.adapter import refuse_path
from headway.models.base import described, eval_mode
from headway.nn.recurrent import Recurrent
from headway.tables import Column, render_table

GATED_CELLS = ("lstm", "peephole", "gru")
MAX_TITLE_TEXT = 90  # characters of a text in the title
COLUMN = 0.19  # inches per token
MIN_WIDTH, MAX_WIDTH = 6.0, 16.0  # inches


@dataclass(frozen=True)
class TextGates:
    """The gates of one layer after each token of a text, in the order of the text."""

    tokens: list[str]
    gates: dict[str, Tensor]  # name → (T, D), between 0 and 1
    state: Tensor  # (T, D): the cell c of an LSTM, the hidden state h of a GRU
    state_name: str  # "c" or "h"
    layer: int
    text: str
    direction: str = "forward"  # "backward": the layer reads from the end of the text

    @property
    def n_units(self) -> int:
        return self.state.shape[1]

    @property
    def state_norm(self) -> Tensor:
        """|c| or |h| (T,)."""
        return self.state.norm(dim=-1)

    def of_unit(self, unit: int | None) -> dict[str, Tensor]:
        """Each gate over the text (T,): of one unit, or the mean over all."""
        if unit is not None and not 0 <= unit < self.n_units:
            raise index_error("unit", unit, self.n_units)
        return {name: gate.mean(dim=1) if unit is None else gate[:, unit] for name, gate in self.gates.items()}


def gated_layers(model: Any, direction: str = "forward") -> list[Recurrent]:
    """The recurrent layers of a language model, or of the encoder of another model, that read in one direction."""
    refuse_path(model)
    core = model.encoder if isinstance(getattr(model, "encoder", None), BiLSTM) else model
    if direction not in ("forward", "backward"):
        raise InputError(f"no direction named {direction!r}: choose forward or backward")
    if isinstance(core, BiLSTM | Bahdanau):
        stack: Any = core.layers if isinstance(core, BiLSTM) else core.encoder
        layers = [getattr(pair, f"{direction}_rnn") for pair in stack.layers]
    elif isinstance(core, RNN | Seq2Seq):
        if direction == "backward":
            raise InputError(f"{described(model)} reads in one direction: leave direction out")
        layers = list(core.layers if isinstance(core, RNN) else core.encoder)
    else:
        raise InputError(
            f"{described(model)} has no gates: use an lstm (or rnn with model.cell=gru), seq2seq or bilstm"
        )
    if layers[0].kind not in GATED_CELLS:
        raise InputError(
            f"{layers[0].kind} cells have no gates: use an lstm, or an rnn with model.cell={', '.join(GATED_CELLS)}"
        )
    return layers


@contextmanager
def _captured_inputs(layer: Recurrent) -> Iterator[list[tuple[Tensor, Any]]]:
    """The input (B, T, D) and the first state of each call of a layer."""
    calls: list[tuple[Tensor, Any]] = []
    hook = layer.register_forward_pre_hook(lambda _, args: calls.append((args[0], args[1])))
    try:
        yield calls
    finally:
        hook.remove()


def text_gates(model: Any, text: str, *, layer: int | None = None, direction: str = "forward") -> TextGates:
    """The gates of a layer (default: the last) over a text; of a translation model, those of its encoder over the
    source; of a bidirectional encoder, in one `direction`."""
    layers = gated_layers(model, direction)
    layer = len(layers) - 1 if layer is None else layer
    if not 0 <= layer < len(layers):
        raise index_error("layer", layer, len(layers))
    ids, is_reversed = _input_ids(model, text, direction)
    module = layers[layer]
    with eval_mode(model), torch.inference_mode():
        with _captured_inputs(module) as calls:
            _read(model, ids)
        steps = [step for x, state in calls for step in module.iter_steps(x, state)]
    gates = {name: torch.stack([gates[name][0] for _, gates in steps]).float().cpu() for name in steps[0][1]}
    state = torch.stack([state[-1][0] for state, _ in steps]).float().cpu()  # the cell comes last
    if is_reversed:
        gates, state = {name: gate.flip(0) for name, gate in gates.items()}, state.flip(0)
    labels = token_labels(model.tokenizer, ids, text.strip() if isinstance(model, Seq2Seq | Bahdanau) else text)
    state_name = "h" if module.kind == "gru" else "c"
    return TextGates(labels, gates, state, state_name, layer, text, "backward" if is_reversed else "forward")


def _input_ids(model: Any, text: str, direction: str) -> tuple[list[int], bool]:
    """The ids of the text, and whether the layer reads them from the end."""
    tokenizer = model.tokenizer
    if isinstance(model, Seq2Seq | Bahdanau):
        (ids,) = encode_sources(model, tokenizer, [text])
        if not ids:
            raise InputError("an empty text has no tokens to read")
        return ids, direction == "backward" or (isinstance(model, Seq2Seq) and model.config.reverse_source)
    if isinstance(model, RNN):
        return tokenizer.encode_prompt(text), False
    ids = tokenizer.build_inputs(tokenizer.encode(text))[0]
    if not ids:
        raise InputError("an empty text has no tokens to read")
    return ids, direction == "backward"


def _read(model: Any, ids: Sequence[int]) -> None:
    """Run the layers over one row."""
    rows = torch.tensor([list(ids)], device=model.device)
    if isinstance(model, Seq2Seq | Bahdanau):
        model.encode(rows)
    else:
        nn.Module.__call__(model.encoder if isinstance(getattr(model, "encoder", None), BiLSTM) else model, rows)


# ── text and picture ──────────────────────────────────────────────────────────────────────────────────────────────


def describe(gates: TextGates, unit: int | None) -> str:
    backward = ", read backwards" if gates.direction == "backward" else ""
    which = f"unit {unit} of {gates.n_units}" if unit is not None else f"the mean of {gates.n_units} units"
    return f"layer {gates.layer}{backward}, {which}"


def render_text(gates: TextGates, unit: int | None = None) -> str:
    """A row per token: each gate, of one unit or the mean over all, and the state: of one unit, or its length."""
    values = gates.of_unit(unit)
    state = gates.state_norm if unit is None else gates.state[:, unit]
    columns = [
        Column("token", gates.tokens, is_text=True),
        *(Column(name, [f"{float(x):.3f}" for x in gate]) for name, gate in values.items()),
        Column(f"|{gates.state_name}|" if unit is None else gates.state_name, [f"{float(x):.3f}" for x in state]),
    ]
    return f"{describe(gates, unit)}\n\n{render_table(columns)}"


def plot(gates: TextGates, file: str | Path, *, unit: int | None = None, model: str = "") -> Path:
    """Write a picture with tokens on the x axis: a heat map of all units per gate, or of one unit a row per gate; below
    it the mean of each gate, and the length of the state (of one unit: its value)."""
    width = min(MAX_WIDTH, max(MIN_WIDTH, 1.9 + COLUMN * len(gates.tokens)))
    with open_figure(file, width=width, height=(3.4 if unit is not None else 1.25 * len(gates.gates) + 3.2)) as figure:
        draw(figure, gates, unit=unit, model=model)
    return Path(file)


def draw(figure: Any, gates: TextGates, *, unit: int | None = None, model: str = "") -> None:
    """Draw the gates into an empty figure."""
    values = gates.of_unit(unit)
    n_maps = 0 if unit is not None else len(gates.gates)
    panels = figure.subplots(n_maps + 2, 1, sharex=True, height_ratios=[1.25] * n_maps + [1.1, 0.8])
    image: Any = None
    for axes, (name, gate) in zip(panels[:n_maps], gates.gates.items(), strict=False):
        order = gate.mean(dim=0).argsort(descending=True)  # the most open units on top
        image = axes.imshow(
            gate[:, order].T.numpy(), cmap=theme().sequential, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )
        axes.set_ylabel(f"{name} gate\n(units, sorted)")
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
    if image is not None:
        figure.colorbar(image, ax=list(panels[:n_maps]), label="gate (0: closed, 1: open)", pad=0.01, aspect=25)
    for i, (name, gate) in enumerate(values.items()):
        panels[-2].plot(
            gate.tolist(), color=theme().colour(i), marker=MARKERS[i], markersize=3, linewidth=1, label=name
        )
    panels[-2].set(ylim=(-0.03, 1.03), ylabel="mean gate" if unit is None else f"gate of unit {unit}")
    panels[-2].legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=len(values))
    state = gates.state_norm if unit is None else gates.state[:, unit]
    panels[-1].plot(state.tolist(), color=theme().colour(6), marker=".", linewidth=1)
    name = gates.state_name
    panels[-1].set_ylabel(f"|{name}|, length\nof the state" if unit is None else f"{name} of unit {unit}")
    for axes in panels[-2:]:
        axes.grid()
    panels[-1].set(xlabel="token", xlim=(-0.5, len(gates.tokens) - 0.5))
    panels[-1].set_xticks(range(len(gates.tokens)), labels=[figure_text(shorten(token, 14)) for token in gates.tokens])
    panels[-1].tick_params(axis="x", labelsize=7)
    subject = f"gates of {describe(gates, unit)}".replace("the mean of ", "")
    title = f"{model}: {subject}" if model else subject[:1].upper() + subject[1:]
    set_title(figure, title, f"“{shorten(gates.text, MAX_TITLE_TEXT)}”")
    fit_tick_labels([panels[-1]])
