"""Where the time of a decode step on a CPU goes, in float32: random weights, 192 keys.

    python benchmarks/decode_step.py                     GPT-2 small, batch 1, 2, 4 and 8
    python benchmarks/decode_step.py --model gpt-mini

"reading" is a lower bound: the fastest way to read as many bytes as the weights have. "products" is the fused step with
nothing but its products, "no attention" has norms and activations too. "plain" is `model.step` with PyTorch's products,
"cpu_linear" with those of nn/kernels/cpu_linear.py. Rounds are interleaved, except for reading; medians are reported.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import headway
from headway.device_rates import measure_bandwidth
from headway.models.fused_decode import CPUDecodeStep, decode_layers, position_tables
from headway.models.fused_rule import why_not_fused
from headway.models.gpt import GPT
from headway.nn.kernels.cpu_decode import CPUProgram
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.kv_cache import KVCache

N_KEYS, ROUNDS = 192, 15


class WithoutAttention(CPUProgram):
    def attention(self, qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        return qkv[:, : self.n_heads * self.d_head].contiguous()


class ProductsOnly(WithoutAttention):
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
        gated = options.get("gated", False)  # two matrices, as long as one of twice the rows
        y = super().linear(x, weight, bias)
        return y[:, : len(weight) // 2].contiguous() if gated else y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    model = headway.create(options.model).eval()
    assert isinstance(model, GPT)
    assert why_not_fused(model) is None, why_not_fused(model)
    blocks = sum(parameter.nbytes for parameter in model.blocks.parameters())
    n_bytes = blocks + model.embedding.table.nbytes
    print(f"{options.model}, {1e-6 * n_bytes:,.0f} MB of weights, {torch.get_num_threads()} threads; milliseconds\n")
    names = ("reading", "products", "no attention", "fused", "cpu_linear", "plain", "GB/s, fused")
    print(f"{'batch':>5} " + " ".join(f"{name:>12}" for name in names))
    for n_rows in options.batch:
        seconds = time_steps(model, n_rows)
        reading = n_bytes / measure_bandwidth(torch.device("cpu"), n_bytes)
        columns = [1e3 * reading, *(1e3 * value for value in seconds.values()), 1e-9 * n_bytes / seconds["fused"]]
        print(f"{n_rows:5} " + " ".join(f"{value:12.2f}" for value in columns))


@torch.inference_mode()
def time_steps(model: GPT, n_rows: int) -> dict[str, float]:
    cache = model.start(n_rows, capacity=N_KEYS + 1)
    ids = torch.randint(model.config.vocab_size, (n_rows, N_KEYS))
    _, state = model.step(ids, cache, last=True)
    assert isinstance(state, KVCache)
    token, kernels, fused = ids[:, :1], CPUKernels(model), CPUDecodeStep(model, state)
    steps = {
        "products": program(ProductsOnly, model, state),
        "no attention": program(WithoutAttention, model, state),
        "fused": lambda: fused(model, token, state),
        "cpu_linear": lambda: plain_step(model, token, state, kernels),
        "plain": lambda: plain_step(model, token, state, nullcontext()),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def plain_step(model: GPT, token: Tensor, state: KVCache, kernels: Any) -> None:
    with kernels:
        model.step(token, state, last=True)  # always the same slot


def program(kind: type[CPUProgram], model: GPT, state: KVCache) -> Callable[[], None]:
    c = model.config
    tables = position_tables(model, state.capacity)
    steps = kind(state.batch_size, c.n_heads, c.n_kv_heads, c.d_head, tables)
    x, logits = torch.randn(state.batch_size, c.d_model), torch.empty(state.batch_size, c.vocab_size)
    decode_layers(model, steps, x, state, state.length)
    return lambda: steps.run(logits)


if __name__ == "__main__":
    main()
