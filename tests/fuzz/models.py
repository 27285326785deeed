"""Model directories of every family, head and layout, damaged: they load to the same model, or are refused.

A model that loads must compute logits of the right shape: the same ones if neither the config nor a tensor was changed,
and no NaN if no tensor was. Every key of a `headway-…` config must be in the model's config.
"""

import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import headway
from headway.models.ngram import read_arpa, read_counts, write_arpa, write_counts
from headway.tokenizers.word import sentence_tokenizer
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_json_text, replace_file
from tests.fuzz.tiny_models import logits_of, write_models

HOSTILE_FIELDS = ["nan", "inf", "-inf", "5", "-0.3", "1e999", "9" * 20, "<s>", "</s>", "<unk>", "w1", "", "w9 w9"]
HOSTILE_LOGS = ["nan", "inf", "-inf", "0", "-0.5", "0.3", "7", "-99", "-1e300", "1e300", ""]
MAX_FILE_BYTES = 10**7
DTYPES = [torch.float16, torch.float64, torch.int64, torch.bool, torch.bfloat16]

Files = dict[str, bytes]  # of one model directory, by relative path


class Models(Area):
    name = "models"
    full_count = 10_500
    ci_count = 40

    def prepare(self) -> None:
        self.models: dict[str, Files] = {}
        self.logits: dict[str, torch.Tensor] = {}
        for folder in write_models(self.folder / "intact"):
            files = (file for file in sorted(folder.rglob("*")) if file.is_file())
            self.models[folder.name] = {str(file.relative_to(folder)): file.read_bytes() for file in files}
            self.logits[folder.name] = logits_of(headway.load(folder))
        tokenizer = sentence_tokenizer([f"w{i}" for i in range(8)], ["<unk>", "<s>", "</s>"])
        special = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
        ngram = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=3, **special)
        texts = [tokenizer.encode(f"w{i % 8} w{i % 3} w{i % 5} w{i % 7}") for i in range(20)]
        ngram.fit_texts([[np.array([special["bos_id"], *text, special["eos_id"]])] for text in texts])
        ngram.tokenizer = tokenizer
        write_arpa(ngram, self.folder / "model.arpa")
        write_counts(ngram, self.folder / "model.counts")
        shutil.rmtree(self.folder / "intact")
        self.arpa, self.counts = ((self.folder / f"model.{kind}").read_bytes() for kind in ("arpa", "counts"))

    def case(self, rng: random.Random) -> str:
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            return self.damaged_text_file(folder, rng) if rng.random() < 0.08 else self.damaged_model(folder, rng)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # ── n-gram files ──────────────────────────────────────────────────────────────────────────────────────────────

    def damaged_text_file(self, folder: Path, rng: random.Random) -> str:
        data, read, file = rng.choice([(self.arpa, read_arpa, "x.arpa"), (self.counts, read_counts, "x.counts")])
        path = folder / file
        path.write_bytes(_mutate_lines(data, rng) if rng.random() < 0.5 else mutate_bytes(data, rng))
        if rng.random() < 0.05:
            replace_file(path, rng)
        model = read(path)
        logits = logits_of(model)
        if logits.isnan().any() or logits.max() > 1e-3:
            self.fail(f"{file} loads and gives log probabilities up to {logits.max()}")
        return f"{file} loaded"

    # ── model directories ─────────────────────────────────────────────────────────────────────────────────────────

    def damaged_model(self, folder: Path, rng: random.Random) -> str:
        name = rng.choice(list(self.models))
        for relative, data in self.models[name].items():
            (folder / relative).parent.mkdir(exist_ok=True)
            (folder / relative).write_bytes(data)
        for _ in range(rng.choice([1, 1, 1, 2])):
            self.damage(folder, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about keys of config.json that are unknown to Headway
            model = headway.load(folder)
            logits = logits_of(model)
        self.check(folder, name, model, logits)
        return "loaded"

    def damage(self, folder: Path, rng: random.Random) -> None:
        files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        files = [file for file in files if file.stat().st_size < MAX_FILE_BYTES]  # not a sparse file of gigabytes
        if not files:
            return
        tensors = [file for file in files if file.suffix == ".safetensors"]
        documents = [file for file in files if file.suffix == ".json"]
        config = [file for file in documents if file.name in ("config.json", "model.safetensors.index.json")]
        file = rng.choice(files)
        match rng.randrange(8):
            case 0:
                file.write_bytes(mutate_bytes(file.read_bytes(), rng))
            case 1 | 2 if config:
                _mutate_document(rng.choice(config), rng)
            case 3 if documents:
                _mutate_document(rng.choice(documents), rng)
            case 4 if tensors:
                _mutate_header(rng.choice(tensors), rng)
            case 5 if tensors:
                _mutate_tensors(rng.choice(tensors), rng)
            case 6:
                replace_file(file, rng)
            case _:
                other = self.models[rng.choice(list(self.models))]
                file.write_bytes(other.get(str(file.relative_to(folder)), rng.choice(list(other.values()))))

    def check(self, folder: Path, name: str, model: Any, logits: torch.Tensor) -> None:
        files = self.models[name]
        if hasattr(model, "start") and logits.shape[-1] != model.config.vocab_size:
            self.fail(f"logits of shape {tuple(logits.shape)} for vocab_size={model.config.vocab_size}")
        weights_changed = any(
            not (folder / file).is_file() or (folder / file).read_bytes() != data
            for file, data in files.items()
            if "safetensors" in file
        )
        config_changed = (folder / "config.json").read_bytes() != files["config.json"]
        if not weights_changed and not config_changed and not torch.equal(logits, self.logits[name]):
            self.fail("the logits changed, although neither config.json nor the weights did")
        if not weights_changed and logits.isnan().any():
            self.fail("NaN among the logits, although no weight changed")
        if model.config.family == "ngram" and logits.max() > 1e-3:
            self.fail(f"a log probability of {logits.max()}")
        if model.has_tokenizer:
            ids = model.tokenizer.encode("the cat sat")
            if not all(0 <= id < model.config.vocab_size for id in ids):
                self.fail(f"the tokenizer gives ids outside the vocabulary: {ids}")
            model.tokenizer.decode(ids)
        document = json.loads((folder / "config.json").read_text())
        if document["model_type"].startswith("headway-"):
            self.check_every_key_arrived(document, model)

    def check_every_key_arrived(self, document: dict[str, Any], model: Any) -> None:
        config = msgspec.to_builtins(model.config)
        for key, value in document.items():
            if key in ("model_type", "architectures", "dtype", "headway_version"):
                continue
            is_rounded = isinstance(config.get(key), float) and isinstance(value, int) and config[key] == float(value)
            if key not in config or (config[key] != value and not is_rounded and value not in (None, "none")):
                self.fail(f"config.json says {key}={value!r}, the model {config.get(key)!r}")
        if missing := config.keys() - document.keys():
            self.fail(f"config.json lacks {sorted(missing)}, and the model loads with defaults")


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mutate_lines(data: bytes, rng: random.Random) -> bytes:
    """Change words and numbers of a text file, keeping its form."""
    lines = data.decode().split("\n")
    for _ in range(rng.choice([1, 1, 2, 5])):
        i = rng.randrange(len(lines))
        words, columns = lines[i].replace("=", " = ").split(), lines[i].split("\t")
        match rng.randrange(5):
            case 0:
                lines.insert(i, rng.choice(lines))
            case 1 if len(lines) > 1:
                del lines[i]
            case 2 | 3 if len(columns) > 1:
                columns[rng.choice([0, -1])] = rng.choice(HOSTILE_LOGS)
                lines[i] = "\t".join(columns)
            case _ if words:
                words[rng.randrange(len(words))] = rng.choice(HOSTILE_FIELDS)
                lines[i] = rng.choice([" ", "\t"]).join(words).replace(" = ", "=")
    return "\n".join(lines).encode()


def _mutate_document(file: Path, rng: random.Random) -> None:
    try:
        document = json.loads(file.read_text())
    except (ValueError, RecursionError):  # damaged already
        return
    file.write_text(mutate_json_text(document, rng))


def _mutate_header(file: Path, rng: random.Random) -> None:
    """Change the header and its length with it, so that only the content is wrong."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        document = json.loads(data[8 : 8 + length])
    except ValueError:
        return
    header = json.dumps(mutate_json(document, rng)).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def _mutate_tensors(file: Path, rng: random.Random) -> None:
    """Rename, drop, add, reshape, convert or overwrite tensors in a file that stays valid."""
    try:
        tensors = load_file(file)
    except Exception:  # damaged already
        return
    if not tensors:
        return
    name, other = rng.choice(sorted(tensors)), rng.choice(sorted(tensors))
    tensor = tensors[name]
    match rng.randrange(9):
        case 0:
            del tensors[name]
        case 1:
            tensors[f"{name}{rng.choice(['2', '.weight', '', ' '])}"] = tensors.pop(name)
        case 2:
            tensors[name], tensors[other] = tensors[other].clone(), tensor.clone()
        case 3:
            tensors[name] = tensor.reshape(-1) if rng.random() < 0.5 else tensor[None].clone()
        case 4:
            tensors[name] = tensor.to(rng.choice(DTYPES))
        case 5 if tensor.numel():
            value = rng.choice([float("nan"), float("inf"), -float("inf"), 0.0, 5.0, -3.0, 1e30])
            if not tensor.is_floating_point():
                value = rng.choice([-1, 0, 40, 41, 2**31 - 1])
            tensor.view(-1)[rng.randrange(tensor.numel())] = value
        case 6:
            tensors[f"extra.{rng.randrange(3)}"] = torch.zeros(rng.choice([0, 3]))
        case 7 if tensor.numel() > 1:
            tensors[name] = tensor[: len(tensor) - 1].clone() if tensor.dim() else tensor
        case _:
            tensors[name] = tensor.flip(0) if tensor.dim() else tensor
    save_file({key: value.contiguous() for key, value in tensors.items()}, file)
    os.chmod(file, 0o644)
