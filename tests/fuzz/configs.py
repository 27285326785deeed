"""Hostile values for every field of every family: in `create`, in a config class and in a config.json.

What is built must compute numbers, in forward and step by step, and have the value that was asked for. The free memory
is faked to be small, so that a size that is not refused shows up as allocated memory.
"""

import json
import random
import shutil
from typing import Any, get_args

import msgspec
import torch

import headway
from headway import memory
from headway.config import FAMILIES, build
from headway.config.choices import CHOICES
from headway.config.presets import PRESETS
from tests.fuzz.harness import Area
from tests.fuzz.mutations import hostile_value
from tests.fuzz.tiny_models import logits_of

FREE_BYTES = 2 * 10**7
SIZES = [1, 1, 2, 2, 3, 4, 4, 5, 8, 8, 12, 16, 40, 41, 60, 2**15, 2**20, 10**7, 10**9]
FLOATS = [1e-300, 1e-40, 1e-12, 1e-3, 0.5, 0.999, 1.0, 2.0, 1e6, 1e30, 1e39, 1e300, float("nan"), float("inf")]
TINY = {
    "vocab_size": 41, "context": 16, "n_layers": 1, "n_encoder_layers": 1, "n_decoder_layers": 1, "n_heads": 2,
    "d_model": 8, "d_hidden": 6, "d_out": 4, "order": 3, "dropout": 0.1,
}  # fmt: skip


class Configs(Area):
    name = "configs"
    full_count = 2_500
    ci_count = 30

    def prepare(self) -> None:
        self.available_bytes, memory.available_bytes = memory.available_bytes, lambda: FREE_BYTES
        self.documents: dict[str, dict[str, Any]] = {}
        self.configs = {name: _tiny(config) for name, config in {**FAMILIES, **PRESETS}.items() if name in FAMILIES}
        for name, config in self.configs.items():
            folder = headway.create(config).save(self.folder / name)
            self.documents[name] = json.loads((folder / "config.json").read_text())

    def close(self) -> None:
        memory.available_bytes = self.available_bytes

    def case(self, rng: random.Random) -> str:
        name = rng.choice(list(self.configs))
        torch.manual_seed(0)
        if rng.random() < 0.3:
            return self.from_file(name, rng)
        config = self.configs[name]
        values = _hostile_fields(type(config), rng)
        table = {**msgspec.to_builtins(config), **values}
        match rng.randrange(3):
            case 0:
                model = headway.create(name, **{key: value for key, value in table.items() if key != "family"})
            case 1:
                model = headway.create(build(FAMILIES[name], table))
            case _:
                model = headway.create(config, **values)
        built = msgspec.to_builtins(model.config)
        for key, value in values.items():
            as_built = float(value) if isinstance(built[key], float) and isinstance(value, int) else value
            if built[key] != as_built and value not in (None, "none"):
                self.fail(f"asked for {key}={value!r}, the model has {built[key]!r}")
        self.check(model)
        return "built"

    def from_file(self, name: str, rng: random.Random) -> str:
        folder, document = self.folder / "case", dict(self.documents[name])
        shutil.copytree(self.folder / name, folder)
        try:
            for key in rng.sample(list(document), rng.choice([1, 1, 2])):
                document[key] = _value(rng) if rng.random() < 0.8 else hostile_value(rng)
            (folder / "config.json").write_text(json.dumps(document))
            self.check(headway.load(folder))
        finally:
            shutil.rmtree(folder)
        return "loaded"

    def check(self, model: Any) -> None:
        model.eval()
        logits = logits_of(model)
        if logits.isnan().any() or not logits.shape[-1]:
            self.fail(f"logits of shape {tuple(logits.shape)}, {int(logits.isnan().sum())} of them NaN")
        if hasattr(model, "start"):
            ids = torch.zeros(2, 1, dtype=torch.long)
            state = model.start(source=ids) if hasattr(model, "encode") else model.start(2)
            if model.step(ids, state)[0].isnan().any():
                self.fail("a step gives NaN")


def _tiny(config_class: Any) -> Any:
    sizes = {key: value for key, value in TINY.items() if key in config_class.__struct_fields__}
    return build(config_class, sizes)


def _hostile_fields(config_class: Any, rng: random.Random) -> dict[str, Any]:
    fields = rng.sample(config_class.__struct_fields__, rng.choice([1, 1, 1, 2, 3]))
    return {field: _choice(config_class, field, rng) for field in fields}


def _choice(config_class: Any, field: str, rng: random.Random) -> Any:
    """A hostile value, or one of the words that the field allows."""
    hint = next(f.type for f in msgspec.structs.fields(config_class) if f.name == field)
    words = [word for word in get_args(get_args(hint)[0] if get_args(hint) else hint) if isinstance(word, str)]
    if field == "attention":
        words = list(CHOICES["attention"])
    return rng.choice(words) if words and rng.random() < 0.7 else _value(rng)


def _value(rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0 | 1 | 2:
            return rng.choice(SIZES)
        case 3:
            return rng.choice(FLOATS)
        case 4:
            return rng.choice([True, False, None, ["a", "b"], [0, 1], [0, 1, 10**30], [-1], [1.5]])
        case _:
            return hostile_value(rng)
