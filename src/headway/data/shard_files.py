"""A shard on disk: tokens and document boundaries in a safetensors file that carries its own checksum.

    length     of the header, 8 bytes
    header     JSON: dtype, shape and offsets of each array; what the shard was made from; a checksum
    data       ends, bytes, tokens

The checksum covers the header, in which it counts as empty, and the data. A header must be exactly what `_header`
writes for the sizes it names, so that a change to any byte of the file is detected before an array is used.
"""

import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headway.errors import DataError
from headway.file_reading import open_regular, parse_json
from headway.temporary_files import temporary_path

MAX_HEADER_BYTES = 4096  # Headway's take 500
TOKEN_DTYPES = {"U16": np.uint16, "U32": np.uint32}

ShardArrays = dict[str, NDArray[Any]]  # "tokens"; and for each document its end in "ends", its size in "bytes"


@dataclass(frozen=True)
class Shard:
    arrays: ShardArrays  # memory-mapped
    made_from: str  # a hash of the documents, the tokenizer and the position in the corpus
    sha256: str


def read_shard(file: Path) -> Shard:
    """Check a shard and map it; a damaged one raises DataError.

    The checksum is computed by reading, not from the mapped pages, which would stay resident.
    """
    with open_cached(file) as stream:
        raw = stream.read(8)
        header_size = int.from_bytes(raw, "little")
        if len(raw) < 8 or not 0 < header_size <= MAX_HEADER_BYTES:
            raise DataError(f"{file} is damaged: it does not begin with the header of a shard")
        header, raw = _parse_header(file, stream.read(header_size))
        dtype, n_documents, n_tokens = header.tokens.dtype, header.ends.shape[0], header.tokens.shape[0]
        made_from, sha256 = header.metadata.made_from, header.metadata.sha256
        data_start = 8 + header_size
        size, actual_size = data_start + header.tokens.data_offsets[1], os.fstat(stream.fileno()).st_size
        if raw != _header(dtype, n_documents, n_tokens, made_from, sha256):
            raise DataError(f"{file} is damaged: its header is not that of a shard")
        if actual_size != size:
            raise DataError(f"{file} is damaged: it has {actual_size:,} bytes instead of {size:,}")
        unsigned = _header(dtype, n_documents, n_tokens, made_from, "")
        if hashlib.file_digest(stream, lambda: hashlib.sha256(unsigned)).hexdigest() != sha256:
            raise DataError(f"{file} is damaged: its checksum does not match")
        pages = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
    arrays: ShardArrays = {
        "tokens": np.frombuffer(pages, TOKEN_DTYPES[dtype], n_tokens, data_start + header.tokens.data_offsets[0]),
        "ends": np.frombuffer(pages, np.int64, n_documents, data_start + header.ends.data_offsets[0]),
        "bytes": np.frombuffer(pages, np.int64, n_documents, data_start + header.bytes.data_offsets[0]),
    }
    ends = arrays["ends"]
    if (ends[-1] if len(ends) else 0) != n_tokens or (ends[:1] < 0).any() or (ends[1:] < ends[:-1]).any():
        raise DataError(f"{file} is damaged: its documents do not end where its tokens do")
    return Shard(arrays, made_from, sha256)


def write_shard(file: Path, arrays: ShardArrays, made_from: str) -> str:
    """Write a shard under a temporary name and rename it when it is complete; returns its checksum."""
    dtype = next(name for name, dtype in TOKEN_DTYPES.items() if dtype == arrays["tokens"].dtype)
    sizes = dtype, len(arrays["ends"]), len(arrays["tokens"])
    data = [arrays[name].data for name in ("ends", "bytes", "tokens")]
    digest = hashlib.sha256(_header(*sizes, made_from, ""))
    for part in data:
        digest.update(part)
    header = _header(*sizes, made_from, digest.hexdigest())
    write_cached(file, [len(header).to_bytes(8, "little"), header, *data])
    return digest.hexdigest()


def open_cached(path: Path) -> BufferedReader:
    """Open a regular file of the cache for reading. A link is refused: it would lead out of the cache."""
    if path.is_symlink():
        raise DataError(f"{path} is a link, and links in the cache are not followed")
    return open_regular(path, error=DataError)


def write_cached(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Create or replace the file `path` atomically; a link or pipe there is replaced, never written through."""
    try:
        with temporary_path(path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")) as temporary:
            with open(temporary, "xb") as stream:
                stream.writelines(chunks)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)  # a full disk is reported without a file name
        raise


# ── the header ────────────────────────────────────────────────────────────────────────────────────────────────────

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _TokenEntry(msgspec.Struct):
    dtype: Literal["U16", "U32"]
    shape: tuple[_Size]
    data_offsets: tuple[_Size, _Size]


class _DocumentEntry(msgspec.Struct):
    dtype: Literal["I64"]
    shape: tuple[_Size]
    data_offsets: tuple[_Size, _Size]


class _Metadata(msgspec.Struct):
    made_from: str
    sha256: str


class _ShardHeader(msgspec.Struct):
    metadata: _Metadata = msgspec.field(name="__metadata__")
    ends: _DocumentEntry
    bytes: _DocumentEntry
    tokens: _TokenEntry


def _parse_header(file: Path, raw: bytes) -> tuple[_ShardHeader, bytes]:
    try:
        return msgspec.convert(parse_json(raw), _ShardHeader), raw
    except (ValueError, msgspec.ValidationError) as problem:
        raise DataError(f"{file} is damaged: its header is not that of a shard ({problem})") from None


def _header(dtype: str, n_documents: int, n_tokens: int, made_from: str, sha256: str) -> bytes:
    """The header of a shard of this size, padded so that the arrays after it are aligned."""
    ends_end, bytes_end = 8 * n_documents, 16 * n_documents
    n_bytes = n_tokens * np.dtype(TOKEN_DTYPES[dtype]).itemsize
    header = {
        "__metadata__": {"made_from": made_from, "sha256": sha256},
        "ends": {"dtype": "I64", "shape": [n_documents], "data_offsets": [0, ends_end]},
        "bytes": {"dtype": "I64", "shape": [n_documents], "data_offsets": [ends_end, bytes_end]},
        "tokens": {"dtype": dtype, "shape": [n_tokens], "data_offsets": [bytes_end, bytes_end + n_bytes]},
    }
    text = json.dumps(header).encode()
    return text + b" " * (-len(text) % 8)
