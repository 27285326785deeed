"""The manifest of a comparison, manifest.json: what it was started with.

`--resume` compares like with like: it refuses a data source, a budget, a setting or a recipe that differs from the
manifest, because the models already trained were trained with the old one.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from headway.config import Recipe, TokenizerConfig
from headway.errors import CheckpointError, ConfigError, DataError
from headway.files import write_text
from headway.tokenizers import Tokenizer

MANIFEST_FILE = "manifest.json"
OWN_SETTINGS = "model_settings"  # key of the settings of single models


def check_same_settings(out_dir: Path, manifest: Mapping[str, Any], finished: Collection[str]) -> None:
    """Raise if shared settings differ from those the comparison was started with. Settings of a single model may
    change as long as it is not `finished`."""
    if not (old := _read_manifest(out_dir)):
        return
    shared = [(name, old.get(name), value) for name, value in manifest.items() if name != OWN_SETTINGS]
    model_settings, old_model_settings = manifest[OWN_SETTINGS], old.get(OWN_SETTINGS, {})
    by_model = [(f"settings of {name}", old_model_settings.get(name), model_settings.get(name)) for name in finished]
    for name, old_value, value in [*shared, *by_model]:
        if old_value == value:
            continue
        if name == "content":
            raise DataError(
                f"{manifest['data']} has changed since {out_dir} was started: restore it, or choose another --out"
            )
        raise ConfigError(
            f"{out_dir} was started with {name}={old_value}, not {value}: pass the old value, or choose another --out"
        )


def check_same_recipes(out_dir: Path, recipes: Mapping[str, Recipe], finished: Collection[str]) -> dict[str, str]:
    """Raise if a `finished` model was trained with another recipe; returns the digest of every recipe so far."""
    documents = {name: recipe.replace(tokenizer=TokenizerConfig()).to_toml() for name, recipe in recipes.items()}
    digests = {name: digest([document])[:16] for name, document in documents.items()}
    old = _read_manifest(out_dir).get("recipes", {})
    for name, recipe_digest in digests.items():
        if name in finished and old.get(name, recipe_digest) != recipe_digest:
            raise ConfigError(
                f"{out_dir / name} was trained with another recipe than {name} has now: choose another --out"
            )
    return {**old, **digests}


def digest(texts: Iterable[str]) -> str:
    """SHA-256 over a sequence of texts."""
    total = hashlib.sha256()
    for text in texts:
        total.update(hashlib.sha256(text.encode()).digest())
    return total.hexdigest()


def write_manifest(out_dir: Path, manifest: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Create the folder of a comparison with its manifest and its tokenizer."""
    out_dir.mkdir(parents=True, exist_ok=True)
    write_text(out_dir / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")
    if not (out_dir / "tokenizer").exists():
        tokenizer.save(out_dir / "tokenizer")


def latest_comparison(folder: Path) -> Path | None:
    """The comparison in this folder (compare, compare-2, …) that was started last."""
    files = folder.glob(f"compare*/{MANIFEST_FILE}")
    return max((file.parent for file in files), key=lambda path: (path / MANIFEST_FILE).stat().st_mtime, default=None)


def _read_manifest(out_dir: Path) -> dict[str, Any]:
    """The manifest; empty if there is none yet."""
    file = out_dir / MANIFEST_FILE
    if not file.is_file():
        return {}
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        manifest = None
    tables = (OWN_SETTINGS, "recipes")
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(name, {}), dict) for name in tables):
        raise CheckpointError(f"{file} is damaged: restore it, or choose another --out")
    return manifest
