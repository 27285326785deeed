"""How contestants are scored: text in bits per byte, in the same windows for all; pairs by what is written, and by how
that depends on the length of the sentence (Bahdanau et al. 2015, Figure 2)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol

from headway.config import Recipe
from headway.data.sources import open_pairs
from headway.data.splits import read_split, sources_of
from headway.data.synthetic_tasks import exact_match, is_task
from headway.errors import DataError
from headway.evaluation import metrics
from headway.evaluation.perplexity import evaluate
from headway.generation.generate import generate
from headway.generation.translate import translate
from headway.models import Model
from headway.models.base import language_model
from headway.tokenizers import Tokenizer
from headway.training.task import iter_pairs

FEW = 10  # sentences of a length below which a score says nothing
MOST_LENGTHS = 10
PROMPT_WORDS = 5


@dataclass(frozen=True)
class LengthBucket:
    """Sentences of like length: sources of `least` to `most` tokens."""

    least: int
    most: int
    n: int
    exact_match: float
    bleu: float | None = None  # None: of a task with one right answer


class Evaluator(Protocol):
    part: Literal["valid", "test"]
    size: str
    metric: str
    prompt: str

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]: ...

    def sample(self, model: Model, prompt: str, n_tokens: int) -> str: ...

    def longest_learned(self, tokenizer: Tokenizer) -> int | None: ...


def evaluation_split(recipe: Recipe) -> Literal["valid", "test"]:
    """The part that nothing was chosen by, where there is one."""
    return "test" if recipe.data.test_fraction or recipe.data.test_path else "valid"


class TextEvaluator:
    metric = "bits_per_byte"

    def __init__(self, plan: Recipe, window: int):
        self.part, self.window = evaluation_split(plan), window
        self.documents = list(read_split(plan.data, self.part))
        if not self.documents:
            raise DataError(
                f"{plan.data.path}: nothing is held out; raise data.valid_fraction={plan.data.valid_fraction}"
            )
        self.size = f"{sum(len(text.encode()) for text in self.documents):,} bytes"
        self.prompt = " ".join(self.documents[0].split()[:PROMPT_WORDS])

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]:
        found = evaluate(model, self.documents, context=self.window)
        return {"bits_per_byte": found.bits_per_byte, "perplexity": found.perplexity}, []

    def sample(self, model: Model, prompt: str, n_tokens: int) -> str:
        assert model.tokenizer is not None
        ids, context = model.tokenizer.encode(prompt), model.config.context or 2**31
        if len(ids) > context // 2:  # leave room to write
            prompt = model.tokenizer.decode(ids[: context // 2])
        most = min(n_tokens, context - len(model.tokenizer.encode(prompt)) - 1)
        if most < 1:
            return ""
        written = generate(language_model(model), prompt, max_new_tokens=most, temperature=0.8, seed=1)
        return prompt + "".join(token.text for token in written)

    def longest_learned(self, tokenizer: Tokenizer) -> None:
        return None


class PairsEvaluator:
    prompt = ""

    def __init__(self, plan: Recipe, *, long_data: str | None, limit: int, num_beams: int):
        self.plan, self.part, self.num_beams = plan, evaluation_split(plan), num_beams
        pairs = list(iter_pairs(plan, self.part))[:limit]
        if not pairs:
            raise DataError(
                f"{plan.data.path}: nothing is held out; raise data.valid_fraction={plan.data.valid_fraction}"
            )
        self.size = f"{len(pairs):,} pairs"
        self.n_ordinary = len(pairs)
        if long_data is not None:
            learned = {pair.source for pair in iter_pairs(plan, "train")}
            pairs += list(islice((p for p in open_pairs(long_data, plan.data.pairs) if p.source not in learned), limit))
        self.pairs = pairs
        self.is_exact = all(is_task(source.name) for source, _ in sources_of(plan.data).values())
        self.metric = "exact_match" if self.is_exact else "bleu"
        if not self.is_exact:
            metrics.check_installed()

    def longest_learned(self, tokenizer: Tokenizer) -> int:
        return max(len(tokenizer.encode(pair.source)) for pair in iter_pairs(self.plan, "train"))

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]:
        """Of the held-out part as a whole; and, longer sentences too, of those of each length in this tokenizer's
        tokens, whichever the model's own are."""
        assert model.tokenizer is not None
        sources, targets = [pair.source for pair in self.pairs], [pair.target for pair in self.pairs]
        room = 10 + 2 * max(len(model.tokenizer.encode(target)) for target in targets)
        most = min(room, (model.config.context or room + 1) - 1)
        found = translate(model, sources, num_beams=self.num_beams, max_new_tokens=most, batch_size=128, truncate=True)
        written = [" ".join(translation.text.split("\n")) for translation in found]
        n = self.n_ordinary
        scores = self._scores(written[:n], targets[:n])
        lengths = [len(tokenizer.encode(source)) for source in sources]
        by_length = []
        for least, most_tokens in _bins(lengths):
            rows = [i for i, length in enumerate(lengths) if least <= length <= most_tokens]
            if len(rows) >= FEW:
                of_these = self._scores([written[i] for i in rows], [targets[i] for i in rows])
                by_length.append(LengthBucket(least, most_tokens, len(rows), **of_these))
        return scores, by_length

    def _scores(self, written: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        scores = {"exact_match": exact_match(written, targets)}
        if not self.is_exact:
            scores["bleu"] = metrics.bleu(written, targets)
        return scores

    def sample(self, model: Model, prompt: str, n_tokens: int) -> str:
        return ""


def _bins(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of lengths of a round width, from 1 up: so many that a table holds them, and few enough that nine in ten
    sentences are in company."""
    for width in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        sizes = Counter((length - 1) // width for length in lengths)
        is_filled = sum(n for n in sizes.values() if n >= FEW) >= 0.9 * len(lengths)
        if is_filled and max(lengths) / width <= MOST_LENGTHS:
            return [(low + 1, low + width) for low in range(0, max(lengths), width)]
    return [(1, max(lengths))]
