"""SentencePiece's normalisation, exactly.

A `.model` file carries a table of "this string becomes that one" as a double-array trie, and text is rewritten from
left to right by the longest entry that matches. The `tokenizers` library reads the same table one grapheme at a time,
and loses accents that follow a rewritten character: fullwidth "Ａ" with an accent comes out as "A" without one. So the
rewriting is done here.

Trie units (darts-clone): bit 31 marks a value, bits 0-7 a label; the offset to the children is in bits 10-30, shifted
left by 8 where bit 9 is set; bit 8 says that a value is among the children.
"""

import re
from functools import lru_cache

import numpy as np

_UNUSUAL = re.compile(r"[ -~]?[^ -~]+")  # outside visible ASCII; a visible letter may be the base of an accent
_WORD = re.compile(r"[^ ]+")


class CharsMap:
    def __init__(self, blob: bytes):
        self.blob = blob
        size = int.from_bytes(blob[:4], "little")
        self.units: list[int] = np.frombuffer(blob[4 : 4 + size], dtype="<u4").tolist()
        self.strings = blob[4 + size :]
        # Most tables leave visible ASCII as it is; one that folds case does not.
        visible = any(self._longest(bytes([byte]), 0)[0] for byte in range(ord("!"), ord("~") + 1))
        self.stretch = _WORD if visible else _UNUSUAL
        self._rewrite = lru_cache(maxsize=65536)(self._rewritten)  # of stretches that were met

    def __reduce__(self) -> tuple[type["CharsMap"], tuple[bytes]]:
        return CharsMap, (self.blob,)  # a memory of stretches cannot be pickled, and need not be

    def __call__(self, text: str) -> str:
        return self.stretch.sub(lambda match: "".join(self._rewrite(match.group())[0]), text)

    def with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text rewritten and, for each of its characters, the span in `text` it comes from."""
        out: list[str] = []
        origins: list[tuple[int, int]] = []
        done = 0
        for match in self.stretch.finditer(text):
            for i in range(done, match.start()):
                out.append(text[i])
                origins.append((i, i + 1))
            for new, (start, end) in zip(*self._rewrite(match.group()), strict=True):
                out.append(new)
                origins += [(match.start() + start, match.start() + end)] * len(new)
            done = match.end()
        out.append(text[done:])
        origins += [(i, i + 1) for i in range(done, len(text))]
        return "".join(out), origins

    def _rewritten(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        """Pieces of the result, and the span each replaces."""
        data = text.encode()
        out, spans = [], []
        at = 0  # in characters
        place = 0  # in bytes
        while place < len(data):
            length, replacement = self._longest(data, place)
            n = len(data[place : place + length].decode()) if length else 1
            out.append(replacement if length else text[at])
            spans.append((at, at + n))
            place += length or len(text[at].encode())
            at += n
        return out, spans

    def _longest(self, data: bytes, place: int) -> tuple[int, str]:
        """Length of the longest entry that begins here, in bytes, and what it becomes."""
        units = self.units
        node = _offset(units[0])
        found, value = 0, 0
        for i in range(place, len(data)):
            node ^= data[i]
            unit = units[node] if node < len(units) else 0
            if unit & 0x800000FF != data[i]:
                break
            node ^= _offset(unit)
            if unit >> 8 & 1:
                found, value = i + 1 - place, units[node] & 0x7FFFFFFF
        return (found, self.strings[value : self.strings.index(b"\0", value)].decode()) if found else (0, "")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
