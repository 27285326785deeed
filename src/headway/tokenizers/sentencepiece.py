"""Reading a SentencePiece `.model`.

The file is a protocol-buffer message; the few fields that matter are read here, so that neither library is needed:

    ModelProto      1 pieces {1 piece, 2 score, 3 type}   2 trainer_spec   3 normalizer_spec
    TrainerSpec     3 model_type (1 unigram, 2 BPE)   24 treat_whitespace_as_suffix   35 byte_fallback
                    40-43 ids of unk, bos, eos, pad
    NormalizerSpec  2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces

A model becomes a `tokenizers` object, for transformers to open; Headway itself cuts text by cutting.py.
"""

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import tokenizers as rust

from headway.errors import CheckpointError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.bpe import merged
from headway.tokenizers.charsmap import CharsMap
from headway.tokenizers.cutting import BPE, CONTROL, NORMAL, UNIGRAM, UNKNOWN, USER_DEFINED, Cutter, Piece
from headway.tokenizers.protobuf import fields, last
from headway.tokenizers.unigram import SPACE, spaced


def load_sentencepiece(path: str | Path) -> Tokenizer:
    data = Path(path).read_bytes()
    try:
        message = fields(data)
        pieces = [_piece(piece) for piece in message[1]]
        trainer = fields(message[2][0]) if message[2] else defaultdict(list)
        rules = fields(message[3][0]) if message[3] else defaultdict(list)
        if not pieces:
            raise ValueError("it has no pieces")
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged or no SentencePiece model: {error}") from None
    kind = last(trainer, 3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise CheckpointError(f"{path} is a SentencePiece model of type {kind}; unigram (1) and BPE (2) are read here")
    prefix, tidy, charsmap = bool(last(rules, 3, 1)), bool(last(rules, 4, 1)), last(rules, 2, b"")
    byte_fallback = bool(last(trainer, 35, 0))
    unknown = next((i for i, (_, _, type) in enumerate(pieces) if type == UNKNOWN), None)
    library = _library(data, path)
    if library is None:
        _check_plain(pieces, trainer, CharsMap(charsmap) if charsmap else None, tidy, path)
    try:
        if kind == UNIGRAM:
            model: Any = rust.models.Unigram([(text, score) for text, score, _ in pieces], unknown, byte_fallback)
        else:
            vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
            unk = None if unknown is None else pieces[unknown][0]
            model = rust.models.BPE(vocab, _merges(pieces), unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback)
    except Exception as error:  # the Rust side raises plain Exception
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    is_split = not any(SPACE in text[1:] for text, _, type in pieces if type in (NORMAL, USER_DEFINED))
    backend = spaced(rust.Tokenizer(model), prefix=prefix, split=is_split, tidy=tidy, charsmap=charsmap)
    hidden = [text for text, _, type in pieces if type in (CONTROL, UNKNOWN)]
    backend.add_special_tokens([rust.AddedToken(text, special=True, normalized=False) for text in hidden])
    whole = [text for text, _, type in pieces if type == USER_DEFINED]
    backend.add_tokens([rust.AddedToken(text, special=False, normalized=False) for text in whole])

    def named(field: int, default: int) -> str | None:
        id = last(trainer, field, default)
        id = id - (1 << 64) if id >= 1 << 63 else id  # −1 means there is none
        return pieces[id][0] if 0 <= id < len(pieces) and pieces[id][2] in (CONTROL, UNKNOWN) else None

    cutter = Cutter(pieces, kind, prefix=prefix, tidy=tidy, charsmap=charsmap, byte_fallback=byte_fallback)
    cutter.library = library
    special: dict[str, Any] = {
        "unk": named(40, 0),
        "bos": named(41, 1),
        "eos": named(42, 2),
        "pad": named(43, (1 << 64) - 1),
    }
    return Tokenizer(backend, **special, reader=cutter, model_file=data)


def _check_plain(
    pieces: list[Piece], trainer: dict[int, list[Any]], charsmap: CharsMap | None, tidy: bool, path: str | Path
) -> None:
    """Refuse what only SentencePiece itself cuts exactly."""
    odd = "writes spaces after words (treat_whitespace_as_suffix)" if last(trainer, 24, 0) else None
    for text, _, type in pieces:
        changed = text if charsmap is None else charsmap(text)
        if type == USER_DEFINED and (changed != text or (tidy and "  " in text.replace(SPACE, " "))):
            odd = f"keeps the piece {text!r} whole, which its normalisation would change"
    if odd:
        raise CheckpointError(f"{path} {odd}: that needs the library: pip install 'headway[sentencepiece]'")


def _library(data: bytes, path: str | Path) -> Any:
    try:
        import sentencepiece
    except ImportError:
        return None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise CheckpointError(f"{path} is damaged or no SentencePiece model: {error}") from None


def _merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """The pairs that merge, best first.

    SentencePiece has no list of pairs: it merges any two pieces that spell a third, that of the highest score first,
    the leftmost of equals. For a piece that training made, only one pair ever does (bulk.py says why): the two parts
    its own characters are merged to. Where there is no such pair, all that spell it are listed.
    """
    ranks = {
        text: rank
        for rank, (_, text) in enumerate(
            sorted((-score, text) for text, score, type in pieces if type in (NORMAL, USER_DEFINED))
        )
    }
    found = []
    for text, rank in ranks.items():
        parts = merged(list(text), ranks, rank)
        if len(parts) == 2 and all(part in ranks for part in parts):
            found.append((parts[0], parts[1]))
        else:
            cuts = ((text[:i], text[i:]) for i in range(1, len(text)))
            found += [(left, right) for left, right in cuts if left in ranks and right in ranks]
    return found


def _piece(data: bytes) -> Piece:
    found = fields(data)
    score = struct.unpack("<f", found[2][-1])[0] if found[2] else 0.0
    return found[1][-1].decode(), score, last(found, 3, NORMAL)
