"""Encoding whole corpora, several times as fast as `tokenizers`, with the same ids.

Characters and words are looked up here. Byte-level BPE goes through tiktoken's core. The two libraries differ in what a
merge is: `tokenizers` has a list of pairs and merges the pair that comes first in it; tiktoken has a list of tokens and
merges any pair that spells the token that comes first. They agree when

  1. merges come in the order of the ids they make, and of parts that were there before;
  2. every token that merges make is also what its own bytes are merged to.

Why: let pieces x y stand side by side in a word and spell token t. No merge has crossed the ends of this stretch, so
what happened inside it is what happens to the bytes of t by themselves, and by (2) that ends in the two parts from
which the merge list makes t, and nothing else. So x y is a pair of the list whenever tiktoken merges it. A trained BPE
is always like that; `engine` checks it for the tokenizer at hand, and gives none where it fails.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tokenizers as rust
from numpy.typing import NDArray

from headway.tokenizers.pre_tokenizers import CHARACTER, PATTERNS, WORDS, cut_words, grouped

Ids = NDArray[np.uint32]
Encode = Callable[[Sequence[str]], list[Ids]]
BETWEEN = "\ufdd0"  # for internal use, by definition: it stands between texts that are encoded in one call


def engine(backend: rust.Tokenizer) -> Encode | None:
    """A function that encodes texts as `backend` does, or None where that is not certain."""
    document = json.loads(backend.to_str())
    if document["model"]["type"] == "WordLevel":
        return _look_up(document)
    pattern = _pattern(document)
    ranks = None if pattern is None else _ranks(document["model"])
    if pattern is None or ranks is None:
        return None
    try:
        import tiktoken
    except ImportError:  # a platform without it
        return None
    end = max(ranks.values()) + 1
    core = tiktoken.Encoding("headway", pat_str=grouped(pattern), mergeable_ranks=ranks, special_tokens={BETWEEN: end})
    kept_whole = [token["content"] for token in document["added_tokens"] if not token["special"]]

    def encode(texts: Sequence[str]) -> list[Ids]:
        joined = BETWEEN.join(texts)
        if joined.count(BETWEEN) == len(texts) - 1 and not any(token in joined for token in kept_whole):
            try:
                # One call for all, and no Python number for each token: other threads work meanwhile.
                ids = core.encode_to_numpy(joined, allowed_special="all")
                cuts = np.flatnonzero(ids == end)
                return [part[1:] if i else part for i, part in enumerate(np.split(ids, cuts))]
            except BaseException as error:  # a run of spaces too long for its regex engine
                if type(error).__name__ != "PanicException":
                    raise
        return [
            np.array(e.ids, dtype=np.uint32) for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    return encode


def _look_up(document: dict[str, Any]) -> Encode | None:
    """Look characters or words up, where that is all there is to do."""
    pattern = blank_pattern(document["pre_tokenizer"]) or _split_pattern(document["pre_tokenizer"])
    vocab: dict[str, int] = document["model"]["vocab"]
    unknown = vocab.get(document["model"]["unk_token"])
    has_more = document["normalizer"] is not None or any(not token["special"] for token in document["added_tokens"])
    if has_more or pattern not in (CHARACTER, *WORDS.values()) or unknown is None:
        return None

    def encode(texts: Sequence[str]) -> list[Ids]:
        ids: list[int] = []
        ends: list[int] = []
        for text in texts:
            pieces = text if pattern == CHARACTER else cut_words(text, pattern)
            ids += [vocab.get(piece, unknown) for piece in pieces]
            ends.append(len(ids))
        whole = np.array(ids, dtype=np.uint32)  # once for all: texts may be lines, and many
        return [whole[begin:end] for begin, end in pairwise([0, *ends])]

    return encode


def blank_pattern(part: dict[str, Any] | None) -> str | None:
    """The pattern of a part that cuts a text at blanks and drops them."""
    drops = part is not None and part["type"] == "Split" and part["behavior"] == "Removed" and part["invert"]
    return WORDS["whitespace"] if part and drops and part["pattern"].get("Regex") == WORDS["whitespace"] else None


def _split_pattern(part: dict[str, Any] | None) -> str | None:
    """The pattern of a part that cuts a text by it and drops nothing."""
    if part is None or part["type"] != "Split" or part["behavior"] != "Isolated" or part["invert"]:
        return None
    return part["pattern"].get("Regex")


def _pattern(document: dict[str, Any]) -> str | None:
    """The pattern that cuts words, if cutting words and merging bytes is all this tokenizer does."""
    if document["model"]["type"] != "BPE" or document["normalizer"] is not None or document["pre_tokenizer"] is None:
        return None
    parts = document["pre_tokenizer"].get("pretokenizers", [document["pre_tokenizer"]])
    *before, last = parts
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if not before:
        return PATTERNS["gpt2"] if last["use_regex"] else None
    pattern = _split_pattern(before[0])
    if len(before) > 1 or last["use_regex"] or pattern not in PATTERNS.values():
        return None  # another pattern may mean something else to another regex engine
    return pattern


def _ranks(model: dict[str, Any]) -> dict[bytes, int] | None:
    """Bytes → id of every token that can come out, if rules 1 and 2 above hold."""
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if any(model.get(name) for name in odd):
        return None
    vocab: dict[str, int] = model["vocab"]
    byte_of = byte_alphabet()
    if not byte_of.keys() <= vocab.keys():
        return None
    pairs = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"]]
    born = dict.fromkeys(byte_of, -1)  # token → place of the merge that makes it
    last = -1
    for place, (left, right) in enumerate(pairs):
        token = left + right
        if vocab[token] < last or born.get(left, place) >= place or born.get(right, place) >= place:
            return None
        last = vocab[token]
        born.setdefault(token, place)
    plain = rust.models.BPE(vocab, pairs)
    ranks = {}
    for token, id in vocab.items():
        if token in born:
            if [piece.id for piece in plain.tokenize(token)] != [id]:
                return None
        elif not model["ignore_merges"] or not byte_of.keys() >= set(token):
            continue  # never comes out
        elif len(plain.tokenize(token)) == 2:
            return None  # comes out as a whole word only, but tiktoken would also merge it
        ranks[bytes(byte_of[c] for c in token)] = id
    return ranks


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for the 256 bytes: themselves where they can be seen, or 256 and on in turn."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
