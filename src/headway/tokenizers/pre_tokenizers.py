"""Pre-tokenization: the regular expressions that split a text into words before the model sees it.

Except with "whitespace", the space before a word belongs to the word (" the"); whitespace before that is a token of its
own.
"""

import re
from collections.abc import Iterator
from functools import cache

import tokenizers as rust

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITESPACE = r"|\s+(?!\S)|\s+"

# Published patterns of byte-level BPE tokenizers.
PATTERNS: dict[str, str] = {
    # Radford et al. 2019; the default of `ByteLevel` in the tokenizers library
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _WHITESPACE,
    # GPT-3.5 and 4, Llama 3: digits in groups of three; newlines join the punctuation before them
    "cl100k": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + _WHITESPACE,
    # Qwen 2 and 3: the same with single digits
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _WHITESPACE,
    # GPT-4o: words are also split where a lower-case letter meets an upper-case one
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + _CONTRACTIONS
    + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + _CONTRACTIONS
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    + _WHITESPACE,
}


def group_before_lookahead(pattern: str) -> str:
    """An equivalent pattern with everything before the look-ahead in one group.

    A regex engine that backtracks because of the look-ahead can then run the whole group as an automaton: tiktoken
    encodes Python sources 1.6 times as fast.
    """
    head = pattern.removesuffix(_WHITESPACE)
    return pattern if head == pattern else f"(?:{head}){_WHITESPACE}"


_LINE_WHITESPACE = r"| ?\n|[^\S\n]+(?!\S)|\s"  # a newline takes the space before it
CHAR_PATTERN = r"[\s\S]"
# Patterns of word tokenizers.
WORD_PATTERNS: dict[str, str] = {
    "punctuation": r" ?\w+(?:['’]\w+)*| ?[^\w\s]+" + _LINE_WHITESPACE,  # don't and l'eau are words; so is "..."
    "spaces": r" ?\S+" + _LINE_WHITESPACE,  # for text that is already tokenized
    "whitespace": r"[^\x00\t\n\r ]+",  # the same, but whitespace itself is discarded, as in KenLM
}
_SPACE_AFTER_WORD = re.compile(r"\S(?= )")
CUT_SEARCH_CHARS = 4096  # at the end of a piece of a long text
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])[ \n](?=[A-Za-z])")


def pieces_at_spaces(text: str, min_chars: int) -> Iterator[str]:
    """A text in pieces of at least `min_chars` characters, cut before a space or newline between two letters.

    Every pattern of this file begins a new token there and does not look back, so the pieces have the tokens of the
    text. A text without such spaces is one piece.
    """
    start = 0
    while (boundary := _BETWEEN_WORDS.search(text, start + min_chars)) is not None:
        yield text[start : boundary.start()]
        start = boundary.start()
    yield text[start:]


def text_pieces(text: str, max_chars: int) -> Iterator[str]:
    """A text in pieces of at most `max_chars` characters, cut before a space that follows a word: there every pattern
    of this file begins a new token. Only if the end of a piece has no such space is it cut elsewhere."""
    start = 0
    while start < len(text):
        end = start + max_chars
        if end < len(text):
            spaces = _SPACE_AFTER_WORD.finditer(text, max(start + 1, end - CUT_SEARCH_CHARS), end)
            end = max((space.end() for space in spaces), default=end)
        yield text[start:end]
        start = end


def split_words(text: str, pattern: str) -> list[str]:
    """The words of a text by one of WORD_PATTERNS, split exactly as the `tokenizers` library does.

    Python's `re` is ten times as fast and agrees on ASCII; lines with other characters go to the library. No word spans
    two lines.
    """
    regex, splitter = _compiled(pattern)
    if text.isascii() or pattern == WORD_PATTERNS["whitespace"]:  # that pattern lists its characters explicitly
        return regex.findall(text)
    words: list[str] = []
    for line in _LINE.findall(text):
        words += regex.findall(line) if line.isascii() else [word for word, _ in splitter.pre_tokenize_str(line)]
    return words


@cache
def _compiled(pattern: str) -> tuple[re.Pattern[str], rust.pre_tokenizers.PreTokenizer]:
    return re.compile(pattern, re.ASCII), split_pre_tokenizer(pattern)


def split_pre_tokenizer(pattern: str) -> rust.pre_tokenizers.PreTokenizer:
    """A pre-tokenizer of the `tokenizers` library that splits by a pattern."""
    discards = pattern == WORD_PATTERNS["whitespace"]
    behavior = "removed" if discards else "isolated"
    return rust.pre_tokenizers.Split(rust.Regex(pattern), behavior=behavior, invert=discards)
