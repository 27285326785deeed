"""One tiny model of every family, head and layout on disk: the intact inputs of the model fuzzer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import headway
from headway import tokenizers
from headway.models import Classifier, MaskedLM, SpanReader, Tagger
from headway.models.base import Model

TEXT = "the cat sat on the mat\nthe dog sat on the log\n"
STACK = {"vocab_size": 41, "context": 16, "n_layers": 2, "n_heads": 2, "d_model": 8}
LLAMA = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}
LABELS = ["yes", "no", "maybe"]

MODELS: dict[str, Callable[[], Model]] = {
    # GPTs: the layouts of GPT-2, GPT-1 and Llama, and Headway's own
    "gpt2": lambda: headway.create("gpt", **STACK),
    "gpt2-untied": lambda: headway.create("gpt", **STACK, tie_embeddings=False, bos_id=1, eos_id=2),
    "gpt1": lambda: headway.create("gpt", **STACK, norm_order="post"),
    "llama": lambda: headway.create("gpt", **STACK, **LLAMA, n_kv_heads=1),
    "llama-untied": lambda: headway.create("gpt", **STACK, **LLAMA, tie_embeddings=False, rope_theta=500.0),
    "gpt-alibi": lambda: headway.create("gpt", **STACK, positions="alibi"),
    "gpt-relative": lambda: headway.create("gpt", **STACK, positions="relative", d_head=6),
    "gpt-per-layer": lambda: headway.create("gpt", **STACK, positions="per-layer", feed_forward="relu2"),
    "gpt-no-layers": lambda: headway.create("gpt", **(STACK | {"n_layers": 0}), positions="sinusoidal"),
    # encoders and their heads
    "bert": lambda: headway.create("bert", **STACK),
    "bert-rotary": lambda: headway.create("bert", **STACK, positions="rotary"),
    "masked-lm": lambda: MaskedLM(headway.create("bert", **STACK)),
    "classifier": lambda: Classifier(headway.create("bert", **STACK, labels=LABELS)),
    "tagger": lambda: Tagger(headway.create("bert", **STACK, labels=LABELS)),
    "span-reader": lambda: SpanReader(headway.create("bert", **STACK)),
    "masked-lm-rotary": lambda: MaskedLM(headway.create("bert", **STACK, positions="rotary")),
    "several-labels": lambda: Classifier(headway.create("bert", **STACK, labels=LABELS, multi_label=True)),
    "bow": lambda: headway.create("bow", vocab_size=41, d_model=6, n_buckets=20),
    "bow-classifier": lambda: Classifier(headway.create("bow", vocab_size=41, d_model=6, n_buckets=20, labels=LABELS)),
    "bilstm": lambda: headway.create("bilstm", vocab_size=41, d_model=6, d_hidden=5),
    "bilstm-tagger": lambda: Tagger(headway.create("bilstm", vocab_size=41, d_model=6, d_hidden=5, labels=LABELS)),
    # encoder-decoders
    "marian": lambda: headway.create("transformer", **STACK, bos_id=1, eos_id=2, norm_eps=1e-5),
    "pegasus": lambda: headway.create(
        "transformer", **STACK, bos_id=1, eos_id=2, norm_eps=1e-5, norm_order="pre", n_decoder_layers=1
    ),
    "transformer": lambda: headway.create("transformer", **STACK),
    "seq2seq": lambda: headway.create("seq2seq", vocab_size=41, n_layers=2, d_model=6),
    "bahdanau": lambda: headway.create("bahdanau", vocab_size=41, d_model=6, d_hidden=5, d_out=4),
    # before attention
    "nplm": lambda: headway.create("nplm", vocab_size=41, order=4, d_model=5, d_hidden=6, direct=True),
    "rnn": lambda: headway.create("rnn", vocab_size=41, d_model=6),
    "lstm": lambda: headway.create("lstm", vocab_size=41, d_model=6, d_hidden=7),
    "ngram": lambda: headway.create("ngram", vocab_size=41, order=3, bos_id=0).fit(_ids(300)),
    "ngram-add-k": lambda: headway.create("ngram", vocab_size=41, order=2, smoothing="add-k").fit(_ids(200)),
    "ngram-stupid": lambda: headway.create("ngram", vocab_size=41, order=3, smoothing="stupid-backoff").fit(_ids(200)),
}
SHARDED = ("gpt2", "llama", "bert")  # also in several files with an index
DISTRIBUTED = ("gpt-alibi", "rnn")  # also in the shards of two ranks


def _ids(n: int) -> torch.Tensor:
    return (torch.rand(n) ** 3 * 40).long() + 1


def write_models(folder: Path) -> list[Path]:
    """Save every model, most with a tokenizer; returns the folders."""
    torch.manual_seed(0)
    tokenizer = tokenizers.train("char", [TEXT])
    saved = []
    for name, make in MODELS.items():
        model = make().eval()
        if name not in ("lstm", "gpt1", "pegasus"):
            model.tokenizer = tokenizer
        saved.append(model.save(folder / name))
        if name in SHARDED:
            saved.append(_split_into_files(model, folder / f"{name}-sharded"))
        if name in DISTRIBUTED:
            saved.append(_split_into_shards(model, folder / f"{name}-distributed"))
    return saved


def _split_into_files(model: Model, path: Path) -> Path:
    from safetensors.torch import load_file

    model.save(path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, path / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def _split_into_shards(model: Model, path: Path) -> Path:
    """As two ranks write their halves: each tensor is cut by rows, and the offsets are in the metadata."""
    model.save(path)
    (path / "model.safetensors").unlink()
    (path / "shards").mkdir()
    for rank in (0, 1):
        tensors: dict[str, torch.Tensor] = {}
        offsets: dict[str, Any] = {}
        for name, tensor in model.state_dict().items():
            cut = -(-len(tensor) // 2)
            tensors[f"model/{name}"] = tensor[cut * rank : cut * (rank + 1)].clone()
            offsets[f"model/{name}"] = {"saved_offsets": [cut * rank, *[0] * (tensor.dim() - 1)]}
        file = path / "shards" / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"
        save_file(tensors, file, {"DCP_SHARDING_INFO": json.dumps(offsets)})
    return path


def logits_of(model: Any) -> torch.Tensor:
    """What the model computes for fixed ids, with a source if it needs one."""
    limit = min(model.config.vocab_size, 41)
    length = min(7, model.config.context or 7)
    ids = torch.arange(2 * length).reshape(2, length) * 7 % limit
    with torch.no_grad():
        return model(ids, source=ids.flip(1)) if hasattr(model, "encode") else model(ids)
