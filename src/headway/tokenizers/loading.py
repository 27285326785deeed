"""Loading tokenizers from the files of Headway and of other programs.

| file | written by |
|---|---|
| `tokenizer.json` (+ `tokenizer_config.json`) | Headway, transformers, tokenizers |
| `encoder.json` + `vocab.bpe`, or `vocab.json` + `merges.txt` | GPT-2 |
| `vocab.txt` | BERT |
| `*.model` | SentencePiece, Headway |
| `*.tiktoken`, or Llama 3's `tokenizer.model` | tiktoken |
"""

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import lexists
from pathlib import Path
from typing import Any

import msgspec
import tokenizers as rust

from headway.errors import CheckpointError, ConfigError, suggest
from headway.file_reading import open_regular, parse_json, read_bytes, read_json, read_utf8, suggest_file
from headway.tokenizers.base import SPECIAL_TOKEN_NAMES, Tokenizer
from headway.tokenizers.bpe import byte_level_tokenizer, merge_below_rank
from headway.tokenizers.fast_encoding import byte_alphabet
from headway.tokenizers.file_limits import (
    MAX_TOKENIZER_BYTES,
    MAX_VOCAB_SIZE,
    check_document,
    check_ids,
    check_vocab,
)
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.pre_tokenizers import PATTERNS
from headway.tokenizers.sentencepiece import MODEL_FILE, load_sentencepiece
from headway.tokenizers.special_tokens import END_OF_TEXT, add_special_tokens
from headway.tokenizers.wordpiece import UNK, wordpiece_from_vocab

TOKENIZER_FILES = ("tokenizer.json", "encoder.json", "vocab.json", "vocab.txt", MODEL_FILE)  # in order of preference
MERGES_FILE_OF = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
MAX_MERGE_STEPS = 50_000_000  # to find the merges of a tiktoken file: the sum of its squared token lengths
# A tiktoken file holds ranks alone. The number of ranks identifies its pre-tokenization pattern and special tokens.
TIKTOKEN_VOCABS: dict[int, tuple[str, dict[str, int]]] = {
    50256: ("gpt2", {END_OF_TEXT: 50256}),
    50280: ("gpt2", {END_OF_TEXT: 50256}),
    100256: (
        "cl100k",
        {
            END_OF_TEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    199998: ("o200k", {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}),
}


def load_tokenizer(path: str | Path, *, pattern: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """Load the tokenizer in a folder, or in a file of any format listed above.

    `pattern` names the pre-tokenization ("gpt2", "cl100k", …) of a tiktoken file whose size is unknown. `lowercase`
    says whether a `vocab.txt` lower-cases text; by default it does if the vocabulary has no capitals.
    """
    path = Path(path)
    file = (tokenizer_file(path) or path) if path.is_dir() else path
    if file.is_dir() or not lexists(file):
        expected = f"expected a file such as {', '.join(TOKENIZER_FILES)}, or a folder that has one"
        near = suggest_file(path)
        raise CheckpointError(f"no tokenizer at {path}: {expected}" + (f".{near}" if near else ""))
    for vocab, merges in MERGES_FILE_OF.items():
        if file.name in (vocab, merges):
            if lexists(file.parent / vocab) and lexists(file.parent / merges):
                return load_gpt2(file.parent / vocab, file.parent / merges)
            raise CheckpointError(f"{file} is one of two files: {vocab} and {merges} must be in the same folder")
    if file.suffix == ".txt":
        return load_bert(file, lowercase=lowercase)
    with _read_errors(file), open_regular(file) as opened:
        head = opened.read(200)
    if re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", head):
        return load_tiktoken(file, pattern=pattern)
    if head.lstrip()[:1] == b"{":
        return load_json(file)
    if file.suffix == ".model":
        return load_sentencepiece(file)
    raise CheckpointError(
        f"{file} is damaged or not a tokenizer: expected JSON, a SentencePiece .model or the lines of a tiktoken file"
    )


def tokenizer_file(folder: Path) -> Path | None:
    """The file of a folder that holds its tokenizer; None if there is none."""
    files = [folder / name for name in TOKENIZER_FILES if lexists(folder / name)]  # a broken link is no absence
    files += sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    return files[0] if files else None


def load_json(file: Path) -> Tokenizer:
    """Load a `tokenizer.json`, with the special tokens of the `tokenizer_config.json` beside it."""
    document = read_json(file, max_bytes=MAX_TOKENIZER_BYTES)
    try:
        check_document(document)
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged, or not safe to use: {error}; use another tokenizer") from None
    document["model"].pop("dropout", None)  # random ids: training has the setting tokenizer.bpe_dropout for that
    with native_errors(f"{file} is damaged or not a tokenizer.json: loading it", error=CheckpointError):
        backend = rust.Tokenizer.from_str(msgspec.json.encode(document).decode())
    for token in document.get("added_tokens") or []:  # the library silently assigns another id
        if (id := backend.token_to_id(token["content"])) != token["id"]:
            raise CheckpointError(
                f"{file} is damaged: its added token {token['content']!r} has the id {token['id']}, but the vocabulary "
                f"before it leads to {id}; copy the file again"
            )
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if lexists(file.parent / name):
            config |= read_json(file.parent / name)
    if config.pop("headway_reads", None) == MODEL_FILE and (file.parent / MODEL_FILE).is_file():
        return load_sentencepiece(file.parent / MODEL_FILE)  # an older layout: its tokenizer.json is approximate
    special: dict[str, Any] = {name: _token_text(config.pop(f"{name}_token", None)) for name in SPECIAL_TOKEN_NAMES}
    special["unk"] = special["unk"] or getattr(backend.model, "unk_token", None)  # if tokenizer_config.json is missing
    return Tokenizer(backend, **special, counts=_load_counts(file.parent / "counts.tsv"), extra=config)


def _token_text(token: Any) -> str | None:
    """The text of a special token as transformers writes it: a string, or an object with the text as "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _load_counts(file: Path) -> dict[str, int] | None:
    if not lexists(file):
        return None
    counts: dict[str, int] = {}
    try:
        for line in _read_text(file).split("\n"):
            if line:
                cell, _, number = line.rpartition("\t")
                token = parse_json(cell)
                if not isinstance(token, str) or not re.fullmatch(r"[0-9]{1,18}", number):
                    raise ValueError(f"{line!r:.80} is not a token and its count")
                counts[token] = int(number)
    except ValueError as error:
        raise CheckpointError(f"{file} is not a table of tokens and counts: {error}") from None
    return counts


def load_gpt2(vocab: Path, merges: Path) -> Tokenizer:
    """Load GPT-2's two files: tokens with their ids, and the ordered merges."""
    ids = read_json(vocab, max_bytes=MAX_TOKENIZER_BYTES)
    lines = [line for line in _read_text(merges).split("\n") if line and not line.startswith("#version")]
    problem = f"{vocab} and {merges} are damaged or do not belong together"
    try:
        check_vocab(ids)
        pairs = [(left, right) for left, right in (line.removesuffix("\r").split(" ")[:2] for line in lines)]
    except ValueError as error:
        raise CheckpointError(f"{problem}: {error}") from None
    with native_errors(f"{problem}: loading them", error=CheckpointError):
        backend = byte_level_tokenizer(rust.models.BPE(ids, pairs))
    if END_OF_TEXT in ids:
        add_special_tokens(backend, [END_OF_TEXT])
        return Tokenizer(backend, bos=END_OF_TEXT, eos=END_OF_TEXT)
    return Tokenizer(backend)


def load_bert(file: Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Load BERT's `vocab.txt`: one token per line."""
    tokens = _read_text(file).split("\n")
    tokens = [token.removesuffix("\r") for token in (tokens[:-1] if tokens[-1] == "" else tokens)]
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(tokens) > MAX_VOCAB_SIZE:
        raise CheckpointError(f"{file} has {len(tokens):,} lines; a vocabulary has at most {MAX_VOCAB_SIZE:,}")
    if UNK not in vocab:
        raise CheckpointError(f"{file} has no line {UNK}: it is not the vocabulary of a WordPiece tokenizer")
    config = file.with_name("tokenizer_config.json")
    settings = read_json(config) if lexists(config) else {}
    settings = {name: value for name, value in settings.items() if isinstance(value, bool)}
    if lowercase is None:
        has_capitals = any(re.match(r"(##)?[A-Z]", token) for token in tokens)
        lowercase = settings.get("do_lower_case", not has_capitals)
    with native_errors(f"{file} is damaged: loading it", error=CheckpointError):
        return wordpiece_from_vocab(
            vocab,
            lowercase=lowercase,
            strip_accents=settings.get("strip_accents"),
            separate_chinese=settings.get("tokenize_chinese_chars", True),
        )


def load_tiktoken(file: Path, *, pattern: str | None = None) -> Tokenizer:
    """Load a tiktoken file: a token in base64 and its rank per line."""
    try:
        ranks: dict[bytes, int] = {}
        for number, line in enumerate(read_bytes(file, max_bytes=MAX_TOKENIZER_BYTES).splitlines(), start=1):
            if line:
                cells = line.split()
                if len(cells) != 2 or not re.fullmatch(rb"[0-9]{1,18}", cells[1]):
                    raise ValueError(f"line {number} is not a token and its rank")
                ranks[base64.b64decode(cells[0], validate=True)] = int(cells[1])
        if len(ranks) != len(set(ranks.values())) or any(bytes([byte]) not in ranks for byte in range(256)):
            raise ValueError("ranks repeat, or a byte has none")
        check_ids(ranks.values())
        if (steps := sum(len(token) ** 2 for token in ranks)) > MAX_MERGE_STEPS:
            raise ValueError(f"finding its merges would take {steps:,} steps; at most {MAX_MERGE_STEPS:,} are taken")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged or not a tiktoken file: {error}") from None
    default_pattern, special = TIKTOKEN_VOCABS.get(len(ranks), ("cl100k", {END_OF_TEXT: max(ranks.values()) + 1}))
    name = pattern or default_pattern
    if name not in PATTERNS:
        raise ConfigError(
            f"no pattern named {name!r}." + suggest(name, PATTERNS, otherwise=f" The names are: {', '.join(PATTERNS)}")
        )
    char_of = {byte: char for char, byte in byte_alphabet().items()}
    spelling = {token: "".join(char_of[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = merge_below_rank([token[i : i + 1] for i in range(len(token))], ranks, rank)
            if len(parts) == 2:
                merges.append((spelling[parts[0]], spelling[parts[1]]))
    vocab = {spelling[token]: rank for token, rank in ranks.items()} | special
    backend = byte_level_tokenizer(rust.models.BPE(vocab, merges, ignore_merges=True), PATTERNS[name])
    add_special_tokens(backend, special)
    return Tokenizer(backend, bos=END_OF_TEXT, eos=END_OF_TEXT)


def _read_text(file: Path) -> str:
    with _read_errors(file):
        return read_utf8(file, max_bytes=MAX_TOKENIZER_BYTES)


@contextmanager
def _read_errors(file: Path) -> Iterator[None]:
    """Raise what the system or the decoder says about a file as a `CheckpointError` that names it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is damaged or not UTF-8: {error}; copy it again") from None
