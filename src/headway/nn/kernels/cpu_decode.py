"""Records the operations of a decode step and runs them as one call of cpu_decode.c, in float32.

    program = CPUProgram(n_rows, …)
    y = program.linear(x, weight, bias, norm=norm)       records the operation; y will hold its result
    y = program.attention(qkv, keys, values, lengths)
    program.run(result)                                  computes all of them, with the values that x has now

Like a CUDA graph, a program works on memory at fixed addresses.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headway.nn.kernels.c_library import load_c_library
from headway.nn.kernels.decode_parts import PositionTables, norm_parameters

NORMS = ("none", "layer", "rms")  # as numbered in cpu_decode.c
ACTIVATIONS = ("none", "relu", "relu2", "gelu", "gelu-tanh", "swiglu")
MAX_FUSED_ROWS = 8  # MAX_ROWS of cpu_decode.c
FLOATS_PER_CACHE_LINE = 16


def _struct(integers: str, floats: str, pointers: str) -> list[tuple[str, Any]]:
    kinds = ((integers, ctypes.c_int32), (floats, ctypes.c_float), (pointers, ctypes.c_void_p))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class LinearStruct(ctypes.Structure):
    _fields_ = _struct("n_in n_out norm activation", "eps", "x gamma beta weight bias residual y")


class AttentionStruct(ctypes.Structure):
    _fields_ = _struct("H G K capacity bias_width", "", "qkv keys values lengths cos sin offsets bias y")


class OperationStruct(ctypes.Structure):
    _fields_ = [("linear", ctypes.POINTER(LinearStruct)), ("attention", ctypes.POINTER(AttentionStruct))]


def why_no_library() -> str | None:
    """Why cpu_decode.c cannot be compiled or loaded here; None if it can."""
    library = load_c_library("cpu_decode.c")
    return library if isinstance(library, str) else None


def _run_function() -> Any:
    library = load_c_library("cpu_decode.c")
    assert not isinstance(library, str), library
    return library.run


def product_program(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """A call that computes x Wᵀ, as a decode step does."""
    program = CPUProgram(len(x), 1, 1, weight.shape[1], PositionTables())
    y = program.linear(x, weight, None)

    def run() -> Tensor:
        program.run(y)
        return y

    return run


class CPUProgram:
    def __init__(self, n_rows: int, n_heads: int, n_kv_heads: int, d_head: int, tables: PositionTables):
        self.n_rows, self.n_threads = n_rows, torch.get_num_threads()
        self.n_heads, self.n_kv_heads, self.d_head, self.tables = n_heads, n_kv_heads, d_head, tables
        self._operations: list[OperationStruct] = []
        self._buffers: dict[int, Tensor] = {}  # by width: of results that the next operation reads
        self._alive: list[Any] = [tables]  # what the operations point to
        self._scratch_size = 0
        self._compiled: tuple[Any, Tensor] | None = None

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, norm: nn.Module | None = None,
        activation: str = "none", gated: bool = False, residual: Tensor | None = None, dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """x (B, n_in) → act(norm(x) Wᵀ + b), or with `gated` SwiGLU, or `residual` + norm(x) Wᵀ + b, in place."""
        assert residual is None or (activation == "none" and not gated)
        n_out = weight.shape[0] // 2 if gated else weight.shape[0]
        y = self._buffer(n_out) if residual is None else residual
        kind, gamma, beta, eps = norm_parameters(norm)
        numbers = (weight.shape[1], n_out, NORMS.index(kind), ACTIVATIONS.index("swiglu" if gated else activation))
        self._add(LinearStruct(*numbers, eps, *self._pointers(x, gamma, beta, weight, bias, residual, y)))
        self._scratch_size = max(self._scratch_size, self.n_rows * (weight.shape[1] + gated * n_out))
        return y

    def attention(self, qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """qkv (B, (H + 2G) · K) of the new tokens; keys, values (B, G, capacity, K), written at `lengths` (B,) → the
        outputs of all heads side by side (B, H · K)."""
        y, capacity = self._buffer(self.n_heads * self.d_head), keys.shape[2]
        t, width = self.tables, 0 if self.tables.bias is None else self.tables.bias.shape[1]
        numbers = (self.n_heads, self.n_kv_heads, self.d_head, capacity, width)
        pointers = self._pointers(qkv, keys, values, lengths, t.cos, t.sin, t.offsets, t.bias, y)
        self._add(AttentionStruct(*numbers, *pointers))
        self._scratch_size = max(self._scratch_size, capacity + 3 * self.d_head)
        return y

    def run(self, result: Tensor) -> None:
        """Compute everything; the last operation, which is a product, writes to `result`."""
        if self._compiled is None:
            # A line more than needed, so that rows are aligned and threads do not write to the same line.
            size = (self._scratch_size // FLOATS_PER_CACHE_LINE + 2) * FLOATS_PER_CACHE_LINE
            operations = (OperationStruct * len(self._operations))(*self._operations)
            self._compiled = operations, torch.empty(self.n_threads, size, dtype=torch.float32)
        operations, scratch = self._compiled
        operations[-1].linear.contents.y = result.data_ptr()
        _run_function()(
            operations, len(operations), self.n_rows, self.n_threads, ctypes.c_void_p(scratch.data_ptr()),
            ctypes.c_ssize_t(scratch.shape[1]),
        )  # fmt: skip

    def _add(self, operation: LinearStruct | AttentionStruct) -> None:
        is_linear = isinstance(operation, LinearStruct)
        pointer = ctypes.pointer(operation)
        self._operations.append(OperationStruct(pointer, None) if is_linear else OperationStruct(None, pointer))

    def _buffer(self, width: int) -> Tensor:
        if width not in self._buffers:
            self._buffers[width] = torch.empty(self.n_rows, width, dtype=torch.float32)
        return self._buffers[width]

    def _pointers(self, *tensors: Tensor | None) -> list[int | None]:
        # Not the parameters themselves: `.to()` and `.data = …` give them other memory, and this would be freed.
        self._alive += [tensor.detach() for tensor in tensors if tensor is not None]
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
