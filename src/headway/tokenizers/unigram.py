"""Unigram: every piece has a probability, and a text is cut into the pieces whose product is largest.

SentencePiece's algorithm (Kudo 2018): begin with many pieces, fit their probabilities by EM, drop those that are missed
least, until the vocabulary has the size wanted. Spaces are part of the text, written "▁", so that nothing about a text
is lost but characters that were not in the training text (and "▁" itself, which comes back as a space).
"""

import json
from collections.abc import Iterable, Iterator

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.special_tokens import UNKNOWN, add_special, check_room, check_special

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
OWN = (UNKNOWN, BOS, EOS, PAD)
SPACE = "▁"  # U+2581
STEP = 0.0001


def train_unigram(
    texts: Iterable[str], vocab_size: int, *, special_tokens: Iterable[str] = (), progress: bool = False
) -> Tokenizer:
    extra = check_special(special_tokens, *OWN)
    least = len(OWN) + len(extra) + 1
    if vocab_size < least:
        raise ConfigError(f"vocab_size={vocab_size} is below {least}: there are {least - 1} special tokens alone")
    backend = spaced(rust.Tokenizer(rust.models.Unigram()), prefix=True, split=True, lines=True)
    trainer = rust.trainers.UnigramTrainer(
        vocab_size=vocab_size - len(extra), special_tokens=list(OWN), unk_token=UNKNOWN, show_progress=progress
    )
    alphabet: set[str] = set()

    def seen() -> Iterator[str]:
        for text in texts:
            alphabet.update(text)
            yield text

    try:
        backend.train_from_iterator(seen(), trainer)
    except DataError:
        raise
    except Exception as error:  # the Rust side raises plain Exception
        if "not large enough" in str(error):
            raise ConfigError(
                f"vocab_size={vocab_size} is too small: this text has {len(alphabet)} different characters, each of "
                f"which needs a piece, and there are {len(OWN) + len(extra)} special tokens"
            ) from None
        raise DataError(f"a unigram tokenizer could not be made from this text: {error}") from None
    model = repeatable(json.loads(backend.to_str())["model"]["vocab"])
    backend = spaced(rust.Tokenizer(model), prefix=True, split=True, lines=True)
    add_special(backend, OWN, extra)
    check_room(backend, vocab_size)
    return Tokenizer(backend, bos=BOS, eos=EOS, unk=UNKNOWN, pad=PAD)


def repeatable(pieces: list[tuple[str, float]]) -> rust.models.Unigram:
    """The pieces in an order, and with scores, that are the same in every training on the same text.

    The trainer gives characters that it would have dropped scores of its own, STEP apart, in an order that changes
    from run to run; and it adds up numbers in such an order too, which moves their last digits.
    """
    special = [(text, score) for text, score in pieces[: len(OWN)]]
    scores = {text: score for text, score in pieces[len(OWN) :] if text not in OWN}  # which a text may spell
    least = min(scores.values(), default=0.0)
    steps = {text: (score - least) / STEP for text, score in scores.items() if len(text) == 1}
    given = [text for text, n in steps.items() if n < len(scores) and abs(n - round(n)) < 1e-5]
    own = sorted((scores[text] for text in given), reverse=True)
    scores |= dict(zip(sorted(given), own, strict=True))
    ranked = sorted((-round(score, 9), text) for text, score in scores.items())
    return rust.models.Unigram([*special, *((text, -score) for score, text in ranked)], 0, False)


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
