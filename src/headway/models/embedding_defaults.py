"""What a sentence-transformers directory says about its embeddings: which pooling, and whether they are normalised.

    modules.json                  the steps: Transformer, Pooling, perhaps Normalize
    1_Pooling/config.json         which pooling
    sentence_bert_config.json     where texts are cut

`headway.embed` follows these files by default, and `model.save` writes them again.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from headway.errors import CheckpointError
from headway.file_reading import parse_json, read_json, read_utf8

MODULES, POOLING, LENGTH = "modules.json", "1_Pooling", "sentence_bert_config.json"
STEPS = ("Transformer", "Pooling", "Normalize")  # classes of sentence-transformers that are known here
# The switches in 1_Pooling/config.json, after "pooling_mode_", and our names of what they switch on.
MODES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}


@dataclass(frozen=True)
class EmbeddingDefaults:
    """How `headway.embed` makes an embedding out of hidden states unless the caller decides."""

    pooling: str = "mean"  # as in the file: not always one that `headway.embed` has
    normalize: bool = False
    max_tokens: int | None = None  # of a text with its special tokens; None: the model's context
    unknown: tuple[str, ...] = ()  # steps that Headway does not have, such as "Dense": without them embeddings differ


def read_embedding_defaults(folder: Path) -> EmbeddingDefaults | None:
    """What the files of sentence-transformers in a model directory say; None if there are none."""
    if not (folder / MODULES).is_file():
        return None
    steps = _read_steps(folder / MODULES)
    unknown = [step for step in steps if step not in STEPS]
    pooling = _read_pooling(folder / steps["Pooling"] / "config.json") if "Pooling" in steps else "mean"
    max_tokens = None
    if (folder / LENGTH).is_file():
        settings = read_json(folder / LENGTH)
        max_tokens = settings.get("max_seq_length")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise CheckpointError(f"{folder / LENGTH}: max_seq_length={max_tokens!r:.80} is not a number of tokens")
        unknown += ["do_lower_case"] * bool(settings.get("do_lower_case"))
    return EmbeddingDefaults(pooling, "Normalize" in steps, max_tokens, tuple(unknown))


def write_embedding_defaults(defaults: EmbeddingDefaults, width: int, folder: Path) -> None:
    """The same files, for sentence-transformers too. None if a step is unknown: they would describe another model."""
    if defaults.unknown or defaults.pooling not in MODES.values():
        return
    steps = {"Transformer": "", "Pooling": POOLING} | ({"Normalize": "2_Normalize"} if defaults.normalize else {})
    documents: dict[str, Any] = {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{step}"}
            for i, (step, path) in enumerate(steps.items())
        ],
        f"{POOLING}/config.json": {
            "word_embedding_dimension": width,
            **{f"pooling_mode_{switch}": mode == defaults.pooling for switch, mode in MODES.items()},
        },
    }
    if defaults.max_tokens is not None:
        documents[LENGTH] = {"max_seq_length": defaults.max_tokens, "do_lower_case": False}
    (folder / POOLING).mkdir()
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _read_steps(file: Path) -> dict[str, str]:
    """The class of each step and its folder. A folder is a plain name: nothing outside the directory is opened."""
    try:
        modules = parse_json(read_utf8(file))
        steps = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
        is_valid = all(PurePosixPath(path).name == path != ".." for path in steps.values())
    except (ValueError, TypeError, KeyError, AttributeError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"{file} is damaged: expected a list of modules, each with a type and a folder")
    return steps


def _read_pooling(file: Path) -> str:
    """Our name of the pooling in 1_Pooling/config.json; several at once are joined by "+"."""
    settings = read_json(file)
    if isinstance(settings.get("pooling_mode"), str):  # newer versions
        return str(settings["pooling_mode"])
    switches = [key.removeprefix("pooling_mode_") for key, value in settings.items() if value is True]
    modes = [MODES.get(switch, switch) for switch in switches if f"pooling_mode_{switch}" in settings]
    return "+".join(modes) or "mean"
