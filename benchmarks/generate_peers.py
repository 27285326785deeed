"""The peers of benchmarks/generate.py: each reads the weights of a Headway model in its own format, and generates.

    start = PEERS["llama.cpp"]                     folder / "model" is the model
    generate = start(model, prompt, n_new, folder)
    tokens = generate()                            (B, n_new), greedily: exactly n_new tokens for each row of the prompt

All use as many threads as PyTorch does, and the model's own precision. A peer that cannot raises `UnavailableError`.
ctranslate2 and llama.cpp are not among the project's dependencies, and are only compared for GPT-2. To install them
beside it, where they change no other package (llama.cpp compiles for ten minutes):

    pip install --target peers --no-deps ctranslate2 llama-cpp-python gguf diskcache
    PYTHONPATH=peers python benchmarks/generate.py --peers transformers ctranslate2 llama.cpp
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from headway.models.base import Model

Generate = Callable[[], Tensor]


class UnavailableError(Exception):
    """Why a peer takes no part."""


def transformers(
    model: Model, prompt: Tensor, n_new: int, folder: Path, cache_implementation: str | None = None
) -> Generate:
    import transformers

    peer = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=model.dtype)
    peer = peer.to(model.device).eval()

    def generate() -> Tensor:
        ids = prompt.to(model.device)
        lengths = {"max_new_tokens": n_new, "min_new_tokens": n_new}
        sequences = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            pad_token_id=0,
            cache_implementation=cache_implementation,
            **lengths,
        )
        return sequences[:, prompt.shape[1] :]

    return generate


def transformers_static(model: Model, prompt: Tensor, n_new: int, folder: Path) -> Generate:
    """With a KV cache of fixed size, and its forward pass compiled, as `generate` does by itself on a GPU."""
    if model.device.type != "cuda":
        raise UnavailableError("transformers compiles its decode step on a GPU only")
    return transformers(model, prompt, n_new, folder, "static")


def ctranslate2(model: Model, prompt: Tensor, n_new: int, folder: Path) -> Generate:
    _require(model, "ctranslate2")
    import ctranslate2

    dtype = str(model.dtype).removeprefix("torch.")
    _save_tokenizer(folder / "model", model.config.vocab_size)
    converter = ctranslate2.converters.TransformersConverter(str(folder / "model"))
    converter.convert(str(folder / "ctranslate2"), quantization=None if dtype == "float32" else dtype)
    generator = ctranslate2.Generator(
        str(folder / "ctranslate2"),
        device=model.device.type,
        compute_type=dtype,
        intra_threads=torch.get_num_threads(),
    )
    texts = [[_word(token) for token in row] for row in prompt.tolist()]

    def generate() -> Tensor:
        results = generator.generate_batch(
            texts, max_length=n_new, min_length=n_new, end_token=[], include_prompt_in_result=False
        )
        return torch.tensor([result.sequences_ids[0] for result in results])

    return generate


def llama_cpp(model: Model, prompt: Tensor, n_new: int, folder: Path) -> Generate:
    _require(model, "llama_cpp", "gguf")
    if model.device.type != "cpu" or model.dtype != torch.float32:
        raise UnavailableError("compared in float32 on a CPU only")
    import ctypes

    import llama_cpp as llama

    n_rows, n_prompt = prompt.shape
    n_logits = n_rows * model.config.vocab_size
    _write_gguf(model, folder / "model.gguf")
    ignore_log = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(ignore_log, None)
    llama.llama_backend_init()
    weights = llama.llama_model_load_from_file(str(folder / "model.gguf").encode(), llama.llama_model_default_params())
    settings = llama.llama_context_default_params()
    settings.n_ctx = n_rows * (n_prompt + n_new)
    settings.n_batch = settings.n_ubatch = n_rows * n_prompt
    settings.n_seq_max = n_rows
    settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
    context = llama.llama_init_from_model(weights, settings)
    batch = llama.llama_batch_init(n_rows * n_prompt, 0, 1)

    def logits_after(tokens: list[list[int]], position: int) -> Tensor:
        """The logits (B, V) after each row's last token; the first ones are at this position."""
        batch.n_tokens = 0
        for row, row_tokens in enumerate(tokens):
            for t, token in enumerate(row_tokens):
                i = batch.n_tokens
                batch.token[i], batch.pos[i] = token, position + t
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
                batch.logits[i] = t == len(row_tokens) - 1
                batch.n_tokens += 1
        if llama.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = ctypes.cast(llama.llama_get_logits(context), ctypes.POINTER(ctypes.c_float * n_logits)).contents
        return torch.frombuffer(logits, dtype=torch.float32).view(n_rows, -1)

    def generate() -> Tensor:
        _ = ignore_log  # kept alive: llama.cpp calls it
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        columns = [logits_after(prompt.tolist(), 0).argmax(dim=1)]
        for position in range(n_prompt, n_prompt + n_new - 1):
            columns.append(logits_after(columns[-1][:, None].tolist(), position).argmax(dim=1))
        return torch.stack(columns, dim=1)

    return generate


PEERS = {
    "transformers": transformers,
    "transformers-static": transformers_static,
    "ctranslate2": ctranslate2,
    "llama.cpp": llama_cpp,
}


def _require(model: Model, *packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise UnavailableError(f"the package {package} is not installed (see benchmarks/generate_peers.py)")
    c = model.config
    if (c.positions, c.norm_order, c.norm, c.feed_forward) != ("learned", "pre", "layer", "gelu-tanh"):
        raise UnavailableError("compared for the architecture of GPT-2 only")


def _word(token: int) -> str:
    return f"token{token}"


def _save_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer of made-up words: CTranslate2 reads tokens as text."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {_word(token): token for token in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=_word(0)))
    last = _word(vocab_size - 1)  # GPT-2's only special token
    special = {"unk_token": last, "bos_token": last, "eos_token": last}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


# Headway's names and GGUF's, inside a layer and outside.
LAYER_NAMES = {
    "norm1": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.out": "attn_output",
    "norm2": "ffn_norm",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}
MODEL_NAMES = {"embedding": "token_embd", "positions": "position_embd", "norm": "output_norm"}


def _write_gguf(model: Model, path: Path) -> None:
    from gguf import GGUFWriter

    c = model.config
    writer = GGUFWriter(str(path), "gpt2")
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.d_model)
    writer.add_feed_forward_length(c.d_ff)
    writer.add_block_count(c.n_layers)
    writer.add_head_count(c.n_heads)
    writer.add_layer_norm_eps(c.norm_eps)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(c.vocab_size)
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module.startswith("blocks."):
            _, layer, part = module.split(".", 2)
            module = f"blk.{layer}.{LAYER_NAMES[part]}"
        else:
            module = MODEL_NAMES[module]
        writer.add_tensor(f"{module}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
