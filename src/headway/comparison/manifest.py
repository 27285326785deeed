"""What a comparison was begun with, in plan.json: it goes on with the same, or its rows could not be compared."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from headway.config import Recipe, TokenizerConfig
from headway.errors import ConfigError, DataError
from headway.files import write_text
from headway.tokenizers import Tokenizer


def check_same(place: Path, asked: Mapping[str, Any], done: Collection[str]) -> None:
    """What all share must be what it was; the own settings of those that are not `done` may change."""
    if not (begun := _read(place)):
        return
    shared = [(name, begun.get(name), value) for name, value in asked.items() if name != "of one"]
    own = [(f"settings of {name}", begun["of one"].get(name), asked["of one"].get(name)) for name in done]
    for name, before, now in [*shared, *own]:
        if before != now and name == "content":
            raise DataError(f"{asked['data']} has changed since {place} was begun: put it back, or take another --out")
        if before != now:
            raise ConfigError(f"{place} was begun with {name}={before}, not {now}: the same again, or another --out")


def check_recipes(place: Path, recipes: Mapping[str, Recipe], done: Collection[str]) -> dict[str, str]:
    """What each is trained by, in short, those of before too; it must be what those that are `done` were trained by."""
    whole = {name: recipe.replace(tokenizer=TokenizerConfig()).to_toml() for name, recipe in recipes.items()}
    short = {name: digest([text])[:16] for name, text in whole.items()}
    begun = _read(place).get("recipes", {})
    for name, recipe in short.items():
        if name in done and begun.get(name, recipe) != recipe:
            raise ConfigError(f"{place / name} was trained by another recipe than {name} is now: take another --out")
    return {**begun, **short}


def digest(texts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()


def write_plan(place: Path, asked: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "plan.json", json.dumps(asked, indent=1) + "\n")
    if not (place / "tokenizer").exists():
        tokenizer.save(place / "tokenizer")


def _read(place: Path) -> dict[str, Any]:
    file = place / "plan.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
