"""Recurrent layers: what came before, in a vector that is carried on (Elman 1990; Hochreiter & Schmidhuber 1997).

    tanh       h = tanh(W_x x + W_h h + b)                              relu: the same with max(0, ·)

    lstm       i = σ(W_xi x + W_hi h + b_i)         what is let in      peephole: the gates also see the cell,
               f = σ(W_xf x + W_hf h + b_f)         what is kept          i and f by W_ci c and W_cf c, as it was,
               c = f c + i tanh(W_xc x + W_hc h + b_c)                    o by W_co c, as it is now (Gers &
               o = σ(W_xo x + W_ho h + b_o)         what is shown         Schmidhuber 2000; Graves 2013, eq. 7–11)
               h = o tanh(c)

    gru        r, z = σ(…);  h = (1 − z) tanh(W_xn x + b_n + r (W_hn h + b_hn)) + z h        (Cho et al. 2014)

`steps` says it like that, one token after the other; `forward` computes the same with torch's fused kernels (cuDNN on a
GPU), where there are some: not for peepholes. Weights lie as torch.nn.LSTM has them, gates i, f, c, o one under the
other.
"""

import math
import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# cuDNN wants weights side by side, and puts them there at every call: with dropout of weights they are new ones anyway.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

CellKind = Literal["tanh", "relu", "lstm", "gru", "peephole"]
GATES: dict[str, int] = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3, "peephole": 4}
RecurrentState = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM; each (B, D)


class Recurrent(nn.Module):
    """One layer: x (B, T, d_in) and what is carried → outputs (B, T, d_out) and what is carried on.

    `weight_drop`: while training, that share of the weights from h to h is 0, the same ones for all steps of a call
    (Merity et al. 2018, §2).
    """

    def __init__(self, kind: CellKind, d_in: int, d_out: int, *, weight_drop: float = 0.0):
        super().__init__()
        self.kind, self.d_out, self.weight_drop = kind, d_out, weight_drop
        n = GATES[kind] * d_out
        self.weight_x, self.weight_h = nn.Parameter(torch.empty(n, d_in)), nn.Parameter(torch.empty(n, d_out))
        self.bias_x, self.bias_h = nn.Parameter(torch.empty(n)), nn.Parameter(torch.empty(n))
        self.weight_c = nn.Parameter(torch.empty(3, d_out)) if kind == "peephole" else None  # W_ci, W_cf, W_co
        self.init_weights()

    def init_weights(self) -> None:
        """Uniform in ±1/√d_out, as torch has it."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(self.d_out), 1 / math.sqrt(self.d_out))

    @property
    def n_state_tensors(self) -> int:
        return 2 if self.kind in ("lstm", "peephole") else 1

    def start(self, batch_size: int) -> RecurrentState:
        """Nothing yet: zeros."""
        return tuple(self.weight_h.new_zeros(batch_size, self.d_out) for _ in range(self.n_state_tensors))

    def steps(
        self, x: Tensor, carried: RecurrentState, weight_h: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """By the definition, token by token."""
        weight_h = self.weight_h if weight_h is None else weight_h
        outputs = []
        h, *cell = carried
        for x_t in x.unbind(dim=1):
            of_x, of_h = F.linear(x_t, self.weight_x, self.bias_x), F.linear(h, weight_h, self.bias_h)
            match self.kind:
                case "tanh":
                    h = torch.tanh(of_x + of_h)
                case "relu":
                    h = torch.relu(of_x + of_h)
                case "gru":
                    (x_r, x_z, x_n), (h_r, h_z, h_n) = of_x.chunk(3, dim=-1), of_h.chunk(3, dim=-1)
                    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
                    h = (1 - z) * torch.tanh(x_n + r * h_n) + z * h
                case _:
                    (c,) = cell
                    i, f, g, o = (of_x + of_h).chunk(4, dim=-1)
                    if self.weight_c is not None:
                        i, f = i + self.weight_c[0] * c, f + self.weight_c[1] * c
                    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                    if self.weight_c is not None:
                        o = o + self.weight_c[2] * c
                    h, cell = torch.sigmoid(o) * torch.tanh(c), [c]
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, *cell)

    def forward(
        self, x: Tensor, carried: RecurrentState, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """With `lengths` (B,), what is carried on is from each row's last real token; a row may have none."""
        dtype = self._precision(x)
        with torch.autocast(x.device.type, enabled=False):
            weight_h = F.dropout(self.weight_h, self.weight_drop, self.training)
            x, carried = x.to(dtype), tuple(t.to(dtype) for t in carried)
            if lengths is not None:
                return self._ragged(x, carried, lengths.cpu(), weight_h)
            if self.kind == "peephole":
                return self.steps(x, carried, weight_h)
            if x.shape[1] == 1:
                return self._cell(x, carried, weight_h)
            return self._fused((x,), carried, weight_h, batch_first=True)

    def _precision(self, x: Tensor) -> torch.dtype:
        """Under autocast what it asks for, where there is a kernel for whole rows: left to itself cuDNN would compute
        in float16, whose range is too small for gradients. One step at a time a state is not rounded every time."""
        is_asked = torch.is_autocast_enabled(x.device.type) and x.is_cuda and x.shape[1] > 1 and self.kind != "peephole"
        return torch.get_autocast_dtype(x.device.type) if is_asked else self.weight_h.dtype

    def _cell(self, x: Tensor, carried: RecurrentState, weight_h: Tensor) -> tuple[Tensor, RecurrentState]:
        """One token: kernels for whole rows lay out their weights first, which takes longer than the step."""
        weights = (self.weight_x, weight_h, self.bias_x, self.bias_h)
        if self.kind == "lstm":
            after: RecurrentState = torch.lstm_cell(x[:, 0], carried, *weights)
        else:
            kernel = {"gru": torch.gru_cell, "tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[self.kind]
            after = (kernel(x[:, 0], carried[0], *weights),)
        return after[0][:, None], after

    def _fused(
        self, x: tuple[Tensor, ...], carried: RecurrentState, weight_h: Tensor, **more: bool
    ) -> tuple[Tensor, RecurrentState]:
        """x: rows, or their packed tokens and how many rows there are at each step."""
        weights = [w.to(x[0].dtype) for w in (self.weight_x, weight_h, self.bias_x, self.bias_h)]
        before = tuple(t[None].contiguous() for t in carried)
        kernel = getattr(torch._VF, self.kind if self.kind in ("lstm", "gru") else f"rnn_{self.kind}")
        start = before if self.kind == "lstm" else before[0]
        has_biases, n_layers, dropout, both_ways = True, 1, 0.0, False
        outputs, *after = kernel(
            *x, start, weights, has_biases, n_layers, dropout, self.training, both_ways, *more.values()
        )
        return outputs, tuple(t[0] for t in after)

    def _ragged(
        self, x: Tensor, carried: RecurrentState, lengths: Tensor, weight_h: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        is_some = (lengths > 0).to(x.device)[:, None]
        if self.kind == "peephole":
            return self._ragged_steps(x, carried, lengths.to(x.device), weight_h)
        packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None  # rows are in another order
        assert back is not None
        data, after = self._fused((packed.data, packed.batch_sizes), tuple(t[order] for t in carried), weight_h)
        outputs, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        return outputs, tuple(torch.where(is_some, new[back], old) for new, old in zip(after, carried, strict=True))

    def _ragged_steps(
        self, x: Tensor, carried: RecurrentState, lengths: Tensor, weight_h: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        outputs = []
        for t in range(x.shape[1]):
            out, after = self.steps(x[:, t : t + 1], carried, weight_h)
            is_real = (t < lengths)[:, None]
            carried = tuple(torch.where(is_real, new, old) for new, old in zip(after, carried, strict=True))
            outputs.append(out)
        return torch.cat(outputs, dim=1), carried


class Bidirectional(nn.Module):
    """Two layers, one of which reads backwards, side by side (Schuster & Paliwal 1997): (B, S, 2 d_out)."""

    def __init__(self, kind: CellKind, d_in: int, d_out: int, *, weight_drop: float = 0.0):
        super().__init__()
        self.forward_rnn = Recurrent(kind, d_in, d_out, weight_drop=weight_drop)
        self.backward_rnn = Recurrent(kind, d_in, d_out, weight_drop=weight_drop)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """Outputs, and what each of the two ended with: the last token and the first."""
        B = x.shape[0]
        onward, after = self.forward_rnn(x, self.forward_rnn.start(B), lengths)
        back, before = self.backward_rnn(reverse_sequences(x, lengths), self.backward_rnn.start(B), lengths)
        return torch.cat((onward, reverse_sequences(back, lengths)), dim=-1), after, before


class BidirectionalStack(nn.Module):
    """Several of them, each reading what the one below gives: (B, S, 2 d_out)."""

    def __init__(self, kind: CellKind, d_in: int, d_out: int, n_layers: int, *, dropout: float = 0.0):
        super().__init__()
        widths = [d_in, *[2 * d_out] * (n_layers - 1)]
        self.layers = nn.ModuleList(Bidirectional(kind, width, d_out) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """As of one; what is carried is the last one's."""
        after: RecurrentState = ()
        before: RecurrentState = ()
        for i, layer in enumerate(self.layers):
            x, after, before = layer(self.dropout(x) if i else x, lengths)
        return x, after, before


def reverse_sequences(x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """(B, T, …) with the real tokens of each row in reverse, padding where it was."""
    if lengths is None:
        return x.flip(1)
    place = torch.arange(x.shape[1], device=x.device)
    at = lengths.to(x.device)[:, None] - 1 - place
    at = torch.where(at >= 0, at, place)
    return x.gather(1, at.view(*at.shape, *[1] * (x.dim() - 2)).expand_as(x))


def variational_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a row: (B, T, D) (Gal & Ghahramani 2016)."""
    if not training or p == 0:
        return x
    return x * F.dropout(torch.ones_like(x[:, :1]), p, True)
