"""Three forms of attention on a GPU: forward and backward, milliseconds and peak memory.

    python benchmarks/attention.py [--batch 8] [--tokens 2048] [--json FILE]

"reference" makes the matrix of weights, "fast" is F.scaled_dot_product_attention, "flex" FlexAttention. A bias or mask
keeps "fast" from its best kernel; this shows when "flex" pays, which `headway.nn.attention` goes by.
"""

import argparse
import json

import torch

from headway.nn import ATTENTIONS, masks
from headway.nn.positions import ALiBi, Relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--json", help="write the results here")
    options = parser.parse_args()
    B, H, T, K = options.batch, options.heads, options.tokens, options.width
    torch.manual_seed(0)
    device = torch.device("cuda")
    pos = torch.arange(T, device=device)[None]
    relative = Relative(T, H, is_causal=True).to(device)
    torch.nn.init.normal_(relative.weight)
    documents = (torch.rand(B, T, device=device) < 8 / T).cumsum(1)  # about eight texts in a row
    window = masks.sliding_window(T, window=256, device=device)[None, None]
    cases = {
        "causal": lambda: {},
        "ALiBi": lambda: {"bias": ALiBi(H).bias(pos, pos)},
        "relative, learned": lambda: {"bias": relative.bias(pos, pos)},
        "documents": lambda: {"mask": masks.document(documents)[:, None]},
        "window of 256": lambda: {"mask": window},
    }
    shapes = ((B, H, T, K), (B, options.kv_heads, T, K), (B, options.kv_heads, T, K))
    q, k, v = (torch.randn(s, device=device, dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, causal, {B} × {H} heads × {T} × {K}")
    print(f"{'case':20}" + "".join(f"{name:>26}" for name in ATTENTIONS))
    results = {}
    for case, arguments in cases.items():
        row = {}
        for name, attend in ATTENTIONS.items():

            def run(attend=attend, arguments=arguments):
                y, _ = attend(q, k, v, causal=True, **arguments())
                y.backward(y)

            for _ in range(5):
                run()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            begin = torch.cuda.memory_allocated()
            times = []
            for _ in range(20):
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
                run()
                events[1].record()
                torch.cuda.synchronize()
                times.append(events[0].elapsed_time(events[1]))
            peak = (torch.cuda.max_memory_allocated() - begin) / 2**20
            row[name] = {"ms": sorted(times)[10], "MiB": peak}
        results[case] = row
        print(f"{case:20}" + "".join(f"{r['ms']:14.2f} ms {r['MiB']:5.0f} MiB" for r in row.values()), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**vars(options), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
