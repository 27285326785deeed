"""WordPiece: words are split greedily into the longest known pieces, with "##" before those inside a word.

BERT's tokenizer (Devlin et al. 2019, §3; Schuster & Nakajima 2012). Text is cleaned, optionally lower-cased and
stripped of accents, and split at whitespace and punctuation; a word that no sequence of pieces spells becomes one
[UNK]. These changes are not reversible. The trainer of `tokenizers` selects pieces by frequency, as BPE does, not by
likelihood.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.special_tokens import add_special_tokens, check_special_tokens, check_vocab_size

PAD, UNK, CLS, SEP, MASK = BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 0,
    lowercase: bool = True,
    special_tokens: Iterable[str] = (),
    progress: bool = False,
) -> Tokenizer:
    """Train a WordPiece tokenizer of at most `vocab_size` tokens."""
    extra = check_special_tokens(special_tokens, *BERT_TOKENS)
    n_special = len(BERT_TOKENS) + len(extra)
    if vocab_size <= n_special:
        raise ConfigError(f"vocab_size={vocab_size} is below {n_special + 1}: the special tokens alone are {n_special}")
    # The trainer breaks ties between pairs of equal frequency by the ids of their pieces, and numbers "##a", "##b", …
    # in an order that varies from process to process. So it trains twice: once without merges, to find these pieces,
    # and once with them as special tokens, which are numbered in the order given.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as copy:
        characters = _train_pieces(_copied(texts, copy), 0, [*BERT_TOKENS], 0, lowercase, progress)
        copy.seek(0)
        inner = sorted(piece for piece in characters if piece.startswith("##") and len(piece) == 3)
        size = vocab_size - len(extra)
        pieces = _train_pieces(copy, size, [*BERT_TOKENS, *inner], min_frequency, lowercase, progress)
    ordered = sorted(pieces - {*BERT_TOKENS}, key=lambda piece: (len(piece.removeprefix("##")) > 1, piece))
    vocab = {piece: i for i, piece in enumerate([*BERT_TOKENS, *ordered])}  # characters first, then longer pieces
    backend = rust.Tokenizer(rust.models.WordPiece(vocab, unk_token=UNK))
    _set_bert_pipeline(backend, lowercase)
    add_special_tokens(backend, BERT_TOKENS, extra)
    check_vocab_size(backend, vocab_size)
    return _bert_tokenizer(backend)


def _copied(texts: Iterable[str], copy: TextIO) -> Iterator[str]:
    """Pass texts through and write them to a file. No word reaches from one line to the next, so lines will do."""
    for text in texts:
        copy.write(f"{text}\n")
        yield text


def _train_pieces(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    min_frequency: int,
    lowercase: bool,
    progress: bool,
) -> set[str]:
    """The pieces that the trainer finds: the special tokens, all characters, and merges up to `vocab_size`."""
    backend = rust.Tokenizer(rust.models.WordPiece(unk_token=UNK))
    _set_bert_pipeline(backend, lowercase)
    trainer = rust.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=special_tokens,
        show_progress=progress,
    )
    with native_errors("training a WordPiece tokenizer on this text", error=DataError):
        backend.train_from_iterator(texts, trainer)
    return set(backend.get_vocab())


def wordpiece_from_vocab(
    vocab: Mapping[str, int], *, lowercase: bool, strip_accents: bool | None = None, separate_chinese: bool = True
) -> Tokenizer:
    """BERT's tokenizer around a vocabulary, such as its `vocab.txt`. Accents are stripped from lower-cased text, unless
    `strip_accents` says otherwise."""
    backend = rust.Tokenizer(rust.models.WordPiece(dict(vocab), unk_token=UNK))
    _set_bert_pipeline(backend, lowercase)
    backend.normalizer = rust.normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=separate_chinese
    )
    add_special_tokens(backend, [token for token in BERT_TOKENS if token in vocab])
    return _bert_tokenizer(backend)


def _set_bert_pipeline(backend: rust.Tokenizer, lowercase: bool) -> None:
    backend.normalizer = rust.normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = rust.pre_tokenizers.BertPreTokenizer()
    backend.decoder = rust.decoders.WordPiece()


def _bert_tokenizer(backend: rust.Tokenizer) -> Tokenizer:
    ids = {token: backend.token_to_id(token) for token in BERT_TOKENS}
    if ids[CLS] is not None and ids[SEP] is not None:
        backend.post_processor = rust.processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
        )
    roles: dict[str, Any] = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
    return Tokenizer(backend, **{role: token for role, token in roles.items() if ids[token] is not None})
