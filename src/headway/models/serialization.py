"""A model on disk is a transformers directory: `config.json`, `model.safetensors`, and the tokenizer's files.

If transformers supports the architecture (`models/hf/`), it loads the directory unchanged, and Headway loads
directories that transformers wrote. Otherwise `model_type` is `headway-…`, `config.json` holds Headway's config and the
tensors keep Headway's names. Nothing is ever unpickled.
"""

import functools
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headway import __version__
from headway.config import FAMILIES, StackConfig, build
from headway.config.presets import PRESETS
from headway.config.renamed import RENAMED
from headway.devices import parse_device, parse_dtype
from headway.entry_points import plugin_hint
from headway.errors import CheckpointError, ConfigError
from headway.file_reading import read_json
from headway.files import CHECKSUMS, new_directory, verify_checksums
from headway.models.base import Model
from headway.models.bert import BERT, MaskedLM
from headway.models.gpt import GPT
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.models.hf import LAYOUTS, Layout
from headway.models.registry import MODELS
from headway.models.transformer import Transformer
from headway.runs import suggest_run
from headway.tokenizers.loading import load_tokenizer, tokenizer_file

# By class name, as in LAYOUTS: heads take an encoder, builders take a config.
_HEADS: dict[str, Callable[[Any], Model]] = {
    "MaskedLM": MaskedLM,
    "Classifier": Classifier,
    "Tagger": Tagger,
    "SpanReader": SpanReader,
}
_BUILDERS: dict[str, Callable[[Any], Model]] = {"GPT": GPT, "BERT": BERT, "Transformer": Transformer}
_BUILDERS |= {name: lambda c, head=head: head(BERT(c)) for name, head in _HEADS.items()}  # type: ignore[misc]

WEIGHTS = "model.safetensors"
AVERAGED = "averaged"  # subfolder of a run: the mean of its last checkpoints
SHARDS = "shards"  # subfolder of a distributed checkpoint: the weights in shards, by Headway's names


def save(model: Model, path: str | Path, *, overwrite: bool = False) -> Path:
    path = Path(path)
    if overwrite and path.is_dir() and any(path.iterdir()) and not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} holds something else than a model, and overwriting would delete it: choose another path"
        )
    with new_directory(path, overwrite=overwrite) as folder:
        write_model(model, folder)
    return path


def write_model(model: Model, folder: Path, *, weights: bool = True) -> None:
    """Write the files of a model into an existing folder; with `weights=False`, all but the weights."""
    config = model.config
    _check_registered(model)
    _check_tokenizer(model, folder)
    tensors = {name: t.detach().to("cpu") for name, t in model.state_dict().items()} if weights else {}
    for layout in LAYOUTS.get(type(model).__name__, ()) if _is_built_in(model) else ():
        if fields := layout.config_to_hf(config):
            tensors = layout.to_hf(config, tensors) if weights else {}
            document = {"model_type": layout.model_type, "architectures": [layout.architecture], **fields}
            break
    else:
        table = msgspec.to_builtins(config)
        document = {"model_type": f"headway-{table['family']}", "architectures": [type(model).__name__], **table}
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
    if model.has_tokenizer:
        model.tokenizer.save(folder)


def _is_built_in(model: Model) -> bool:
    """Whether transformers may know the model: not one of a plug-in, nor with a plug-in's attention."""
    is_standard = isinstance(model.config, StackConfig) and model.config.attention == "dot-product"
    return is_standard and type(model).__module__.startswith("headway.")


def load(path: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype | str | None = None) -> Model:
    """Load a model directory, or a run's best checkpoint, in eval mode, with its `.tokenizer` if it has one.

    For type checkers the result is a `Model` of any family; `headway.models.language_model(model)` is the same model
    with the methods of the contract, `start` and `step`.

    `dtype` defaults to that of the file. Example: `headway.load("runs/demo", device="cuda", dtype="bfloat16")`
    """
    folder = find_model(path)
    if (folder / CHECKSUMS).is_file():
        try:
            verify_checksums(folder)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; if you changed it yourself, remove {folder / CHECKSUMS}") from None
    document = read_json(folder / "config.json")
    model, layout = _from_config(document, folder)
    tensors = _read_weights(folder, model, layout)
    try:
        model.load_weights(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    target_dtype = parse_dtype(dtype)
    file_dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    if target_dtype is None and len(file_dtypes) > 1:  # a file of mixed precision is loaded in the widest
        target_dtype = functools.reduce(torch.promote_types, file_dtypes)
    model.tokenizer = load_tokenizer(folder) if tokenizer_file(folder) else None
    _check_tokenizer(model, folder)
    return model.to(parse_device(device), target_dtype).eval()


def read_weights(folder: Path, model: Model) -> dict[str, Tensor]:
    """The weights in a folder to which `model` was saved, by the parameter names of `model`."""
    _, layout = _from_config(read_json(folder / "config.json"), folder)
    return _read_weights(folder, model, layout)


def _read_weights(folder: Path, model: Model, layout: Layout | None) -> dict[str, Tensor]:
    if (folder / SHARDS).is_dir():
        return _read_shards(folder / SHARDS, model)
    tensors = read_tensors(folder)
    if layout is None:
        return tensors
    assert isinstance(model.config, StackConfig)
    try:
        return layout.from_hf(model.config, tensors, model.state_dict())
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _read_shards(folder: Path, model: Model) -> dict[str, Tensor]:
    """Assemble the weights from the shards of all ranks; the averaged weights if there are any."""
    from torch.distributed.checkpoint import load as load_distributed
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(folder))
    names = reader.read_metadata().state_dict_metadata
    prefix = "average" if any(name.startswith("average/") for name in names) else "model"
    tensors = {f"{prefix}/{name}": torch.empty(t.shape, dtype=t.dtype) for name, t in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about running in a single process, which is intended
        load_distributed(tensors, storage_reader=reader, no_dist=True)
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in tensors.items()}


def _from_config(document: Mapping[str, Any], folder: Path) -> tuple[Model, Layout | None]:
    """An empty model (on the meta device) from config.json, and the transformers layout of its files, if any."""
    kind = str(document.get("model_type"))
    file = folder / "config.json"
    try:
        with torch.device("meta"):
            if kind.startswith("headway-"):
                family = kind.removeprefix("headway-")
                if family not in MODELS:
                    raise CheckpointError(
                        f"{file}: no model family {family!r}; there are {', '.join(MODELS)}. "
                        f"{plugin_hint('family', family)}"
                    )
                fields = {*FAMILIES[family].__struct_fields__, "family"}
                _check_renamed(document, fields, file)
                config = build(FAMILIES[family], {k: v for k, v in document.items() if k in fields})
                name = next(iter(document.get("architectures") or []), None)
                model = MODELS[family](config)
                return (_HEADS[name](model) if name in _HEADS else model), None
            candidates = [(name, layout) for name, ls in LAYOUTS.items() for layout in ls if layout.model_type == kind]
            if not candidates:
                types = sorted({layout.model_type for ls in LAYOUTS.values() for layout in ls})
                raise CheckpointError(f"{file}: model_type={kind!r} is not supported; there are {', '.join(types)}")
            architectures = document.get("architectures") or []
            name, layout = next((c for c in candidates if c[1].architecture in architectures), candidates[0])
            return _BUILDERS[name](layout.config_from_hf(document)), layout
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error.args[0]!r}, which a {kind} model needs") from None
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}") from None


def _check_renamed(document: Mapping[str, Any], fields: set[str], file: Path) -> None:
    """Refuse a setting by its old name: ignoring it would load another model than was saved."""
    for old, new in RENAMED.items():
        name = old.removeprefix("model.")
        if old.startswith("model.") and name in document and name not in fields and new in fields:
            raise CheckpointError(f"{file} has the setting {name!r}, whose name is {new!r} now: rename it in the file")


def is_registered(model: Model) -> bool:
    """Whether the files of a model are loaded as its own class: that of its family, or a head."""
    known = {MODELS.get(model.config.family), *_HEADS.values()}
    classes = type(model).__mro__  # FSDP derives a class of its own from the model's
    return type(model) in known or (type(model).__name__.startswith("FSDP") and classes[2] in known)


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
    """The folder of a model: the path itself, or a run's best checkpoint by validation score."""
    path = Path(path)
    if (path / "config.json").is_file():
        return path
    checkpoints = [c for c in (path / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", c.name)]
    checkpoints = [c for c in [*checkpoints, path / AVERAGED] if (c / "config.json").is_file()]
    if checkpoints:
        return min(checkpoints, key=_rank)
    if path.is_dir():
        raise CheckpointError(f"{path} is not a model: it has neither config.json nor checkpoints/step-N")
    hint = f"; {path} is a preset, without weights: train it first" if str(path) in PRESETS else ""
    if path.is_file():
        hint = f"; convert an n-gram file (.arpa, .counts) first: headway convert {path} DIRECTORY"
    runs = "" if hint else suggest_run(path)
    raise CheckpointError(
        f"no model at {path}: pass a model directory or a run such as runs/demo{hint}" + (f".{runs}" if runs else "")
    )


def _rank(checkpoint: Path) -> tuple[float, int]:
    """Sort key: the lowest score is the best checkpoint, the latest of equals first."""
    step = int(checkpoint.name.removeprefix("step-")) if checkpoint.name != AVERAGED else 0
    try:
        score = float(json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))["score"]["selection_loss"])
    except (OSError, ValueError, KeyError, TypeError):
        score = math.inf  # interrupted before evaluation
    return (math.inf if math.isnan(score) else score, -step)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards listed in its index."""
    index = folder / "model.safetensors.index.json"
    names = [WEIGHTS]
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index} has no weight_map from tensor names to files")
        names = sorted(set(shards.values()))
    tensors: dict[str, Tensor] = {}
    for file in (folder / Path(name).name for name in names):
        try:
            with safe_open(file, framework="pt") as source:
                tensors.update((name, source.get_tensor(name)) for name in source.keys())  # noqa: SIM118
        except FileNotFoundError:
            pickle = next((f.name for f in folder.glob("*.bin")), None)
            hint = (
                f" ({pickle} is pickled code, which Headway never opens: convert it to safetensors)" if pickle else ""
            )
            raise CheckpointError(f"{file} is missing{hint}") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} is damaged or not a safetensors file ({error}); {file.stat().st_size:,} bytes: copy it again, "
                f"or use an earlier checkpoint"
            ) from None
    return tensors
