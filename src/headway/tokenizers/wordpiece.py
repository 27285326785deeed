"""WordPiece: words are cut greedily into the longest pieces known, "##" marking those inside a word.

BERT's tokenizer (Devlin et al. 2019, §3; Schuster & Nakajima 2012): text is cleaned, lower-cased and stripped of
accents where asked for, cut at spaces and punctuation; a word that cannot be built from pieces is one [UNK]. What it
changes it cannot give back. The trainer of `tokenizers` chooses pieces by frequency, as BPE does, not by likelihood.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers as rust

from headway.errors import ConfigError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.special_tokens import add_special, check_room, check_special

PAD, UNKNOWN, CLS, SEP, MASK = OWN = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 0,
    lowercase: bool = True,
    special_tokens: Iterable[str] = (),
    progress: bool = False,
) -> Tokenizer:
    extra = check_special(special_tokens, *OWN)
    least = len(OWN) + len(extra) + 1
    if vocab_size < least:
        raise ConfigError(f"vocab_size={vocab_size} is below {least}: there are {least - 1} special tokens alone")
    backend = rust.Tokenizer(rust.models.WordPiece(unk_token=UNKNOWN))
    _like_bert(backend, lowercase)
    trainer = rust.trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(extra),
        min_frequency=min_frequency,
        special_tokens=list(OWN),
        show_progress=progress,
    )
    backend.train_from_iterator(texts, trainer)
    # The trainer numbers pieces in an order that changes from run to run (and breaks the last ties between pairs of
    # equal frequency by it). Cutting does not depend on it: characters come first, then longer pieces, sorted.
    pieces = sorted(set(backend.get_vocab()) - set(OWN), key=lambda piece: (len(piece.removeprefix("##")) > 1, piece))
    vocab = {piece: i for i, piece in enumerate([*OWN, *pieces])}
    backend.model = rust.models.WordPiece(vocab, unk_token=UNKNOWN)
    add_special(backend, (), extra)
    check_room(backend, vocab_size)
    return _bert(backend)


def wordpiece_from_vocab(vocab: Mapping[str, int], *, lowercase: bool) -> Tokenizer:
    """BERT's tokenizer around a vocabulary, such as its `vocab.txt`."""
    backend = rust.Tokenizer(rust.models.WordPiece(dict(vocab), unk_token=UNKNOWN))
    _like_bert(backend, lowercase)
    add_special(backend, [token for token in OWN if token in vocab])
    return _bert(backend)


def _like_bert(backend: rust.Tokenizer, lowercase: bool) -> None:
    backend.normalizer = rust.normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = rust.pre_tokenizers.BertPreTokenizer()
    backend.decoder = rust.decoders.WordPiece()


def _bert(backend: rust.Tokenizer) -> Tokenizer:
    ids = {token: backend.token_to_id(token) for token in OWN}
    if ids[CLS] is not None and ids[SEP] is not None:
        backend.post_processor = rust.processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
        )
    named: dict[str, Any] = {"pad": PAD, "unk": UNKNOWN, "cls": CLS, "sep": SEP, "mask": MASK}
    return Tokenizer(backend, **{name: token for name, token in named.items() if ids[token] is not None})
