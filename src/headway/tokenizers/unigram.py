"""Unigram: every piece has a probability, and a text is cut into the pieces whose product is largest.

SentencePiece's algorithm (Kudo 2018): begin with many pieces, fit their probabilities by EM, drop those that are missed
least, until the vocabulary has the size wanted. Spaces are part of the text, written "▁", so that nothing about a text
is lost but characters that were not in the training text.
"""

from collections.abc import Iterable

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.special import UNKNOWN, add_special, check_special

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
OWN = (UNKNOWN, BOS, EOS, PAD)
SPACE = "▁"  # U+2581


def train_unigram(
    texts: Iterable[str], vocab_size: int, *, special: Iterable[str] = (), progress: bool = False
) -> Tokenizer:
    extra = check_special(special, *OWN)
    least = len(OWN) + len(extra) + 1
    if vocab_size < least:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size} is below {least}: there are {least - 1} special tokens alone"
        )
    backend = spaced(rust.Tokenizer(rust.models.Unigram()), prefix=True, split=True, lines=True)
    trainer = rust.trainers.UnigramTrainer(
        vocab_size=vocab_size - len(extra), special_tokens=list(OWN), unk_token=UNKNOWN, show_progress=progress
    )
    try:
        backend.train_from_iterator(texts, trainer)
    except Exception as error:  # the Rust side raises plain Exception
        raise DataError(f"a unigram tokenizer could not be made from this text: {error}") from None
    add_special(backend, *extra)
    return Tokenizer(backend, bos=BOS, eos=EOS, unk=UNKNOWN, pad=PAD)


def spaced(
    backend: rust.Tokenizer,
    *,
    prefix: bool,
    split: bool,
    lines: bool = False,
    tidy: bool = False,
    charsmap: bytes = b"",
) -> rust.Tokenizer:
    """Make a tokenizer treat spaces as SentencePiece does.

    `prefix`: a space is put before the text, so that its first word is like any other. `tidy`: runs of spaces count as
    one, those at the ends as none. `split`: no piece reaches over a space, so words can be cut one by one; with
    `lines`, none reaches over the end of a line.
    """
    steps: list[rust.normalizers.Normalizer] = []
    if charsmap:
        steps.append(rust.normalizers.Precompiled(charsmap))
    if tidy:
        steps.append(rust.normalizers.Replace(rust.Regex(r"\A +| +\z"), ""))
        steps.append(rust.normalizers.Replace(rust.Regex(r" {2,}"), " "))
    steps.append(rust.normalizers.Replace(" ", SPACE))
    if prefix:
        steps.append(rust.normalizers.Prepend(SPACE))
    backend.normalizer = rust.normalizers.Sequence(steps)
    cuts = [rust.pre_tokenizers.Split("\n", behavior="isolated")] if lines else []
    cuts += [rust.pre_tokenizers.Split(SPACE, behavior="merged_with_next")] if split else []
    if cuts:
        backend.pre_tokenizer = rust.pre_tokenizers.Sequence(cuts)
    parts: list[rust.decoders.Decoder] = [rust.decoders.Replace(SPACE, " "), rust.decoders.ByteFallback()]
    parts.append(rust.decoders.Fuse())
    if prefix:
        parts.append(rust.decoders.Strip(" ", 1, 0))
    backend.decoder = rust.decoders.Sequence(parts)
    return backend
