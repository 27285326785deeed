"""From a recipe to what the loop needs: a model, its batches, and held-out examples to score it on.

Text becomes windows of tokens; records (pairs, labels, tags, questions) become examples of their own. The tables
`OBJECTIVES_BY_FAMILY`, `RECORD_KINDS` and `HEADS` say which family, records and head each objective needs.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from headway.config import (
    BahdanauConfig,
    BERTConfig,
    BiLSTMConfig,
    GPTConfig,
    LSTMConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    Recipe,
    RNNConfig,
    Seq2SeqConfig,
    TokenizerConfig,
    TransformerConfig,
)
from headway.data.datasets.causal import CausalDataset, MixtureDataset
from headway.data.datasets.labeled import ClassificationDataset, SpanDataset, TaggingDataset
from headway.data.datasets.mlm import MLMDataset
from headway.data.datasets.seq2seq import Seq2SeqDataset
from headway.data.loader import BatchLoader, IndexedDataset
from headway.data.readers import format_of
from headway.data.records import Pair, Record, texts_of
from headway.data.sampler import BatchSampler, TokenBudgetBatchSampler
from headway.data.sources import locate
from headway.data.splits import (
    digest_of,
    read_split,
    sources_of,
    split_fractions,
    split_records,
    split_source,
    with_absolute_paths,
)
from headway.data.synthetic_tasks import exact_match
from headway.data.token_shards import PreparedCorpus, TokenArray, prepare_recipe
from headway.data.token_shards import PrepareProgress as Preparing
from headway.errors import ConfigError, DataError
from headway.evaluation import metrics
from headway.evaluation.perplexity import ValidationText
from headway.evaluation.tasks import TaskScore, ValidationExamples
from headway.evaluation.validation import EvalResult, ValidationSet
from headway.generation.translate import translate
from headway.models import BERT, BiLSTM, Classifier, MaskedLM, Model, SpanReader, Tagger, create
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.tokenizers import train as train_tokenizer
from headway.training.distributed import DistContext
from headway.training.objectives import LossModule

OnMessage = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What a recipe asks for, ready to be learned. `recipe` has absolute paths, and the model's real vocabulary."""

    recipe: Recipe
    objective: str
    tokenizer: Tokenizer
    dataset: IndexedDataset[Any]
    validation: ValidationSet | None  # None: nothing is, and nothing is learned by steps
    fingerprints: list[str]  # of the data, one per source
    is_uniform: bool  # whether all batches have one shape
    bytes_per_target: float | None = None  # of the text learned from, for bits per byte along the way
    prepared: list[tuple[PreparedCorpus, float]] = field(default_factory=list)  # of text
    validation_pairs: list[Pair] = field(default_factory=list)  # what is held out, where the model is asked to write

    @property
    def carries_state(self) -> bool:
        """Whether rows of text go on where they ended a step before."""
        return carries_state(self.recipe)

    def with_generation_score(self, score: TaskScore, model: Model) -> TaskScore:
        """The score with how good what a model writes for the held-out pairs is, where the recipe asks for it."""
        metric = self.recipe.eval.metric
        if metric == "loss":
            return score
        sources, targets = (
            [pair.source for pair in self.validation_pairs],
            [pair.target for pair in self.validation_pairs],
        )
        batch_size = self.recipe.eval.batch_size
        found = [t.text for t in translate(model, sources, num_beams=1, batch_size=batch_size, truncate=True)]
        if metric == "exact":
            return replace(score, exact=exact_match(found, targets))
        return replace(score, bleu=metrics.bleu(found, targets))

    def loader(self, world: DistContext) -> BatchLoader[Any]:
        """The batches of a rank."""
        config = self.recipe.train
        order: BatchSampler | TokenBudgetBatchSampler
        if config.tokens_per_batch is not None:
            lengths = getattr(self.dataset, "lengths", None)
            if lengths is None:
                raise ConfigError(
                    f"train.tokens_per_batch={config.tokens_per_batch} is for examples of different lengths; the rows of a "
                    f"{self.objective} objective have one: set train.batch_size"
                )
            order = TokenBudgetBatchSampler(lengths, config.tokens_per_batch, config.seed)
        else:
            is_mix = isinstance(self.dataset, MixtureDataset)  # which shuffles for itself
            n, shuffle = len(self.dataset), not is_mix and not self.carries_state
            order = BatchSampler(n, min(config.batch_size, n), config.seed, shuffle=shuffle, whole=self.is_uniform)
        return BatchLoader(self.dataset, sampler=order, rank=world.rank, world=world.size)

    def texts(self) -> list[list[np.ndarray[Any, Any]]]:
        """All tokens of the training text, of each source in a row of shards: what a model that counts is fitted to."""
        return [[shard["tokens"] for shard in corpus.train.shards] for corpus, _ in self.prepared]


OBJECTIVES_BY_FAMILY: dict[type[ModelConfig], tuple[str, ...]] = {  # the first is what "auto" means
    GPTConfig: ("causal",),
    NGramConfig: ("causal",),
    NPLMConfig: ("causal",),
    RNNConfig: ("causal",),
    LSTMConfig: ("causal",),
    BERTConfig: ("masked", "classify", "tag", "span"),
    BiLSTMConfig: ("tag", "classify"),
    TransformerConfig: ("pairs",),
    Seq2SeqConfig: ("pairs",),
    BahdanauConfig: ("pairs",),
}
COLUMNS = {  # how such records are asked for
    "pairs": "name the columns with data.pairs=SOURCE,TARGET or the other file with data.target_path",
    "labelled": "name the columns with data.text and data.label, by name or by number from 1",
    "tagged": "give a token-tag file, with data.format=conll where its name does not say so",
    "questions": "give SQuAD's JSON, with data.format=squad where its name does not say so",
}
RECORD_KINDS = {
    "pairs": "pairs",
    "classify": "labelled",
    "tag": "tagged",
    "span": "questions",
}  # of records, see records.py
HEADS: dict[str, Callable[[Any], Model]] = {
    "masked": MaskedLM,
    "classify": Classifier,
    "tag": Tagger,
    "span": SpanReader,
}


def resolve_objective(recipe: Recipe) -> str:
    """What a recipe trains for: what it says, or what its family is for."""
    possible = OBJECTIVES_BY_FAMILY[type(recipe.model)]
    wanted = recipe.train.objective
    if wanted not in ("auto", *possible):
        family = recipe.model.family
        fits = ", ".join(str(f.__struct_config__.tag) for f, names in OBJECTIVES_BY_FAMILY.items() if wanted in names)
        raise ConfigError(
            f"train.objective={wanted!r} is not for a {family}, which learns {' or '.join(possible)}; "
            f"{wanted!r} is for: {fits}"
        )
    found = possible[0] if wanted == "auto" else wanted
    if recipe.eval.metric == "bleu":
        metrics.check_installed()
    if recipe.eval.metric != "loss" and recipe.train.parallel == "fsdp":
        raise ConfigError(f"eval.metric={recipe.eval.metric!r} asks a model to write, which a sharded one cannot: loss")
    for name in ("activity", "slowness"):
        if (value := getattr(recipe.train, name)) and not isinstance(recipe.model, RNNConfig):
            family = recipe.model.family
            raise ConfigError(f"train.{name}={value} is for recurrent models (rnn, lstm), not for a {family}; off: 0")
    for name, value, off in (
        ("train.rdrop_alpha", recipe.train.rdrop_alpha, 0),
        ("tokenizer.bpe_dropout", recipe.tokenizer.bpe_dropout, 0),
        ("eval.metric", recipe.eval.metric, "loss"),
    ):
        if value != off and found != "pairs":
            raise ConfigError(
                f"{name}={value} is for an encoder-decoder that learns pairs, not for {found!r}; off: {off}"
            )
    return found


def make_task(
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None = None,
    say: OnMessage = lambda line: None,
    preparing: Callable[[Preparing], None] = lambda progress: None,
) -> Task:
    """Read the data, train the tokenizer (unless one is given), and make examples of the one with the other."""
    objective = resolve_objective(recipe)
    recipe = _with_absolute_paths(recipe)
    if objective == "pairs" and recipe.data.pairs is None and format_of(recipe.data.path) in ("csv", "tsv"):
        recipe = recipe.replace(data=recipe.data.replace(pairs="1,2"))  # what else would they be
    make = _from_records if objective in RECORD_KINDS else _from_text
    return make(recipe, objective, tokenizer, say, preparing)


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """With absolute paths, to be found again wherever one stands; a tokenizer is looked for beside the data too."""
    path, root = recipe.tokenizer.path, recipe.data.root
    if path is not None:
        beside = locate(path, root)
        path = os.path.abspath(path) if Path(path).exists() or not Path(beside).exists() else beside
    return recipe.replace(data=with_absolute_paths(recipe.data), tokenizer=recipe.tokenizer.replace(path=path))


def make_model(task: Task, device: Any) -> Model:
    """A new model as the recipe says, with weights drawn from torch's generator."""
    model = create(task.recipe.model, device=device)
    if isinstance(model, BERT | BiLSTM):
        if task.objective != "classify":  # nobody else looks at the pooled text
            model.pooler.requires_grad_(False)
        model = HEADS[task.objective](model)
    model.tokenizer = task.tokenizer
    return model


def prepare_tokenizer(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
    """The one the recipe names, or a new one made from the training text alone."""
    if config.path:
        return load_tokenizer(config.path)
    return train_tokenizer(config.kind, documents, config.vocab_size, **config.options)


def _with_vocabulary(recipe: Recipe, tokenizer: Tokenizer, **changes: Any) -> Recipe:
    """The vocabulary is the tokenizer's, whatever the preset's was."""
    changes["vocab_size"] = tokenizer.vocab_size
    if "bos_id" in recipe.model.__struct_fields__:
        changes |= {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    return recipe.replace(model=recipe.model.replace(**changes))


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_text(
    recipe: Recipe, objective: str, tokenizer: Tokenizer | None, say: OnMessage, preparing: Callable[[Preparing], None]
) -> Task:
    data = recipe.data
    if tokenizer is None:
        tokenizer = prepare_tokenizer(recipe.tokenizer, read_split(data, "train"))
    _say_tokenizer(recipe, tokenizer, say)
    prepared = prepare_recipe(data, tokenizer, report=preparing)
    documents = list(read_split(data, "valid"))
    recipe = _with_vocabulary(recipe, tokenizer)
    held_out: ValidationSet | None
    if not documents:
        _require_validation_text(recipe)
        held_out = None
    elif objective == "causal":
        held_out = ValidationText(
            documents,
            tokenizer,
            vocab_size=tokenizer.vocab_size,
            context=recipe.eval.context or recipe.model.context,
            batch_size=recipe.eval.batch_size,
        )
    else:
        held_out = _mlm_validation(documents, tokenizer, recipe)
    parts = [corpus.train for corpus, _ in prepared]
    n_tokens, n_bytes = sum(map(len, parts)), sum(part.n_bytes for part in parts)
    size = _size(n_bytes, sum(part.n_documents for part in parts))
    held_size = _size(sum(len(document.encode()) for document in documents), len(documents))
    name = " + ".join(data.mix) or data.path
    held_size = f"{held_size} held out" if documents else "nothing held out"
    say(f"text        {name}: {size}, {n_tokens:,} tokens, to learn from, {held_size}")
    return Task(
        recipe,
        objective,
        tokenizer,
        _text_dataset(recipe, prepared, objective, tokenizer),
        held_out,
        fingerprints=[corpus.meta["digest"] for corpus, _ in prepared],
        is_uniform=True,
        bytes_per_target=n_bytes / n_tokens if objective == "causal" else None,
        prepared=prepared,
    )


def _require_validation_text(recipe: Recipe) -> None:
    if not isinstance(recipe.model, NGramConfig):
        family = recipe.model.family
        raise ConfigError(
            f"data.valid_fraction={recipe.data.valid_fraction} holds nothing out, but a {family} learns until held-out text says it is "
            f"enough: set data.valid_fraction=0.1, or data.valid_path"
        )


def carries_state(recipe: Recipe) -> bool:
    """Whether rows of text go on where they ended a step before."""
    wanted, is_recurrent = recipe.train.carry_state, isinstance(recipe.model, RNNConfig)
    if wanted is True and not is_recurrent:
        raise ConfigError(
            "train.carry_state=true is for recurrent models: others have nothing to carry from step to step"
        )
    found = is_recurrent if wanted == "auto" else wanted
    alone = recipe.train.grad_accum_steps == 1 and recipe.train.parallel == "none" and len(recipe.data.mix) < 2
    if wanted is True and not alone:
        raise ConfigError(
            "train.carry_state=true goes with one process, train.grad_accum_steps=1 and one source: rows must stay who they are"
        )
    return found and alone


def _text_dataset(
    recipe: Recipe, prepared: list[tuple[PreparedCorpus, float]], objective: str, tokenizer: Tokenizer
) -> IndexedDataset[Any]:
    """Windows of the corpus, or of several in the proportions of their weights."""
    given = None if tokenizer.shares_boundary else tokenizer.bos_id  # rule 3 of tokenizers/base.py
    context = recipe.train.seq_len or _context(recipe)
    if carries_state(recipe):
        (corpus, _), lanes = prepared[0], recipe.train.batch_size
        return CausalDataset(corpus.train, context, lanes=lanes, given=given)

    def windows(tokens: TokenArray) -> IndexedDataset[Any]:
        return (
            CausalDataset(tokens, context, given=given)
            if objective == "causal"
            else MLMDataset(tokens, context, tokenizer)
        )

    parts = [(windows(corpus.train), weight) for corpus, weight in prepared]
    return parts[0][0] if len(parts) == 1 else MixtureDataset(parts)


def _mlm_validation(documents: Sequence[str], tokenizer: Tokenizer, recipe: Recipe) -> ValidationSet:
    tokens = TokenArray.of(np.array(tokenizer.stream(documents)))
    examples = MLMDataset(tokens, _context(recipe), tokenizer)
    return ValidationExamples(BatchLoader(examples, recipe.eval.batch_size, seed=recipe.train.seed, shuffle=False))


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_records(
    recipe: Recipe, objective: str, tokenizer: Tokenizer | None, say: OnMessage, preparing: Callable[[Preparing], None]
) -> Task:
    train, valid = (list(_records(recipe, part, RECORD_KINDS[objective])) for part in ("train", "valid"))
    if not valid:
        raise DataError(
            f"{recipe.data.path}: nothing is held out; raise data.valid_fraction={recipe.data.valid_fraction}"
        )
    if tokenizer is None:
        tokenizer = prepare_tokenizer(recipe.tokenizer, chain.from_iterable(map(texts_of, train)))
    _say_tokenizer(recipe, tokenizer, say)
    say(f"examples    {recipe.data.path}: {len(train):,} to learn from, {len(valid):,} held out")
    examples, names = _record_dataset(objective, train, tokenizer, _context(recipe), None, recipe.tokenizer.bpe_dropout)
    if n := getattr(examples, "n_long", 0):
        say(f"left out    {n:,} of them, longer than model.context={_context(recipe)} tokens on a side")
    held_out = _record_validation(valid, objective, tokenizer, recipe, names)
    recipe = _with_vocabulary(recipe, tokenizer, **({"labels": names} if names else {}))
    digest = digest_of("\n".join(digest_of(repr(record)).hex() for record in train)).hex()
    return Task(
        recipe,
        objective,
        tokenizer,
        examples,
        held_out,
        fingerprints=[digest],
        is_uniform=False,
        validation_pairs=[record for record in valid if isinstance(record, Pair)],
    )


def _record_validation(
    records: list[Record], objective: str, tokenizer: Tokenizer, recipe: Recipe, names: list[str] | None
) -> ValidationSet:
    try:
        held, _ = _record_dataset(objective, records, tokenizer, _context(recipe), names)
    except DataError as error:
        raise DataError(f"what is held out of {recipe.data.path} cannot be scored: {error}") from None
    return ValidationExamples(BatchLoader(held, recipe.eval.batch_size, shuffle=False))


def evaluate_split(model: Model, recipe: Recipe, part: Literal["valid", "test"]) -> EvalResult:
    """What a model of a run that learned from more than plain text scores on a part of the run's data."""
    objective, tokenizer = resolve_objective(recipe), model.tokenizer
    assert tokenizer is not None
    if objective == "masked":
        held_out = _mlm_validation(list(read_split(recipe.data, part)), tokenizer, recipe)
    else:
        records = list(_records(recipe, part, RECORD_KINDS[objective]))
        if not records:
            raise DataError(f"{recipe.data.path} has no {part} part: set data.{part} when training")
        names = getattr(model.config, "labels", None) or None
        held_out = _record_validation(records, objective, tokenizer, recipe, names)
    learner = LossModule(model, objective).eval()
    with torch.no_grad():
        return held_out.score(lambda batch: learner(batch.to(model.device)))


def iter_pairs(recipe: Recipe, part: Literal["train", "valid", "test"]) -> Iterator[Pair]:
    """The pairs of a part of a recipe's data."""
    return (record for record in _records(recipe, part, "pairs") if isinstance(record, Pair))


def load_pairs(recipe: Recipe, part: Literal["valid", "test"]) -> list[Pair]:
    """The held-out pairs of a run."""
    found = list(iter_pairs(recipe, part))
    if not found:
        raise DataError(f"{recipe.data.path} has no {part} part: set data.{part} when training")
    return found


def _context(recipe: Recipe) -> int:
    return int(recipe.model.context or 64)


def _records(recipe: Recipe, part: Any, kind: str) -> Iterator[Record]:
    data = recipe.data
    own = split_source(data, part)
    if own is not None:
        sources, shares = [own], None
    else:
        sources, shares = [source for source, _ in sources_of(data).values()], split_fractions(data)
    for source in sources:
        if source.kind != kind:
            raise DataError(
                f"{source.name} holds {source.kind}, but this objective learns from {kind}: {COLUMNS[kind]}; see "
                f"docs/data.md"
            )
        yield from source.records() if shares is None else split_records(source, shares, part)


def _record_dataset(
    objective: str,
    records: list[Any],
    tokenizer: Tokenizer,
    context: int,
    names: list[str] | None,
    dropout: float = 0.0,
) -> tuple[Any, list[str] | None]:
    """The collection, and the names of its labels where it has labels: those of training, for what is held out."""
    match objective:
        case "pairs":
            return Seq2SeqDataset(records, tokenizer, context=context, dropout=dropout), None
        case "classify":
            texts = ClassificationDataset(records, tokenizer, context, names)
            return texts, texts.labels
        case "tag":
            words = TaggingDataset(records, tokenizer, context, names)
            return words, words.tags
        case _:
            return SpanDataset(records, tokenizer, context), None


def _say_tokenizer(recipe: Recipe, tokenizer: Tokenizer, say: OnMessage) -> None:
    say(f"tokenizer   {recipe.tokenizer.path or recipe.tokenizer.kind}, {tokenizer.vocab_size:,} tokens")


def _size(n_bytes: int, n_documents: int) -> str:
    count = f"{n_documents:,} document{'s' if n_documents != 1 else ''}"
    return f"{n_bytes / 1e6:.2f} MB in {count}" if n_bytes >= 10_000 else f"{n_bytes:,} bytes in {count}"
