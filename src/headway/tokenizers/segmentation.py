"""How a tokenizer splits a word, step by step.

- BPE starts from bytes or characters and applies merges, the one that was learned first (the lowest rank) first.
- WordPiece takes the longest piece that the rest of the word starts with, again and again.
- Unigram takes the segmentation whose pieces have the highest sum of ln p.

The steps are computed by the definition, and checked against what the tokenizer itself returns.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from headway.errors import InputError
from headway.tokenizers.base import Tokenizer, check_texts
from headway.tokenizers.sentencepiece import SentencePieceTokenizer

MAX_WORD_CHARS = 1000  # the steps of longer ones take seconds, and nobody reads them
UNK_PENALTY = 10.0  # below the lowest score of a piece: what unigram charges for a character without a piece


class SegmentationStep(NamedTuple):
    """One step: the piece that it makes, and the pieces of the word after it."""

    piece: str
    pieces: list[str]
    merged: tuple[str, str] | None = None  # BPE: the two pieces
    rank: int | None = None  # BPE: of the merge among those learned, from 0
    n_tried: int | None = None  # WordPiece: longer strings that are no pieces
    score: float | None = None  # unigram: ln p of the piece


@dataclass(frozen=True)
class WordSegmentation:
    """The segmentation of a word. Pieces are spelled as in the vocabulary: "Ġthe", "##ing", "▁the"."""

    text: str  # the word as the normalised text has it
    start: list[str]  # the pieces before the first step
    steps: list[SegmentationStep]
    pieces: list[str]
    ids: list[int]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "steps": [step._asdict() for step in self.steps]}


def explain_segmentation(tokenizer: Tokenizer, text: str) -> list[WordSegmentation]:
    """Follow a BPE, WordPiece or unigram tokenizer through a text, word by word.

    for word in explain_segmentation(tokenizer, "lower lowest"):
        for step in word.steps:
            print(step.rank, step.merged, step.pieces)
    """
    check_texts([text])
    if isinstance(tokenizer, SentencePieceTokenizer):
        raise InputError(
            "this tokenizer is a SentencePiece model, whose library does not tell its steps: train one of kind bpe or "
            "unigram"
        )
    if tokenizer.kind not in _SEGMENTERS:
        raise InputError(
            f"a {tokenizer.kind} tokenizer looks up whole characters or words: it has no merges and no steps; use one "
            f"of kind bpe, wordpiece or unigram"
        )
    backend = tokenizer._plain_text_backend
    segment = _SEGMENTERS[tokenizer.kind](json.loads(backend.to_str())["model"], tokenizer)
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    whole = [(normalized, (0, len(normalized)))] if normalized else []
    words: list[tuple[str, tuple[int, int]]]
    words = whole if backend.pre_tokenizer is None else backend.pre_tokenizer.pre_tokenize_str(normalized)
    longest = max((len(word) for word, _ in words), default=0)
    if longest > MAX_WORD_CHARS:
        raise InputError(f"a word of {longest:,} characters has too many steps: give words of at most {MAX_WORD_CHARS}")
    segmentations = [segment(word, normalized[start:end]) for word, (start, end) in words]
    if [id for word in segmentations for id in word.ids] != tokenizer.encode(text):
        raise InputError(
            f"the steps do not lead to the tokens of {text[:20]!r}: this tokenizer has added tokens or settings that "
            f"they do not follow; tokenizer.encode gives its tokens"
        )
    return segmentations


def _unknown(token: str | None, vocab: Mapping[str, int]) -> tuple[str, int]:
    """The name and id of the unknown token, which the backend for plain text renames; "" and −1 if there is none."""
    return ("", -1) if token is None else (token.removeprefix("\ufdd0"), vocab.get(token, -1))


# ── BPE ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _BPESegmenter:
    """Merges by rank (Sennrich et al. 2016, §3.2; bytes: Radford et al. 2019, §2.2)."""

    def __init__(self, model: dict[str, Any], tokenizer: Tokenizer):
        self.vocab: dict[str, int] = model["vocab"]
        pairs = (tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"])
        self.ranks: dict[tuple[str, ...], int] = {pair: rank for rank, pair in enumerate(pairs)}
        self.inner_prefix: str = model.get("continuing_subword_prefix") or ""
        self.end_suffix: str = model.get("end_of_word_suffix") or ""
        self.ignores_merges, self.has_byte_fallback = bool(model.get("ignore_merges")), bool(model.get("byte_fallback"))
        self.unk, self.unk_id = _unknown(model.get("unk_token"), self.vocab)
        self.fuses_unk = bool(model.get("fuse_unk"))

    def __call__(self, word: str, text: str) -> WordSegmentation:
        if self.ignores_merges and word in self.vocab:
            return WordSegmentation(text, [word], [], [word], [self.vocab[word]])
        pieces = start = self._characters(word)
        steps = []
        while ranked := [(self.ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in self.ranks]:
            rank, i = min(ranked)  # the lowest rank, and of equals the leftmost
            merged = (pieces[i], pieces[i + 1])
            piece = merged[0] + merged[1][len(self.inner_prefix) :]
            pieces = [*pieces[:i], piece, *pieces[i + 2 :]]
            steps.append(SegmentationStep(piece, pieces, merged, rank))
        ids = [self.unk_id if piece == self.unk else self.vocab[piece] for piece in pieces]
        return WordSegmentation(text, start, steps, pieces, ids)

    def _characters(self, word: str) -> list[str]:
        """The characters of a word; those outside the vocabulary as bytes, as <unk>, or not at all."""
        pieces: list[str] = []
        for i, character in enumerate(word):
            spelled = (self.inner_prefix if i else "") + character + (self.end_suffix if i == len(word) - 1 else "")
            bytes_of = [f"<0x{byte:02X}>" for byte in character.encode()]
            if spelled in self.vocab:
                pieces.append(spelled)
            elif self.has_byte_fallback and all(piece in self.vocab for piece in bytes_of):
                pieces += bytes_of
            elif self.unk and not (self.fuses_unk and pieces[-1:] == [self.unk]):
                pieces.append(self.unk)
        return pieces


# ── WordPiece ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _WordPieceSegmenter:
    """Greedy longest match first (Devlin et al. 2019; Schuster & Nakajima 2012)."""

    def __init__(self, model: dict[str, Any], tokenizer: Tokenizer):
        self.vocab: dict[str, int] = model["vocab"]
        self.inner_prefix: str = model["continuing_subword_prefix"]
        self.unk, self.unk_id = _unknown(model["unk_token"], self.vocab)
        self.max_chars: int = model["max_input_chars_per_word"]

    def __call__(self, word: str, text: str) -> WordSegmentation:
        pieces: list[str] = []
        steps: list[SegmentationStep] = []
        position = 0
        while position < len(word):
            prefix = self.inner_prefix if position else ""
            ends = range(len(word), position, -1)
            candidates = ((n, prefix + word[position:end], end) for n, end in enumerate(ends))
            match = next((c for c in candidates if c[1] in self.vocab), None)
            if match is None or len(word) > self.max_chars:  # no sequence of pieces spells the word
                step = SegmentationStep(self.unk, [self.unk], n_tried=len(ends))
                return WordSegmentation(text, [], [*steps, step], [self.unk], [self.unk_id])
            n_tried, piece, position = match
            pieces = [*pieces, piece]
            steps.append(SegmentationStep(piece, pieces, n_tried=n_tried))
        return WordSegmentation(text, [], steps, pieces, [self.vocab[piece] for piece in pieces])


# ── unigram ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _UnigramSegmenter:
    """The segmentation with the highest sum of scores (Kudo 2018, eq. 1), as the tokenizer finds it."""

    def __init__(self, model: dict[str, Any], tokenizer: Tokenizer):
        self.scores: Mapping[str, float] = dict(model["vocab"])
        self.model = tokenizer._plain_text_backend.model
        self.unk_id: int | None = model["unk_id"]
        self.unk_score = min(self.scores.values(), default=0.0) - UNK_PENALTY

    def __call__(self, word: str, text: str) -> WordSegmentation:
        pieces: list[str] = []
        steps, ids = [], []
        for token in self.model.tokenize(word):
            is_unknown = token.id == self.unk_id
            score = self.unk_score * len(token.value) if is_unknown else self.scores[token.value]
            pieces = [*pieces, token.value]
            steps.append(SegmentationStep(token.value, pieces, score=score))
            ids.append(token.id)
        return WordSegmentation(text, [], steps, pieces, ids)


_Segment = Callable[[str, str], WordSegmentation]  # (word as the model sees it, its text) → its steps
_SEGMENTERS: dict[str, Callable[[dict[str, Any], Tokenizer], _Segment]] = {
    "BPE": _BPESegmenter,
    "WordPiece": _WordPieceSegmenter,
    "Unigram": _UnigramSegmenter,
}
