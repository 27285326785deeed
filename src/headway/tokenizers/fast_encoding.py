"""A batch encoder for whole corpora: several times as fast as `tokenizers`, with the same ids.

Character and word tokenizers become dictionary look-ups. Byte-level BPE goes through tiktoken's core. The two libraries
define a merge differently: `tokenizers` has a list of pairs and applies the pair that comes first in it; tiktoken has a
list of tokens and merges any pair that spells the token of the lowest rank. They agree if

  1. merges are ordered by the id of the token they produce, and both parts of a merge are produced earlier;
  2. every token that a merge produces is also the result of encoding its own bytes.

Proof. Let pieces x y be adjacent in a word and spell token t. No merge has crossed the ends of this span, so the merges
inside it are those of the bytes of t alone, and by (2) these end in the two parts from which the merge list builds t,
and in nothing else. So x y is a pair of the list whenever tiktoken merges it. A trained BPE always satisfies both
conditions; `fast_encoder` checks them for the tokenizer at hand and returns None if one fails.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tokenizers as rust
from numpy.typing import NDArray

from headway.tokenizers.native_errors import is_panic
from headway.tokenizers.pre_tokenizers import (
    CHAR_PATTERN,
    PATTERNS,
    WORD_PATTERNS,
    group_before_lookahead,
    pieces_at_spaces,
    split_words,
)

Ids = NDArray[np.uint32]
BatchEncoder = Callable[[Sequence[str]], list[Ids]]
PIECE_CHARS = 1 << 20  # a longer text is looked up in pieces
SEPARATOR = "\ufdd0"  # a noncharacter, reserved for internal use: it separates texts that are encoded in one call


def fast_encoder(backend: rust.Tokenizer) -> BatchEncoder | None:
    """A function that encodes texts exactly as `backend` does, or None if equality is not certain."""
    document = json.loads(backend.to_str())
    if document["model"]["type"] == "WordLevel":
        return _lookup_encoder(document)
    pattern = _byte_level_pattern(document)
    ranks = None if pattern is None else _tiktoken_ranks(document["model"])
    if pattern is None or ranks is None:
        return None
    try:
        import tiktoken
    except ImportError:  # tiktoken has no wheel for some platforms
        return None
    separator_id = max(ranks.values()) + 1
    core = tiktoken.Encoding(
        "headway",
        pat_str=group_before_lookahead(pattern),
        mergeable_ranks=ranks,
        special_tokens={SEPARATOR: separator_id},
    )
    added_tokens = [token["content"] for token in document["added_tokens"] if not token["special"]]

    def encode(texts: Sequence[str]) -> list[Ids]:
        joined = SEPARATOR.join(texts)
        if joined.count(SEPARATOR) == len(texts) - 1 and not any(token in joined for token in added_tokens):
            try:
                # One call for the whole batch, without a Python integer per token: the GIL is free meanwhile.
                ids = core.encode_to_numpy(joined, allowed_special="all")
                parts = np.split(ids, np.flatnonzero(ids == separator_id))
                return [part[1:] if i else part for i, part in enumerate(parts)]
            except BaseException as error:  # tiktoken's regex engine runs out of stack on very long runs of spaces
                if not is_panic(error) and "Regex error" not in str(error):
                    raise
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    return encode


def _lookup_encoder(document: dict[str, Any]) -> BatchEncoder | None:
    """An encoder that looks characters or words up, if the tokenizer does nothing else."""
    pre_tokenizer = document["pre_tokenizer"]
    pattern = whitespace_split_pattern(pre_tokenizer) or _isolated_split_pattern(pre_tokenizer)
    vocab: dict[str, int] = document["model"]["vocab"]
    unk_id = vocab.get(document["model"]["unk_token"])
    has_more = document["normalizer"] is not None or any(not token["special"] for token in document["added_tokens"])
    if has_more or pattern not in (CHAR_PATTERN, *WORD_PATTERNS.values()) or unk_id is None:
        return None

    def encode(texts: Sequence[str]) -> list[Ids]:
        if len(texts) == 1 and len(texts[0]) > PIECE_CHARS:  # a list takes several times the memory of an array
            return [np.concatenate([ids for piece in pieces(texts[0]) for ids in encode_whole([piece])])]
        return encode_whole(texts)

    def pieces(text: str) -> Iterable[str]:
        if pattern == CHAR_PATTERN:
            return (text[i : i + PIECE_CHARS] for i in range(0, len(text), PIECE_CHARS))
        return pieces_at_spaces(text, PIECE_CHARS)

    def encode_whole(texts: Sequence[str]) -> list[Ids]:
        ids: list[int] = []
        ends: list[int] = []
        for text in texts:
            words = text if pattern == CHAR_PATTERN else split_words(text, pattern)
            ids += [vocab.get(word, unk_id) for word in words]
            ends.append(len(ids))
        joined = np.array(ids, dtype=np.uint32)  # one conversion for all texts, which may be many short lines
        return [joined[start:end] for start, end in pairwise([0, *ends])]

    return encode


def whitespace_split_pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The pattern of a pre-tokenizer that splits at whitespace and discards it; None for any other."""
    if pre_tokenizer is None or pre_tokenizer["type"] != "Split":
        return None
    is_removed = pre_tokenizer["behavior"] == "Removed" and pre_tokenizer["invert"]
    is_whitespace = pre_tokenizer["pattern"].get("Regex") == WORD_PATTERNS["whitespace"]
    return WORD_PATTERNS["whitespace"] if is_removed and is_whitespace else None


def _isolated_split_pattern(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The pattern of a pre-tokenizer that splits by it and discards nothing; None for any other."""
    if pre_tokenizer is None or pre_tokenizer["type"] != "Split":
        return None
    if pre_tokenizer["behavior"] != "Isolated" or pre_tokenizer["invert"]:
        return None
    return pre_tokenizer["pattern"].get("Regex")


def _byte_level_pattern(document: dict[str, Any]) -> str | None:
    """The pre-tokenization pattern of a byte-level BPE; None if the tokenizer does anything besides."""
    if document["model"]["type"] != "BPE" or document["normalizer"] is not None or document["pre_tokenizer"] is None:
        return None
    components = document["pre_tokenizer"].get("pretokenizers", [document["pre_tokenizer"]])
    if not components:
        return None
    *splits, last = components
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if not splits:
        return PATTERNS["gpt2"] if last["use_regex"] else None
    pattern = _isolated_split_pattern(splits[0])
    if len(splits) > 1 or last["use_regex"] or pattern not in PATTERNS.values():
        return None  # the two regex engines may disagree on an unknown pattern
    return pattern


def _tiktoken_ranks(model: dict[str, Any]) -> dict[bytes, int] | None:
    """Bytes → id of every token the model can produce; None if condition 1 or 2 of the module docstring fails."""
    unsupported = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if any(model.get(name) for name in unsupported):
        return None
    vocab: dict[str, int] = model["vocab"]
    byte_of = byte_alphabet()
    if not byte_of.keys() <= vocab.keys():
        return None
    pairs = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"]]
    produced_at = dict.fromkeys(byte_of, -1)  # token → index of the merge that produces it
    last_id = -1
    for i, (left, right) in enumerate(pairs):
        token = left + right
        if vocab[token] < last_id or produced_at.get(left, i) >= i or produced_at.get(right, i) >= i:
            return None
        last_id = vocab[token]
        produced_at.setdefault(token, i)
    bpe = rust.models.BPE(vocab, pairs)
    ranks = {}
    for token, id in vocab.items():
        if token in produced_at:
            if [piece.id for piece in bpe.tokenize(token)] != [id]:
                return None
        elif not model["ignore_merges"] or not byte_of.keys() >= set(token):
            continue  # the model never produces it
        elif len(bpe.tokenize(token)) == 2:
            return None  # the model produces it as a whole word only, but tiktoken would also merge it
        ranks[bytes(byte_of[c] for c in token)] = id
    return ranks


def byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable bytes stand for themselves, the others are U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
