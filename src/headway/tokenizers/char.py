"""Character tokenizer: the alphabet is every character of the training text, in code-point order; others are <unk>."""

from collections import Counter
from collections.abc import Iterable

import tokenizers as rust

from headway.tokenizers.base import Tokenizer
from headway.tokenizers.pre_tokenizers import CHAR_PATTERN, split_pre_tokenizer
from headway.tokenizers.special_tokens import END_OF_TEXT, UNK, add_special_tokens, check_special_tokens


def train_char(texts: Iterable[str], *, special_tokens: Iterable[str] = ()) -> Tokenizer:
    """Train a character tokenizer."""
    extra = check_special_tokens(special_tokens, UNK, END_OF_TEXT)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    vocab = {token: i for i, token in enumerate([*sorted(counts), UNK])}
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=UNK))
    backend.pre_tokenizer = split_pre_tokenizer(CHAR_PATTERN)
    backend.decoder = rust.decoders.Fuse()
    add_special_tokens(backend, (UNK, END_OF_TEXT), extra)
    return Tokenizer(backend, bos=END_OF_TEXT, eos=END_OF_TEXT, unk=UNK, counts=dict(counts.most_common()))
