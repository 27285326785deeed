"""Reading the config.json of a transformers model: every key is used, known to be harmless, refused, or warned about.

transformers has hundreds of keys. Of those that a layout does not read, `HARMLESS` have no effect on what the model
computes in eval mode, and `UNSUPPORTED` have one that Headway does not implement.
"""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.config import ModelConfig
from headway.models.hf.layout import Layout, require

# By topic: names and versions; training; generation; outputs and execution; heads that are not loaded; old copies.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures auto_map dtype headway_version model_type
    tokenizer_class torch_dtype transformers_version

    activation_dropout attention_dropout attention_probs_dropout_prob attn_pdrop classif_dropout classifier_dropout
    decoder_layerdrop dropout embd_pdrop encoder_layerdrop gradient_checkpointing init_std initializer_factor
    initializer_range

    bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty force_bos_token_to_be_generated
    forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens min_length model_max_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences pad_token_id prefix remove_invalid_values
    repetition_penalty sep_token_id suppress_tokens task_specific_params temperature top_k top_p typical_p unk_token_id

    chunk_size_feed_forward output_attentions output_hidden_states output_past output_scores pretraining_tp
    reorder_and_upcast_attn return_dict return_dict_in_generate tf_legacy_loss torchscript use_bfloat16 use_cache

    _num_labels finetuning_task id2label label2id num_labels pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type predict_special_tokens problem_type summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj

    directionality extra_pos_embeddings is_encoder_decoder is_llama_config n_ctx n_special num_hidden_layers
    tie_encoder_decoder transformers.js_config
    """.split()  # noqa: SIM905 (a list of 100 words)
)
# Keys that change the computation in ways that Headway does not implement, and the values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "pruned_heads": (None, {}),
    "is_decoder": (None, False),
    "cross_attention_hidden_size": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "layer_types": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "attention_multiplier": (None,),
    "embedding_multiplier": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "clip_qkv": (None,),
    "num_local_experts": (None,),
    "num_experts": (None,),
    "rope_interleaved": (None, False),
}


class _UsedKeys(Mapping[str, Any]):
    """A config.json that remembers which of its keys were asked for."""

    def __init__(self, document: Mapping[str, Any]):
        self.document, self.used = document, set[str]()

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return self.document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


def read_config(layout: Layout, document: Mapping[str, Any], file: Path) -> ModelConfig:
    """The config in a transformers config.json. A key that changes the computation in a way Headway does not implement
    is refused, and an unknown one gets a warning."""
    require(document, **{name: values for name, values in UNSUPPORTED.items() if name in document})
    hf = _UsedKeys(document)
    config = layout.config_from_hf(hf)
    if unknown := sorted(document.keys() - hf.used - HARMLESS - UNSUPPORTED.keys()):
        names = ", ".join(f"{name:.40}" for name in unknown[:5]) + (", …" if len(unknown) > 5 else "")
        warnings.warn(
            f"{file}: Headway does not know {names}, and ignores {'it' if len(unknown) == 1 else 'them'}; check that "
            f"the model computes the same",
            stacklevel=5,
        )
    return config
