"""`config.json` → the config of a model, its head and the layout of its tensors. No key is silently ignored.

Headway writes every key of a `headway-…` config, so a missing or unknown key there is an error: the file is damaged, or
of another version. In the config.json of a transformers model, a key that would change the computation is an error too;
models/hf lists them, and warns about keys it does not know.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headway.config import FAMILIES, ModelConfig, build
from headway.config.renamed import RENAMED
from headway.devices import DTYPES
from headway.entry_points import plugin_hint
from headway.errors import CheckpointError, ConfigError, suggest
from headway.models.hf import LAYOUTS, Layout
from headway.models.hf.config_keys import read_config
from headway.models.registry import MODELS
from headway.models.weight_files import TensorEntry

# Keys of config.json beside those of the config.
MODEL_TYPE, ARCHITECTURES, DTYPE, VERSION = "model_type", "architectures", "dtype", "headway_version"
HEADS = {
    "BERT": ("MaskedLM", "Classifier", "Tagger", "SpanReader"),
    "BiLSTM": ("Classifier", "Tagger", "SpanReader"),
    "BagOfWords": ("Classifier", "Tagger"),
}


class ModelDescription(NamedTuple):
    config: ModelConfig
    head: str | None  # the class of the head on the encoder, if there is one
    layout: Layout | None  # of a transformers model


def describe_model(document: Mapping[str, Any], file: Path) -> ModelDescription:
    """What config.json says about the model; every fault is a CheckpointError that names the key."""
    kind = document.get(MODEL_TYPE)
    if not isinstance(kind, str):
        raise CheckpointError(f"{file} has no model_type: is it the config.json of a model?")
    try:
        _check_dtypes(document, file)
        if kind.startswith("headway-"):
            return _headway_model(document, kind.removeprefix("headway-"), file)
        return _transformers_model(document, kind, file)
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error.args[0]!r}, which a {kind} model needs") from None
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}") from None


def _headway_model(document: Mapping[str, Any], family: str, file: Path) -> ModelDescription:
    if family not in MODELS:
        raise CheckpointError(
            f"{file}: no model family {family!r:.80}; there are {', '.join(MODELS)}. {plugin_hint('family', family)}"
        )
    config_class, class_name = FAMILIES[family], MODELS[family].__name__
    fields = {*config_class.__struct_fields__, "family"}
    _check_keys(document, config_class, fields, file)
    if document["family"] != family:
        raise CheckpointError(f"{file}: family={document['family']!r:.80} contradicts model_type='headway-{family}'")
    name = _architecture(document, file)
    known = (class_name, *HEADS.get(class_name, ()))
    if name not in known:
        raise CheckpointError(
            f"{file}: architectures=[{name!r:.80}] is not one of {', '.join(known)}: "
            f"did the code of the model change since it was saved?"
        )
    config = build(config_class, {key: value for key, value in document.items() if key in fields})
    return ModelDescription(config, None if name == class_name else name, None)


def _transformers_model(document: Mapping[str, Any], kind: str, file: Path) -> ModelDescription:
    candidates = [(name, layout) for name, ls in LAYOUTS.items() for layout in ls if layout.model_type == kind]
    if not candidates:
        types = sorted({layout.model_type for ls in LAYOUTS.values() for layout in ls})
        raise CheckpointError(f"{file}: model_type={kind!r:.80} is not supported; there are {', '.join(types)}")
    architecture = _architecture(document, file) if document.get(ARCHITECTURES) else None
    supported = [layout.architecture for _, layout in candidates]
    matching = [candidate for candidate in candidates if candidate[1].architecture == architecture]
    if not matching and architecture is not None and architecture not in candidates[0][1].also_loads:
        raise CheckpointError(f"{file}: architectures=[{architecture!r:.80}] is not one of {', '.join(supported)}")
    name, layout = (matching or candidates)[0]
    return ModelDescription(read_config(layout, document, file), name if name in HEADS["BERT"] else None, layout)


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _architecture(document: Mapping[str, Any], file: Path) -> str:
    names = document.get(ARCHITECTURES)
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"{file}: architectures={names!r:.80} is not a list with the name of one class")
    return names[0]


def _check_keys(document: Mapping[str, Any], config_class: type[ModelConfig], fields: set[str], file: Path) -> None:
    """Refuse missing and unknown keys: the model would not be the one that was saved."""
    for old, new in RENAMED.items():
        name = old.removeprefix("model.")
        if old.startswith("model.") and name in document and name not in fields and new in fields:
            raise CheckpointError(f"{file} has the setting {name!r}, whose name is {new!r} now: rename it in the file")
    known = [*sorted(fields), ARCHITECTURES, DTYPE, VERSION]
    if missing := [name for name in known if name not in document]:
        defaults = msgspec.to_builtins(config_class()) if _has_defaults(config_class) else {}
        way_out = "copy it again"
        if missing[0] in defaults:
            way_out += f", or add {missing[0]!r}: {json.dumps(defaults[missing[0]])} if an older version wrote it"
        raise CheckpointError(f"{file} lacks the key {missing[0]!r}, which Headway always writes: {way_out}")
    if unknown := [name for name in document if name not in known and name != MODEL_TYPE]:
        near = suggest(unknown[0][:80], known, otherwise=" Remove it, or use the version of Headway that wrote it.")
        raise CheckpointError(f"{file} has the key {unknown[0]!r:.80}, which {config_class.__name__} lacks.{near}")


def _has_defaults(config_class: type[ModelConfig]) -> bool:
    return not any(field.required for field in msgspec.structs.fields(config_class))


def _check_dtypes(document: Mapping[str, Any], file: Path) -> None:
    for key in (DTYPE, "torch_dtype"):
        value = document.get(key)
        if value is not None and value not in list(DTYPES):
            raise CheckpointError(f"{file}: {key}={value!r:.80} is not one of {', '.join(DTYPES)}")


def check_sizes(config: ModelConfig, stored: Mapping[str, TensorEntry], file: Path) -> None:
    """Compare large sizes in the config with the tensors in the file, before the model is built."""
    config = config.resolved()
    n_elements = sum(entry.n_elements for entry in stored.values())
    if config.vocab_size > n_elements:
        raise CheckpointError(
            f"{file}: vocab_size={config.vocab_size:,}, but the weights hold {n_elements:,} numbers in all: "
            f"config.json and the weights do not agree"
        )
    sides = ("n_encoder_layers", "n_decoder_layers")
    for name in sides if hasattr(config, sides[0]) else ("n_layers",):
        if (n := getattr(config, name, 0)) > len(stored):  # a layer has a tensor at least
            raise CheckpointError(
                f"{file}: {name}={n:,}, but the weights hold {len(stored):,} tensors: config.json and the weights do "
                f"not agree"
            )
