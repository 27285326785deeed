"""LoRA updates in a folder of their own, in the layout of PEFT: a few megabytes beside a base model of any size.

    adapter_config.json            rank, alpha, the names of the adapted layers, the base model
    adapter_model.safetensors      A and B of every adapted layer, and the head

    save_adapter(model, "my-adapter", base="minilm")
    model = load_adapter(headway.load("minilm"), "my-adapter")      # with the updates apart
    model = headway.load("minilm", adapter="my-adapter")            # with the updates merged

Tensors have the names of transformers, so that PEFT opens the folder. `attention.qkv` may be three layers there, which
then share one A and divide the rows of B. Adapters that PEFT wrote open here. A model that transformers does not know
keeps Headway's names. Nothing is ever unpickled.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from headway.errors import CheckpointError, ConfigError
from headway.file_reading import parse_json, read_json
from headway.files import new_directory
from headway.models.base import Model, described, tokenizer_of
from headway.models.bert import BERT, MaskedLM
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.models.serialization import ADAPTER_CONFIG, layout_of
from headway.models.weight_files import check_finite, read_file, read_header
from headway.nn.lora import LoRALinear, block_layers, lora_layers, replace_layer

ADAPTER_WEIGHTS = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."  # of all tensors in PEFT's files
TASK_TYPES: dict[str, str] = {  # PEFT's word for what a class does; it has none for masked LMs
    "GPT": "CAUSAL_LM",
    "BERT": "FEATURE_EXTRACTION",
    "Classifier": "SEQ_CLS",
    "Tagger": "TOKEN_CLS",
    "SpanReader": "QUESTION_ANS",
}
HEADS: dict[str, Callable[[Any], Model]] = {
    "SEQ_CLS": Classifier,
    "TOKEN_CLS": Tagger,
    "QUESTION_ANS": SpanReader,
}
PLAIN_INITS = (None, True, False, "gaussian", "orthogonal", "eva")  # that leave the matrices of the base as they are


def head_parameters(model: Model) -> dict[str, Tensor]:
    """The parameters that are trained as a whole beside LoRA updates: the head and, of a classifier, the pooler."""
    if not isinstance(getattr(model, "encoder", None), BERT):
        return {}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if not name.startswith("encoder.") or (isinstance(model, Classifier) and name.startswith("encoder.pooler."))
    }


# ── saving ────────────────────────────────────────────────────────────────────────────────────────────────────────


def save_adapter(model: Model, path: str | Path, *, base: str | None = None, overwrite: bool = False) -> Path:
    """Write the LoRA updates and the head of a model; `base` is the name or path of the model that they belong to."""
    path = Path(path)
    if overwrite and path.is_dir() and any(path.iterdir()) and not (path / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"{path} holds something else than an adapter, and overwriting would delete it: choose another path"
        )
    layers = _stored_layers(model)
    rank, alpha = lora_settings(model)
    head = _stored_head(model)
    tensors = {f"{name}.lora_{factor}.weight": t for name, pair in layers.items() for factor, t in pair.items()} | head
    layout = layout_of(model)
    document = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(type(model).__name__),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": layout is not None and any(mapping.transposed for mapping in layout.tensors),
        "target_modules": sorted({re.sub(r".*\.\d+\.", "", name) for name in layers}),
        "modules_to_save": sorted({"pooler" if ".pooler." in name else name.split(".")[0] for name in head}) or None,
        "inference_mode": True,
    }
    metadata = {"format": "pt"}
    if labels := getattr(model.config, "labels", None):
        metadata |= {"labels": json.dumps(labels), "multi_label": json.dumps(model.config.multi_label)}  # type: ignore[attr-defined]
    with new_directory(path, overwrite=overwrite) as folder:
        (folder / ADAPTER_CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        copies = {PEFT_PREFIX + name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
        try:
            save_file(copies, folder / ADAPTER_WEIGHTS, metadata)
        except SafetensorError as error:  # such as a full disk
            raise CheckpointError(f"{folder / ADAPTER_WEIGHTS} cannot be written: {error}") from None
        (folder / ADAPTER_WEIGHTS).chmod(0o644)  # like the other file; safetensors makes it readable by its owner only
    return path


def lora_settings(model: Model) -> tuple[int, float]:
    """Rank and alpha of a model's LoRA updates, which must be the same for all of them."""
    settings = {(layer.rank, layer.scale) for layer in lora_layers(model).values()}
    if not settings:
        raise ConfigError(f"{described(model)} without LoRA updates has no adapter: save the whole model, model.save")
    if len(settings) > 1:
        ranks = ", ".join(str(rank) for rank, _ in sorted(settings))
        raise ConfigError(f"updates of ranks {ranks} are no adapter of one rank: merge_lora(model), then model.save")
    ((rank, scale),) = settings
    return rank, rank * scale


def _stored_layers(model: Model) -> dict[str, dict[str, Tensor]]:
    """Stored name of a layer → its A and B. Layers that Headway stacks share A."""
    table = _stored_names(model)
    return {
        stored.removesuffix(".weight"): {"A": layer.lora_a, "B": layer.lora_b[rows]}
        for name, layer in lora_layers(model).items()
        for stored, rows in table[f"{name}.weight"].items()
    }


def _stored_head(model: Model) -> dict[str, Tensor]:
    head, layout = head_parameters(model), layout_of(model)
    return head if layout is None or not head else layout.to_hf(model.config, head)


def _stored_names(model: Model) -> dict[str, dict[str, slice]]:
    """Tensor of the model → the stored tensors that it is made of, and their rows in it."""
    layout = layout_of(model)
    if layout is None:
        return {name: {name: slice(None)} for name, _ in model.named_parameters()}
    table = layout.rows(model.config)  # type: ignore[arg-type]
    if not isinstance(model, BERT):
        return table
    return {  # the names of transformers' BertModel have no prefix
        name: {stored.removeprefix(layout.prefix): rows for stored, rows in parts.items()}
        for name, parts in table.items()
    }


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def load_adapter(base: Model, path: str | Path) -> Model:
    """The base model, changed in place, with the LoRA updates and the head in the folder `path`.

    A head that the base model does not have is built on its encoder. `merge_lora(model)` merges the updates.
    """
    file = Path(path) / ADAPTER_WEIGHTS
    if lora_layers(base):
        raise ConfigError("the model has LoRA updates already: merge them first, merge_lora(model)")
    task_type, scale = _read_config(Path(path) / ADAPTER_CONFIG)
    metadata = read_header(file).metadata
    tensors = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in read_file(file).items()}
    try:
        check_finite(tensors)
        model = _with_head(base, task_type, tensors, metadata)
        _load_head(model, tensors, is_new=model is not base)
        _load_updates(model, tensors, scale)
        if tensors:
            raise CheckpointError(f"{described(model)} has no place for {next(iter(tensors))!r}")
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; is this the base model of the adapter?") from None
    return model


def _read_config(file: Path) -> tuple[str, float]:
    """The task type of an adapter ("" if it has none) and the scale of its updates."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent} is not an adapter: it has no {ADAPTER_CONFIG}")
    document = read_json(file)
    if document.get("peft_type") != "LORA":
        raise CheckpointError(f"{file}: peft_type={document.get('peft_type')!r:.40} is not supported; only 'LORA' is")
    for name in ("rank_pattern", "alpha_pattern"):
        if document.get(name):
            raise CheckpointError(f"{file}: {name} is not supported: one rank and one alpha are for all layers")
    if (init := document.get("init_lora_weights")) not in PLAIN_INITS:
        raise CheckpointError(f"{file}: init_lora_weights={init!r:.40} changes the base model, which is not supported")
    try:
        rank = msgspec.convert(document.get("r"), float)
        alpha = msgspec.convert(document.get("lora_alpha"), float)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{file}: r and lora_alpha must be numbers: {error}") from None
    if not 0 < rank < math.inf or not math.isfinite(alpha):
        raise CheckpointError(f"{file}: r={rank:g} and lora_alpha={alpha:g} must be positive numbers")
    return str(document.get("task_type") or ""), alpha / (math.sqrt(rank) if document.get("use_rslora") else rank)


def _with_head(base: Model, task_type: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Model:
    """The base model, or its encoder with a new head of the kind that the adapter was trained with."""
    head = MaskedLM if any(name.startswith("cls.") for name in tensors) else HEADS.get(task_type)
    if head is None:
        return base
    encoder = getattr(base, "encoder", base)
    if not isinstance(encoder, BERT):
        raise CheckpointError(f"the adapter is for a BERT with a head ({task_type}), not for {described(base)}")
    own = (encoder.config.labels, encoder.config.multi_label) if type(base) is head else ([], False)
    labels, multi_label = own
    if head in (Classifier, Tagger):
        output = tensors.get("classifier.weight", tensors.get("output.weight"))
        if names := _labels(metadata):
            labels, multi_label = names, metadata.get("multi_label") == "true"
        elif output is not None and len(output) != len(labels):  # PEFT stores no names
            labels, multi_label = [f"LABEL_{i}" for i in range(len(output))], False
        if not labels:
            raise CheckpointError(f"it holds no head ({task_type}), and {described(base)} has none of that kind")
    if type(base) is head and (labels, multi_label) == own:
        return base
    encoder.config = encoder.config.replace(labels=labels, multi_label=multi_label)
    model = head(encoder).train(base.training)
    model.tokenizer = tokenizer_of(base)
    return model


def _labels(metadata: Mapping[str, str]) -> list[str]:
    try:
        return msgspec.convert(parse_json(metadata.get("labels", "[]")), list[str])
    except ValueError as error:  # also those of msgspec
        raise CheckpointError(f"its labels are damaged: {error}") from None


@torch.no_grad()
def _load_head(model: Model, tensors: dict[str, Tensor], *, is_new: bool) -> None:
    """Copy the head, and take its tensors out of `tensors`. A new head has no other values, so it must be complete."""
    table, layout = _stored_names(model), layout_of(model)
    for name, parameter in head_parameters(model).items():
        (stored,) = table[name]
        if (tensor := tensors.pop(stored, None)) is None:
            if is_new and not name.startswith("encoder."):
                raise CheckpointError(f"it holds no {stored!r}, and the base model has no such head")
            continue  # PEFT saves the modules that it was told to
        if tensor.shape != parameter.shape:
            raise CheckpointError(f"{stored!r} has shape {tuple(tensor.shape)}, not {tuple(parameter.shape)}")
        parameter.copy_(tensor)
    for alias in () if layout is None else layout.aliases.values():
        tensors.pop(alias, None)


def _load_updates(model: Model, tensors: dict[str, Tensor], scale: float) -> None:
    """Add the updates to the layers of the blocks, and take their tensors out of `tensors`."""
    table = _stored_names(model)
    for name, layer in block_layers(model).items():
        parts = []
        for stored, rows in table[f"{name}.weight"].items():
            names = [f"{stored.removesuffix('.weight')}.lora_{factor}.weight" for factor in "AB"]
            if all(n in tensors for n in names):
                a, b = (tensors.pop(n).to(layer.weight) for n in names)
                n_rows = len(layer.weight[rows])
                if a.dim() != 2 or a.shape[1] != layer.in_features or b.shape != (n_rows, len(a)):
                    raise CheckpointError(
                        f"{names[0]!r} and {names[1]!r} have shapes {tuple(a.shape)} and {tuple(b.shape)} for a "
                        f"matrix of shape {(n_rows, layer.in_features)}"
                    )
                parts.append((rows, a, b))
        if parts:
            replace_layer(model, name, LoRALinear(layer, *_stack(parts, len(layer.weight)), scale))


def _stack(parts: list[tuple[slice, Tensor, Tensor]], n_rows: int) -> tuple[Tensor, Tensor]:
    """A and B of a stacked matrix, from those of its parts. If every part has an A of its own, the ranks add up."""
    factors = [a for _, a, _ in parts]
    is_shared = all(torch.equal(a, factors[0]) for a in factors)
    stacked_a = factors[0] if is_shared else torch.cat(factors)
    stacked_b = stacked_a.new_zeros(n_rows, len(stacked_a))
    column = 0
    for rows, a, b in parts:
        columns = slice(None) if is_shared else slice(column, column + len(a))
        stacked_b[rows, columns] = b
        column += len(a)
    return stacked_a, stacked_b
