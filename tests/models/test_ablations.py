"""What a model loses with a part of it: order, causality, transformers' format."""

import pytest
import torch

import headway
from headway.config.ablations import ablated_settings, ablation_warnings
from headway.errors import ConfigError
from headway.evaluation.leakage import sees_future
from headway.models.serialization import layout_of
from tests.models.variants import amplified

TINY = {"vocab_size": 11, "context": 16, "n_layers": 2, "n_heads": 2, "d_model": 8, "dropout": 0.0}


def model(family="gpt", **config):
    return amplified(headway.create(family, **{**TINY, **config}))


@pytest.mark.parametrize("family", ["gpt", "transformer"])
@pytest.mark.parametrize(("mask", "leaks"), [("causal", False), ("none", True), ("after-softmax", True)])
def test_a_model_without_its_mask_sees_the_future(family, mask, leaks):
    assert sees_future(model(family, attention_mask=mask)) is leaks


@pytest.mark.parametrize("family", ["ngram", "nplm", "rnn", "lstm", "seq2seq", "bahdanau"])
def test_no_other_family_sees_the_future(family):
    built = headway.create(family, vocab_size=11)
    if family == "ngram":
        built.fit(torch.arange(11).repeat(3))
    assert not sees_future(built)


@pytest.mark.parametrize("mask", ["none", "after-softmax"])
@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_padding_changes_nothing_without_a_mask_either(family, mask):
    built = model(family, attention_mask=mask)
    ids, lengths = torch.randint(11, (2, 7)), torch.tensor([5, 7])
    source = {"source": torch.randint(11, (2, 4))} if family == "transformer" else {}
    other = ids.clone()
    other[0, 5:] = (other[0, 5:] + 1) % 11
    torch.testing.assert_close(built(ids, lengths, **source)[0, :5], built(other, lengths, **source)[0, :5])
    alone = built(ids[:1, :5], **{name: tensor[:1] for name, tensor in source.items()})
    torch.testing.assert_close(built(ids, lengths, **source)[:1, :5], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", ["none", "after-softmax"])
def test_packed_documents_stay_apart_without_a_mask(mask):
    built = model(attention_mask=mask)
    ids, documents = torch.randint(11, (1, 7)), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    together = built(ids, documents=documents)
    torch.testing.assert_close(together[:, :3], built(ids[:, :3]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[:, 3:], built(ids[:, 3:]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", ["none", "after-softmax"])
def test_decoding_is_causal_whatever_the_mask(mask):
    """Prefill in one step and token by token give the same logits: those of the model with its mask."""
    built, causal = model(attention_mask=mask), model()
    causal.load_state_dict(built.state_dict())
    ids = torch.randint(11, (2, 6))
    prefill, _ = built.step(ids, built.start(2))
    torch.testing.assert_close(prefill, causal(ids), atol=1e-5, rtol=1e-5)


def test_without_positions_permuted_inputs_give_permuted_outputs():
    built = model("bert", positions="none")
    ids, order = torch.randint(11, (1, 9)), torch.randperm(9)
    torch.testing.assert_close(built(ids[:, order]), built(ids)[:, order], atol=1e-5, rtol=1e-5)
    with_positions = model("bert")
    assert not torch.allclose(with_positions(ids[:, order]), with_positions(ids)[:, order], atol=1e-3)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("positions", "none"),
        ("norm", "none"),
        ("residual", "none"),
        ("attention_scale", "none"),
        ("similarity", "cosine"),
        ("attention_mask", "none"),
        ("attention_mask", "after-softmax"),
    ],
)
def test_an_ablated_model_is_saved_as_headways_own_and_loads_again(setting, value, tmp_path):
    built = model(**{setting: value})
    assert ablated_settings(built.config) == {setting: value}
    assert layout_of(built) is None
    assert layout_of(model()) is not None
    built.save(tmp_path / "model")
    loaded, ids = headway.load(tmp_path / "model"), torch.randint(11, (1, 6))
    assert getattr(loaded.config, setting) == value
    torch.testing.assert_close(loaded(ids), built(ids))
    assert bool(ablation_warnings(built.config)) is (setting != "similarity")


def test_warnings_name_the_setting_and_what_it_breaks():
    (warning,) = ablation_warnings(model(attention_mask="none").config)
    assert warning.startswith("model.attention_mask=none: this model sees what it predicts")
    assert "not at all" in ablation_warnings(model("bert", positions="none").config)[0]
    assert "only through the causal mask" in ablation_warnings(model(positions="none").config)[0]
    assert ablation_warnings(headway.create("lstm", vocab_size=11).config) == []


def test_a_late_mask_needs_dot_product_attention():
    headway.register("attention", "test-uniform", lambda q, k, v, **_: (v, None))
    try:
        with pytest.raises(ConfigError, match="attention_mask='after-softmax' is a form of dot-product attention"):
            headway.create("gpt", **TINY, attention="test-uniform", attention_mask="after-softmax")
    finally:
        from headway.config.choices import CHOICES
        from headway.nn import ATTENTIONS

        del ATTENTIONS["test-uniform"]
        CHOICES["attention"].remove("test-uniform")


def test_the_trace_of_a_1_shrinks_to_an_eighth_with_each_step_of_a_sigmoid_rnn():
    """The forgetting exercise: W_hh = ½ I, W_hx = I, b_h = 0; h with and without a 1 at the first step."""
    from headway.nn.recurrent import Recurrent

    cell = Recurrent("sigmoid", 2, 2)
    with torch.no_grad():
        cell.weight_x.copy_(torch.eye(2))
        cell.weight_h.copy_(torch.eye(2) / 2)
        cell.bias_x.zero_(), cell.bias_h.zero_()
    bits = torch.zeros(2, 4, 2)
    bits[1, 0] = 1
    traces, _ = cell(bits, cell.start(2))
    difference = (traces[1] - traces[0])[:, 0]
    ratios = difference[1:] / difference[:-1]
    assert ((ratios > 0.1) & (ratios <= 0.125)).all()  # at most ½ · ¼
