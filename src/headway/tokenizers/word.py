"""Words as tokens, the most frequent first; words too rare are <unk>.

A word carries the space before it, as GPT-2's pieces do, so that decoding needs to guess nothing: "to be" is "to" and
" be". A line end carries the space before it too, which makes the lines of Penn Treebank and WikiText come out with
their published counts of tokens.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.patterns import WORDS, cut_words, splitter
from headway.tokenizers.special import END, UNKNOWN, add_special, check_special


def train_word(
    texts: Iterable[str],
    vocab_size: int | None = None,
    *,
    min_frequency: int = 1,
    words: Literal["punctuation", "spaces"] = "punctuation",
    lowercase: bool = False,
    special: Iterable[str] = (),
) -> Tokenizer:
    """All words that occur `min_frequency` times or more; with `vocab_size`, the most frequent of them."""
    if words not in WORDS:
        raise ConfigError(f"words={words!r} is not one of {', '.join(map(repr, WORDS))}")
    extra = check_special(special, UNKNOWN, END)
    if vocab_size is not None and vocab_size < 3 + len(extra):
        raise ConfigError(f"vocab_size={vocab_size} leaves no room for a word beside {UNKNOWN} and {END}")
    lower = rust.normalizers.Lowercase()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(cut_words(lower.normalize_str(text) if lowercase else text, WORDS[words]))
    for token in (UNKNOWN, END):
        del counts[token]  # a text that spells one does not make it a word
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(item for item in ranked if item[1] >= min_frequency)
    if not kept:
        most = ranked[0][1] if ranked else 0
        raise DataError(f"no word occurs min_frequency={min_frequency} times; the most frequent one does {most} times")
    if vocab_size is not None:
        kept = dict(list(kept.items())[: vocab_size - 2 - len(extra)])
    vocab = {token: i for i, token in enumerate([*kept, UNKNOWN])}
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=UNKNOWN))
    if lowercase:
        backend.normalizer = lower
    backend.pre_tokenizer = splitter(WORDS[words])
    backend.decoder = rust.decoders.Fuse()
    add_special(backend, (UNKNOWN, END), extra)
    return Tokenizer(backend, bos=END, eos=END, unk=UNKNOWN, counts=kept)
