"""The task of a recipe: from TOML settings to a model, a data loader and a validation set.

Text becomes windows of tokens (text_datasets.py); records such as pairs, labels, tags and questions become one example
each (record_datasets.py). The tables `RECORD_KINDS` and `HEADS` say which kind of record and which head each objective
needs; the config of a family lists its objectives.
"""

import math
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
    TrainConfig,
)
from headway.config.choices import BASE_OBJECTIVES
from headway.data.datasets.causal import MixtureDataset
from headway.data.loader import BatchLoader, IndexedDataset
from headway.data.readers import format_of
from headway.data.records import Pair, Record, texts_of
from headway.data.sampler import BatchSampler, TokenBudgetBatchSampler
from headway.data.sources import locate
from headway.data.splits import digest_of, read_split, with_absolute_paths
from headway.data.tag_schemes import mark_entities
from headway.data.token_shards import OnPrepare, PreparedCorpus, prepare_recipe
from headway.devices import parse_device
from headway.errors import ConfigError, DataError, count, with_article
from headway.evaluation import metrics
from headway.evaluation.reports import make_report
from headway.evaluation.tasks import TASK_METRICS, TaskScore
from headway.evaluation.validation import ValidationSet
from headway.generation.translate import translations
from headway.models import BagOfWords, Classifier, MaskedLM, Model, SpanReader, Tagger, create
from headway.models.heads import TextEncoder
from headway.models.init_from import (
    WeightTransfer,
    absolute_source,
    check_same_vocabulary,
    merged_config,
    source_tokenizer,
    take_weights,
)
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.tokenizers import train as train_tokenizer
from headway.training.distributed import DistContext
from headway.training.labels import class_weights, label_notes
from headway.training.model_memory import check_trainable, without_vocabulary
from headway.training.progress import OnMessage
from headway.training.record_datasets import (
    RECORD_KINDS,
    dataset_options,
    example_length,
    iter_records,
    record_dataset,
    record_validation_set,
    report_options,
)
from headway.training.text_datasets import (
    carries_state,
    context_of,
    masking_of,
    text_dataset,
    text_validation_set,
)
from headway.training.trainable import check_lora

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
    validation_records: list[Record] = field(default_factory=list)  # for metrics of predictions
    class_weights: list[float] | None = None  # of the labels, in the training loss

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
            if not hasattr(self.dataset, "lengths"):
                raise ConfigError(
                    f"train.tokens_per_batch={config.tokens_per_batch} is for examples of different lengths; those of "
                    f"objective {self.objective!r} all have the same: set train.batch_size"
                )
            sampler = TokenBudgetBatchSampler(self.dataset.lengths, config.tokens_per_batch, config.seed)
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
        masks = None
        if self.objective == "masked":  # the seed draws them
            masks = (recipe.train.seed, recipe.train.seq_len or context_of(recipe), *masking_of(recipe).values())
        if self.objective in ("classify", "tag", "span") and recipe.train.seq_len is not None:
            context = example_length(recipe, self.objective)  # where long examples are cut
        settings = [loss_name(recipe), recipe.eval.metric, context, masks, self.validation_fingerprint]
        return digest_of(repr(settings)).hex()[:16]

    def add_metrics(self, score: TaskScore, model: Model, check_stop: Callable[[], None] = lambda: None) -> TaskScore:
        """Add the metrics of the model's predictions: of labels, tags and answers, or, if eval.metric asks for one, of
        greedy translations. `check_stop` is called after each batch or translation, and may raise."""
        recipe = self.recipe
        score = replace(score, metric=recipe.eval.metric)
        if self.objective == "pairs":
            return score if recipe.eval.metric == "loss" else self._add_generation_metric(score, model, check_stop)
        report = make_report(
            self.objective,
            model,
            self.validation_records,
            context=example_length(recipe, self.objective),
            batch_size=recipe.eval.batch_size,
            check_stop=check_stop,
            **report_options(recipe, self.objective),
        )
        return score if report is None else replace(score, metrics=report.metrics, report=report)

    def _add_generation_metric(self, score: TaskScore, model: Model, check_stop: Callable[[], None]) -> TaskScore:
        pairs = [record for record in self.validation_records if isinstance(record, Pair)]
        sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
        batch_size, metric = self.recipe.eval.batch_size, self.recipe.eval.metric
        hypotheses = [""] * len(sources)
        for row, translation in translations(model, sources, num_beams=1, batch_size=batch_size, truncate=True):
            hypotheses[row] = translation.text
            check_stop()
        return replace(score, metrics={metric: metrics.METRICS[metric](hypotheses, references, sources=sources)})


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
        source = recipe.finetune.init_from
        of_source = "" if source is None else f", which the weights of model.init_from={source!r} are"
        raise ConfigError(
            f"train.objective={setting!r} is not for the family {family}{of_source}: choose {' or '.join(allowed)}, or "
            f"for {setting!r} one of the families {', '.join(families)}"
        )
    if recipe.train.epochs is not None and objective not in RECORD_KINDS:
        raise ConfigError(
            f"train.epochs={recipe.train.epochs:g} counts passes over examples; on running text training is counted in "
            f"steps: set train.steps",
            setting="train.epochs",
        )
    metric = recipe.eval.metric
    metrics.check_installed(metric)
    if metric != "loss" and objective == "pairs" and recipe.train.parallel == "fsdp":
        raise ConfigError(f"eval.metric={metric!r} generates text, which a sharded model cannot: set eval.metric=loss")
    names = ("loss", *(metrics.METRICS if objective == "pairs" else TASK_METRICS.get(objective, ())))
    if metric not in names:
        raise ConfigError(f"eval.metric={metric!r} is not for the objective {objective!r}: choose {' or '.join(names)}")
    for name in ("ar_alpha", "tar_beta", "rdrop_alpha"):
        if setting in BASE_OBJECTIVES and (value := getattr(recipe.train, name)):
            raise ConfigError(
                f"train.{name}={value} is part of the built-in losses, not of train.objective={setting!r}: set it to 0"
            )
    if setting in BASE_OBJECTIVES and recipe.train.class_weights is not None:
        raise ConfigError(
            f"train.class_weights is part of the built-in losses, not of train.objective={setting!r}: leave it out"
        )
    for name, off in (("layer_lr_decay", 1), ("frozen_layers", None)):
        if (value := getattr(recipe.train, name)) != off and family not in ("gpt", "bert"):
            raise ConfigError(
                f"train.{name}={value} is for the families gpt and bert, not for {with_article(family)}: leave it out"
            )
    check_lora(recipe)
    for name in ("ar_alpha", "tar_beta"):
        if (value := getattr(recipe.train, name)) and not isinstance(recipe.model, RNNConfig):
            raise ConfigError(
                f"train.{name}={value} is for recurrent models (rnn, lstm), not for {with_article(family)}: set it to 0"
            )
    if recipe.train.rdrop_alpha and objective not in ("pairs", "classify"):
        raise ConfigError(
            f"train.rdrop_alpha={recipe.train.rdrop_alpha} is for pairs and for classification, not for "
            f"{objective!r}: set it to 0"
        )
    if recipe.tokenizer.bpe_dropout and objective != "pairs":
        raise ConfigError(
            f"tokenizer.bpe_dropout={recipe.tokenizer.bpe_dropout} is for an encoder-decoder trained on pairs, not for "
            f"{objective!r}: set it to 0"
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
    if recipe.model_settings is not None:
        recipe, own_tokenizer = _with_initial_sizes(recipe)
        tokenizer = tokenizer or own_tokenizer
    objective = resolve_objective(recipe)
    # Before the data is read, which may take long; make_model checks again, with the vocabulary.
    check_trainable(without_vocabulary(recipe.model), recipe.train, parse_device(recipe.train.device))
    recipe = _with_absolute_paths(recipe)
    if objective in RECORD_KINDS:
        return _record_task(recipe, objective, tokenizer, on_message)
    return _text_task(recipe, objective, tokenizer, on_message, on_prepare)


def _with_initial_sizes(recipe: Recipe) -> tuple[Recipe, Tokenizer]:
    """The recipe with the sizes of the weights it starts from, and their tokenizer, or its own of the same tokens."""
    source, settings = recipe.finetune.init_from, recipe.model_settings
    assert source is not None
    assert settings is not None
    config = merged_config(source, recipe.model, settings)
    recipe, tokenizer = _with_absolute_paths(recipe), source_tokenizer(source)
    if recipe.tokenizer.path is not None:
        tokenizer = load_tokenizer(recipe.tokenizer.path)
        check_same_vocabulary(source, tokenizer)
    if tokenizer is None:
        raise ConfigError(
            f"{source} has no tokenizer: give the one that its weights were trained with, tokenizer.path=PATH",
            setting="tokenizer.path",
        )
    finetune = recipe.finetune.replace(init_from=absolute_source(source))
    return recipe.replace(model=config, model_settings=None, finetune=finetune), tokenizer


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
    kind, context = RECORD_KINDS[objective], example_length(recipe, objective)
    train, valid = (list(iter_records(recipe, split, kind)) for split in ("train", "valid"))
    if not valid:
        raise DataError(
            f"{recipe.data.path} has no validation examples: raise data.valid_fraction={recipe.data.valid_fraction}"
        )
    if tokenizer is None:
        tokenizer = prepare_tokenizer(recipe.tokenizer, chain.from_iterable(map(texts_of, train)))
    on_message(_describe_tokenizer(recipe, tokenizer))
    source = " + ".join(recipe.data.mix) or recipe.data.path
    on_message(f"examples    {source}: {len(train):,} for training, {len(valid):,} for validation")
    options = dataset_options(recipe, objective)
    dataset, labels = record_dataset(
        objective, train, tokenizer, context, bpe_dropout=recipe.tokenizer.bpe_dropout, **options
    )
    if n_long := getattr(dataset, "n_long", 0):
        on_message(f"left out    {n_long:,} of them, longer than model.context={context} tokens on a side")
    if n_truncated := getattr(dataset, "n_truncated", 0):
        on_message(f"note        {n_truncated:,} of them are longer than {context} tokens, and lose their end")
    validation = record_validation_set(valid, objective, tokenizer, recipe, context, labels)
    weights: list[float] | None = None
    changes: dict[str, Any] = {}
    if labels:
        changes = {"labels": labels, "multi_label": options.get("multi_label", False)}
        _check_metric(recipe, objective, labels)
        weights = class_weights(recipe.train.class_weights, labels, dataset.label_counts)
        valid_dataset: Any = validation.loader.dataset
        for note in label_notes(labels, dataset.label_counts, valid_dataset.label_counts):
            on_message(f"note        {note}")
    recipe = recipe.replace(train=_with_steps(recipe.train, dataset))
    return Task(
        _with_vocabulary(recipe, tokenizer, **changes),
        objective,
        tokenizer,
        dataset,
        validation,
        fingerprints=[_fingerprint(map(repr, train))],
        validation_fingerprint=_fingerprint(map(repr, valid)),
        is_uniform=False,
        validation_records=valid,
        class_weights=weights,
    )


def _fingerprint(texts: Iterable[str]) -> str:
    return digest_of("\n".join(digest_of(text).hex() for text in texts)).hex()


def _with_steps(config: TrainConfig, dataset: Any) -> TrainConfig:
    """The config with its epochs as steps, and a warmup of at most a tenth of them."""
    if config.epochs is None:
        return config
    if config.tokens_per_batch is not None:
        n_batches = len(TokenBudgetBatchSampler(dataset.lengths, config.tokens_per_batch, config.seed).plan(0))
    else:
        n_batches = math.ceil(len(dataset) / config.batch_size)
    steps = max(1, round(config.epochs * n_batches))
    return config.replace(steps=steps, epochs=None, warmup_steps=min(config.warmup_steps, steps // 10))


def _check_metric(recipe: Recipe, objective: str, labels: list[str]) -> None:
    """Refuse an eval.metric that these labels do not have."""
    metric = recipe.eval.metric
    if objective == "classify" and metric == "micro_f1" and recipe.data.label_separator is None:
        raise ConfigError("eval.metric='micro_f1' of one label per text is the accuracy: set eval.metric=accuracy")
    if objective == "tag" and metric == "f1" and not mark_entities(labels):
        raise ConfigError(
            f"eval.metric='f1' counts entities, and tags such as {labels[0]!r} mark none: set eval.metric=accuracy"
        )


def make_model(task: Task, device: Any, *, for_training: bool = True) -> Model:
    """A new model, with weights drawn from torch's generator. One `for_training` must fit in memory with its gradients
    and optimizer state."""
    if for_training:
        check_trainable(task.recipe.model, task.recipe.train, parse_device(device))
    model = create(task.recipe.model, device=device)
    if isinstance(model, TextEncoder):
        if task.objective != "classify" and not isinstance(model, BagOfWords):  # only classification uses the pooler
            model.pooler.requires_grad_(False)
        model = HEADS[task.objective](model)
    model.tokenizer = task.tokenizer
    return model


def load_initial_weights(model: Model, task: Task) -> WeightTransfer | None:
    """Copy the weights that the recipe starts from into a new model, and say which; None if there are none."""
    finetune = task.recipe.finetune
    return None if finetune.init_from is None else take_weights(model, finetune.init_from, new_head=finetune.new_head)


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
    """The recipe with the tokenizer's vocabulary size and special ids, and the data's labels, in place of the
    preset's."""
    if recipe.finetune.init_from is None:  # the weights may have rows that no token uses
        changes["vocab_size"] = tokenizer.vocab_size
    if "labels" in recipe.model.__struct_fields__:  # those of given weights belong to another head
        changes = {"labels": [], "multi_label": False} | changes
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
    source = recipe.finetune.init_from
    described = f"tokenizer   {config.path or (source and f'that of {source}') or config.kind}, {n_tokens:,} tokens"
    is_trained = config.path is None and source is None and config.kind in TRAINED_TO_SIZE
    if is_trained and n_tokens < (config.vocab_size or 0):
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
