"""Characters as tokens: the alphabet is whatever the text has, in code-point order; the rest is <unk>."""

from collections.abc import Iterable

import tokenizers as rust

from headway.tokenizers.base import Tokenizer

END, UNKNOWN = "<|endoftext|>", "<unk>"


def train_char(texts: Iterable[str]) -> Tokenizer:
    alphabet = sorted(set().union(*texts))
    vocab = {token: i for i, token in enumerate([*alphabet, UNKNOWN])}
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = rust.decoders.Fuse()
    backend.add_special_tokens([UNKNOWN, END])
    return Tokenizer(backend, bos=END, eos=END, unk=UNKNOWN)
