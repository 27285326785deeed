"""Protocol buffers, as far as SentencePiece needs them: the fields of a message by number."""

from collections import defaultdict
from typing import Any


def last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if fields[number] else default


def fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number: integers, or bytes for everything else."""
    found: dict[int, list[Any]] = defaultdict(list)
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: Any
        if kind == 0:
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, place = _varint(data, place)
            if place + size > len(data):
                raise ValueError("it ends too early")
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"field {key >> 3} is of wire type {kind}")
        found[key >> 3].append(value)
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
