"""Unigram language model: every piece has a probability, and a text is split into the most likely sequence of pieces.

SentencePiece's algorithm (Kudo 2018): start with many pieces, fit their probabilities by EM, drop the pieces whose
removal lowers the likelihood least, and repeat until the vocabulary has the requested size. Spaces are written "▁" and
are part of the pieces, so that encoding loses only characters that the training text does not have (and "▁" itself,
which decodes to a space).
"""

import json
from collections.abc import Iterable, Iterator

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.special_tokens import UNK, add_special_tokens, check_special_tokens, check_vocab_size

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
UNIGRAM_TOKENS = (UNK, BOS, EOS, PAD)
SPACE = "▁"  # U+2581
CHAR_SCORE_STEP = 0.0001  # between the scores that the trainer assigns to characters it would have dropped


def train_unigram(
    texts: Iterable[str], vocab_size: int, *, special_tokens: Iterable[str] = (), progress: bool = False
) -> Tokenizer:
    """Train a unigram tokenizer of at most `vocab_size` tokens."""
    extra = check_special_tokens(special_tokens, *UNIGRAM_TOKENS)
    n_special = len(UNIGRAM_TOKENS) + len(extra)
    if vocab_size <= n_special:
        raise ConfigError(f"vocab_size={vocab_size} is below {n_special + 1}: the special tokens alone are {n_special}")
    backend = _with_space_symbol(rust.models.Unigram())
    trainer = rust.trainers.UnigramTrainer(
        vocab_size=vocab_size - len(extra), special_tokens=list(UNIGRAM_TOKENS), unk_token=UNK, show_progress=progress
    )
    alphabet: set[str] = set()

    def collect_alphabet() -> Iterator[str]:
        for text in texts:
            alphabet.update(text)
            yield text

    try:
        with native_errors("training a unigram tokenizer on this text", error=DataError):
            backend.train_from_iterator(collect_alphabet(), trainer)
    except DataError as error:
        if "not large enough" in str(error):
            raise ConfigError(
                f"vocab_size={vocab_size} is too small: this text has {len(alphabet)} different characters, each of "
                f"which needs a piece, and there are {n_special} special tokens"
            ) from None
        raise
    backend = _with_space_symbol(_deterministic(json.loads(backend.to_str())["model"]["vocab"]))
    add_special_tokens(backend, UNIGRAM_TOKENS, extra)
    check_vocab_size(backend, vocab_size)
    return Tokenizer(backend, bos=BOS, eos=EOS, unk=UNK, pad=PAD)


def _deterministic(pieces: list[tuple[str, float]]) -> rust.models.Unigram:
    """The model with an order of pieces and with scores that are equal in every training run on the same text.

    The trainer assigns scores CHAR_SCORE_STEP apart to the characters that it would have dropped, in an order that
    varies from run to run; it also sums scores in a varying order, which changes their last digits.
    """
    special = [(text, score) for text, score in pieces[: len(UNIGRAM_TOKENS)]]
    scores = {text: score for text, score in pieces[len(UNIGRAM_TOKENS) :] if text not in UNIGRAM_TOKENS}
    minimum = min(scores.values(), default=0.0)
    steps = {text: (score - minimum) / CHAR_SCORE_STEP for text, score in scores.items() if len(text) == 1}
    restored = [text for text, n in steps.items() if n < len(scores) and abs(n - round(n)) < 1e-5]
    restored_scores = sorted((scores[text] for text in restored), reverse=True)
    scores |= dict(zip(sorted(restored), restored_scores, strict=True))
    ranked = sorted((-round(score, 9), text) for text, score in scores.items())
    return rust.models.Unigram([*special, *((text, -score) for score, text in ranked)], 0, False)


def _with_space_symbol(model: rust.models.Unigram) -> rust.Tokenizer:
    """A tokenizer that writes spaces as "▁", as SentencePiece does.

    A space is put before the text, so that its first word is the same piece as elsewhere. Words and lines are split
    first: no piece spans two of them.
    """
    backend = rust.Tokenizer(model)
    replace, prepend = rust.normalizers.Replace(" ", SPACE), rust.normalizers.Prepend(SPACE)
    backend.normalizer = rust.normalizers.Sequence([replace, prepend])
    lines = rust.pre_tokenizers.Split("\n", behavior="isolated")
    words = rust.pre_tokenizers.Split(SPACE, behavior="merged_with_next")
    backend.pre_tokenizer = rust.pre_tokenizers.Sequence([lines, words])
    spaces, strip = rust.decoders.Replace(SPACE, " "), rust.decoders.Strip(" ", 1, 0)
    backend.decoder = rust.decoders.Sequence([spaces, rust.decoders.Fuse(), strip])
    return backend
