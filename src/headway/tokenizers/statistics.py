"""How well a tokenizer fits a text: tokens per word, characters per token, unknown tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class TokenizerStats:
    """Counts of a tokenizer on texts. Words are separated by whitespace (Rust et al. 2021, §3.1)."""

    characters: int
    bytes: int
    words: int
    tokens: int
    distinct_tokens: int
    unknown: int  # <unk> tokens

    @property
    def characters_per_token(self) -> float:
        return self.characters / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens if self.tokens else 0.0

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.tokens / self.words if self.words else 0.0

    def to_dict(self) -> dict[str, Any]:
        averages = {name: getattr(self, name) for name in ("characters_per_token", "bytes_per_token", "fertility")}
        return {**self.__dict__, **averages}


def measure_tokenizer(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenizerStats:
    ids = [id for row in tokenizer.encode_batch(texts) for id in row]
    return TokenizerStats(
        characters=sum(map(len, texts)),
        bytes=sum(len(text.encode()) for text in texts),
        words=sum(len(text.split()) for text in texts),
        tokens=len(ids),
        distinct_tokens=len(set(ids)),
        unknown=0 if tokenizer.unk_id is None else ids.count(tokenizer.unk_id),
    )
