"""Byte-level BPE: start from the 256 bytes, then merge the most frequent neighbours, again and again.

Sennrich et al. 2016 merge characters; Radford et al. 2019, §2.2 bytes, so that no text is ever unknown.
"""

from collections.abc import Iterable

import tokenizers as rust

from headway.errors import ConfigError
from headway.tokenizers.base import Tokenizer

END = "<|endoftext|>"
SMALLEST = 256 + 1  # the bytes and <|endoftext|>


def train_bpe(texts: Iterable[str], vocab_size: int, *, progress: bool = False) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens; fewer where the text has no more pairs to merge."""
    if vocab_size < SMALLEST:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size} is below {SMALLEST}: byte-level BPE begins with all 256 bytes and {END}"
        )
    backend = rust.Tokenizer(rust.models.BPE())
    backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = rust.decoders.ByteLevel()
    trainer = rust.trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(rust.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([END])  # last, as in GPT-2
    return Tokenizer(backend, bos=END, eos=END)
