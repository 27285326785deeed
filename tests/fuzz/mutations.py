"""Damage: what bit rot, a careless editor and an adversary do to bytes, JSON documents and files."""

import copy
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

HOSTILE_NUMBERS = [0, -1, 1, 2, 3, 7, 2**15, 2**16, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**9, 10**18, 10**30]
HOSTILE_FLOATS = [0.0, -0.0, -1.0, 0.5, 1e-300, 1e300, 1e9, 3.5]
HOSTILE_TEXTS = [
    "",
    " ",
    "\0",
    "x" * 5000,
    "../../etc/passwd",
    "/dev/zero",
    "\u202e",
    "é",
    "\ud83d\ude00",
    "none",
    "nan",
    "1e309",
]
HOSTILE_VALUES = [*HOSTILE_NUMBERS, *HOSTILE_FLOATS, *HOSTILE_TEXTS, None, True, False, [], {}, [[]], {"": {}}, [None]]
HOSTILE_JSON_TEXTS = ["NaN", "-Infinity", "1e999", '"\\ud800"', '"\\udc00x"', "[" * 20_000, "9" * 5000, "{", "", "'x'"]


def hostile_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(HOSTILE_VALUES))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat or overwrite some bytes."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        start = rng.randrange(len(data) + 1)
        length = min(rng.choice([1, 1, 2, 4, 8, 64, 1000]), len(data) - start)
        match rng.randrange(7):
            case 0 if length:
                data[start] ^= 1 << rng.randrange(8)
            case 1:
                del data[start:]
            case 2:
                del data[start : start + length]
            case 3:
                data[start:start] = rng.randbytes(length or 1)
            case 4:
                data[start:start] = data[start : start + length]
            case 5:
                data[start : start + length] = bytes([rng.choice([0, 0xFF, 0x7F, 0x80, 0x0A, 0x22])]) * length
            case _:
                data[start : start + length] = rng.randbytes(length)
    return bytes(data)


def mutate_json(document: Any, rng: random.Random) -> Any:
    """A copy with some values replaced, keys renamed, dropped or added, or lists changed."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        containers = list(_containers(document))
        if not containers:
            return hostile_value(rng)
        container = rng.choice(containers)
        if isinstance(container, dict):
            _mutate_dict(container, rng)
        else:
            _mutate_list(container, rng)
    return document


def mutate_json_text(document: Any, rng: random.Random) -> str:
    """The text of a mutated document; now and then not even JSON."""
    text = json.dumps(mutate_json(document, rng))
    if rng.random() < 0.2:
        hostile = rng.choice(HOSTILE_JSON_TEXTS)
        key = rng.choice(list(document)) if isinstance(document, dict) and document else "key"
        return f"{{{json.dumps(key)}: {hostile}, {text[1:]}" if rng.random() < 0.8 else hostile
    return text


def replace_file(path: Path, rng: random.Random) -> str:
    """Put something else in the place of a file: nothing, a folder, a pipe, a link; returns what."""
    kind = rng.choice(["nothing", "empty file", "folder", "pipe", "link loop", "broken link", "device", "sparse file"])
    remove(path)
    match kind:
        case "empty file":
            path.touch()
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link loop":
            path.symlink_to(path.name)
        case "broken link":
            path.symlink_to("nowhere")
        case "device":
            path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/dev/full"]))
        case "sparse file":
            with open(path, "wb") as file:
                file.truncate(3 * 10**9)
    return kind


def remove(path: Path) -> None:
    """Delete whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _containers(value: Any) -> Any:
    """Every dict and list in a document that has something in it."""
    if isinstance(value, dict | list) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value[:50]:
            yield from _containers(item)


def _mutate_dict(container: dict[str, Any], rng: random.Random) -> None:
    key = rng.choice(list(container))
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1:
            container[rng.choice([f"{key}_", key.upper(), "", "__proto__", "x" * 300])] = container.pop(key)
        case 2:
            container[rng.choice(["extra", "_name_or_path", "torch_dtype"])] = hostile_value(rng)
        case 3 if len(container) > 1:
            container[key] = copy.deepcopy(container[rng.choice(list(container))])
        case _:
            container[key] = _changed(container[key], rng)


def _mutate_list(container: list[Any], rng: random.Random) -> None:
    index = rng.randrange(len(container))
    match rng.randrange(5):
        case 0:
            del container[index]
        case 1:
            container.insert(index, copy.deepcopy(rng.choice(container)))
        case 2:
            other = rng.randrange(len(container))
            container[index], container[other] = container[other], container[index]
        case 3:
            container.extend(copy.deepcopy(container[:50]))
        case _:
            container[index] = _changed(container[index], rng)


def _changed(value: Any, rng: random.Random) -> Any:
    """A value near the old one, or a hostile one."""
    if rng.random() < 0.5:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return rng.choice([value + 1, value - 1, value * 2, -value, value * 10**6, float(value), str(value)])
        if isinstance(value, float):
            return rng.choice([value * 2, -value, 0.0, value * 1e30, str(value)])
        if isinstance(value, str):
            return rng.choice([value[:-1], value + "x", value.upper(), [value], value * 100])
    return hostile_value(rng)
