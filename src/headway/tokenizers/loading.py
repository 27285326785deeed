"""Opening tokenizers that were made elsewhere: by the file, whatever wrote it.

| file | from |
|---|---|
| `tokenizer.json` (+ `tokenizer_config.json`) | Headway, transformers, tokenizers |
| `encoder.json` + `vocab.bpe`, or `vocab.json` + `merges.txt` | GPT-2 |
| `vocab.txt` | BERT |
| `*.model` | SentencePiece |
| `*.tiktoken`, or Llama 3's `tokenizer.model` | tiktoken |
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import tokenizers as rust

from headway.errors import CheckpointError, ConfigError, suggest
from headway.files import read_utf8
from headway.tokenizers.base import MODEL_FILE, SPECIAL, Tokenizer
from headway.tokenizers.bpe import byte_level, merged
from headway.tokenizers.fast_encoding import byte_alphabet
from headway.tokenizers.pre_tokenizers import PATTERNS
from headway.tokenizers.sentencepiece import load_sentencepiece
from headway.tokenizers.special_tokens import END, add_special
from headway.tokenizers.wordpiece import UNKNOWN, wordpiece_from_vocab

FILES = ("tokenizer.json", "encoder.json", "vocab.json", "vocab.txt", "tokenizer.model")  # looked for in a folder
MERGES = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
# A tiktoken file holds ranks alone: how words are cut and which tokens are special is known by its size.
TIKTOKEN: dict[int, tuple[str, dict[str, int]]] = {
    50256: ("gpt2", {END: 50256}),
    50280: ("gpt2", {END: 50256}),
    100256: (
        "cl100k",
        {
            END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    199998: ("o200k", {END: 199999, "<|endofprompt|>": 200018}),
}


def load_tokenizer(path: str | Path, *, pattern: str | None = None, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer in a folder or file of any of the kinds above.

    `pattern`, for tiktoken files of unknown size: how words are cut, by name ("gpt2", "cl100k", …). `lowercase`, for
    `vocab.txt`: whether text is lower-cased; by default it is where the vocabulary has no capitals.
    """
    path = Path(path)
    file = (tokenizer_file(path) or path) if path.is_dir() else path
    if not file.is_file():
        names = ", ".join(FILES)
        raise CheckpointError(f"no tokenizer at {path}: expected a file such as {names}, or a folder with one")
    for vocab, merges in MERGES.items():
        if file.name in (vocab, merges) and (file.parent / vocab).is_file() and (file.parent / merges).is_file():
            return load_gpt2(file.parent / vocab, file.parent / merges)
        if file.name in (vocab, merges):
            raise CheckpointError(f"{file} comes in two files: {vocab} and {merges}, side by side")
    if file.suffix == ".txt":
        return load_bert(file, lowercase=lowercase)
    with open(file, "rb") as opened:
        start = opened.read(200)
    if re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", start):
        return load_tiktoken(file, pattern=pattern)
    if start.lstrip()[:1] == b"{":
        return load_json(file)
    if file.suffix == ".model":
        return load_sentencepiece(file)
    raise CheckpointError(
        f"{file} is damaged or no tokenizer: neither JSON, a SentencePiece .model nor lines of a tiktoken file"
    )


def tokenizer_file(folder: Path) -> Path | None:
    """The file of a folder that holds its tokenizer, if one does."""
    found = [folder / name for name in FILES if (folder / name).is_file()]
    found += sorted([*folder.glob("*.model"), *folder.glob("*.tiktoken")])
    return found[0] if found else None


def load_json(file: Path) -> Tokenizer:
    """A `tokenizer.json`, with what `tokenizer_config.json` beside it says of its special tokens."""
    try:
        backend = rust.Tokenizer.from_str(read_utf8(file))
    except Exception as error:  # the Rust side raises plain Exception
        raise CheckpointError(f"{file} is damaged or no tokenizer.json: {error}") from None
    extra: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (file.parent / name).is_file():
            extra |= _json_object(file.parent / name)
    if extra.pop("headway_reads", None) == MODEL_FILE and (file.parent / MODEL_FILE).is_file():
        return load_sentencepiece(file.parent / MODEL_FILE)
    special: dict[str, Any] = {name: _token_text(extra.pop(f"{name}_token", None)) for name in SPECIAL}
    special["unk"] = special["unk"] or getattr(backend.model, "unk_token", None)  # also without tokenizer_config.json
    return Tokenizer(backend, **special, counts=_counts(file.parent / "counts.tsv"), extra=extra)


def _token_text(token: Any) -> str | None:
    """A special token as transformers writes it: its text, or a table with the text as "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _counts(file: Path) -> dict[str, int] | None:
    if not file.is_file():
        return None
    try:
        rows = (line.rsplit("\t", 1) for line in read_utf8(file).split("\n") if line)
        return {json.loads(token): int(n) for token, n in rows}
    except ValueError as error:
        raise CheckpointError(f"{file} is not a table of tokens and counts: {error}") from None


def load_gpt2(vocab: Path, merges: Path) -> Tokenizer:
    """GPT-2's two files: tokens with their ids, and merges in order."""
    try:
        ids = _json_object(vocab)
        lines = read_utf8(merges).split("\n")
        pairs = [(line.split(" ")[0], line.split(" ")[1]) for line in lines if line and not line.startswith("#version")]
        backend = byte_level(rust.models.BPE(ids, pairs))
    except Exception as error:  # the Rust side raises plain Exception
        raise CheckpointError(f"{vocab} and {merges} are damaged or do not belong together: {error}") from None
    if END in ids:
        add_special(backend, [END])
        return Tokenizer(backend, bos=END, eos=END)
    return Tokenizer(backend)


def load_bert(file: Path, *, lowercase: bool | None = None) -> Tokenizer:
    """BERT's `vocab.txt`: a token a line."""
    tokens = read_utf8(file).split("\n")
    tokens = [token.removesuffix("\r") for token in (tokens[:-1] if tokens[-1] == "" else tokens)]
    vocab = {token: i for i, token in enumerate(tokens)}
    if UNKNOWN not in vocab:
        raise CheckpointError(f"{file} has no line {UNKNOWN}: it is not the vocabulary of a WordPiece tokenizer")
    if lowercase is None:
        config = file.with_name("tokenizer_config.json")
        told = _json_object(config).get("do_lower_case") if config.is_file() else None
        lowercase = told if isinstance(told, bool) else not any(re.match(r"(##)?[A-Z]", token) for token in tokens)
    return wordpiece_from_vocab(vocab, lowercase=lowercase)


def load_tiktoken(file: Path, *, pattern: str | None = None) -> Tokenizer:
    """A tiktoken file: a token in base64 and its rank on each line."""
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
        raise CheckpointError(f"{file} is damaged or no tiktoken file: {error}") from None
    known, special = TIKTOKEN.get(len(ranks), ("cl100k", {END: max(ranks.values()) + 1}))
    name = pattern or known
    if name not in PATTERNS:
        raise ConfigError(
            f"no pattern named {name!r}." + suggest(name, PATTERNS, otherwise=f" There are: {', '.join(PATTERNS)}")
        )
    letter = {byte: char for char, byte in byte_alphabet().items()}
    spell = {token: "".join(letter[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and len(parts := merged([token[i : i + 1] for i in range(len(token))], ranks, rank)) == 2:
            merges.append((spell[parts[0]], spell[parts[1]]))
    vocab = {spell[token]: rank for token, rank in ranks.items()} | special
    backend = byte_level(rust.models.BPE(vocab, merges, ignore_merges=True), PATTERNS[name])
    add_special(backend, special)
    return Tokenizer(backend, bos=END, eos=END)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_utf8(file))
        return dict(document.items())
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a JSON object: {error}") from None
