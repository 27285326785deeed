"""A training step of Headway against a plain loop in the style of nanoGPT: same shape, batch and precision, in one run.

    python benchmarks/training.py --device cuda         GPT-2 124M, 32 x 1024 tokens, bfloat16 products, both compiled
    python benchmarks/training.py --preset small        6 x 384, 16 x 256 tokens, float32 on the CPU, both eager

A step is forward, backward, gradient clipping at 1 and AdamW. Rounds are interleaved, so that other load on the machine
slows both; medians are reported. MFU counts 6 FLOPs per weight and token, and attention as appendix B of PaLM does.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway
from headway.config import GPTConfig, TrainConfig
from headway.costs import flops_per_token
from headway.data.loader import CausalBatch
from headway.nn.kernels.cpu_linear import use_cpu_training_kernels
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.throughput import device_peak
from headway.training.train_step import (
    CapturedStep,
    StepBatch,
    TrainStep,
    compile_blocks,
    compile_model,
    use_bfloat16_residual,
)

PRESETS = {
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "context": 1024, "batch": 32, "vocabulary": 50304},
    "small": {"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 16, "vocabulary": 65},
}


# ── the baseline: a plain PyTorch loop ────────────────────────────────────────────────────────────────────────────


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.heads, self.p, self.dropout = heads, dropout, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(D, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(B, T, D)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class PlainGPT(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int, dropout: float):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads, dropout) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(width, bias=False), nn.Dropout(dropout)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain_step(shape: dict[str, int], dropout: float, device: torch.device, is_bfloat16: bool, ids: Tensor) -> Any:
    torch.manual_seed(0)
    sizes = {name: shape[name] for name in ("layers", "heads", "width", "context", "vocabulary")}
    model = PlainGPT(**sizes, dropout=dropout).to(device)
    forward: Callable[..., Tensor] = torch.compile(model) if device.type == "cuda" else model
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16):
            loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# ── Headway ───────────────────────────────────────────────────────────────────────────────────────────────────────


def headway_step(config: GPTConfig, device: torch.device, is_bfloat16: bool, ids: Tensor, options: Any) -> Any:
    torch.manual_seed(0)
    model = headway.create(config, device=device).train()
    use_cpu_training_kernels(model)
    loss_module = LossModule(model, "causal")
    if options.residual == "bfloat16":
        use_bfloat16_residual(model)
    if device.type == "cuda":
        compile_model(model) if options.compile == "model" else compile_blocks(model)
    optimizer = Optimizer(model, TrainConfig(lr=3e-4), device=device)
    optimizer.set_lr(3e-4)
    train_step = TrainStep(loss_module, optimizer, clip=1.0, autocast=is_bfloat16, device=device)
    step = CapturedStep(train_step) if device.type == "cuda" else train_step
    batch = CausalBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    n_targets = batch.targets.numel()
    step_batch = StepBatch([batch], [True], n_targets)
    return lambda: step(step_batch, 1 / n_targets)[0] / n_targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="gpt2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", choices=["blocks", "model"], default="blocks", help="what to compile on a GPU")
    parser.add_argument("--residual", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps per round; default: 20 on a GPU, 1 on a CPU")
    parser.add_argument("--only", choices=["headway", "plain"], help="time only one of the two")
    parser.add_argument("--profile", action="store_true", help="list the kernels of a Headway step (GPU)")
    options = parser.parse_args()

    from headway.devices import parse_device

    device, shape = parse_device(options.device), PRESETS[options.preset]
    is_cuda = device.type == "cuda"
    torch.set_float32_matmul_precision("high" if is_cuda else "highest")
    config = GPTConfig(
        vocab_size=shape["vocabulary"],
        context=shape["context"],
        n_layers=shape["layers"],
        n_heads=shape["heads"],
        d_model=shape["width"],
        dropout=options.dropout,
        bias=False,
        feed_forward="gelu",
    )
    ids = torch.randint(shape["vocabulary"], (shape["batch"], shape["context"] + 1), device=device)
    step_makers = {
        "headway": lambda: headway_step(config, device, is_cuda, ids, options),
        "plain": lambda: plain_step(shape, options.dropout, device, is_cuda, ids),
    }
    names = [options.only] if options.only else list(step_makers)
    steps, memory, seconds = {}, {}, {name: [] for name in names}
    n_steps = options.steps or (20 if is_cuda else 1)
    for name in names:
        gc.collect()
        if is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            allocated = torch.cuda.memory_allocated()
        steps[name] = step_makers[name]()
        for _ in range(6 if is_cuda else 2):
            loss = float(steps[name]())
        memory[name] = (torch.cuda.max_memory_allocated() - allocated) / 2**30 if is_cuda else None
        print(f"{name}: loss {loss:.4f} after warm-up", flush=True)
    for _ in range(options.rounds):
        for name in names:
            start = time.perf_counter()
            for _ in range(n_steps):
                steps[name]()
            if is_cuda:
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - start) / n_steps)
    n_tokens = shape["batch"] * shape["context"]
    peak, source = device_peak(device, 2 if is_cuda else 4)
    results: dict[str, Any] = {"device": str(device), "torch": torch.__version__, "peak_flops": peak, "from": source}
    for name in names:
        tokens_per_second = n_tokens / statistics.median(seconds[name])
        results[name] = {
            "tokens_per_second": round(tokens_per_second),
            "ms": round(1e3 * statistics.median(seconds[name]), 2),
            "mfu": round(tokens_per_second * flops_per_token(config, shape["context"]) / peak, 4),
            "peak_gib": memory[name] and round(memory[name], 1),
        }
    if len(names) == 2:
        results["ratio"] = round(results["headway"]["tokens_per_second"] / results["plain"]["tokens_per_second"], 3)
    print(json.dumps(results))
    if options.profile and is_cuda:
        profile(steps["headway"])


def profile(step: Callable[[], Tensor]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(recorded.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:40]:
        print(f"{row.self_device_time_total / 3e3:8.3f} ms  x {row.count / 3:5.1f}  {row.key[:100]}")


if __name__ == "__main__":
    main()
