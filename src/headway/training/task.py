"""The task of a recipe: from TOML settings to a model, a data loader and a validation set.

Text becomes windows of tokens (text_datasets.py); records such as pairs, labels, tags and questions become one example
each (record_datasets.py). The tables `RECORD_KINDS` and `HEADS` say which kind of record and which head each objective
needs; the config of a family lists its objectives.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from headway.config import (
    FAMILIES,
    NGramConfig,
    Recipe,
    RNNConfig,
    TokenizerConfig,
)
from headway.config.choices import BASE_OBJECTIVES
from headway.data.datasets.causal import MixtureDataset
from headway.data.loader import BatchLoader, IndexedDataset
from headway.data.readers import format_of
from headway.data.records import Pair, texts_of
from headway.data.sampler import BatchSampler, TokenBudgetBatchSampler
from headway.data.sources import locate
from headway.data.splits import digest_of, read_split, with_absolute_paths
from headway.data.token_shards import OnPrepare, PreparedCorpus, prepare_recipe
from headway.devices import parse_device
from headway.errors import ConfigError, DataError, count, with_article
from headway.evaluation import metrics
from headway.evaluation.tasks import TaskScore
from headway.evaluation.validation import ValidationSet
from headway.generation.translate import translations
from headway.models import BERT, BiLSTM, Classifier, MaskedLM, Model, SpanReader, Tagger, create
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.tokenizers import train as train_tokenizer
from headway.training.distributed import DistContext
from headway.training.model_memory import check_trainable, without_vocabulary
from headway.training.progress import OnMessage
from headway.training.record_datasets import (
    RECORD_KINDS,
    iter_records,
    record_dataset,
    record_validation_set,
)
from headway.training.text_datasets import (
    carries_state,
    context_of,
    text_dataset,
    text_validation_set,
)

SMALL_TEXT_BYTES = 10_000  # a few pages: less is noted
MANY_PASSES = 1000  # over the text, from which on a run is noted


@dataclass(frozen=True)
class Task:
    """What a recipe trains on. Its `recipe` has absolute paths and the vocabulary size of the tokenizer."""

    recipe: Recipe
    objective: str
    tokenizer: Tokenizer
    dataset: IndexedDataset[Any]
    validation: ValidationSet | None  # None only for n-grams, which may train on all of the text
    fingerprints: list[str]  # hashes of the data, one per source
    validation_fingerprint: str  # hash of the validation examples
    is_uniform: bool  # whether all batches have the same shape
    bytes_per_target: float | None = None  # of the training text, for bits per byte
    corpora: list[tuple[PreparedCorpus, float]] = field(default_factory=list)  # tokenized text and mixture weights
    validation_pairs: list[Pair] = field(default_factory=list)  # for metrics of generated text

    @property
    def carries_state(self) -> bool:
        """Whether training carries the hidden state from batch to batch."""
        return carries_state(self.recipe)

    @property
    def n_train_tokens(self) -> int:
        return sum(len(corpus.train) for corpus, _ in self.corpora)

    def token_shards(self) -> list[list[np.ndarray[Any, Any]]]:
        """All training tokens, as the shards of each source: what an n-gram model is fitted to."""
        return [[shard["tokens"] for shard in corpus.train.shards] for corpus, _ in self.corpora]

    def loader(self, dist: DistContext) -> BatchLoader[Any]:
        """The data loader of a rank."""
        config = self.recipe.train
        sampler: BatchSampler | TokenBudgetBatchSampler
        if config.tokens_per_batch is not None:
            lengths = getattr(self.dataset, "lengths", None)
            if lengths is None:
                raise ConfigError(
                    f"train.tokens_per_batch={config.tokens_per_batch} is for examples of different lengths; those of "
                    f"objective {self.objective!r} all have the same: set train.batch_size"
                )
            sampler = TokenBudgetBatchSampler(lengths, config.tokens_per_batch, config.seed)
        else:
            is_mixture = isinstance(self.dataset, MixtureDataset)  # shuffles by itself
            n, shuffle = len(self.dataset), not is_mixture and not self.carries_state
            sampler = BatchSampler(n, min(config.batch_size, n), config.seed, shuffle, drop_last=self.is_uniform)
        return BatchLoader(self.dataset, sampler=sampler, rank=dist.rank, world_size=dist.size)

    @property
    def evaluation(self) -> str:
        """A hash of the metric, its settings and the validation data: scores with equal hashes are comparable."""
        recipe = self.recipe
        context = recipe.eval.context or recipe.model.context if self.objective == "causal" else None
        masks = recipe.train.seed if self.objective == "masked" else None  # the seed draws them
        settings = [loss_name(recipe), recipe.eval.metric, context, masks, self.validation_fingerprint]
        return digest_of(repr(settings)).hex()[:16]

    def add_generation_metric(
        self, score: TaskScore, model: Model, check_stop: Callable[[], None] = lambda: None
    ) -> TaskScore:
        """Add the metric of greedy translations of the validation pairs that eval.metric asks for, if any. `check_stop`
        is called after each translation, and may raise."""
        metric = self.recipe.eval.metric
        if metric == "loss":
            return score
        sources = [pair.source for pair in self.validation_pairs]
        references = [pair.target for pair in self.validation_pairs]
        batch_size = self.recipe.eval.batch_size
        hypotheses = [""] * len(sources)
        for row, translation in translations(model, sources, num_beams=1, batch_size=batch_size, truncate=True):
            hypotheses[row] = translation.text
            check_stop()
        return replace(score, metric=metric, metric_value=metrics.METRICS[metric](hypotheses, references))


HEADS: dict[str, Callable[[Any], Model]] = {
    "masked": MaskedLM,
    "classify": Classifier,
    "tag": Tagger,
    "span": SpanReader,
}


def loss_name(recipe: Recipe) -> str:
    """The training loss of a recipe, a name in `OBJECTIVES`: the objective it names, or the default of its family."""
    setting = recipe.train.objective
    return recipe.model.objectives[0] if setting == "auto" else setting


def resolve_objective(recipe: Recipe) -> str:
    """The objective of a recipe, which decides on its data, its head and its score. With a registered loss it is the
    objective whose batches the loss takes. Checks settings that belong to one objective or family."""
    family, allowed, setting = recipe.model.family, recipe.model.objectives, loss_name(recipe)
    objective = BASE_OBJECTIVES.get(setting, setting)
    if objective not in allowed:
        families = [name for name, config in FAMILIES.items() if objective in config.objectives]
        raise ConfigError(
            f"train.objective={setting!r} is not for the family {family}: choose {' or '.join(allowed)}, or for "
            f"{setting!r} one of the families {', '.join(families)}"
        )
    if recipe.eval.metric == "bleu":
        metrics.check_installed()
    if recipe.eval.metric != "loss" and recipe.train.parallel == "fsdp":
        raise ConfigError(
            f"eval.metric={recipe.eval.metric!r} generates text, which a sharded model cannot: set eval.metric=loss"
        )
    for name in ("ar_alpha", "tar_beta", "rdrop_alpha"):
        if setting in BASE_OBJECTIVES and (value := getattr(recipe.train, name)):
            raise ConfigError(
                f"train.{name}={value} is part of the built-in losses, not of train.objective={setting!r}: set it to 0"
            )
    for name in ("ar_alpha", "tar_beta"):
        if (value := getattr(recipe.train, name)) and not isinstance(recipe.model, RNNConfig):
            raise ConfigError(
                f"train.{name}={value} is for recurrent models (rnn, lstm), not for {with_article(family)}: set it to 0"
            )
    for name, value, off in (
        ("train.rdrop_alpha", recipe.train.rdrop_alpha, 0),
        ("tokenizer.bpe_dropout", recipe.tokenizer.bpe_dropout, 0),
        ("eval.metric", recipe.eval.metric, "loss"),
    ):
        if value != off and objective != "pairs":
            raise ConfigError(
                f"{name}={value} is for an encoder-decoder trained on pairs, not for {objective!r}: set it to {off}"
            )
    return objective


def make_task(
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None = None,
    on_message: OnMessage = lambda line: None,
    on_prepare: OnPrepare = lambda progress: None,
) -> Task:
    """Read the data, train the tokenizer unless one is passed, and build the datasets."""
    objective = resolve_objective(recipe)
    # Before the data is read, which may take long; make_model checks again, with the vocabulary.
    check_trainable(without_vocabulary(recipe.model), recipe.train, parse_device(recipe.train.device))
    recipe = _with_absolute_paths(recipe)
    if objective in RECORD_KINDS:
        return _record_task(recipe, objective, tokenizer, on_message)
    return _text_task(recipe, objective, tokenizer, on_message, on_prepare)


def _text_task(
    recipe: Recipe, objective: str, tokenizer: Tokenizer | None, on_message: OnMessage, on_prepare: OnPrepare
) -> Task:
    if tokenizer is None:
        tokenizer = prepare_tokenizer(recipe.tokenizer, read_split(recipe.data, "train"))
    on_message(_describe_tokenizer(recipe, tokenizer))
    documents = list(read_split(recipe.data, "valid"))
    recipe = _with_vocabulary(recipe, tokenizer)
    if not documents and not isinstance(recipe.model, NGramConfig):
        raise ConfigError(
            f"data.valid_fraction={recipe.data.valid_fraction} leaves no validation text, which training "
            f"{with_article(recipe.model.family)} needs: set data.valid_fraction=0.1, or data.valid_path"
        )
    # Before the corpus is tokenized: a tokenizer that cannot be scored, or has no mask token, fails here.
    validation = text_validation_set(documents, objective, tokenizer, recipe) if documents else None
    corpora = prepare_recipe(
        recipe.data, tokenizer, on_progress=on_prepare, on_note=lambda note: on_message(f"note        {note}")
    )
    splits = [corpus.train for corpus, _ in corpora]
    n_tokens, n_bytes = sum(map(len, splits)), sum(split.n_bytes for split in splits)
    train_size = _describe_size(n_bytes, sum(split.n_documents for split in splits))
    valid_size = _describe_size(sum(len(document.encode()) for document in documents), len(documents))
    on_message(
        f"text        {' + '.join(recipe.data.mix) or recipe.data.path}: {train_size}, {count(n_tokens, 'token')} "
        f"for training; {valid_size if documents else 'nothing'} for validation"
    )
    if note := _small_text_note(recipe, n_bytes, n_tokens):
        on_message(f"note        {note}")
    return Task(
        recipe,
        objective,
        tokenizer,
        text_dataset(recipe, corpora, objective, tokenizer),
        validation,
        fingerprints=[corpus.meta["digest"] for corpus, _ in corpora],
        validation_fingerprint=_fingerprint(documents),
        is_uniform=True,
        bytes_per_target=n_bytes / n_tokens if _has_bits_per_byte(recipe, validation) else None,
        corpora=corpora,
    )


def _has_bits_per_byte(recipe: Recipe, validation: ValidationSet | None) -> bool:
    """Whether the training loss is the likelihood of a text that the tokenizer keeps in full. Bytes lost in <unk> cost
    extra, which only evaluation counts."""
    return loss_name(recipe) == "causal" and not getattr(validation, "lost_bytes", 0)


def _record_task(recipe: Recipe, objective: str, tokenizer: Tokenizer | None, on_message: OnMessage) -> Task:
    if objective == "pairs" and recipe.data.pairs is None and format_of(recipe.data.path) in ("csv", "tsv"):
        recipe = recipe.replace(data=recipe.data.replace(pairs="1,2"))  # the first two columns by default
        on_message("note        columns 1 and 2 are the pairs, from the first row on; a header: data.pairs=NAME,NAME")
    kind, context = RECORD_KINDS[objective], context_of(recipe)
    train, valid = (list(iter_records(recipe, split, kind)) for split in ("train", "valid"))
    if not valid:
        raise DataError(
            f"{recipe.data.path} has no validation examples: raise data.valid_fraction={recipe.data.valid_fraction}"
        )
    if tokenizer is None:
        tokenizer = prepare_tokenizer(recipe.tokenizer, chain.from_iterable(map(texts_of, train)))
    on_message(_describe_tokenizer(recipe, tokenizer))
    on_message(f"examples    {recipe.data.path}: {len(train):,} for training, {len(valid):,} for validation")
    dataset, labels = record_dataset(objective, train, tokenizer, context, bpe_dropout=recipe.tokenizer.bpe_dropout)
    if n_long := getattr(dataset, "n_long", 0):
        on_message(f"left out    {n_long:,} of them, longer than model.context={context} tokens on a side")
    validation = record_validation_set(valid, objective, tokenizer, recipe, context, labels)
    return Task(
        _with_vocabulary(recipe, tokenizer, **({"labels": labels} if labels else {})),
        objective,
        tokenizer,
        dataset,
        validation,
        fingerprints=[_fingerprint(map(repr, train))],
        validation_fingerprint=_fingerprint(map(repr, valid)),
        is_uniform=False,
        validation_pairs=[record for record in valid if isinstance(record, Pair)],
    )


def _fingerprint(texts: Iterable[str]) -> str:
    return digest_of("\n".join(digest_of(text).hex() for text in texts)).hex()


def make_model(task: Task, device: Any, *, for_training: bool = True) -> Model:
    """A new model, with weights drawn from torch's generator. One `for_training` must fit in memory with its gradients
    and optimizer state."""
    if for_training:
        check_trainable(task.recipe.model, task.recipe.train, parse_device(device))
    model = create(task.recipe.model, device=device)
    if isinstance(model, BERT | BiLSTM):
        if task.objective != "classify":  # only classification uses the pooler
            model.pooler.requires_grad_(False)
        model = HEADS[task.objective](model)
    model.tokenizer = task.tokenizer
    return model


def prepare_tokenizer(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer at `config.path`, or a new one trained on the training text only."""
    if config.path:
        return load_tokenizer(config.path)
    return train_tokenizer(config.kind, documents, config.vocab_size, **config.options)


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, valid from any working directory. A tokenizer may also lie beside the data."""
    path, root = recipe.tokenizer.path, recipe.data.root
    if path is not None:
        beside_data = locate(path, root)
        path = os.path.abspath(path) if Path(path).exists() or not Path(beside_data).exists() else beside_data
    return recipe.replace(data=with_absolute_paths(recipe.data), tokenizer=recipe.tokenizer.replace(path=path))


def _with_vocabulary(recipe: Recipe, tokenizer: Tokenizer, **changes: Any) -> Recipe:
    """The recipe with the tokenizer's vocabulary size and special ids, in place of the preset's."""
    changes["vocab_size"] = tokenizer.vocab_size
    if "bos_id" in recipe.model.__struct_fields__:
        changes |= {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    return recipe.replace(model=recipe.model.replace(**changes))


TRAINED_TO_SIZE = {  # tokenizers whose vocabulary grows to a given size, and what it grows by
    "bpe": "pairs to merge",
    "wordpiece": "pairs to merge",
    "unigram": "pieces",
    "word": "words",
}


def _describe_tokenizer(recipe: Recipe, tokenizer: Tokenizer) -> str:
    config, n_tokens = recipe.tokenizer, tokenizer.vocab_size
    described = f"tokenizer   {config.path or config.kind}, {n_tokens:,} tokens"
    if config.path is None and config.kind in TRAINED_TO_SIZE and n_tokens < (config.vocab_size or 0):
        described += f" of {config.vocab_size:,} asked for: the text has no more {TRAINED_TO_SIZE[config.kind]}"
    return described


def _describe_size(n_bytes: int, n_documents: int) -> str:
    size = f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 10_000 else count(n_bytes, "byte")
    return f"{size} in {count(n_documents, 'document')}"


def _small_text_note(recipe: Recipe, n_bytes: int, n_tokens: int) -> str:
    """A note if the text is too small for a language model, or for the steps of the run; else empty."""
    if n_bytes < SMALL_TEXT_BYTES:
        return f"only {count(n_bytes, 'byte')} of text for training: a model learns them by heart; give more text"
    if isinstance(recipe.model, NGramConfig):  # reads the text once
        return ""
    config = recipe.train
    n_passes = config.steps * config.batch_size * (config.seq_len or context_of(recipe)) // max(n_tokens, 1)
    if n_passes < MANY_PASSES or config.max_seconds or recipe.eval.patience:
        return ""
    return f"train.steps={config.steps} read this text {n_passes:,} times: give more, or stop early with eval.patience"
