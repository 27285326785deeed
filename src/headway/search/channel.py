"""Noisy channel: of several translations, the one from which the source would most likely have been written.

Shannon 1948 and Brown et al. 1993 would have y, given x, by Bayes' rule,

    p(y | x) ∝ p(x | y) · p(y)

from a channel, a model that translates back, and a language model, which can learn from far more text. Here, as in Yee
et al. 2019, both have a say beside the direct model that proposed the candidates:

    score(y) = w_direct · ln p(y|x) / |y|  +  (w_channel · ln p(x|y) + w_lm · ln p(y)) / |x|  +  w_length · |y| / |x|

|x| and |y| are in tokens. The last term lets tuned weights undo a liking for short or long sentences.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from headway.errors import ConfigError, suggest


class Terms(NamedTuple):
    """What is known of a candidate, before weights."""

    direct: float  # ln p(y|x) / |y|
    channel: float  # ln p(x|y) / |x|
    lm: float  # ln p(y) / |x|
    length: float  # |y| / |x|


@dataclass(frozen=True)
class ChannelWeights:
    """How much each has to say. All but `direct` at 0 is the order of beam search with a length penalty of 1."""

    direct: float = 1.0
    channel: float = 0.5
    lm: float = 0.2
    length: float = 0.0

    def score(self, terms: Terms) -> float:
        return sum(getattr(self, name) * value for name, value in terms._asdict().items() if getattr(self, name))

    def best(self, candidates: Sequence[Terms]) -> int:
        """The place of the candidate with the highest score; the first of equals."""
        return max(range(len(candidates)), key=lambda i: (self.score(candidates[i]), -i))

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name):g}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> "ChannelWeights":
        """From "channel=0.5,lm=0.2"; what is not named keeps its default."""
        found: dict[str, float] = {}
        names = [field.name for field in fields(cls)]
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in names:
                raise ConfigError(
                    f"weights: no term {name!r}." + suggest(name, names, otherwise=f" There are: {', '.join(names)}")
                )
            if name in found:
                raise ConfigError(f"weights: {name} is named twice in {text!r}")
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = math.nan
            if not math.isfinite(found[name]):
                raise ConfigError(f"weights: {part!r} is not of the form {name}=0.5")
        return cls(**found)


STEPS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
ROUNDS = 3


def tune(
    candidates: Sequence[Sequence[Terms]],
    judge: Callable[[list[int]], float],
    *,
    terms: Sequence[str] = ("channel", "lm", "length"),
) -> tuple[ChannelWeights, float]:
    """Weights under which what is chosen is judged best, and that judgement, which grows with quality.

    From the direct model alone, one weight after the other takes the best of `STEPS` (length also below 0), until a
    round changes nothing. `judge` gets the place of the chosen candidate of each sentence.
    """
    weights = ChannelWeights(direct=1.0, channel=0.0, lm=0.0, length=0.0)
    best = judge([weights.best(some) for some in candidates])
    for _ in range(ROUNDS):
        before = weights
        for name in terms:
            values = [sign * step for step in STEPS for sign in ((1, -1) if name == "length" and step else (1,))]
            for value in values:
                other = replace(weights, **{name: value})
                if other == weights:
                    continue
                found = judge([other.best(some) for some in candidates])
                if found > best:
                    best, weights = found, other
        if weights == before:
            break
    return weights, best
