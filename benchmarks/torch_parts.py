"""Parts that PyTorch has too, ours against theirs in one run: Muon, the moving average of weights, the fused loss.

    python benchmarks/torch_parts.py --preset gpt2 --device cuda        GPT-2 124M
    python benchmarks/torch_parts.py --preset small                     6 x 384, on the CPU

Milliseconds, medians of interleaved rounds. Ours is kept where it is faster or does what theirs does not: the comments
beside `Muon`, `ExponentialMovingAverage` and `fused_cross_entropy` quote these figures.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import headway
from headway.config import TrainConfig
from headway.devices import parse_device
from headway.nn.cross_entropy import cross_entropy, fused_cross_entropy
from headway.training.optimizers import Muon
from headway.training.optimizers import muon as make_muon
from headway.training.weight_averaging import ExponentialMovingAverage

PRESETS: dict[str, dict[str, int]] = {
    "gpt2": {"n_layers": 12, "n_heads": 12, "d_model": 768, "vocab_size": 50304, "context": 1024},
    "small": {"n_layers": 6, "n_heads": 6, "d_model": 384, "vocab_size": 8000, "context": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, help="tokens of the loss; default 32768 on a GPU, 2048 on a CPU")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    device = parse_device(options.device)
    model = headway.create("gpt", **PRESETS[options.preset], bias=False, device=device)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    rows = options.rows or (32_768 if device.type == "cuda" else 2048)
    results = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "preset": options.preset,
        "muon_ms": compare(muon_steps(model), options.rounds, device),
        "ema_ms": compare(ema_updates(model), options.rounds, device),
        f"loss_{rows}_rows_ms": compare(losses(model, rows, device), options.rounds, device),
    }
    print(json.dumps(results, indent=1))


def muon_steps(model: Any) -> dict[str, Callable[[], Any]]:
    ours = next(o for o in make_muon(model, TrainConfig(optimizer="muon")) if isinstance(o, Muon))
    matrices = [p for group in ours.param_groups for p in group["params"]]
    theirs = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95)
    return {"headway": ours.step, "torch": theirs.step}


def ema_updates(model: Any) -> dict[str, Callable[[], Any]]:
    ours = ExponentialMovingAverage(model, 0.999)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    return {"headway": lambda: ours.update(1000), "torch": lambda: theirs.update_parameters(model)}


def losses(model: Any, rows: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    weight = model.output_layer[0].detach().clone().requires_grad_()
    hidden = torch.randn(rows, weight.shape[1], device=device, requires_grad=True)
    targets = torch.randint(weight.shape[0], (rows,), device=device)

    def run(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = function(hidden, weight, targets)
            loss.backward()
            hidden.grad = weight.grad = None

        return step

    functions = {"headway": run(fused_cross_entropy), "plain": run(cross_entropy)}
    if hasattr(F, "linear_cross_entropy"):  # PyTorch 2.13; without options it computes all logits at once
        chunked = torch.nn.LinearCrossEntropyOptions()
        functions["torch"] = run(lambda h, w, t: F.linear_cross_entropy(h, w, t, reduction="sum"))
        functions["torch chunked"] = run(
            lambda h, w, t: F.linear_cross_entropy(h, w, t, reduction="sum", options=chunked)
        )
    return functions


def compare(functions: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds + 2):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if i >= 2:
                seconds[name].append(time.perf_counter() - started)
    return {name: round(1e3 * statistics.median(times), 3) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
