"""How models are scored: language models in bits per byte with the same context for all; sequence-to-sequence models
by their translations, also by the length of the source (Bahdanau et al. 2015, Figure 2); classifiers and taggers by
their predictions for the same held-out records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

from headway.comparison.budget import EVAL_BATCH_SIZES, SAMPLE_RECORDS, selection_metric
from headway.comparison.results import LengthBucket
from headway.comparison.selection import OBJECTIVES
from headway.config import Recipe
from headway.data.datasets.classification import encode_texts, text_of
from headway.data.datasets.encoder_inputs import label_names
from headway.data.datasets.tagging import TaggingDataset
from headway.data.records import KIND_NAMES, LabelledText, Record, TaggedSentence
from headway.data.sources import open_pairs
from headway.data.splits import read_split, sources_of
from headway.data.synthetic_tasks import is_task
from headway.errors import ConfigError, DataError, count
from headway.evaluation import metrics
from headway.evaluation.perplexity import evaluate
from headway.evaluation.reports import make_report
from headway.generation.generate import generate
from headway.generation.translate import translate
from headway.models import Model
from headway.models.adapter import language_model
from headway.tokenizers import Tokenizer
from headway.training.record_datasets import iter_pairs, iter_records

MIN_BUCKET_PAIRS = 10  # a score of fewer pairs says nothing
MAX_BUCKETS = 10
PROMPT_WORDS = 5
TRANSLATE_BATCH_SIZE = 128
MAX_LABELS_NAMED = 10


@dataclass(frozen=True)
class ScoringOptions:
    long_data: str | None = None  # pairs: a second data source, scored by length only
    limit: int = 1000  # pairs: translate the first ones of each source, up to so many
    num_beams: int = 1
    prompt: str | None = None  # text: what samples continue; None: the first words of the evaluation text
    sample_tokens: int = 50


class Evaluator(Protocol):
    """Scores every model on the same data."""

    split: Literal["valid", "test"]
    size: str  # of the split, in words
    metric: str  # of `scores`, the one that counts
    curve_metric: str  # of the validation scores in the log of a run, the one that its curve shows
    prompt: str
    is_generative: bool  # the models predict the next token

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]: ...

    def sample(self, model: Model) -> str: ...

    def longest_train_source(self, tokenizer: Tokenizer) -> int | None: ...

    def tokens_per_target(self, tokenizer: Tokenizer) -> float:
        """Tokens that a model computes for each target that training counts."""
        ...

    def check_labels(self, scored: Mapping[str, Any], *, is_training: bool) -> list[str]:
        """Raise if a model could not predict the labels of the data; returns notes. `scored` are the configs of the
        models that are scored as they are; `is_training`: others are trained."""
        ...


def make_evaluator(recipe: Recipe, kind: str, context: int, options: ScoringOptions) -> Evaluator:
    if kind == "pairs":
        return PairsEvaluator(recipe, options)
    if options.long_data is not None:
        raise ConfigError(
            f"long_data={options.long_data!r} is for pairs, but {recipe.data.path} holds {KIND_NAMES[kind]}: leave it "
            f"out"
        )
    return TextEvaluator(recipe, context, options) if kind == "text" else RecordEvaluator(recipe, kind, context)


def evaluation_split(recipe: Recipe) -> Literal["valid", "test"]:
    """The test split if the recipe has one: checkpoints are selected on the validation split."""
    return "test" if recipe.data.test_fraction or recipe.data.test_path else "valid"


def _empty_split_error(recipe: Recipe) -> DataError:
    split, path = evaluation_split(recipe), recipe.data.path
    return DataError(f"the {split} split of {path} is empty: raise data.{split}_fraction, or set data.{split}_path")


def first_words(text: str) -> str:
    """A prompt: the first words of a text. The held-out end of a longer text may begin inside a word, which is left
    out."""
    words = text.split()
    is_cut = text[:1].isalnum() and not text[0].isupper() and len(words) > PROMPT_WORDS
    return " ".join(words[is_cut : is_cut + PROMPT_WORDS])


class TextEvaluator:
    """Bits per byte and perplexity, in consecutive windows of `context` tokens."""

    metric = curve_metric = "bits_per_byte"
    is_generative = True

    def __init__(self, recipe: Recipe, context: int, options: ScoringOptions):
        self.split, self.context, self.sample_tokens = evaluation_split(recipe), context, options.sample_tokens
        self.documents = list(read_split(recipe.data, self.split))
        if not self.documents:
            raise _empty_split_error(recipe)
        self.size = count(sum(len(text.encode()) for text in self.documents), "byte")
        self.prompt = first_words(self.documents[0]) if options.prompt is None else options.prompt

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]:
        score = evaluate(model, self.documents, context=self.context, quiet=True)
        return {"bits_per_byte": score.bits_per_byte, "perplexity": score.perplexity}, []

    def sample(self, model: Model) -> str:
        """The prompt and its continuation. A prompt that fills the context is cut to half of it."""
        prompt, context = self.prompt, model.config.context or 2**31
        ids = model.tokenizer.encode(prompt)
        if len(ids) > context // 2:
            prompt = model.tokenizer.decode(ids[: context // 2])
        max_new_tokens = min(self.sample_tokens, context - len(model.tokenizer.encode(prompt)) - 1)
        if max_new_tokens < 1:
            return ""
        tokens = generate(language_model(model), prompt, max_new_tokens=max_new_tokens, temperature=0.8, seed=1)
        return prompt + "".join(token.text for token in tokens)

    def longest_train_source(self, tokenizer: Tokenizer) -> None:
        return None

    def tokens_per_target(self, tokenizer: Tokenizer) -> float:
        return 1.0

    def check_labels(self, scored: Mapping[str, Any], *, is_training: bool) -> list[str]:
        return []


class PairsEvaluator:
    """Exact match, and BLEU where a source has more than one right translation."""

    curve_metric = "nats_per_target"
    is_generative = True

    def __init__(self, recipe: Recipe, options: ScoringOptions):
        self.recipe, self.split, self.num_beams = recipe, evaluation_split(recipe), options.num_beams
        self.prompt = options.prompt or ""
        self.pairs = list(islice(iter_pairs(recipe, self.split), options.limit))
        if not self.pairs:
            raise _empty_split_error(recipe)
        self.size = count(len(self.pairs), "pair")
        self.n_split_pairs = len(self.pairs)  # the pairs of long_data follow, and count by length only
        if options.long_data is not None:
            train_sources = {pair.source for pair in iter_pairs(recipe, "train")}
            long_pairs = open_pairs(options.long_data, recipe.data.pairs)
            self.pairs += islice((pair for pair in long_pairs if pair.source not in train_sources), options.limit)
        self.has_one_answer = all(is_task(source.name) for source, _ in sources_of(recipe.data).values())
        self.metric = "exact_match" if self.has_one_answer else "bleu"
        if not self.has_one_answer:
            metrics.check_installed()

    def longest_train_source(self, tokenizer: Tokenizer) -> int:
        sources = [pair.source for pair in iter_pairs(self.recipe, "train")]
        return max(map(len, tokenizer.encode_batch(sources)))

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]:
        """Scores of the split, and of each bucket of source lengths (long_data included), counted in the tokens of this
        tokenizer even if the model has another."""
        hypotheses = self._translate(model)
        targets = [pair.target for pair in self.pairs]
        lengths = [len(tokenizer.encode(pair.source)) for pair in self.pairs]
        by_length = []
        for least, most in length_ranges(lengths):
            rows = [i for i, length in enumerate(lengths) if least <= length <= most]
            if len(rows) >= MIN_BUCKET_PAIRS:
                scores = self._scores([hypotheses[i] for i in rows], [targets[i] for i in rows])
                by_length.append(LengthBucket(least, most, len(rows), **scores))
        n = self.n_split_pairs
        return self._scores(hypotheses[:n], targets[:n]), by_length

    def _translate(self, model: Model) -> list[str]:
        """One line per pair, of at most twice the longest reference and ten tokens."""
        max_new_tokens = 10 + 2 * max(len(model.tokenizer.encode(pair.target)) for pair in self.pairs)
        if model.config.context:
            max_new_tokens = min(max_new_tokens, model.config.context - 1)
        translations = translate(
            model,
            [pair.source for pair in self.pairs],
            num_beams=self.num_beams,
            max_new_tokens=max_new_tokens,
            batch_size=TRANSLATE_BATCH_SIZE,
            truncate=True,
        )
        return [" ".join(translation.text.split("\n")) for translation in translations]

    def _scores(self, hypotheses: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        scores = {"exact_match": metrics.exact_match(hypotheses, targets)}
        if not self.has_one_answer:
            scores["bleu"] = metrics.bleu(hypotheses, targets)
        return scores

    def sample(self, model: Model) -> str:
        return ""

    def tokens_per_target(self, tokenizer: Tokenizer) -> float:
        return 1.0

    def check_labels(self, scored: Mapping[str, Any], *, is_training: bool) -> list[str]:
        return []


class RecordEvaluator:
    """Classifiers and taggers: the metrics of their reports (evaluation/reports.py)."""

    prompt = ""
    is_generative = False

    def __init__(self, recipe: Recipe, kind: str, context: int):
        self.recipe, self.kind, self.context = recipe, kind, context
        self.split = evaluation_split(recipe)
        self.metric = self.curve_metric = selection_metric(recipe, kind)
        self.records = list(iter_records(recipe, self.split, kind))
        if not self.records:
            raise _empty_split_error(recipe)
        train = list(iter_records(recipe, "train", kind))
        self.train_sample = train[:: max(1, len(train) // SAMPLE_RECORDS)]
        self.labels, self.train_labels = labels_in(self.records), labels_in(train)
        n_labels = len(set(self.labels) | set(self.train_labels))
        if kind == "labelled":
            self.size = f"{count(len(self.records), 'text')} with {count(n_labels, 'label')}"
        else:
            n_words = sum(len(record.words) for record in self.records if isinstance(record, TaggedSentence))
            sentences, words = count(len(self.records), "sentence"), count(n_words, "word")
            self.size = f"{sentences} of {words} with {count(n_labels, 'tag')}"

    def score(self, model: Model, tokenizer: Tokenizer) -> tuple[dict[str, float], list[LengthBucket]]:
        report = make_report(
            OBJECTIVES[self.kind],
            model,
            self.records,
            context=self.context,
            batch_size=EVAL_BATCH_SIZES[self.kind],
        )
        assert report is not None  # both objectives have one
        if self.metric not in report.metrics:
            raise ConfigError(
                f"eval.metric={self.metric!r} is not defined for these labels; choose {' or '.join(report.metrics)}"
            )
        return dict(report.metrics), []

    def check_labels(self, scored: Mapping[str, Any], *, is_training: bool) -> list[str]:
        unseen = [label for label in self.labels if label not in self.train_labels]
        if is_training and unseen:
            raise DataError(
                f"no training example of {self.recipe.data.path} has {_listed(unseen)}, which the {self.split} split "
                f"has: correct such examples, leave them out, or add some for training"
            )
        notes = [self._check_model(name, config.labels, config.multi_label) for name, config in scored.items()]
        return [note for note in notes if note]

    def _check_model(self, name: str, labels: Sequence[str], multi_label: bool) -> str:
        """Raise if the labels of a model are not those of the data; a note if it has more of them."""
        path, noun = self.recipe.data.path, "labels" if self.kind == "labelled" else "tags"
        if multi_label != (self.recipe.data.label_separator is not None):
            kinds = ("one label", "any number of labels")
            raise DataError(
                f"{name} gives each text {kinds[multi_label]}, but {path} is read with {kinds[not multi_label]} per "
                f"text (data.label_separator): leave {name} out"
            )
        if unknown := [label for label in self.labels if label not in labels]:
            raise DataError(
                f"{name} has the {noun} {_listed(labels)}, but the {self.split} split of {path} has "
                f"{_listed(self.labels)}: it cannot predict {_listed(unknown)}; leave {name} out, or train it on these "
                f"{noun}"
            )
        if extra := [label for label in labels if label not in (*self.labels, *self.train_labels)]:
            return f"{name} has {noun} that {path} does not have: {_listed(extra)}"
        return ""

    def tokens_per_target(self, tokenizer: Tokenizer) -> float:
        """Mean tokens, special ones included, of a text, or per word; over a sample of the training split."""
        texts = [record for record in self.train_sample if isinstance(record, LabelledText)]
        if texts:
            ids = encode_texts(tokenizer, [text_of(record) for record in texts], self.context).ids
            return sum(map(len, ids)) / len(ids)
        sentences = [record for record in self.train_sample if isinstance(record, TaggedSentence)]
        dataset = TaggingDataset(sentences, tokenizer, self.context)
        return float(dataset.lengths.sum() / dataset.label_counts.sum())

    def sample(self, model: Model) -> str:
        return ""

    def longest_train_source(self, tokenizer: Tokenizer) -> None:
        return None


def labels_in(records: Iterable[Record]) -> list[str]:
    """The labels or tags of records, sorted as those of a model are."""
    names: set[str] = set()
    for record in records:
        if isinstance(record, LabelledText):
            names.update(record.labels)
        elif isinstance(record, TaggedSentence):
            names.update(record.tags)
    return label_names(names, None)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LABELS_NAMED
    return ", ".join(map(repr, names[:MAX_LABELS_NAMED])) + (f" and {more:,} more" if more > 0 else "")


def length_ranges(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Buckets of equal, round width, as narrow as possible: at most MAX_BUCKETS, with 90 % of the pairs in buckets of
    MIN_BUCKET_PAIRS or more."""
    for width in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        sizes = Counter((length - 1) // width for length in lengths)
        is_filled = sum(n for n in sizes.values() if n >= MIN_BUCKET_PAIRS) >= 0.9 * len(lengths)
        if is_filled and max(lengths) / width <= MAX_BUCKETS:
            return [(low + 1, low + width) for low in range(0, max(lengths), width)]
    return [(1, max(lengths))]
