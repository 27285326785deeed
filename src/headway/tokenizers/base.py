"""The interface of all tokenizers, and the conventions for BOS and EOS.

The conventions hold for every model family and every kind of tokenizer:

1. A tokenizer may have a BOS token and an EOS token; one token may be both (GPT-2's <|endoftext|>).
2. `encode` returns the tokens of the text and adds none: `decode(encode(text)) == text`, except that characters outside
   the vocabulary become <unk>, which decodes to nothing. Special tokens in a text, such as "<|endoftext|>", are encoded
   as ordinary text.
3. Training and scoring see each document as BOS, its tokens, EOS. BOS is given; every other token is predicted,
   including EOS. If one token is both, documents share it: … text, <|endoftext|>, text …
4. Without a BOS token the first token of a text has no context. It is scored as uniform over the vocabulary: log2 V
   bits, for every model family.
5. A prompt is continued without adding tokens. An empty prompt becomes BOS alone, which is unconditional generation;
   without a BOS token an empty prompt is an error.
6. Generation stops at EOS, which is not part of the generated text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers as rust

from headway.errors import CheckpointError, InputError
from headway.files import write_text
from headway.tokenizers.fast_encoding import BatchEncoder, Ids, fast_encoder, whitespace_split_pattern
from headway.tokenizers.native_errors import native_errors

SPECIAL_TOKEN_NAMES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
ENCODER_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # in transformers
FAST_ENCODER_MIN_CHARS = 50_000  # below this, building the fast encoder costs more than it saves
MAX_BATCH_CHARS = 1 << 20  # per call to `tokenizers`, whose results take 100 times the memory of the text
MAX_TEXT_CHARS = 1 << 24  # of one text, which then takes 2 GB; the fast encoder takes longer ones
MAX_TOKEN_ID = (1 << 32) - 1  # of the tokenizers library
TEXT_IS_CHANGED = (
    "this tokenizer changes the text it encodes (case, spaces or accents, for example), so bits per byte is undefined; "
    "use a lossless tokenizer such as byte-level BPE"
)


class Encoding(NamedTuple):
    """Token ids, and for each the span of characters (start, end) it covers; `end` is exclusive."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Converts text to token ids and back. `backend` is the `tokenizers` object that does the work.

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
        counts: Mapping[str, int] | None = None,
        extra: dict[str, Any] | None = None,
    ):
        self.backend = backend
        self.special_tokens = {"bos": bos, "eos": eos, "unk": unk, "pad": pad, "cls": cls, "sep": sep, "mask": mask}
        self.counts = counts  # frequency of each token in the training text; None if it was not counted
        self.extra = extra or {}  # the other keys of tokenizer_config.json, written back by `save`
        self.backend.no_truncation()
        self.backend.no_padding()

    def __getstate__(self) -> dict[str, Any]:
        derived = (
            "_plain_text_backend", "_masked_text_backend", "_fast_encoder", "_prepended", "vocab_size",
            "drops_whitespace",
        )  # fmt: skip
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __repr__(self) -> str:
        special = {name: token for name, token in self.special_tokens.items() if token is not None}
        return f"Tokenizer({self.kind}, {self.vocab_size} tokens, {special})"

    @property
    def kind(self) -> str:
        """The class of the tokenizer's model: BPE, WordPiece, Unigram, WordLevel or SentencePiece."""
        return type(self.backend.model).__name__

    @property
    def vocab(self) -> dict[str, int]:
        """All tokens with their ids, special tokens included."""
        return self.backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return 1 + max(self.vocab.values(), default=-1)

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
        """The id for padding. Padding is always masked, so without a pad token any id serves: EOS, else 0."""
        id = self._special_id("pad")
        return id if id is not None else self.eos_id or 0

    @property
    def mask_id(self) -> int | None:
        return self._special_id("mask")

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens[name]
        return None if token is None else self.token_id(token)

    def token(self, id: int) -> str:
        """The token with this id as the vocabulary spells it: "Ġthe", "##ing", "<unk>"."""
        token = self.backend.id_to_token(id)
        if token is None:
            raise InputError(f"no token has id {id}: the ids of this vocabulary are 0 to {self.vocab_size - 1}")
        return token

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it; None if the vocabulary does not have it."""
        return self.backend.token_to_id(token)

    @property
    def special_ids(self) -> dict[str, int]:
        """Every special token with its id, including those without a role such as BOS."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: id for id, token in sorted(added.items()) if token.special}

    # ── encoding and decoding ─────────────────────────────────────────────────────────────────────────────────────

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; no special tokens are added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        """`encode_batch` as arrays. Large batches go through a faster encoder, which returns the same ids."""
        check_texts(texts)
        use_fast = "_fast_encoder" in self.__dict__ or sum(map(len, texts)) >= FAST_ENCODER_MIN_CHARS
        results: list[Ids] = []
        for batch in _batches(texts):
            with native_errors("encoding this text"):
                if use_fast and self._fast_encoder is not None:
                    results += self._fast_encoder(batch)
                else:
                    _check_length(batch)
                    encodings = self._plain_text_backend.encode_batch_fast(batch, add_special_tokens=False)
                    results += [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        return results

    def encode_with_offsets(self, text: str) -> Encoding:
        """Token ids, and the span of characters that each token covers."""
        return self.encode_batch_with_offsets([text])[0]

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """`encode_with_offsets` of each text, several times as fast as one by one."""
        check_texts(texts)
        _check_length(texts)
        results: list[Encoding] = []
        for batch in _batches(texts):
            with native_errors("encoding this text"):  # as a batch, which leaves the GIL to other threads
                encodings = self._plain_text_backend.encode_batch(batch, add_special_tokens=False)
            results += [self._with_offsets(*pair) for pair in zip(batch, encodings, strict=True)]
        return results

    def _with_offsets(self, text: str, encoding: rust.Encoding) -> Encoding:
        ids, offsets = encoding.ids, encoding.offsets
        if encoding.tokens[:1] == [self._prepended]:
            offsets[0] = (0, 0)  # it covers no character of the text; the library assigns it the first one
        if any(end > len(text) for _, end in offsets):
            raise InputError(
                f"the normalizer of this tokenizer rewrites {text[:20]!r}, so the offsets of its tokens are unknown: "
                f"use another tokenizer for tags and spans"
            )
        return Encoding(ids, offsets)

    @cached_property
    def _prepended(self) -> str | None:
        """The string that the normalizer prepends to every text, such as "▁"; None if it prepends nothing."""
        normalizer = json.loads(self._plain_text_backend.to_str())["normalizer"] or {}
        steps = normalizer.get("normalizers", [normalizer])
        return next((step["prepend"] for step in steps if step.get("type") == "Prepend"), None)

    @cached_property
    def _fast_encoder(self) -> BatchEncoder | None:
        return fast_encoder(self._plain_text_backend)

    def encode_with_masks(self, text: str) -> list[int]:
        """The token ids of a text in which the mask token, such as "[MASK]", stands for itself. Other special tokens
        are ordinary text, as in `encode`."""
        check_texts([text])
        _check_length([text])
        with native_errors("encoding this text"):
            [encoding] = self._masked_text_backend.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    @cached_property
    def _plain_text_backend(self) -> rust.Tokenizer:
        """The backend, changed to encode special tokens in a text as ordinary text (rule 2)."""
        backend = self._without_special_tokens()
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _masked_text_backend(self) -> rust.Tokenizer:
        """The same, except for the mask token."""
        return self._without_special_tokens(but=self.special_tokens["mask"])

    def _without_special_tokens(self, but: str | None = None) -> rust.Tokenizer:
        """The backend without special tokens that a text could contain.

        If a special token is also in the model's vocabulary, the model would match it. So special tokens get names that
        no text contains, and merges that lead to them are removed.
        """
        document = json.loads(self.backend.to_str())
        document["post_processor"] = None  # it may shift offsets
        model = document["model"]
        special = {token["content"] for token in document["added_tokens"] if token["special"]} - {but}
        rename = {token: f"\ufdd0{token}" for token in special}  # U+FDD0 is a noncharacter, reserved for internal use
        if isinstance(model["vocab"], dict):
            model["vocab"] = {rename.get(token, token): id for token, id in model["vocab"].items()}
        else:
            model["vocab"] = [[rename.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") in rename:
            model["unk_token"] = rename[model["unk_token"]]
        if "merges" in model:
            pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
            model["merges"] = [pair for pair in pairs if not special & {*pair, "".join(pair)}]
        for token in document["added_tokens"]:
            token["content"] = rename.get(token["content"], token["content"])
        with native_errors("preparing this tokenizer to encode text", error=CheckpointError):
            return rust.Tokenizer.from_str(json.dumps(document))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. Special tokens are left out, or spelled out with `skip_special_tokens=False`."""
        ids = check_token_ids(ids)
        with native_errors("decoding these token ids"):  # as a batch of one, which leaves the GIL to other threads
            return self.backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    # ── BOS and EOS ───────────────────────────────────────────────────────────────────────────────────────────────

    def build_inputs(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """The input ids of an encoder for one text or a pair, and the segment id (0 or 1) of each token.

        [CLS] first [SEP] second [SEP] (Devlin et al. 2019, §3); without [CLS] and [SEP], BOS and EOS take their place.
        """
        start = self._special_id("cls" if self.special_tokens["cls"] else "bos")
        end = self._special_id("sep" if self.special_tokens["sep"] else "eos")
        suffix = [] if end is None else [end]
        ids = [*([] if start is None else [start]), *first, *suffix]
        segments = [0] * len(ids)
        if second is not None:
            ids += [*second, *suffix]
            segments += [1] * (len(ids) - len(segments))
        return ids, segments

    def encode_prompt(self, text: str) -> list[int]:
        """The ids that generation continues (rule 5)."""
        ids = self.encode(text)
        if not ids:
            if self.bos_id is None:
                raise InputError("an empty prompt needs a BOS token, and this tokenizer has none; pass some text")
            ids = [self.bos_id]
        return ids

    def encode_stream(self, documents: Iterable[str]) -> list[int]:
        """Documents as training and scoring see them (rule 3), concatenated."""
        return self.encode_stream_with_bos_positions(documents)[0]

    def encode_stream_with_bos_positions(self, documents: Iterable[str]) -> tuple[list[int], list[int]]:
        """`encode_stream`, and the positions of the BOS tokens that are given rather than predicted."""
        ids: list[int] = []
        bos_positions: list[int] = []
        for tokens in self.encode_documents(list(documents)):
            if self.bos_id is not None and not (ids and self.bos_is_eos):
                bos_positions.append(len(ids))
            ids += tokens.tolist()
        return ids, bos_positions

    def encode_documents(self, documents: Sequence[str], *, is_first: bool = True) -> list[Ids]:
        """Each document with its BOS and EOS; concatenated, they are the stream.

        If BOS and EOS are one token, only the first document of a stream starts with it: set `is_first=False` for
        documents that continue a stream.
        """
        bos, eos = (np.array([] if id is None else [id], dtype=np.uint32) for id in (self.bos_id, self.eos_id))
        shared = self.bos_is_eos
        results = []
        for ids in self.encode_arrays(documents):
            results.append(np.concatenate([bos, ids, eos] if is_first or not shared else [ids, eos]))
            is_first = False
        return results

    @cached_property
    def drops_whitespace(self) -> bool:
        """Whether the pre-tokenizer splits at whitespace and discards it."""
        return whitespace_split_pattern(json.loads(self.backend.to_str())["pre_tokenizer"]) is not None

    @property
    def bos_is_eos(self) -> bool:
        """Whether one token both ends a document and starts the next."""
        return self.bos_id is not None and self.bos_id == self.eos_id

    def lost_bytes(self, text: str) -> int:
        """UTF-8 bytes of the text that are in <unk> or in no token, so that no decoder can restore them.

        Raises `InputError` if the tokenizer changes the text (by lower-casing, say), or if its offsets do not show what
        it dropped: then no byte count measures the loss.
        """
        ids = self.encode(text)
        if self.decode(ids) == text:
            return 0
        encoding = self.encode_with_offsets(text)
        known = [(i, span) for i, span in zip(encoding.ids, encoding.offsets, strict=True) if i != self.unk_id]
        if any(start < end for (_, (_, end)), (_, (start, _)) in pairwise(known)):  # two tokens for the same characters
            raise InputError(TEXT_IS_CHANGED)
        covered = "".join(text[start:end] for _, (start, end) in known)
        if self.drops_whitespace:  # decoding puts one space between words; any other whitespace is lost
            if self.decode([i for i, _ in known]) != " ".join(text[start:end] for _, (start, end) in known):
                raise InputError(TEXT_IS_CHANGED)
            spaces = sum(text[end:start] == " " for (_, end), (start, _) in pairwise(encoding.offsets))
            return len(text.encode()) - len(covered.encode()) - spaces
        is_unk_decoded = self.unk_id not in self.special_ids.values()  # some files do not mark <unk> as special
        if self.decode([i for i, _ in known] if is_unk_decoded else encoding.ids) != covered:
            raise InputError(TEXT_IS_CHANGED)
        return len(text.encode()) - len(covered.encode())

    def unknown_text(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary does not have, in order: they become <unk>, or vanish.

        >>> headway.tokenizers.train("char", ["to be"]).unknown_text("to bee?")
        ['?']
        """
        ids, unk_id = self.encode(text), self.unk_id
        if unk_id not in ids if unk_id is not None else self.decode(ids) == text:
            return []
        if unk_id is None:  # a character outside the vocabulary is in no token at all, and offsets do not show it
            return [char for char in text if not char.isspace() and not self.decode(self.encode(char)).strip()]
        encoding = self.encode_with_offsets(text)
        pieces = [text[start:end] for id, (start, end) in zip(*encoding, strict=True) if id == unk_id]
        return [piece.strip() or piece for piece in pieces]  # a word may come with the space before it

    # ── on disk ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fingerprint(self) -> str:
        """A hash. Tokenizers with equal fingerprints return the same ids for every text."""
        document = json.dumps([json.loads(self.backend.to_str()), self.special_tokens], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()

    def save(self, folder: str | Path, *, has_segments: bool | None = None) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which transformers.AutoTokenizer opens. With an encoder,
        `has_segments` says whether it tells the two texts of a pair apart."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        self._write_config(folder, "PreTrainedTokenizerFast", has_segments=has_segments)
        if self.counts is not None:
            lines = (f"{json.dumps(token, ensure_ascii=False)}\t{n}\n" for token, n in self.counts.items())
            write_text(folder / "counts.tsv", "".join(lines))

    def _write_config(self, folder: Path, tokenizer_class: str, *, has_segments: bool | None = None) -> None:
        document = {"tokenizer_class": tokenizer_class, "clean_up_tokenization_spaces": False, **self.extra}
        if has_segments is not None and self.special_tokens["cls"] is not None:
            # By default AutoTokenizer returns no segments, and the second text of a pair would be in the first.
            document["model_input_names"] = [n for n in ENCODER_INPUT_NAMES if has_segments or n != "token_type_ids"]
        document |= {f"{name}_token": token for name, token in self.special_tokens.items() if token is not None}
        write_text(folder / "tokenizer_config.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in order, in batches of at most MAX_BATCH_CHARS characters or one text."""
    batch: list[str] = []
    n_chars = 0
    for text in texts:
        if batch and n_chars + len(text) > MAX_BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
        batch.append(text)
        n_chars += len(text)
    if batch:
        yield batch


def _check_length(texts: Sequence[str]) -> None:
    for text in texts:
        if len(text) > MAX_TEXT_CHARS:
            raise InputError(
                f"a text of {len(text):,} characters is too long for this tokenizer, which has to encode it in one "
                f"piece: split it into documents of at most {MAX_TEXT_CHARS:,}"
            )


def check_token_ids(ids: Iterable[int]) -> list[int]:
    """Token ids as Python integers; refuses numbers that no token can have."""
    checked = [int(i) for i in ids]
    if checked and (min(checked) < 0 or max(checked) > MAX_TOKEN_ID):
        invalid_id = next(i for i in checked if not 0 <= i <= MAX_TOKEN_ID)
        raise InputError(f"{invalid_id} is not a token id: ids are whole numbers from 0 to the size of the vocabulary")
    return checked


def check_texts(texts: Iterable[str]) -> None:
    """Refuse values that are not valid Unicode text, such as a lone surrogate from bytes that were not UTF-8."""
    for text in texts:
        if isinstance(text, str) and text.isascii():
            continue  # no surrogates, and no copy of a text that may be long
        if not isinstance(text, str):
            raise InputError(f"expected text, got {text!r:.60} of type {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text, {text[error.start]!r}, is a lone surrogate, not a Unicode "
                f"character; was the text decoded from bytes that are not UTF-8?"
            ) from None
