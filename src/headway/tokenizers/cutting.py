"""Cutting text exactly as SentencePiece does, word by word with a memory of words seen.

The `tokenizers` library reads the same models, but breaks ties in its own way: "====" may be cut as "=" "===" where
SentencePiece says "===" "=", and the runs of spaces of Llama 2, whose scores are all equal, come out as other pieces.
Where SentencePiece itself is installed it does the work, several times as fast.
"""

import heapq
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.tokenizers.base import Encoding
from headway.tokenizers.charsmap import CharsMap
from headway.tokenizers.protobuf import fields, last
from headway.tokenizers.unigram import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of piece
UNIGRAM, BPE = 1, 2  # types of model
MEMORY = 1 << 18  # words whose pieces are remembered
ROUNDING = 2.0**-22  # twice the relative error of adding two 32-bit numbers, with room

Piece = tuple[str, float, int]  # text, score, type


class Cutter:
    """Text to ids, as SentencePiece does it."""

    library: Any = None  # SentencePiece's own, where it is installed

    def __init__(
        self, pieces: Sequence[Piece], kind: int, *, prefix: bool, tidy: bool, charsmap: bytes, byte_fallback: bool
    ):
        self.prefix, self.tidy = prefix, tidy
        self.charsmap = CharsMap(charsmap) if charsmap else None
        in_text = {text: i for i, (text, _, type) in enumerate(pieces) if type in (NORMAL, USER_DEFINED, UNUSED)}
        # A character that is a control piece is that piece when merging is over; a likely cut never gets there.
        self.named = in_text if kind == UNIGRAM else {text: i for i, (text, _, _) in enumerate(pieces)}
        self.longest = max(map(len, in_text), default=1)
        self.unused = {text for text, id in in_text.items() if pieces[id][2] == UNUSED}
        self.whole = sorted((text for text in in_text if pieces[in_text[text]][2] == USER_DEFINED), key=len)[::-1]
        self.unknown = next((i for i, (_, _, type) in enumerate(pieces) if type == UNKNOWN), 0)
        self.bytes = {text: i for i, (text, _, type) in enumerate(pieces) if type == BYTE} if byte_fallback else {}
        # Scores are 32-bit numbers there, and rounding decides between cuts that are equally good.
        self.scores = {text: np.float32(pieces[id][1]) for text, id in in_text.items()}
        normal = [score for text, score, type in pieces if type == NORMAL]
        self.least = np.float32(np.float32(min(normal, default=0.0)) - np.float32(10.0))  # of an unknown character
        best = np.float32(max(normal, default=0.0))
        for text in self.whole:
            self.scores[text] = np.float32(len(text.encode()) * best - 0.1)
        # Where no piece has a space after something else, words are cut one by one; else the text is one word.
        crossing = any(re.search(f"[^{SPACE}]{SPACE}", text) for text in in_text)
        self.words = re.compile(r"[\s\S]+" if crossing else f"{SPACE}*[^{SPACE}]+|{SPACE}+")
        self.wide_scores = {text: float(score) for text, score in self.scores.items()}
        self.is_unigram = kind == UNIGRAM
        self.merges_of: dict[str, list[str]] = {}  # of words that were met
        self.cuts_of: dict[str, tuple[list[str], list[Any], float]] = {}

    def encode(self, text: str) -> list[int]:
        if self.library is not None:
            return self.library.encode(text)
        return self._ids(self._pieces(self._normalized(text)))[0]

    def encode_with_offsets(self, text: str) -> Encoding:
        if self.library is not None:
            try:
                return self._by_library(text)
            except RuntimeError:  # it does not place control pieces that a text spells
                pass
        changed, origins = self._with_origins(text)
        ids, sizes = self._ids(self._pieces(changed))
        offsets, place = [], 0
        for n in sizes:
            if n:
                span = origins[place][0], origins[place + n - 1][1]
                place += n
            offsets.append(span)  # the bytes of a character all stand for that character
        return Encoding(ids, offsets)

    def _by_library(self, text: str) -> Encoding:
        # SentencePieceText: 2 pieces {2 id, 4 begin, 5 end}, in bytes
        pieces = [fields(piece) for piece in fields(self.library.encode_as_serialized_proto(text))[2]]
        char_at = [number for number, char in enumerate(text) for _ in char.encode()] + [len(text)]
        spans = [(char_at[last(piece, 4, 0)], char_at[last(piece, 5, 0)]) for piece in pieces]
        return Encoding([last(piece, 2, 0) for piece in pieces], spans)

    def _normalized(self, text: str) -> str:
        changed = text if self.charsmap is None else self.charsmap(text)
        if self.tidy:
            changed = re.sub(" {2,}", " ", changed.strip(" "))
        changed = changed.replace(" ", SPACE)
        changed = SPACE + changed if self.prefix and text else changed
        return changed.rstrip(SPACE) if self.tidy else changed

    def _with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The same, and for each character the span in `text` it comes from."""
        if self.charsmap is not None:
            changed, origins = self.charsmap.with_origins(text)
        else:
            changed, origins = text, [(i, i + 1) for i in range(len(text))]
        if self.tidy:
            begin, end = len(changed) - len(changed.lstrip(" ")), len(changed.rstrip(" "))
            keep = [i for i in range(begin, end) if changed[i] != " " or changed[i - 1] != " "]
            changed, origins = "".join(changed[i] for i in keep), [origins[i] for i in keep]
        changed = changed.replace(" ", SPACE)
        if self.prefix and text:
            begin = origins[0][0] if origins else 0
            changed, origins = SPACE + changed, [(begin, begin), *origins]
        if self.tidy:
            changed = changed.rstrip(SPACE)
        return changed, origins

    def _pieces(self, text: str) -> list[str]:
        return self._most_likely(text) if self.is_unigram else self._merged(text)

    def _merged(self, text: str) -> list[str]:
        found: list[str] = []
        for word in self.words.findall(text):
            pieces = self.merges_of.get(word)
            if pieces is None:
                pieces = self._merge(word)
                if len(self.merges_of) < MEMORY:
                    self.merges_of[word] = pieces
            found += pieces
        return found

    def _most_likely(self, text: str) -> list[str]:
        """SentencePiece adds up 32-bit scores from the start of the text, so rounding of what came before can decide
        between two cuts of a word. Where they are further apart than that, the cut that was found before will do."""
        found: list[str] = []
        total = np.float32(0.0)
        for word in self.words.findall(text):
            known = self.cuts_of.get(word)
            if known is None:
                known = self._cut_and_gap(word)
                if len(self.cuts_of) < MEMORY:
                    self.cuts_of[word] = known
            pieces, scores, gap = known
            if gap <= ROUNDING * (len(word) + 2) * (abs(float(total)) + abs(float(self.least)) * len(word)):
                pieces, _, _ = self._viterbi(word, total)
                scores = [self.scores.get(piece, self.least) for piece in pieces]
            for score in scores:
                total = score + total
            found += pieces
        return found

    def _cut_and_gap(self, word: str) -> tuple[list[str], list[Any], float]:
        """The best cut, the scores of its pieces, and by how much it is better than any other."""
        pieces, best, second = self._viterbi(word, 0.0)
        gap, end = float("inf"), 0
        for piece in pieces:
            end += len(piece)
            if second[end] is not None:
                gap = min(gap, best[end] - second[end])
        return pieces, [self.scores.get(piece, self.least) for piece in pieces], gap

    def _ids(self, pieces: list[str]) -> tuple[list[int], list[int]]:
        """Ids, and how many characters each takes; a run of unknown ones is one, or the bytes of each."""
        ids: list[int] = []
        sizes: list[int] = []
        was_unknown = False
        for piece in pieces:
            id = self.named.get(piece)
            if id is None and self.bytes:
                data = [self.bytes[f"<0x{byte:02X}>"] for byte in piece.encode()]
                ids += data
                sizes += [len(piece), *[0] * (len(data) - 1)]
            elif id is None and was_unknown:
                sizes[-1] += len(piece)
            else:
                ids.append(self.unknown if id is None else id)
                sizes.append(len(piece))
            was_unknown = id is None and not self.bytes
        return ids, sizes

    def _viterbi(self, word: str, begin: Any) -> tuple[list[str], list[Any], list[Any]]:
        """The pieces with the largest sum of log-probabilities (Kudo 2018, §3.2), the first found of equals; and up
        to each character the best sum and the next best. Sums have the precision of `begin`."""
        n = len(word)
        best: list[Any] = [begin] + [None] * n
        second: list[Any] = [None] * (n + 1)
        origin = [0] * (n + 1)
        scores = self.scores if isinstance(begin, np.float32) else self.wide_scores

        def offer(start: int, end: int, total: Any) -> None:
            if best[end] is None or total > best[end]:
                second[end] = best[end]
                best[end], origin[end] = total, start
            elif second[end] is None or total > second[end]:
                second[end] = total

        for start in range(n):
            has_single = False
            for end in range(start + 1, min(n, start + self.longest) + 1):
                piece = word[start:end]
                score = scores.get(piece)
                if score is not None and piece not in self.unused:
                    offer(start, end, score + best[start])
                    has_single = has_single or end == start + 1
            if not has_single:
                offer(start, start + 1, type(begin)(self.least) + best[start])
        pieces = []
        end = n
        while end:
            pieces.append(word[origin[end] : end])
            end = origin[end]
        return pieces[::-1], best, second

    def _merge(self, word: str) -> list[str]:
        """Merge the two neighbours that spell the piece of the highest score, the leftmost of equals, until none do."""
        symbols = self._symbols(word)
        after = [*range(1, len(symbols)), -1]
        before = [-1, *range(len(symbols) - 1)]
        made: dict[str, tuple[str, str]] = {}
        queue: list[tuple[float, int, int, str]] = []

        def consider(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                text = symbols[left] + symbols[right]
                score = self.scores.get(text)
                if score is not None and symbols[left] not in frozen and symbols[right] not in frozen:
                    heapq.heappush(queue, (-float(score), left, right, text))
                    if text in self.unused:
                        made[text] = symbols[left], symbols[right]

        frozen = set(self.whole)
        for i in range(len(symbols) - 1):
            consider(i, i + 1)
        while queue:
            _, left, right, text = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != text:
                continue  # one of the two has changed since
            symbols[left], symbols[right] = text, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        found: list[str] = []

        def give(text: str) -> None:  # pieces that are no longer used come apart again
            if text in self.unused and text in made:
                for part in made[text]:
                    give(part)
            else:
                found.append(text)

        for symbol in symbols:
            if symbol:
                give(symbol)
        return found

    def _symbols(self, word: str) -> list[str]:
        """Characters, and the pieces a user asked to keep whole."""
        if not self.whole:
            return list(word)
        return re.findall("|".join([*map(re.escape, self.whole), r"[\s\S]"]), word)
