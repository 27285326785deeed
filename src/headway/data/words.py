"""The words of a text, and the tokens of words: tags belong to words, models read tokens."""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from headway.tokenizers import Tokenizer

NO_TOKEN = -1
INNER_MARKS = "-'’./&@_"  # part of a word between two of its characters: all-rounder, O'Brien, 3.5, AT&T
INNER_MARKS_OF_NUMBERS = ",:"  # 1,000 and 10:30
CLITICS = ("'s", "’s", "'S", "’S")  # words of their own: Germany 's


class Word(NamedTuple):
    """A word, and its span of characters in the text; `end` is exclusive."""

    text: str
    start: int
    end: int


class EncodedWords(NamedTuple):
    """The token ids of a sentence, and for each word the index of its first token, or NO_TOKEN."""

    ids: list[int]
    first_tokens: list[int]


# ── from text to words ────────────────────────────────────────────────────────────────────────────────────────────


def split_words(text: str) -> list[Word]:
    """Split a text at whitespace and around punctuation.

    Every punctuation mark and symbol is a word of its own, with three exceptions, after the conventions of the CoNLL
    corpora: marks inside a word or a number stay (all-rounder, O'Brien, 3.5, 1,000); initials and abbreviations of
    single letters keep their period (U.S., W.); a final 's is split off (Germany 's).

    >>> [word.text for word in split_words("Germany's U.S. envoy (Jean-Luc) left.")]
    ['Germany', "'s", 'U.S.', 'envoy', '(', 'Jean-Luc', ')', 'left', '.']
    """
    words: list[Word] = []
    start = 0
    while start < len(text):
        if text[start].isspace():
            start += 1
            continue
        end = _word_end(text, start) if _is_word_char(text[start]) else start + 1
        split = end - 2 if text[start:end].endswith(CLITICS) else end
        words += [Word(text[i:j], i, j) for i, j in ((start, split), (split, end)) if i < j]
        start = end
    return words


def _word_end(text: str, start: int) -> int:
    end = start + 1
    while end < len(text) and (_is_word_char(text[end]) or _joins(text, end)):
        end += 1
    parts = text[start:end].split(".")
    is_abbreviation = all(len(part) == 1 and part.isalpha() for part in parts) and (
        len(parts) > 1 or parts[0].isupper()
    )
    return end + 1 if is_abbreviation and text[end : end + 1] == "." else end


def _joins(text: str, i: int) -> bool:
    """Whether the mark at `i` is part of the word around it."""
    before, mark, after = text[i - 1], text[i], text[i + 1 : i + 2]
    if mark in INNER_MARKS_OF_NUMBERS:
        return before.isdigit() and after.isdigit()
    return mark in INNER_MARKS and after != "" and _is_word_char(after)


@lru_cache(maxsize=1 << 16)
def _is_word_char(char: str) -> bool:
    """Letters, digits, and the vowel signs and accents that belong to them; not spaces, punctuation and symbols."""
    return not char.isspace() and unicodedata.category(char)[0] not in "PSZ"


# ── from words to tokens ──────────────────────────────────────────────────────────────────────────────────────────


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[EncodedWords]:
    """Encode each sentence, its words joined by spaces. The first token of a word is the one its tag is predicted at
    (Devlin et al. 2019, §5.3); a word that the tokenizer drops, such as a zero-width space, has none."""
    texts = [" ".join(words) for words in sentences]
    encodings = tokenizer.encode_batch_with_offsets(texts)
    return [
        EncodedWords(ids, _first_tokens(words, text, offsets))
        for words, text, (ids, offsets) in zip(sentences, texts, encodings, strict=True)
    ]


def _first_tokens(words: Sequence[str], text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    word_of_char = [i for i, word in enumerate(words) for _ in f"{word} "]
    first_tokens = [NO_TOKEN] * len(words)
    last_word = -1
    for token, (start, end) in enumerate(offsets):
        # A token may begin with the space before its word; it belongs to the word it ends in.
        word = word_of_char[end - 1] if end > start else last_word
        if word > last_word and not text[start:end].isspace():
            first_tokens[word] = token
            last_word = word
    return first_tokens
