"""Compiles every Triton kernel for an NVIDIA H200, on a machine without a GPU: `python -m tests.triton_compile`.

Kernels are called as the library calls them, with tensors on the CPU, but are compiled in place of launched. Prints
a JSON object: the bytes of shared memory that each kernel needs at most.
"""

import contextlib
import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import headway
from headway.compilers import run_trial_kernel
from headway.models.fused_decode import TritonDecodeStep
from headway.nn.kernels.cross_entropy import rows_to_gradient
from headway.nn.kernels.decode_tokens import append_tokens
from headway.sampling import kernels

H200 = GPUTarget("cuda", 90, 32)
SHARED_BYTES: dict[str, int] = {}
SMALL = {"vocab_size": 99, "context": 400, "n_layers": 1, "d_model": 256, "n_heads": 4}


class H200Driver:
    """What the compiler asks of a GPU's driver."""

    def get_current_target(self) -> GPUTarget:
        return H200

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def compile_instead_of_launching() -> None:
    launch = JITFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = launch(kernel, *args, grid=grid, warmup=True, **options)
        name = kernel.fn.__name__
        SHARED_BYTES[name] = max(SHARED_BYTES.get(name, 0), compiled.metadata.shared)
        return compiled

    driver.set_active(H200Driver())
    JITFunction.run = run
    torch.cuda.device = lambda device: contextlib.nullcontext()  # type: ignore[assignment, misc]


def compile_decode_step(n_rows: int, dtype: str, **config: Any) -> None:
    model = headway.create("gpt", **{**SMALL, **config}, dtype=dtype).eval()
    cache = model.start(n_rows, 320)
    TritonDecodeStep(model, cache)(model, torch.zeros(n_rows, 1, dtype=torch.long), cache)


def main() -> None:
    compile_instead_of_launching()
    run_trial_kernel("cpu")
    llama = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "n_kv_heads": 2}
    compile_decode_step(1, "bfloat16", **llama)
    compile_decode_step(8, "bfloat16", **llama, d_head=128)
    compile_decode_step(300, "float16", positions="alibi", feed_forward="relu2", d_head=80)
    compile_decode_step(2, "float32", positions="per-layer", norm="none", feed_forward="gelu", n_kv_heads=1, d_head=256)
    rows, counts = torch.randn(3, 5000), torch.zeros(3, 1, dtype=torch.long)
    append_tokens(counts[:, 0], counts, counts[:, 0], counts.expand(3, 9).contiguous(), counts, counts[:, 0])
    kernels.best_column(rows)
    kernels.block_max(rows, 64)
    kernels.prefix(rows, torch.ones(3, 1), 1, "count")
    kernels.prefix(rows, torch.ones(3, 1), torch.ones(3, 1), "typical")
    for dtype in (torch.float32, torch.bfloat16):
        rows_to_gradient(rows.to(dtype), counts[:, 0], torch.zeros(3), 4990, 0.1, -100)
    print(json.dumps(SHARED_BYTES))


if __name__ == "__main__":
    main()
