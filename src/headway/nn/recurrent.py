"""Recurrent layers: a hidden state summarises the past (Elman 1990; Hochreiter & Schmidhuber 1997).

    tanh       h = tanh(W_x x + W_h h + b)                              relu, sigmoid: the same with max(0, ·) or σ

    lstm       i = σ(W_xi x + W_hi h + b_i)         input gate          peephole: the gates also see the cell,
               f = σ(W_xf x + W_hf h + b_f)         forget gate           i and f the old one by W_ci c and W_cf c,
               c = f c + i tanh(W_xc x + W_hc h + b_c)                    o the new one by W_co c (Gers &
               o = σ(W_xo x + W_ho h + b_o)         output gate           Schmidhuber 2000; Graves 2013, eq. 7–11)
               h = o tanh(c)

    gru        r, z = σ(…);  h = (1 − z) tanh(W_xn x + b_n + r (W_hn h + b_hn)) + z h        (Cho et al. 2014)

`iter_steps` is the definition, one token at a time; `forward` computes the same with torch's fused kernels (cuDNN on a
GPU) where they exist: there are none for peepholes and sigmoid. Weights have the layout of torch.nn.LSTM, gates i, f,
c, o stacked.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# cuDNN wants contiguous weights and copies them together at every call; weight drop makes new ones each time anyway.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

CellKind = Literal["tanh", "relu", "sigmoid", "lstm", "gru", "peephole"]
GATES: dict[str, int] = {"tanh": 1, "relu": 1, "sigmoid": 1, "lstm": 4, "gru": 3, "peephole": 4}
NOT_FUSED = ("sigmoid", "peephole")  # cells without a kernel in torch
RecurrentState = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM; each (B, D)


class Recurrent(nn.Module):
    """One layer: x (B, T, d_in) and a state → outputs (B, T, d_out) and the new state.

    `weight_drop`: during training, that fraction of the hidden-to-hidden weights is 0, the same ones for all steps of a
    call (Merity et al. 2018, §2).
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
        """Uniform in ±1/√d_out, torch's default."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(self.d_out), 1 / math.sqrt(self.d_out))

    @property
    def n_state_tensors(self) -> int:
        return 2 if self.kind in ("lstm", "peephole") else 1

    def start(self, batch_size: int) -> RecurrentState:
        """The zero state."""
        return tuple(self.weight_h.new_zeros(batch_size, self.d_out) for _ in range(self.n_state_tensors))

    def steps(self, x: Tensor, state: RecurrentState, weight_h: Tensor | None = None) -> tuple[Tensor, RecurrentState]:
        """By the definition, token by token."""
        states = [new_state for new_state, _ in self.iter_steps(x, state, weight_h)]
        return torch.stack([h for h, *_ in states], dim=1), states[-1]

    def iter_steps(
        self, x: Tensor, state: RecurrentState, weight_h: Tensor | None = None
    ) -> Iterator[tuple[RecurrentState, dict[str, Tensor]]]:
        """The definition: after each token the state, and the gates (B, D) by name, all between 0 and 1."""
        weight_h = self.weight_h if weight_h is None else weight_h
        gates: dict[str, Tensor] = {}  # tanh and relu have none
        h, *cell = state
        for x_t in x.unbind(dim=1):
            from_x, from_h = F.linear(x_t, self.weight_x, self.bias_x), F.linear(h, weight_h, self.bias_h)
            match self.kind:
                case "tanh":
                    h = torch.tanh(from_x + from_h)
                case "relu":
                    h = torch.relu(from_x + from_h)
                case "sigmoid":
                    h = torch.sigmoid(from_x + from_h)
                case "gru":
                    (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, dim=-1), from_h.chunk(3, dim=-1)
                    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
                    h = (1 - z) * torch.tanh(x_n + r * h_n) + z * h
                    gates = {"reset": r, "update": z}
                case _:
                    (c,) = cell
                    i, f, g, o = (from_x + from_h).chunk(4, dim=-1)
                    if self.weight_c is not None:
                        i, f = i + self.weight_c[0] * c, f + self.weight_c[1] * c
                    i, f = torch.sigmoid(i), torch.sigmoid(f)
                    c = f * c + i * torch.tanh(g)
                    if self.weight_c is not None:
                        o = o + self.weight_c[2] * c
                    o = torch.sigmoid(o)
                    h, cell = o * torch.tanh(c), [c]
                    gates = {"input": i, "forget": f, "output": o}
            yield (h, *cell), gates

    def forward(self, x: Tensor, state: RecurrentState, lengths: Tensor | None = None) -> tuple[Tensor, RecurrentState]:
        """With `lengths` (B,), the new state is the one after each row's last real token; a row may have none."""
        dtype = self._compute_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            weight_h = F.dropout(self.weight_h, self.weight_drop, self.training)
            x, state = x.to(dtype), tuple(t.to(dtype) for t in state)
            if lengths is not None:
                return self._ragged(x, state, lengths.cpu(), weight_h)
            if self.kind in NOT_FUSED:
                return self.steps(x, state, weight_h)
            if x.shape[1] == 1:
                return self._cell(x, state, weight_h)
            return self._fused((x,), state, weight_h, batch_first=True)

    def _compute_dtype(self, x: Tensor) -> torch.dtype:
        """The autocast dtype for sequence kernels on a GPU: cuDNN by itself would choose float16, whose range is too
        small for gradients. Single steps keep the weights' dtype, so the state is not rounded at every step."""
        use_autocast = (
            torch.is_autocast_enabled(x.device.type) and x.is_cuda and x.shape[1] > 1 and self.kind not in NOT_FUSED
        )
        return torch.get_autocast_dtype(x.device.type) if use_autocast else self.weight_h.dtype

    def _cell(self, x: Tensor, state: RecurrentState, weight_h: Tensor) -> tuple[Tensor, RecurrentState]:
        """One token: sequence kernels first repack their weights, which takes longer than the step."""
        weights = (self.weight_x, weight_h, self.bias_x, self.bias_h)
        if self.kind == "lstm":
            new_state: RecurrentState = torch.lstm_cell(x[:, 0], state, *weights)
        else:
            kernel = {"gru": torch.gru_cell, "tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[self.kind]
            new_state = (kernel(x[:, 0], state[0], *weights),)
        return new_state[0][:, None], new_state

    def _fused(
        self, x: tuple[Tensor, ...], state: RecurrentState, weight_h: Tensor, **kernel_flags: bool
    ) -> tuple[Tensor, RecurrentState]:
        """x: a batch, or the packed tokens and the batch size at each step."""
        weights = [w.to(x[0].dtype) for w in (self.weight_x, weight_h, self.bias_x, self.bias_h)]
        layer_state = tuple(t[None].contiguous() for t in state)
        kernel = getattr(torch._VF, self.kind if self.kind in ("lstm", "gru") else f"rnn_{self.kind}")
        initial = layer_state if self.kind == "lstm" else layer_state[0]
        has_biases, n_layers, dropout, bidirectional = True, 1, 0.0, False
        outputs, *new_state = kernel(
            *x, initial, weights, has_biases, n_layers, dropout, self.training, bidirectional, *kernel_flags.values()
        )
        return outputs, tuple(t[0] for t in new_state)

    def _ragged(
        self, x: Tensor, state: RecurrentState, lengths: Tensor, weight_h: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        has_tokens = (lengths > 0).to(x.device)[:, None]
        if self.kind in NOT_FUSED:
            return self._ragged_steps(x, state, lengths.to(x.device), weight_h)
        packed = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        order, inverse = packed.sorted_indices, packed.unsorted_indices
        assert order is not None  # packing sorts the rows by length
        assert inverse is not None
        data, new_state = self._fused((packed.data, packed.batch_sizes), tuple(t[order] for t in state), weight_h)
        outputs, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
        pairs = zip(new_state, state, strict=True)
        return outputs, tuple(torch.where(has_tokens, new[inverse], old) for new, old in pairs)

    def _ragged_steps(
        self, x: Tensor, state: RecurrentState, lengths: Tensor, weight_h: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        outputs = []
        for t in range(x.shape[1]):
            output, new_state = self.steps(x[:, t : t + 1], state, weight_h)
            is_real = (t < lengths)[:, None]
            state = tuple(torch.where(is_real, new, old) for new, old in zip(new_state, state, strict=True))
            outputs.append(output)
        return torch.cat(outputs, dim=1), state


class Bidirectional(nn.Module):
    """A forward and a backward layer, their outputs concatenated (Schuster & Paliwal 1997): (B, S, 2 d_out)."""

    def __init__(self, kind: CellKind, d_in: int, d_out: int, *, weight_drop: float = 0.0):
        super().__init__()
        self.forward_rnn = Recurrent(kind, d_in, d_out, weight_drop=weight_drop)
        self.backward_rnn = Recurrent(kind, d_in, d_out, weight_drop=weight_drop)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """Outputs, the forward state after the last token and the backward state after the first."""
        B = x.shape[0]
        y_forward, forward_state = self.forward_rnn(x, self.forward_rnn.start(B), lengths)
        x_reversed = reverse_sequences(x, lengths)
        y_backward, backward_state = self.backward_rnn(x_reversed, self.backward_rnn.start(B), lengths)
        y = torch.cat((y_forward, reverse_sequences(y_backward, lengths)), dim=-1)
        return y, forward_state, backward_state


class BidirectionalStack(nn.Module):
    """Several bidirectional layers on top of each other: (B, S, 2 d_out)."""

    def __init__(self, kind: CellKind, d_in: int, d_out: int, n_layers: int, *, dropout: float = 0.0):
        super().__init__()
        widths = [d_in, *[2 * d_out] * (n_layers - 1)]
        self.layers = nn.ModuleList(Bidirectional(kind, width, d_out) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, RecurrentState, RecurrentState]:
        """Outputs and final states of the top layer."""
        forward_state: RecurrentState = ()
        backward_state: RecurrentState = ()
        for i, layer in enumerate(self.layers):
            x, forward_state, backward_state = layer(self.dropout(x) if i else x, lengths)
        return x, forward_state, backward_state


def reverse_sequences(x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """(B, T, …) with the real tokens of each row reversed; padding stays where it was."""
    if lengths is None:
        return x.flip(1)
    positions = torch.arange(x.shape[1], device=x.device)
    index = lengths.to(x.device)[:, None] - 1 - positions
    index = torch.where(index >= 0, index, positions)
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand_as(x))


def variational_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a row: (B, T, D) (Gal & Ghahramani 2016)."""
    if not training or p == 0:
        return x
    return x * F.dropout(torch.ones_like(x[:, :1]), p, True)
