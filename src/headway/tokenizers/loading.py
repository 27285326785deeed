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
import json
import re
from pathlib import Path
from typing import Any

import tokenizers as rust

from headway.errors import CheckpointError, ConfigError, suggest
from headway.file_reading import read_utf8
from headway.tokenizers.base import SPECIAL_TOKEN_NAMES, Tokenizer
from headway.tokenizers.bpe import byte_level_tokenizer, merge_below_rank
from headway.tokenizers.fast_encoding import byte_alphabet
from headway.tokenizers.pre_tokenizers import PATTERNS
from headway.tokenizers.sentencepiece import MODEL_FILE, load_sentencepiece
from headway.tokenizers.special_tokens import END_OF_TEXT, add_special_tokens
from headway.tokenizers.wordpiece import UNK, wordpiece_from_vocab

TOKENIZER_FILES = ("tokenizer.json", "encoder.json", "vocab.json", "vocab.txt", MODEL_FILE)  # in order of preference
MERGES_FILE_OF = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
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
    if not file.is_file():
        names = ", ".join(TOKENIZER_FILES)
        raise CheckpointError(f"no tokenizer at {path}: expected a file such as {names}, or a folder that has one")
    for vocab, merges in MERGES_FILE_OF.items():
        if file.name in (vocab, merges):
            if (file.parent / vocab).is_file() and (file.parent / merges).is_file():
                return load_gpt2(file.parent / vocab, file.parent / merges)
            raise CheckpointError(f"{file} is one of two files: {vocab} and {merges} must be in the same folder")
    if file.suffix == ".txt":
        return load_bert(file, lowercase=lowercase)
    with open(file, "rb") as opened:
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
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    files += sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    return files[0] if files else None


def load_json(file: Path) -> Tokenizer:
    """Load a `tokenizer.json`, with the special tokens of the `tokenizer_config.json` beside it."""
    try:
        backend = rust.Tokenizer.from_str(read_utf8(file))
    except Exception as error:  # the Rust library raises plain Exception
        raise CheckpointError(f"{file} is damaged or not a tokenizer.json: {error}") from None
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (file.parent / name).is_file():
            config |= _json_object(file.parent / name)
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
    if not file.is_file():
        return None
    try:
        rows = (line.rsplit("\t", 1) for line in read_utf8(file).split("\n") if line)
        return {json.loads(token): int(n) for token, n in rows}
    except ValueError as error:
        raise CheckpointError(f"{file} is not a table of tokens and counts: {error}") from None


def load_gpt2(vocab: Path, merges: Path) -> Tokenizer:
    """Load GPT-2's two files: tokens with their ids, and the ordered merges."""
    try:
        ids = _json_object(vocab)
        lines = read_utf8(merges).split("\n")
        pairs = [(line.split(" ")[0], line.split(" ")[1]) for line in lines if line and not line.startswith("#version")]
        backend = byte_level_tokenizer(rust.models.BPE(ids, pairs))
    except Exception as error:  # the Rust library raises plain Exception
        raise CheckpointError(f"{vocab} and {merges} are damaged or do not belong together: {error}") from None
    if END_OF_TEXT in ids:
        add_special_tokens(backend, [END_OF_TEXT])
        return Tokenizer(backend, bos=END_OF_TEXT, eos=END_OF_TEXT)
    return Tokenizer(backend)


def load_bert(file: Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Load BERT's `vocab.txt`: one token per line."""
    tokens = read_utf8(file).split("\n")
    tokens = [token.removesuffix("\r") for token in (tokens[:-1] if tokens[-1] == "" else tokens)]
    vocab = {token: i for i, token in enumerate(tokens)}
    if UNK not in vocab:
        raise CheckpointError(f"{file} has no line {UNK}: it is not the vocabulary of a WordPiece tokenizer")
    if lowercase is None:
        config = file.with_name("tokenizer_config.json")
        setting = _json_object(config).get("do_lower_case") if config.is_file() else None
        has_capitals = any(re.match(r"(##)?[A-Z]", token) for token in tokens)
        lowercase = setting if isinstance(setting, bool) else not has_capitals
    return wordpiece_from_vocab(vocab, lowercase=lowercase)


def load_tiktoken(file: Path, *, pattern: str | None = None) -> Tokenizer:
    """Load a tiktoken file: a token in base64 and its rank per line."""
    try:
        ranks = {}
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            if line:
                cells = line.split()
                if len(cells) != 2:
                    raise ValueError(f"line {number} is not a token and its rank")
                ranks[base64.b64decode(cells[0], validate=True)] = int(cells[1])
        if len(ranks) != len(set(ranks.values())) or any(bytes([byte]) not in ranks for byte in range(256)):
            raise ValueError("ranks repeat, or a byte has none")
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


def _json_object(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_utf8(file))
        return dict(document.items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a JSON object: {error}") from None
