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

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers as rust

from headway.errors import CheckpointError, InputError

SPECIAL = ("bos", "eos", "unk", "pad")


class Tokenizer:
    """Text to token ids and back; `backend` is the `tokenizers` object that does the work.

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
        extra: dict[str, Any] | None = None,
    ):
        self.backend = backend
        self.special = {"bos": bos, "eos": eos, "unk": unk, "pad": pad}
        self.extra = extra or {}  # what else tokenizer_config.json said, kept for those who wrote it
        self._as_text()

    def _as_text(self) -> None:
        """Rule 2: what users write is text, all of it; a file may ask otherwise."""
        self.backend.encode_special_tokens = True
        self.backend.no_truncation()
        self.backend.no_padding()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._as_text()  # pickling the backend, as copying does, forgets it

    def __repr__(self) -> str:
        return f"Tokenizer({type(self.backend.model).__name__}, {self.vocab_size} tokens, {self.special})"

    @property
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

    def _special_id(self, name: str) -> int | None:
        token = self.special[name]
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        return [e.ids for e in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of these ids; special tokens are left out unless asked for."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=not special)

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
        bos, eos = self.bos_id, self.eos_id
        ids: list[int] = []
        begins: list[int] = []
        for tokens in self.encode_batch(list(documents)):
            if bos is not None and not (ids and bos == eos):
                begins.append(len(ids))
                ids.append(bos)
            ids += tokens
            if eos is not None:
                ids.append(eos)
        return ids, begins

    def lost_bytes(self, text: str) -> int:
        """UTF-8 bytes that are in <unk>, or in no token, so that no decoder can bring them back.

        A tokenizer that changes what it keeps (lower case, say), or whose offsets do not say what it dropped, is
        refused: no number of bytes says what it lost.
        """
        ids = self.encode(text)
        if self.decode(ids) == text:
            return 0
        encoded = self.backend.encode(text, add_special_tokens=False)
        known = [(i, span) for i, span in zip(encoded.ids, encoded.offsets, strict=True) if i != self.unk_id]
        kept = "".join(text[start:end] for _, (start, end) in known)
        if self.decode([i for i, _ in known]) != kept:
            raise InputError(
                "this tokenizer changes the text it encodes (case, spaces, accents or more), so bits per byte of the "
                "text itself cannot be given; use a tokenizer that keeps it, such as byte-level BPE"
            )
        return len(text.encode()) - len(kept.encode())

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which transformers.AutoTokenizer opens."""
        folder = Path(folder)
        self.backend.encode_special_tokens = False  # transformers expects to see special tokens as such
        try:
            self.backend.save(str(folder / "tokenizer.json"))
        finally:
            self.backend.encode_special_tokens = True
        document = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.extra,
            **{f"{name}_token": token for name, token in self.special.items() if token is not None},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


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


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a model directory, or in a `tokenizer.json`."""
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"no tokenizer at {path}: expected a tokenizer.json, or a folder with one")
    try:
        backend = rust.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the Rust side raises plain Exception
        raise CheckpointError(f"{file} is damaged or no tokenizer.json: {error}") from None
    extra: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (file.parent / name).is_file():
            try:
                document = json.loads((file.parent / name).read_text(encoding="utf-8"))
                extra |= dict(document.items())
            except (ValueError, AttributeError) as error:
                raise CheckpointError(f"{file.parent / name} is not a JSON object: {error}") from None
    special = {name: _token_text(extra.pop(f"{name}_token", None)) for name in SPECIAL}
    special["unk"] = special["unk"] or getattr(backend.model, "unk_token", None)  # also without tokenizer_config.json
    return Tokenizer(backend, **special, extra=extra)


def _token_text(token: Any) -> str | None:
    """A special token as transformers writes it: its text, or a table with the text as "content"."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


class TextStream:
    """Token ids in, text out as soon as it is certain.

    A character may be spread over several tokens: bytes that do not end on a character are held back.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.start = 0  # decoding begins here: one emitted piece back, for decoders that look at their neighbour
        self.emitted = 0  # ids whose text is out

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
