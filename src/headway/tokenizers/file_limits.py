"""Limits on untrusted tokenizer files. `check_document` enforces them before the library reads the file.

A tokenizer.json is a small program: it normalises text, splits it by regular expressions and looks the pieces up. Three
replacements in a row can turn a line of text into gigabytes, one regular expression can run for hours, and a single
token id can size an embedding. All of this can be read off the file, so it is checked before use.
"""

import base64
import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from headway.tokenizers.regex_limits import check_pattern

MAX_TOKENIZER_BYTES = 128 << 20  # of one file; Gemma's tokenizer.json, with 262,144 tokens, has 33 MB
MAX_VOCAB_SIZE = 1 << 22  # ids are below it; the largest published vocabulary, XLM-V's, has 901,629 tokens
MAX_COMPONENTS = 64  # of a normalizer, pre-tokenizer or decoder; published ones have up to 10
MAX_REPLACEMENT_CHARS = 256  # that a normalizer or decoder puts in place of a match, or before the text
MAX_GROWTH = 64  # of a text by replacements, one after the other; by Unicode normalization it grows 18 times at most
MAX_WORD_CHARS = 200  # of WordPiece, which takes n² steps for a word of n characters; BERT's limit is 100
MAX_PIECE_CHARS = 128  # of a unigram model, which tries every piece at every character; SentencePiece's default is 16


def check_document(document: dict[str, Any]) -> None:
    """Raise `ValueError` if a tokenizer.json exceeds a limit of this module, or is not what its format says."""
    growth = {}
    for section in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        components = list(_components(document.get(section), section))
        if len(components) > MAX_COMPONENTS:
            raise ValueError(f"its {section} has {len(components)} components; at most {MAX_COMPONENTS} are read")
        for component in components:
            _check_component(component, section)
        growth[section] = math.prod(map(_growth, components))
        if section == "normalizer" and sum(c.get("type") == "Precompiled" for c in components) > 1:
            raise ValueError("its normalizer has more than one Precompiled component; at most one is read")
    for name, factor in (
        ("normalizer and pre_tokenizer", growth["normalizer"] * growth["pre_tokenizer"]),
        ("decoder", growth["decoder"]),
    ):
        if factor > MAX_GROWTH:
            raise ValueError(f"its {name} can make a text {factor:,.0f} times as long; at most {MAX_GROWTH} is allowed")
    _check_model(document.get("model"))
    _check_added_tokens(document.get("added_tokens"))


def check_vocab(vocab: Any) -> None:
    """Raise `ValueError` unless a vocabulary gives each token an id of its own, below MAX_VOCAB_SIZE."""
    if not isinstance(vocab, dict):
        raise ValueError("its vocabulary is not an object of tokens and ids")
    check_ids(vocab.values())


def check_ids(ids: Iterable[Any]) -> None:
    distinct = set()
    for id in ids:
        if type(id) is not int or not 0 <= id < MAX_VOCAB_SIZE:
            raise ValueError(f"token id {id!r:.60} is not a whole number from 0 to {MAX_VOCAB_SIZE - 1}")
        if id in distinct:
            raise ValueError(f"two tokens have the id {id}")
        distinct.add(id)


def _components(value: Any, section: str) -> Iterator[dict[str, Any]]:
    """Every component of a section, those of sequences included."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            if isinstance(item.get("type"), str):
                yield item
            elif section != "post_processor" and ("pattern" in item or item is value):
                raise ValueError(f"a component of its {section} has no type")
            pending += [part for part in item.values() if isinstance(part, dict | list)]


def _check_component(component: dict[str, Any], section: str) -> None:
    """Check the pattern of a component, and the text that replaces a match."""
    match component.get("pattern"):
        case None:
            pass
        case {"Regex": str(regex)}:
            check_pattern(regex)
        case {"String": str(text)} if text:
            pass
        case pattern:
            raise ValueError(
                f"a pattern of its {section}, {pattern!r:.60}, is neither a regular expression nor a string"
            )
    for key in ("content", "prepend"):
        inserted = component.get(key)
        if isinstance(inserted, str) and len(inserted) > MAX_REPLACEMENT_CHARS:
            raise ValueError(
                f"its {section} inserts {len(inserted):,} characters at a time; "
                f"at most {MAX_REPLACEMENT_CHARS} are read"
            )
    if component["type"] == "Precompiled":
        _check_charsmap(component.get("precompiled_charsmap"))
    if component["type"] == "FixedLength" and not component.get("length"):
        raise ValueError(
            f"its {section} splits text into pieces of length {component.get('length')!r}; it must be 1 or more"
        )


def _growth(component: dict[str, Any]) -> float:
    """How many times as long a component can make a text, except by Unicode normalization."""
    match component:
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if text:
            return max(1.0, len(content) / len(text))
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content)  # a regular expression may match between any two characters
        case {"type": "ByteLevel" | "Metaspace"}:
            return 2.0  # bytes as characters; a space before every word
    return 1.0


def _check_charsmap(charsmap: Any) -> None:
    """SentencePiece's table of normalizations: the size of a trie, the trie, and strings that end in NUL."""
    try:
        data = base64.b64decode(charsmap, validate=True)
        (trie_bytes,) = struct.unpack_from("<I", data)
    except (TypeError, ValueError, struct.error):
        raise ValueError("its Precompiled normalizer has no readable charsmap") from None
    if trie_bytes % 4 or trie_bytes > len(data) - 4:
        raise ValueError("the charsmap of its Precompiled normalizer is cut off")
    longest = max(map(len, data[4 + trie_bytes :].split(b"\x00")))
    if longest > MAX_REPLACEMENT_CHARS:
        raise ValueError(
            f"the charsmap of its Precompiled normalizer inserts {longest:,} bytes at a time; "
            f"at most {MAX_REPLACEMENT_CHARS} are read"
        )


def _check_model(model: Any) -> None:
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        raise ValueError("it has no model with a type")
    vocab = model.get("vocab")
    if model["type"] == "Unigram":
        _check_pieces(vocab)
    else:
        check_vocab(vocab)
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > MAX_WORD_CHARS:
        raise ValueError(f"its max_input_chars_per_word is {longest}; at most {MAX_WORD_CHARS} is read")


def _check_pieces(pieces: Any) -> None:
    if not isinstance(pieces, list) or len(pieces) > MAX_VOCAB_SIZE:
        raise ValueError(f"its vocabulary is not a list of at most {MAX_VOCAB_SIZE:,} pieces with their scores")
    for piece in pieces:
        match piece:
            case [str(text), float() | int() as score] if math.isfinite(score):
                if len(text) > MAX_PIECE_CHARS:
                    raise ValueError(f"its piece {text[:20] + '…'!r} is longer than {MAX_PIECE_CHARS} characters")
            case _:
                raise ValueError(f"{piece!r:.60} in its vocabulary is not a piece with its score")


def _check_added_tokens(tokens: Any) -> None:
    if tokens is not None and not isinstance(tokens, list):
        raise ValueError("its added_tokens are not a list")
    for token in tokens or []:
        match token:
            case {"content": str(text), "id": int()} if text:
                pass
            case _:
                raise ValueError(f"its added token {token!r:.80} has no content or no id")
    check_ids(token["id"] for token in tokens or [])
