"""Exact parameter counts, on the meta device: nothing is allocated."""

import pytest
import torch
import transformers

import headway
from headway.models import BERT, MaskedLM
from tests.golden import GPT3_PRINTED, SIZES

# One preset for each kind of shape: norms, biases, head dimensions, grouped queries, tied and untied embeddings.
COMPARED = [
    "gpt1",
    "gpt2",
    "gpt2-xl",
    "gpt3-large",
    "gpt3-175b",
    "llama-2-7b",
    "llama-3-405b",
    "llama-mini",
    "bert-base",
    "bert-mini",
]


def hf_model(name: str, n_layers: int) -> torch.nn.Module:
    """The model of transformers with the shape of this preset and `n_layers` layers."""
    c = headway.PRESETS[name].resolved()
    if name.startswith("gpt1"):
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(n_layer=n_layers))
    if name.startswith(("gpt2", "gpt3")):
        shape = {"n_embd": c.d_model, "n_layer": n_layers, "n_head": c.n_heads, "n_positions": c.context}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
    shape = {"hidden_size": c.d_model, "num_hidden_layers": n_layers, "num_attention_heads": c.n_heads}
    shape |= {"vocab_size": c.vocab_size, "max_position_embeddings": c.context, "intermediate_size": c.d_ff}
    if name.startswith("llama"):
        config = transformers.LlamaConfig(**shape, num_key_value_heads=c.n_kv_heads)
        return transformers.LlamaForCausalLM(config)
    return transformers.BertModel(transformers.BertConfig(**shape))


@pytest.mark.parametrize("name", SIZES)
def test_preset_has_the_published_size(name):
    model = headway.create(name, device="meta")
    assert model.n_params == sum(p.numel() for p in model.parameters()) == SIZES[name]


@pytest.mark.parametrize("name", COMPARED)
def test_preset_has_the_size_transformers_gives(name):
    """At two layers; the published sizes check the depth."""
    with torch.device("meta"):
        expected = hf_model(name, n_layers=2)
    model = headway.create(name, n_layers=2, device="meta")
    assert model.n_params == sum(p.numel() for p in expected.parameters())


@pytest.mark.parametrize("name", GPT3_PRINTED)
def test_gpt3_is_within_four_percent_of_the_paper(name):
    assert headway.create(name, device="meta").n_params == pytest.approx(GPT3_PRINTED[name], rel=0.04)


def test_gpt3_175b_is_within_half_a_percent():
    assert headway.create("gpt3-175b", device="meta").n_params == pytest.approx(175e9, rel=0.005)


def test_masked_lm_head_has_the_size_transformers_gives():
    with torch.device("meta"):
        model = MaskedLM(BERT(headway.PRESETS["bert-base"]))
        expected = transformers.BertForMaskedLM(transformers.BertConfig())
    pooler = 768 * 768 + 768  # transformers leaves it out under this head
    assert model.n_params - pooler == sum(p.numel() for p in expected.parameters())


def test_overriding_the_width_changes_the_defaults_derived_from_it():
    model = headway.create("gpt2", d_model=384, n_heads=6, n_layers=1, device="meta")
    assert (model.config.d_head, model.config.d_ff, model.config.n_kv_heads) == (64, 1536, 6)
