"""SentencePiece `.model` files, read by the `sentencepiece` library itself.

The `tokenizers` library can load the same vocabularies, but its ids differ: it breaks ties between equally good
segmentations in another way ("====" becomes "=" "===" where SentencePiece says "===" "="), and its normalizer drops
accents after some characters. So ids, offsets and decoding all come from `SentencePieceProcessor`, and such a tokenizer
is saved as its `.model` file, which transformers opens with the same library.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.errors import CheckpointError, InputError, install_command
from headway.file_reading import read_bytes
from headway.files import write_bytes
from headway.tokenizers.base import SPECIAL_TOKEN_NAMES, Encoding, Tokenizer, check_texts, check_token_ids
from headway.tokenizers.fast_encoding import Ids
from headway.tokenizers.file_limits import MAX_TOKENIZER_BYTES

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

MODEL_FILE = "tokenizer.model"


class SentencePieceTokenizer(Tokenizer):
    """The `Tokenizer` interface around a SentencePiece model of any type: unigram, BPE, char or word.

    Control symbols and <unk> are its special tokens; user-defined symbols are ordinary tokens.
    """

    kind = "SentencePiece"
    drops_whitespace = False

    def __init__(self, processor: "SentencePieceProcessor", model: bytes):
        self.processor = processor
        self.model = model  # the content of the .model file
        ids = {
            "bos": processor.bos_id(),
            "eos": processor.eos_id(),
            "unk": processor.unk_id(),
            "pad": processor.pad_id(),
        }
        self.special_tokens: dict[str, str | None] = dict.fromkeys(SPECIAL_TOKEN_NAMES)
        self.special_tokens |= {name: processor.id_to_piece(id) for name, id in ids.items() if id >= 0}
        self.counts = None
        self.extra: dict[str, Any] = {}

    @cached_property
    def vocab(self) -> dict[str, int]:
        return {self.processor.id_to_piece(id): id for id in range(self.vocab_size)}

    @property
    def vocab_size(self) -> int:
        return self.processor.piece_size()

    def token(self, id: int) -> str:
        if not 0 <= id < self.vocab_size:
            raise InputError(f"no token has id {id}: the ids of this vocabulary are 0 to {self.vocab_size - 1}")
        return self.processor.id_to_piece(id)

    def token_id(self, token: str) -> int | None:
        return self.vocab.get(token)

    @cached_property
    def special_ids(self) -> dict[str, int]:
        is_control, is_unknown = self.processor.is_control, self.processor.is_unknown
        return {token: id for token, id in self.vocab.items() if is_control(id) or is_unknown(id)}

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        check_texts(texts)
        return [np.array(self.processor.encode(text), dtype=np.uint32) for text in texts]

    def encode_with_offsets(self, text: str) -> Encoding:
        check_texts([text])
        try:
            encoding = self.processor.encode(text, return_type="offset_mapping")
        except RuntimeError as error:  # a BPE model encodes a one-character control symbol, but cannot locate it
            normalized = self.processor.normalize(text)
            controls = [token for token in self.special_ids if len(token) == 1 and token in normalized]
            reason = f"the text contains the control symbol {controls[0]!r}" if controls else str(error)
            raise InputError(f"SentencePiece gives no offsets for this text: {reason}") from None
        return Encoding(encoding["ids"], encoding["offsets"])

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        return [self.encode_with_offsets(text) for text in texts]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        ids = check_token_ids(ids)
        special = self._special_tokens_by_id
        if ids and max(ids) >= self.vocab_size:
            raise InputError(f"token id {max(ids)} is not in this vocabulary of 0 to {self.vocab_size - 1}")
        if special.keys().isdisjoint(ids):
            return self.processor.decode(ids)
        decoded = self.processor.decode(ids, return_type="offset_mapping")
        text, spans = decoded["text"], zip(ids, decoded["offsets"], strict=True)
        shown = {} if skip_special_tokens else special
        return "".join(shown.get(i, "") if i in special else text[start:end] for i, (start, end) in spans)

    @cached_property
    def _special_tokens_by_id(self) -> dict[int, str]:
        return {id: token for token, id in self.special_ids.items()}

    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def save(self, folder: str | Path, *, has_segments: bool | None = None) -> None:
        """Write `tokenizer.model` and `tokenizer_config.json`, which transformers.AutoTokenizer opens."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / MODEL_FILE, self.model)
        self._write_config(folder, "SentencePieceBackend")


def load_sentencepiece(path: str | Path) -> SentencePieceTokenizer:
    """Load the tokenizer of a SentencePiece `.model` file."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise CheckpointError(
            f"{path}: SentencePiece models need sentencepiece: {install_command('sentencepiece')}"
        ) from None
    try:
        model = read_bytes(path, max_bytes=MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        tokenizer = SentencePieceTokenizer(processor, model)
        n_tokens = len(tokenizer.vocab)
    except (RuntimeError, UnicodeDecodeError):
        raise CheckpointError(f"{path} is damaged or not a SentencePiece model: copy it again") from None
    if n_tokens != tokenizer.vocab_size:
        raise CheckpointError(f"{path} is damaged: two of its pieces are equal; copy it again")
    return tokenizer
