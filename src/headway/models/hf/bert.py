"""BERT and its heads as transformers stores them: `BertModel`, `BertForMaskedLM` and three linear heads.

The encoder (Devlin et al. 2019) normalises after each residual and once after the embeddings. Query, key and value
are three matrices in transformers and one (`attention.qkv`) in Headway. A model with a head holds the encoder under
`encoder.` in Headway and under `bert.` in transformers:

    Headway        transformers                      head
    BERT           BertModel                         none; a checkpoint's heads are not loaded
    MaskedLM       BertForMaskedLM                   `cls.predictions`: dense, norm, output matrix (tied or not), bias
    Classifier     BertForSequenceClassification     `classifier`, on the pooled first token
    Tagger         BertForTokenClassification        `classifier`, on every token
    SpanReader     BertForQuestionAnswering          `qa_outputs`, on every token

Departures: transformers drops the pooler from the heads that do not use it (all but the classifier), and a `BertModel`
may be without one; it is zeros when they are loaded. The next-sentence head (`cls.seq_relationship`) is not loaded.
transformers has two dropout rates, Headway one; reading takes `hidden_dropout_prob`.
"""

from collections.abc import Mapping
from typing import Any

from headway.config import BERTConfig, build
from headway.errors import CheckpointError
from headway.models.hf.layout import (
    ACTIVATION_FROM_HF,
    ACTIVATION_TO_HF,
    Layout,
    TensorMapping,
    has_parts,
    has_standard_heads,
    require,
    translate,
    weight_and_bias,
)

# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────

BLOCK, LAYER = "blocks.{i}", "bert.encoder.layer.{i}"

ENCODER_TENSORS = (
    TensorMapping("embedding.weight", ("bert.embeddings.word_embeddings.weight",)),
    TensorMapping("positions.weight", ("bert.embeddings.position_embeddings.weight",)),
    TensorMapping("segments", ("bert.embeddings.token_type_embeddings.weight",)),
    *weight_and_bias("embedding_norm", "bert.embeddings.LayerNorm"),
    *weight_and_bias(f"{BLOCK}.attention.qkv", *(f"{LAYER}.attention.self.{x}" for x in ("query", "key", "value"))),
    *weight_and_bias(f"{BLOCK}.attention.out", f"{LAYER}.attention.output.dense"),
    *weight_and_bias(f"{BLOCK}.norm1", f"{LAYER}.attention.output.LayerNorm"),
    *weight_and_bias(f"{BLOCK}.feed_forward.up", f"{LAYER}.intermediate.dense"),
    *weight_and_bias(f"{BLOCK}.feed_forward.down", f"{LAYER}.output.dense"),
    *weight_and_bias(f"{BLOCK}.norm2", f"{LAYER}.output.LayerNorm"),
    *weight_and_bias("pooler", "bert.pooler.dense"),
)
INNER_ENCODER_TENSORS = tuple(TensorMapping(f"encoder.{mapping.headway}", mapping.hf) for mapping in ENCODER_TENSORS)

MLM_HEAD = "cls.predictions"
MLM_TENSORS = (
    *INNER_ENCODER_TENSORS,
    *weight_and_bias("dense", f"{MLM_HEAD}.transform.dense"),
    *weight_and_bias("norm", f"{MLM_HEAD}.transform.LayerNorm"),
    TensorMapping("bias", (f"{MLM_HEAD}.decoder.bias",)),
    TensorMapping("output", (f"{MLM_HEAD}.decoder.weight",)),
)

POOLER = ("pooler.weight", "pooler.bias")
INNER_POOLER = tuple(f"encoder.{name}" for name in POOLER)
MULTI_LABEL = "multi_label_classification"  # the `problem_type` of transformers
POSITION_IDS = (".position_ids",)  # 0, 1, 2, …, saved as a buffer by old versions of transformers


# ── config.json ───────────────────────────────────────────────────────────────────────────────────────────────────


def config_to_hf(c: BERTConfig) -> dict[str, Any] | None:
    parts = {"positions": "learned", "norm": "layer", "bias": True, "scale_embeddings": False, "norm_order": "post"}
    if not has_standard_heads(c) or not has_parts(c, **parts, feed_forward=tuple(ACTIVATION_TO_HF)):
        return None
    fields: dict[str, Any] = {
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "hidden_act": ACTIVATION_TO_HF[c.feed_forward],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "type_vocab_size": c.n_segments,
        "layer_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tie_embeddings,
    }
    if c.labels:
        fields["id2label"] = dict(enumerate(c.labels))
        fields["label2id"] = {label: i for i, label in enumerate(c.labels)}
    if c.multi_label:
        fields["problem_type"] = MULTI_LABEL
    return fields


def config_from_hf(hf: Mapping[str, Any]) -> BERTConfig:
    require(hf, position_embedding_type=["absolute"], is_decoder=[False], add_cross_attention=[False])
    fields = {
        "vocab_size": hf["vocab_size"],
        "context": hf.get("max_position_embeddings", 512),
        "d_model": hf["hidden_size"],
        "d_ff": hf["intermediate_size"],
        "n_layers": hf["num_hidden_layers"],
        "n_heads": hf["num_attention_heads"],
        "feed_forward": translate("hidden_act", hf.get("hidden_act", "gelu"), ACTIVATION_FROM_HF),
        "dropout": hf.get("hidden_dropout_prob", 0.1),
        "n_segments": hf.get("type_vocab_size", 2),
        "norm_eps": hf.get("layer_norm_eps", 1e-12),
        "tie_embeddings": hf.get("tie_word_embeddings", True),
        "labels": _labels(hf.get("id2label") or {}),
        "multi_label": hf.get("problem_type") == MULTI_LABEL,
    }
    return build(BERTConfig, fields)


def _labels(id2label: Any) -> list[str]:
    """{"0": "no", "1": "yes"} → ["no", "yes"]."""
    n = len(id2label) if isinstance(id2label, dict) else 0
    if not n or set(id2label) != {str(i) for i in range(n)}:
        if id2label == {}:
            return []
        raise CheckpointError(f"config.json: id2label={id2label!r:.80} does not name the labels 0, 1, 2, …")
    return [id2label[str(i)] for i in range(n)]


def labeled_config_from_hf(hf: Mapping[str, Any]) -> BERTConfig:
    """For heads that need labels: transformers omits `id2label` when there are two labels with default names."""
    config = config_from_hf(hf)
    return config if config.labels else config.replace(labels=["LABEL_0", "LABEL_1"])


def unlabeled_config_to_hf(c: BERTConfig) -> dict[str, Any] | None:
    """For the span head: with other labels than two, transformers would give it another number of outputs."""
    return config_to_hf(c.replace(labels=[], multi_label=False))


# ── layouts ───────────────────────────────────────────────────────────────────────────────────────────────────────

BERT_ENCODER = Layout(
    model_type="bert",
    architecture="BertModel",
    also_loads=("BertForPreTraining", "BertForNextSentencePrediction"),
    prefix="bert.",
    tensors=ENCODER_TENSORS,
    config_to_hf=config_to_hf,
    config_from_hf=config_from_hf,
    ignored_suffixes=POSITION_IDS,
    ignored_prefixes=("cls.", "classifier.", "qa_outputs."),
    optional=POOLER,
)
BERT_MASKED_LM = Layout(
    model_type="bert",
    architecture="BertForMaskedLM",
    prefix="bert.",
    tensors=MLM_TENSORS,
    config_to_hf=config_to_hf,
    config_from_hf=config_from_hf,
    ignored_suffixes=POSITION_IDS,
    ignored_prefixes=("cls.seq_relationship.",),
    optional=INNER_POOLER,
    aliases={f"{MLM_HEAD}.decoder.bias": f"{MLM_HEAD}.bias"},
)
BERT_CLASSIFIER = Layout(
    model_type="bert",
    architecture="BertForSequenceClassification",
    prefix="bert.",
    tensors=(*INNER_ENCODER_TENSORS, *weight_and_bias("output", "classifier")),
    config_to_hf=config_to_hf,
    config_from_hf=labeled_config_from_hf,
    ignored_suffixes=POSITION_IDS,
)
BERT_TAGGER = Layout(
    model_type="bert",
    architecture="BertForTokenClassification",
    prefix="bert.",
    tensors=(*INNER_ENCODER_TENSORS, *weight_and_bias("output", "classifier")),
    config_to_hf=config_to_hf,
    config_from_hf=labeled_config_from_hf,
    ignored_suffixes=POSITION_IDS,
    optional=INNER_POOLER,
)
BERT_SPAN_READER = Layout(
    model_type="bert",
    architecture="BertForQuestionAnswering",
    prefix="bert.",
    tensors=(*INNER_ENCODER_TENSORS, *weight_and_bias("output", "qa_outputs")),
    config_to_hf=unlabeled_config_to_hf,
    config_from_hf=config_from_hf,
    ignored_suffixes=POSITION_IDS,
    optional=INNER_POOLER,
)
