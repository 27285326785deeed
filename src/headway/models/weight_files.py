"""Tensors in safetensors files: what a file holds, read from its header alone, and then the tensors themselves.

A safetensors file is the length of a header (8 bytes), the header in JSON, and the numbers:

    {"embedding.weight": {"dtype": "F32", "shape": [256, 64], "data_offsets": [0, 65536]}, …}

The header is checked before anything is allocated: sizes are those of the file, not what a config.json claims. Nothing
is ever unpickled.
"""

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headway.errors import CheckpointError
from headway.file_reading import open_regular, parse_json, read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 8 * 2**20  # the format allows 100 MB; a Llama of 126 layers has 0.2 MB
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip

_Count = Annotated[int, Meta(ge=0)]


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as the header describes it."""

    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


class Header(NamedTuple):
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_header(file: Path) -> Header:
    """What a safetensors file holds; no tensor of it is larger than the file."""
    try:
        with open_regular(file) as source:
            n_bytes = os.fstat(source.fileno()).st_size
            length = int.from_bytes(source.read(8), "little")
            if n_bytes < 8 or length > n_bytes - 8:
                raise _damaged(file, "the header is cut off")
            if length > MAX_HEADER_BYTES:
                raise _damaged(file, f"its header has {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
            document = parse_json(source.read(length))
        if not isinstance(document, dict):
            raise ValueError("the header is not a JSON object")
        metadata = msgspec.convert(document.pop("__metadata__", {}), dict[str, str])
        tensors = msgspec.convert(document, dict[str, TensorEntry])
    except OSError as error:
        raise _unreadable(file, error) from None
    except CheckpointError:
        raise
    except ValueError as error:  # also those of msgspec
        raise _damaged(file, str(error)) from None
    for name, entry in tensors.items():
        begin, end = entry.data_offsets
        if entry.dtype not in ITEM_BYTES:
            raise _damaged(file, f"{name!r} is of the unknown type {entry.dtype!r:.40}")
        if end > n_bytes - 8 - length or end - begin != entry.n_elements * ITEM_BYTES[entry.dtype]:
            raise _damaged(file, f"{name!r} does not lie in the file")
    return Header(tensors, metadata)


def weight_files(folder: Path) -> list[Path]:
    """`model.safetensors`, or the files listed in its index, which lie beside it."""
    index = folder / INDEX
    if not index.is_file():
        return [folder / WEIGHTS]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensor names to files")
    names = sorted(set(weight_map.values()))
    for name in names:
        if name != Path(name).name or "\0" in name:
            raise CheckpointError(f"{index} lists {name!r:.80}, which is not the name of a file beside it")
    return [folder / name for name in names]


def stored_tensors(folder: Path) -> dict[str, TensorEntry]:
    """All tensors of a model directory, by name, as the headers of its files describe them."""
    stored: dict[str, TensorEntry] = {}
    for file in weight_files(folder):
        tensors = read_header(file).tensors
        if duplicates := sorted(stored.keys() & tensors.keys()):
            raise CheckpointError(f"{file} holds {duplicates[0]!r}, which another file of {folder} holds too: keep one")
        stored |= tensors
    return stored


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model directory, memory-mapped until they are read."""
    stored_tensors(folder)
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        tensors |= read_file(file)
    return tensors


def read_file(file: Path) -> dict[str, Tensor]:
    """All tensors of a file whose header was checked."""
    try:
        with safe_open(file, framework="pt") as source:
            return {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    except OSError as error:
        raise _unreadable(file, error) from None
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _damaged(file, str(error)) from None


def read_shards(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Assemble tensors from the shards that the ranks of a distributed run wrote, each with its offset in the whole.

    `expected` gives the shapes and dtypes. Averaged weights, if there are any, are preferred to the last ones.
    """
    headers = {file: read_header(file) for file in sorted(folder.glob("*.safetensors"))}
    is_averaged = any(name.startswith("average/") for header in headers.values() for name in header.tensors)
    prefix = "average/" if is_averaged else "model/"
    n_missing = {name: t.numel() for name, t in expected.items()}
    for header in headers.values():
        for name, entry in header.tensors.items():
            if name.removeprefix(prefix) in n_missing and name.startswith(prefix):
                n_missing[name.removeprefix(prefix)] -= entry.n_elements
    if incomplete := [name for name, n in n_missing.items() if n]:  # before a tensor of that size is made
        raise CheckpointError(
            f"{folder}: missing tensor {incomplete[0]!r} in the checkpoint, or its parts do not make the whole: "
            f"config.json and the weights do not agree"
        )
    # NaN where no shard lies: `check_finite` then refuses the tensor
    tensors = {name: torch.full(t.shape, torch.nan, dtype=t.dtype, device="cpu") for name, t in expected.items()}
    for file, header in headers.items():
        offsets = shard_offsets(file, header)
        try:
            with safe_open(file, framework="pt") as source:
                for stored_name in header.tensors:
                    name = stored_name.removeprefix(prefix)
                    if not stored_name.startswith(prefix):
                        continue  # the state of the optimizer
                    if name not in tensors:
                        raise CheckpointError(f"{file}: unexpected tensor {stored_name!r} in the checkpoint")
                    part = source.get_tensor(stored_name)
                    _region(file, stored_name, tensors[name], part, offsets[stored_name]).copy_(part)
        except OSError as error:
            raise _unreadable(file, error) from None
        except SafetensorError as error:
            raise _damaged(file, str(error)) from None
    return tensors


def _region(file: Path, name: str, whole: Tensor, part: Tensor, offset: list[int]) -> Tensor:
    """The view of the whole tensor that a part belongs to."""
    is_inside = part.dim() == whole.dim() and part.is_floating_point()
    if not is_inside or any(o + n > size for o, n, size in zip(offset, part.shape, whole.shape, strict=True)):
        raise CheckpointError(
            f"{file}: the part of {name!r} at {offset}, of shape {tuple(part.shape)}, does not lie in the tensor of "
            f"shape {tuple(whole.shape)}: config.json and the weights do not agree"
        )
    return whole[tuple(slice(o, o + n) for o, n in zip(offset, part.shape, strict=True))]


def shard_offsets(file: Path, header: Header) -> dict[str, list[int]]:
    """Where each tensor of a shard lies in the whole tensor, as torch.distributed.checkpoint writes it."""
    try:
        kind = dict[str, dict[str, list[_Count]]]
        sharding = msgspec.convert(parse_json(header.metadata.get("DCP_SHARDING_INFO", "{}")), kind)
    except ValueError as error:
        raise _damaged(file, f"its sharding information: {error}") from None
    offsets: dict[str, list[int]] = {}
    for name, entry in header.tensors.items():
        offsets[name] = sharding.get(name, {}).get("saved_offsets", [0] * len(entry.shape))
        if len(offsets[name]) != len(entry.shape):
            raise _damaged(file, f"the offset of {name!r} has another number of dimensions than the tensor")
    return offsets


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinity, in one pass over the weights, at memory bandwidth."""
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.is_floating_point():
            low, high = tensor.aminmax()  # both are NaN if any element is
            if not bool(low.isfinite() & high.isfinite()):
                raise CheckpointError(
                    f"{name!r} contains NaN or infinity: the training diverged or the file is damaged; use an earlier "
                    f"checkpoint"
                )


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _damaged(file: Path, problem: str) -> CheckpointError:
    size = f"{file.stat().st_size:,} bytes" if file.exists() else "missing"
    return CheckpointError(
        f"{file} is damaged or not a safetensors file ({problem}); {size}: copy it again, or use an earlier checkpoint"
    )


def _unreadable(file: Path, error: OSError) -> CheckpointError:
    if not isinstance(error, FileNotFoundError):
        return CheckpointError(f"{file} cannot be read: {error.strerror or error}")
    pickle = next((f.name for f in file.parent.glob("*.bin")), None)
    hint = f" ({pickle} is pickled code, which Headway never opens: convert it to safetensors)" if pickle else ""
    return CheckpointError(f"{file} is missing{hint}")
