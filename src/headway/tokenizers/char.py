"""Characters as tokens: the alphabet is whatever the text has, in code-point order; the rest is <unk>."""

from collections import Counter
from collections.abc import Iterable

import tokenizers as rust

from headway.tokenizers.base import Tokenizer
from headway.tokenizers.pre_tokenizers import CHARACTER, splitter
from headway.tokenizers.special_tokens import END, UNKNOWN, add_special, check_special


def train_char(texts: Iterable[str], *, special_tokens: Iterable[str] = ()) -> Tokenizer:
    extra = check_special(special_tokens, UNKNOWN, END)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    vocab = {token: i for i, token in enumerate([*sorted(counts), UNKNOWN])}
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.pre_tokenizer = splitter(CHARACTER)
    backend.decoder = rust.decoders.Fuse()
    add_special(backend, (UNKNOWN, END), extra)
    return Tokenizer(backend, bos=END, eos=END, unk=UNKNOWN, counts=dict(counts.most_common()))
