"""A model of one's own class: the methods of the contract, without any of Headway's base classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import headway
from headway.tokenizers import Tokenizer


@dataclass(frozen=True)
class Nothing:
    """A state that remembers only how many tokens there were."""

    length: Tensor  # (B,)
    nbytes: int = 0

    def reorder(self, rows: Tensor | Sequence[int]) -> "Nothing":
        return Nothing(self.length[torch.as_tensor(rows)])

    def copy(self) -> "Nothing":
        return Nothing(self.length.clone())


class Unigram:
    """Every token by its frequency, whatever came before."""

    def __init__(self, tokenizer: Tokenizer, text: str):
        self.tokenizer = tokenizer
        counts = torch.bincount(torch.tensor(tokenizer.encode_stream([text])), minlength=tokenizer.vocab_size)
        self.logits = (counts + 0.1).log()

    def __call__(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.logits.expand(*ids.shape, -1)

    def start(self, batch_size: int = 1) -> Nothing:
        return Nothing(torch.zeros(batch_size, dtype=torch.long))

    def step(self, ids: Tensor, state: Nothing, lengths: Tensor | None = None) -> tuple[Tensor, Nothing]:
        n_new = torch.full_like(state.length, ids.shape[1]) if lengths is None else lengths
        return self(ids), Nothing(state.length + n_new)


def main(text: str = "to be or not to be") -> None:
    tokenizer = headway.tokenizers.train("char", [text])
    model = Unigram(tokenizer, text)
    print(headway.evaluate(model, text).bits_per_byte)
    for completion in headway.complete(model, ["to", "be"], max_new_tokens=5, seed=1):
        print(repr(completion.text), completion.logprob)


if __name__ == "__main__":
    main()
