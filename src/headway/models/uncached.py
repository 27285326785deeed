"""A language model that needs only `forward`: for trying out an idea before writing its cache.

    class Mine(UncachedLM):
        def forward(self, ids, lengths=None): ...          # (B, T) → logits (B, T, V)

Every step runs `forward` over all tokens so far: T calls on up to T tokens each, slow but correct by definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.models.base import Model, last_real, mask_padding
from headway.models.builders import check_batch_size
from headway.nn.state import describe_state, row_indices


@dataclass(frozen=True, repr=False)
class TokenPrefix:
    """All tokens so far (B, N), right-padded: the state of a model without a cache."""

    tokens: Tensor
    length: Tensor  # (B,)

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def append(self, ids: Tensor, lengths: Tensor | None) -> "TokenPrefix":
        """The prefix after the new tokens (B, T), of which the first `lengths` (B,) are real."""
        n_new = torch.full_like(self.length, ids.shape[1]) if lengths is None else lengths.to(self.length.device)
        tokens = torch.cat((self.tokens, torch.zeros_like(ids)), dim=1)
        columns = self.length[:, None] + torch.arange(ids.shape[1], device=ids.device)
        return TokenPrefix(tokens.scatter(1, columns, ids), self.length + n_new)

    def reorder(self, rows: Tensor | Sequence[int]) -> "TokenPrefix":
        rows = row_indices(rows, self.length)
        return TokenPrefix(self.tokens[rows], self.length[rows])

    def copy(self) -> "TokenPrefix":
        return TokenPrefix(self.tokens.clone(), self.length.clone())


class UncachedLM(Model):
    """Base of language models that define `forward(ids, lengths)` and recompute all tokens at every step."""

    def start(self, batch_size: int = 1, capacity: int | None = None) -> TokenPrefix:
        """The empty prefix. `capacity` is ignored: the prefix grows."""
        length = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return TokenPrefix(length.new_zeros(batch_size, 0), length)

    @torch.no_grad()
    def step(
        self, ids: Tensor, state: TokenPrefix, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, TokenPrefix]:
        """Logits (B, T, V) after each new token (B, T); with `last`, (B, 1, V) after each row's last real token."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        prefix = state.append(ids.long(), lengths)
        logits = self(prefix.tokens, lengths=prefix.length)
        columns = state.length[:, None] + torch.arange(ids.shape[1], device=ids.device)
        logits = logits.gather(1, columns[..., None].expand(-1, -1, logits.shape[-1]))
        return (last_real(logits, lengths) if last else logits), prefix
