"""Exact sizes, on the meta device: nothing is allocated."""

import pytest
import torch
import transformers

import headway
from headway.models import BERT, MaskedLM
from tests.golden import GPT3_PRINTED, SIZES


def theirs(name: str) -> torch.nn.Module | None:
    c = headway.create(name, device="meta").config
    if name.startswith("gpt1"):
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig())
    if name.startswith(("gpt2", "gpt3")) and c.d_head * c.n_heads == c.d_model:
        shape = {"n_embd": c.d_model, "n_layer": c.n_layers, "n_head": c.n_heads, "n_positions": c.context}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
    if name.startswith("llama"):
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=c.vocab_size,
                hidden_size=c.d_model,
                intermediate_size=c.d_ff,
                num_hidden_layers=c.n_layers,
                num_attention_heads=c.n_heads,
                num_key_value_heads=c.n_kv_heads,
            )
        )
    if name.startswith("bert"):
        shape = {"hidden_size": c.d_model, "num_hidden_layers": c.n_layers, "num_attention_heads": c.n_heads}
        sizes = {"vocab_size": c.vocab_size, "max_position_embeddings": c.context, "intermediate_size": c.d_ff}
        return transformers.BertModel(transformers.BertConfig(**shape, **sizes))
    return None


@pytest.mark.parametrize("name", SIZES)
def test_preset_has_the_published_size(name):
    model = headway.create(name, device="meta")
    assert model.n_params == sum(p.numel() for p in model.parameters()) == SIZES[name]


@pytest.mark.parametrize("name", headway.PRESETS)
def test_preset_has_the_size_transformers_gives(name):
    with torch.device("meta"):
        other = theirs(name)
    if other is None:
        pytest.skip("transformers has no such shape")
    assert headway.create(name, device="meta").n_params == sum(p.numel() for p in other.parameters())


@pytest.mark.parametrize("name", GPT3_PRINTED)
def test_gpt3_is_within_four_percent_of_the_paper(name):
    assert headway.create(name, device="meta").n_params == pytest.approx(GPT3_PRINTED[name], rel=0.04)


def test_gpt3_175b_is_within_half_a_percent():
    assert headway.create("gpt3-175b", device="meta").n_params == pytest.approx(175e9, rel=0.005)


def test_masked_lm_head_adds_what_bert_adds():
    with torch.device("meta"):
        ours = MaskedLM(BERT(headway.PRESETS["bert-base"]))
        other = transformers.BertForMaskedLM(transformers.BertConfig())
    pooler = 768 * 768 + 768  # transformers leaves it out under this head
    assert ours.n_params - pooler == sum(p.numel() for p in other.parameters())


def test_overriding_a_width_moves_what_follows_from_it():
    model = headway.create("gpt2", d_model=384, n_heads=6, n_layers=1, device="meta")
    assert (model.config.d_head, model.config.d_ff, model.config.n_kv_heads) == (64, 1536, 6)
