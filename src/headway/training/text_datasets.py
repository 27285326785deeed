"""Datasets of running text: windows of tokens for causal and masked language models, and their validation sets."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.config import Recipe, RNNConfig
from headway.data.datasets.causal import CausalDataset, MixtureDataset
from headway.data.datasets.mlm import MLMDataset
from headway.data.loader import BatchLoader, IndexedDataset
from headway.data.token_shards import PreparedCorpus, TokenArray
from headway.errors import ConfigError
from headway.evaluation.perplexity import ValidationText
from headway.evaluation.tasks import ValidationExamples
from headway.evaluation.validation import ValidationSet
from headway.tokenizers import Tokenizer

DEFAULT_SEQ_LEN = 64  # tokens of a training window, for models without a context limit


def context_of(recipe: Recipe) -> int:
    """Longest sequence to train on, in tokens."""
    return int(recipe.model.context or DEFAULT_SEQ_LEN)


def carries_state(recipe: Recipe) -> bool:
    """Whether training carries the hidden state from batch to batch (stateful truncated BPTT)."""
    setting, is_recurrent = recipe.train.carry_state, isinstance(recipe.model, RNNConfig)
    if setting is True and not is_recurrent:
        raise ConfigError(
            "train.carry_state=true is for recurrent models: other models have no hidden state to carry over"
        )
    train = recipe.train
    is_supported = train.grad_accum_steps == 1 and train.parallel == "none" and len(recipe.data.mix) < 2
    is_supported = is_supported and train.objective in ("auto", "causal")  # a registered loss takes no state
    if setting is True and not is_supported:
        raise ConfigError(
            "train.carry_state=true needs one process, train.grad_accum_steps=1, one data source and the objective "
            "causal: each row of a batch must continue the same row of the previous one"
        )
    return is_supported and (is_recurrent if setting == "auto" else setting)


def text_dataset(
    recipe: Recipe, corpora: list[tuple[PreparedCorpus, float]], objective: str, tokenizer: Tokenizer
) -> IndexedDataset[Any]:
    """Windows of the corpus, or of a weighted mixture of several."""
    seq_len = recipe.train.seq_len or context_of(recipe)
    # A BOS token of its own is never predicted: rule 3 of tokenizers/base.py.
    ignore_id = None if tokenizer.bos_is_eos else tokenizer.bos_id
    if carries_state(recipe):
        (corpus, _) = corpora[0]
        return CausalDataset(corpus.train, seq_len, n_streams=recipe.train.batch_size, ignore_id=ignore_id)

    def windows(tokens: TokenArray) -> IndexedDataset[Any]:
        if objective == "causal":
            return CausalDataset(tokens, seq_len, ignore_id=ignore_id)
        return MLMDataset(tokens, seq_len, tokenizer, **masking_of(recipe))

    datasets = [(windows(corpus.train), weight) for corpus, weight in corpora]
    return datasets[0][0] if len(datasets) == 1 else MixtureDataset(datasets)


def text_validation_set(
    documents: Sequence[str], objective: str, tokenizer: Tokenizer, recipe: Recipe
) -> ValidationSet:
    if objective != "causal":
        return mlm_validation_set(documents, tokenizer, recipe)
    return ValidationText(
        documents,
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        context=recipe.eval.context or recipe.model.context,
        batch_size=recipe.eval.batch_size,
    )


def masking_of(recipe: Recipe) -> dict[str, Any]:
    """How a recipe masks tokens and builds rows: the keyword arguments of `MLMDataset`."""
    train = recipe.train
    if train.segment_pairs and (n_segments := getattr(recipe.model, "n_segments", 0)) < 2:
        raise ConfigError(
            f"train.segment_pairs=true needs two segment embeddings, and model.n_segments={n_segments}: set "
            f"model.n_segments=2, or train.segment_pairs=false"
        )
    return {
        "mask_prob": train.mask_prob,
        "whole_words": train.whole_word_masking,
        "segment_pairs": train.segment_pairs,
    }


def mlm_validation_set(documents: Sequence[str], tokenizer: Tokenizer, recipe: Recipe) -> ValidationSet:
    """Windows as in training, with masks that are the same at every evaluation."""
    seq_len = recipe.train.seq_len or context_of(recipe)
    return masked_text(
        documents,
        tokenizer,
        seq_len,
        batch_size=recipe.eval.batch_size,
        seed=recipe.train.seed,
        **masking_of(recipe),
    )


def masked_text(
    documents: Sequence[str], tokenizer: Tokenizer, context: int, *, batch_size: int, seed: int = 1, **masking: Any
) -> ValidationSet:
    """Documents with masked tokens to predict. `masking` are keyword arguments of `MLMDataset`."""
    tokens = TokenArray.of(np.array(tokenizer.encode_stream(documents)))
    dataset = MLMDataset(tokens, context, tokenizer, **masking)
    return ValidationExamples(BatchLoader(dataset, batch_size, seed=seed, shuffle=False))
