"""A model on disk is a transformers directory: `config.json`, `model.safetensors`, and the tokenizer's files.

If transformers supports the architecture (`models/hf/`), it loads the directory unchanged, and Headway loads
directories that transformers wrote. Otherwise `model_type` is `headway-…`, `config.json` holds Headway's config and the
tensors keep Headway's names. Nothing is ever unpickled.
"""

import functools
import glob
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from headway import __version__
from headway.config import FAMILIES, StackConfig
from headway.config.ablations import ablated_settings
from headway.config.presets import PRESETS
from headway.devices import parse_device, parse_dtype
from headway.errors import CheckpointError, ConfigError
from headway.file_reading import check_regular, read_json
from headway.files import CHECKSUMS, new_directory, read_directory, verify_checksums
from headway.installed_files import INSTALLED_MODELS
from headway.models.base import Model
from headway.models.bert import BERT, MaskedLM
from headway.models.config_json import check_sizes, describe_model
from headway.models.embedding_defaults import read_embedding_defaults, write_embedding_defaults
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.models.hf import LAYOUTS, Layout
from headway.models.ngram.model import NGram
from headway.models.registry import MODELS, empty_model
from headway.models.transformer import Transformer
from headway.models.weight_files import (
    WEIGHTS,
    TensorEntry,
    check_finite,
    read_header,
    read_shards,
    read_tensors,
    stored_tensors,
)
from headway.nn.lora import merge_lora, merged_state_dict
from headway.runs import Run, best_checkpoint, read_progress, suggest_run
from headway.tokenizers.loading import load_tokenizer, tokenizer_file

# By class name, as in LAYOUTS: a head takes an encoder.
_HEADS: dict[str, Callable[[Any], Model]] = {
    "MaskedLM": MaskedLM,
    "Classifier": Classifier,
    "Tagger": Tagger,
    "SpanReader": SpanReader,
}

MAX_LISTINGS, SECONDS_BETWEEN_LISTINGS = 20, 0.01  # of the checkpoints of a run that is training
ADAPTER_CONFIG = "adapter_config.json"  # of a folder of LoRA updates, see lora_adapters.py
SHARDS = "shards"  # subfolder of a distributed checkpoint: the weights in shards, by Headway's names


def save(model: Model, path: str | Path, *, overwrite: bool = False) -> Path:
    path = Path(path)
    if overwrite and _holds_something_else(path):
        raise CheckpointError(
            f"{path} holds something else than a model, and overwriting would delete it: choose another path"
        )
    with new_directory(path, overwrite=overwrite) as folder:
        write_model(model, folder)
    return path


def _holds_something_else(path: Path) -> bool:
    """Whether a folder has files but no model. Another process may replace the folder meanwhile: so look twice."""
    for _ in range(2):
        try:
            names = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not names or "config.json" in names:
            return False
    return True


def write_model(model: Model, folder: Path, *, weights: bool = True) -> None:
    """Write the files of a model into an existing folder; with `weights=False`, all but the weights."""
    config = model.config
    _check_registered(model)
    _check_tokenizer(model, folder)
    tensors = {name: t.detach().to("cpu") for name, t in merged_state_dict(model).items()} if weights else {}
    if (layout := layout_of(model)) is not None:
        tensors = layout.to_hf(config, tensors) if weights else {}
        fields = layout.config_to_hf(config) or {}
        document = {"model_type": layout.model_type, "architectures": [layout.architecture], **fields}
    else:
        table = msgspec.to_builtins(config)
        document = {"model_type": f"headway-{table['family']}", "architectures": [_class_of(model).__name__], **table}
    document["dtype"] = str(model.dtype).removeprefix("torch.")
    document["headway_version"] = __version__
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if weights:
        try:  # contiguous copies: safetensors refuses tensors that share memory
            save_file({n: t.contiguous().clone() for n, t in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
            (folder / WEIGHTS).chmod(0o644)  # like the other files; safetensors makes it readable by its owner only
        except SafetensorError as error:  # such as a full disk
            raise CheckpointError(f"{folder / WEIGHTS} cannot be written: {error}") from None
    if "eos_id" in config.__struct_fields__:
        ids = {"bos_token_id": config.bos_id, "eos_token_id": config.eos_id}
        if isinstance(model, Transformer):
            ids |= {"decoder_start_token_id": config.bos_id, "pad_token_id": config.eos_id}
        (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")
    if isinstance(model, BERT) and model.embedding_defaults is not None:
        write_embedding_defaults(model.embedding_defaults, model.width, folder)
    if model.has_tokenizer:
        n_segments = getattr(config, "n_segments", None)
        model.tokenizer.save(folder, has_segments=None if n_segments is None else n_segments > 1)


def layout_of(model: Model) -> Layout | None:
    """The first transformers layout that fits the model; None: it is saved as `headway-…`."""
    layouts = LAYOUTS.get(type(model).__name__, ()) if _is_built_in(model) else ()
    return next((layout for layout in layouts if layout.config_to_hf(model.config)), None)


def _is_built_in(model: Model) -> bool:
    """Whether transformers may know the model: not one of a plug-in, nor with a plug-in's attention, nor ablated."""
    is_standard = isinstance(model.config, StackConfig) and model.config.attention == "dot-product"
    is_standard = is_standard and not ablated_settings(model.config)
    return is_standard and type(model).__module__.startswith("headway.")


def load(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
) -> Model:
    """Load a model directory, a run's best checkpoint, or an installed model such as "minilm", in eval mode, with its
    `.tokenizer` if it has one.

    For type checkers the result is a `Model` of any family; `headway.models.language_model(model)` is the same model
    with the methods of the contract, `start` and `step`.

    `dtype` defaults to that of the file. Example: `headway.load("runs/demo", device="cuda", dtype="bfloat16")`

    `adapter` is a folder of LoRA updates (lora_adapters.py), which are merged into the model.

    A run may be training meanwhile: what you get is always one whole checkpoint.
    """
    model = read_directory(lambda: find_model(path), lambda folder: _load_folder(folder, device, dtype))
    if adapter is None:
        return model
    from headway.models.lora_adapters import load_adapter

    return merge_lora(load_adapter(model, adapter)).eval()


def _load_folder(folder: Path, device: str | torch.device, dtype: torch.dtype | str | None) -> Model:
    if (folder / CHECKSUMS).is_file():
        try:
            verify_checksums(folder)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; if you changed it yourself, remove {folder / CHECKSUMS}") from None
    model, layout = _from_config(folder)
    tensors = _read_weights(folder, model, layout)
    try:
        model.load_weights(tensors)
        if not isinstance(model, NGram):  # whose log probabilities may be −∞; it checks its own columns
            check_finite(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    target_dtype = parse_dtype(dtype)
    file_dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    if target_dtype is None and len(file_dtypes) > 1:  # a file of mixed precision is loaded in the widest
        target_dtype = functools.reduce(torch.promote_types, file_dtypes)
    model.tokenizer = load_tokenizer(folder) if tokenizer_file(folder) else None
    _check_tokenizer(model, folder)
    if isinstance(model, BERT):
        model.embedding_defaults = read_embedding_defaults(folder)
    return model.to(parse_device(device), target_dtype).eval()


def read_weights(folder: Path, model: Model) -> dict[str, Tensor]:
    """The weights in a folder to which `model` was saved, by the parameter names of `model`."""
    _, layout = _from_config(folder)
    return _read_weights(folder, model, layout)


def _read_weights(folder: Path, model: Model, layout: Layout | None) -> dict[str, Tensor]:
    if (folder / SHARDS).is_dir():
        return read_shards(folder / SHARDS, model.state_dict())
    tensors = read_tensors(folder)
    if layout is None:
        return tensors
    assert isinstance(model.config, StackConfig)
    try:
        return layout.from_hf(model.config, tensors, model.state_dict())
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _from_config(folder: Path) -> tuple[Model, Layout | None]:
    """An empty model (on the meta device) from config.json, and the transformers layout of its files, if any."""
    file = folder / "config.json"
    config, head, layout = describe_model(read_json(file), file)
    check_sizes(config, _stored_tensors(folder), file)
    try:
        model = empty_model(config)
        with torch.device("meta"):
            return (_HEADS[head](model) if head else model), layout
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None


def _stored_tensors(folder: Path) -> dict[str, TensorEntry]:
    """What the files of the weights hold, by their headers."""
    if not (folder / SHARDS).is_dir():
        return stored_tensors(folder)
    return {
        f"{file.name}/{name}": entry
        for file in sorted((folder / SHARDS).glob("*.safetensors"))
        for name, entry in read_header(file).tensors.items()
    }


def is_registered(model: Model) -> bool:
    """Whether the files of a model are loaded as its own class: that of its family, or a head."""
    known = {MODELS.get(model.config.family), *_HEADS.values()}
    return _class_of(model) in known


def _class_of(model: Model) -> type:
    """The class of a model; FSDP derives one of its own from it: FSDPGPT(FSDPModule, GPT)."""
    kind = type(model)
    return kind.__mro__[2] if kind.__name__.startswith("FSDP") and len(kind.__mro__) > 2 else kind


def _check_registered(model: Model) -> None:
    """Refuse a subclass that is not registered: its files would be loaded as its parent."""
    if not is_registered(model):
        name = type(model).__name__
        raise CheckpointError(
            f"{name} is not registered, so its files would be loaded as another class: register it as a family of its "
            f"own, headway.register('family', NAME, {name}, config=…)"
        )


def _check_tokenizer(model: Model, folder: Path) -> None:
    if model.has_tokenizer and model.tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {model.tokenizer.vocab_size} tokens, the model {model.config.vocab_size}; "
            f"do the two belong together?"
        )


def find_model(path: str | Path) -> Path:
    """The folder of a model: the path itself, a run's best checkpoint by validation score, or that of a model which an
    installed package carries."""
    path = Path(path)
    if os.path.exists(path / "config.json"):
        check_regular(path / "config.json")
        return path
    for _ in range(MAX_LISTINGS):
        if progress := {folder: read_progress(folder) for folder in Run(path).models()}:
            return best_checkpoint(progress)
        if not (path / "checkpoints").is_dir() and not any(path.parent.glob(f".{glob.escape(path.name)}.*.old")):
            break
        time.sleep(SECONDS_BETWEEN_LISTINGS)  # a checkpoint was deleted while its successor was not yet listed
        if (path / "config.json").is_file():  # a model that was being overwritten
            return path
    if (path / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"{path} holds LoRA updates of a model, not a model: load it with its base, "
            f"headway.load(BASE, adapter={str(path)!r})"
        )
    if path.is_dir():
        raise CheckpointError(f"{path} is not a model: it has neither config.json nor checkpoints/step-N")
    if (installed := INSTALLED_MODELS.get(str(path))) is not None:
        if (folder := installed.find()) is not None:
            return folder
        raise CheckpointError(f"{path} is not installed: {installed.install_command}")
    kind = "preset" if str(path) in PRESETS else "family" if str(path) in FAMILIES else ""
    hint = f"; {path} is a {kind}, without weights: train it first" if kind else ""
    if path.is_file():
        hint = f"; convert an n-gram file (.arpa, .counts) first: headway convert {path} DIRECTORY"
    runs = "" if hint else suggest_run(path)
    raise CheckpointError(
        f"no model at {path}: pass a model directory or a run such as runs/demo{hint}" + (f".{runs}" if runs else "")
    )
