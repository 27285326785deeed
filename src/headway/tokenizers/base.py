"""One face for all tokenizers, and the rules for where a text begins and ends.

The rules, for every family of model and every kind of tokenizer:

1. A tokenizer may have a *begin* token and an *end* token; one token may be both (GPT-2's <|endoftext|>).
2. `encode` gives the text's own tokens, nothing added: `decode(encode(text)) == text`, but for characters the
   tokenizer does not know, which become <unk> and decode to nothing. A text that spells a special token, such as
   "<|endoftext|>", is text.
3. Training and scoring see each document as: begin, its tokens, end. Begin tokens are given; everything else is
   predicted, the end too. Where one token is both, documents share it: … text, <|endoftext|>, text …
4. Without a begin token the first token of a text has nothing before it, and is charged as one of V equals: log2 V
   bits. No family gets it for nothing.
5. A prompt is continued as it stands. An empty prompt means the begin token alone: unconditional generation. Where
   there is none, an empty prompt is an error.
6. Generation ends at the end token, which is not part of the text.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers as rust

from headway.errors import InputError
from headway.files import write_bytes, write_text
from headway.tokenizers.fast_encoding import Encode, Ids, blank_pattern, engine

MODEL_FILE = "tokenizer.model"
SPECIAL = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
BULK = 50_000  # characters from which the faster engine is worth making
SLICE = 1 << 20  # characters at a time for the slower one, whose results take a hundred times the memory of the text


class Encoding(NamedTuple):
    """The tokens of a text, and where in it each one is: characters start … end − 1."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Reader(Protocol):
    """Encodes where the `tokenizers` library would not do so exactly."""

    def encode(self, text: str) -> list[int]: ...

    def encode_with_offsets(self, text: str) -> Encoding: ...


class Tokenizer:
    """Text to token ids and back; `backend` is the `tokenizers` object that is saved and does most of the work.

    >>> tokenizer = headway.tokenizers.train("char", ["to be or not to be"])
    >>> tokenizer.decode(tokenizer.encode("to be"))
    'to be'
    """

    def __init__(
        self,
        backend: rust.Tokenizer,
        *,
        bos: str | None = None,
        eos: str | None = None,
        unk: str | None = None,
        pad: str | None = None,
        cls: str | None = None,
        sep: str | None = None,
        mask: str | None = None,
        reader: "Reader | None" = None,
        model_file: bytes | None = None,
        counts: Mapping[str, int] | None = None,
        extra: dict[str, Any] | None = None,
    ):
        self.backend = backend
        self.special_tokens = {"bos": bos, "eos": eos, "unk": unk, "pad": pad, "cls": cls, "sep": sep, "mask": mask}
        self.reader = reader  # encodes in place of the backend
        self.model_file = model_file  # what `reader` was made from, saved beside the rest
        self.counts = counts  # how often each token stood in the text it was made from, where that was counted
        self.extra = extra or {}  # what else tokenizer_config.json said, kept for those who wrote it
        self.backend.no_truncation()
        self.backend.no_padding()

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_text_backend", "_engine", "_prepended", "vocab_size", "drops_blanks")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __repr__(self) -> str:
        special = {name: token for name, token in self.special_tokens.items() if token is not None}
        return f"Tokenizer({self.kind}, {self.vocab_size} tokens, {special})"

    @property
    def kind(self) -> str:
        """BPE, WordPiece, Unigram or WordLevel: what the pieces are made by."""
        return type(self.backend.model).__name__

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def bos_id(self) -> int | None:
        return self._special_id("bos")

    @property
    def eos_id(self) -> int | None:
        return self._special_id("eos")

    @property
    def unk_id(self) -> int | None:
        return self._special_id("unk")

    @property
    def pad_id(self) -> int:
        """What fills rows up; nothing looks at it, so without a token of its own any will do."""
        id = self._special_id("pad")
        return id if id is not None else self.eos_id or 0

    @property
    def mask_id(self) -> int | None:
        return self._special_id("mask")

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens[name]
        return None if token is None else self.backend.token_to_id(token)

    def token(self, id: int) -> str:
        """The token of an id as its vocabulary spells it: "Ġthe", "##ing", "<unk>"."""
        token = self.backend.id_to_token(id)
        if token is None:
            raise InputError(f"there is no token {id}: this vocabulary has ids 0 to {self.vocab_size - 1}")
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a token as its vocabulary spells it; None where there is no such token."""
        return self.backend.token_to_id(token)

    @property
    def special_ids(self) -> dict[str, int]:
        """Every special token and its id, the named ones and others."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: id for id, token in sorted(added.items()) if token.special}

    # ── encoding ──────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """The same as arrays; whole corpora go through a faster engine, with the same ids."""
        check_texts(texts)
        if self.reader is not None:
            return [np.array(self.reader.encode(text), dtype=np.uint32) for text in texts]
        is_bulk = "_engine" in self.__dict__ or sum(map(len, texts)) >= BULK
        found: list[Ids] = []
        for some in _slices(texts):
            if is_bulk and self._engine is not None:
                found += self._engine(some)
            else:
                encoded = self._text_backend.encode_batch_fast(some, add_special_tokens=False)
                found += [np.array(e.ids, dtype=np.uint32) for e in encoded]
        return found

    def encode_with_offsets(self, text: str) -> Encoding:
        """Ids, and the characters of the text that each one stands for."""
        check_texts([text])
        if self.reader is not None:
            return self.reader.encode_with_offsets(text)
        encoded = self._text_backend.encode(text, add_special_tokens=False)
        ids, offsets = encoded.ids, encoded.offsets
        if encoded.tokens[:1] == [self._prepended]:
            offsets[0] = (0, 0)  # it stands for no character of the text, but the library gives it the first
        return Encoding(ids, offsets)

    @cached_property
    def _prepended(self) -> str | None:
        """What the tokenizer puts before every text, such as "▁"."""
        normalizer = json.loads(self._text_backend.to_str())["normalizer"] or {}
        steps = normalizer.get("normalizers", [normalizer])
        return next((step["prepend"] for step in steps if step.get("type") == "Prepend"), None)

    @cached_property
    def _engine(self) -> Encode | None:
        return engine(self._text_backend)

    @cached_property
    def _text_backend(self) -> rust.Tokenizer:
        """The backend made to read all text as text (rule 2).

        Special tokens that are words of a vocabulary would be found in a text that spells them; here they have names
        that no text has, and no merge leads to them.
        """
        document = json.loads(self.backend.to_str())
        document["post_processor"] = None  # which may move offsets
        model = document["model"]
        hidden = {token["content"] for token in document["added_tokens"] if token["special"]}
        rename = {token: f"\ufdd0{token}" for token in hidden}  # U+FDD0 is for internal use, by definition
        if isinstance(model["vocab"], dict):
            model["vocab"] = {rename.get(token, token): id for token, id in model["vocab"].items()}
        else:
            model["vocab"] = [[rename.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") in rename:
            model["unk_token"] = rename[model["unk_token"]]
        if "merges" in model:
            pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
            model["merges"] = [pair for pair in pairs if not hidden & {*pair, "".join(pair)}]
        for token in document["added_tokens"]:
            token["content"] = rename.get(token["content"], token["content"])
        backend = rust.Tokenizer.from_str(json.dumps(document))
        backend.encode_special_tokens = True
        return backend

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of these ids; special tokens are left out unless asked for."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=not special)

    # ── beginning and end ─────────────────────────────────────────────────────────────────────────────────────────

    def frame(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """One text or two as an encoder reads them, and which of the two each token belongs to.

        [CLS] first [SEP] second [SEP] (Devlin et al. 2019, §3), or begin and end in their place.
        """
        begin = self._special_id("cls" if self.special_tokens["cls"] else "bos")
        end = self._special_id("sep" if self.special_tokens["sep"] else "eos")
        tail = [] if end is None else [end]
        ids = [*([] if begin is None else [begin]), *first, *tail]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, *tail]
            segments += [1] * (len(ids) - len(segments))
        return ids, segments

    def prompt(self, text: str) -> list[int]:
        """The ids to continue (rule 5)."""
        ids = self.encode(text)
        if not ids:
            if self.bos_id is None:
                raise InputError(
                    "an empty prompt needs a begin token to start from, and this tokenizer has none; give some text"
                )
            ids = [self.bos_id]
        return ids

    def stream(self, documents: Iterable[str]) -> list[int]:
        """Documents as training and scoring see them (rule 3), in one row."""
        return self.stream_with_begins(documents)[0]

    def stream_with_begins(self, documents: Iterable[str]) -> tuple[list[int], list[int]]:
        """The same, and the places of the begin tokens that are given, not predicted."""
        ids: list[int] = []
        begins: list[int] = []
        for tokens in self.framed_arrays(list(documents)):
            if self.bos_id is not None and not (ids and self.shares_boundary):
                begins.append(len(ids))
            ids += tokens.tolist()
        return ids, begins

    def framed_arrays(self, documents: Sequence[str], *, is_first: bool = True) -> list[Ids]:
        """Each document with its begin and end; joined, they are the stream. Where one token is both, only the first
        document of a stream has a begin of its own."""
        bos, eos, shares = self.bos_id, self.eos_id, self.shares_boundary
        begin, end = (np.array([] if id is None else [id], dtype=np.uint32) for id in (bos, eos))
        found = []
        for ids in self.encode_arrays(documents):
            found.append(np.concatenate([begin, ids, end] if is_first or not shares else [ids, end]))
            is_first = False
        return found

    @cached_property
    def drops_blanks(self) -> bool:
        """Words are cut at blanks, which are no part of them."""
        return blank_pattern(json.loads(self.backend.to_str())["pre_tokenizer"]) is not None

    @property
    def shares_boundary(self) -> bool:
        """One token both ends a document and begins the next."""
        return self.bos_id is not None and self.bos_id == self.eos_id

    def lost_bytes(self, text: str) -> int:
        """UTF-8 bytes that are in <unk>, or in no token, so that no decoder can bring them back.

        A tokenizer that changes what it keeps (lower case, say), or whose offsets do not say what it dropped, is
        refused: no number of bytes says what it lost.
        """
        ids = self.encode(text)
        if self.decode(ids) == text:
            return 0
        encoded = self.encode_with_offsets(text)
        if self.drops_blanks:  # between words there is one space; any other blank is lost
            spans = encoded.offsets
            gaps = sum(text[a:b] == " " for (_, a), (b, _) in pairwise(spans))
            words = sum(
                len(text[a:b].encode()) for i, (a, b) in zip(encoded.ids, spans, strict=True) if i != self.unk_id
            )
            return len(text.encode()) - words - gaps
        known = [(i, span) for i, span in zip(encoded.ids, encoded.offsets, strict=True) if i != self.unk_id]
        kept = "".join(text[start:end] for _, (start, end) in known)
        if self.decode([i for i, _ in known]) != kept:
            raise InputError(
                "this tokenizer changes the text it encodes (case, spaces, accents or more), so bits per byte of the "
                "text itself cannot be given; use a tokenizer that keeps it, such as byte-level BPE"
            )
        return len(text.encode()) - len(kept.encode())

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint give the same ids for every text."""
        document = json.dumps([json.loads(self.backend.to_str()), self.special_tokens], sort_keys=True)
        return hashlib.sha256(document.encode() + (self.model_file or b"")).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which transformers.AutoTokenizer opens."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        document = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.extra,
            **{f"{name}_token": token for name, token in self.special_tokens.items() if token is not None},
            **({"headway_reads": MODEL_FILE} if self.model_file is not None else {}),
        }
        write_text(folder / "tokenizer_config.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        if self.model_file is not None:
            write_bytes(folder / MODEL_FILE, self.model_file)
        if self.counts is not None:
            lines = (f"{json.dumps(token, ensure_ascii=False)}\t{n}\n" for token, n in self.counts.items())
            write_text(folder / "counts.tsv", "".join(lines))


def _slices(texts: Sequence[str]) -> Iterable[list[str]]:
    """The texts in their order, some at a time."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > SLICE:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield some


def check_texts(texts: Iterable[str]) -> None:
    """Refuse strings that are not Unicode: half of a surrogate pair, as from bytes that were not UTF-8."""
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{text!r:.60} is of type {type(text).__name__}, not text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text, {text[error.start]!r}, is no Unicode character: "
                f"was it read from bytes that are not UTF-8?"
            ) from None


class TextStream:
    """Token ids in, text out as soon as it is certain.

    A character may be spread over several tokens: bytes that do not end on a character are held back. `after`: the
    token before the first, which may say whether a space stands between.
    """

    def __init__(self, tokenizer: Tokenizer, after: int | None = None):
        self.tokenizer = tokenizer
        self.ids: list[int] = [] if after is None else [after]
        self.start = 0  # decoding begins here: one emitted piece back, for decoders that look at their neighbour
        self.emitted = len(self.ids)  # ids whose text is out

    def push(self, id: int) -> str:
        self.ids.append(int(id))
        return self._take(hold=True)

    def flush(self) -> str:
        """What was held back, finished or not."""
        return self._take(hold=False)

    def _take(self, *, hold: bool) -> str:
        before = self.tokenizer.decode(self.ids[self.start : self.emitted])
        text = self.tokenizer.decode(self.ids[self.start :])
        if (hold and text.endswith("\ufffd")) or len(text) <= len(before):
            return ""
        self.start, self.emitted = self.emitted, len(self.ids)
        return text[len(before) :]
