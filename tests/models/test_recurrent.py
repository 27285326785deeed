"""Recurrent models and the neural probabilistic language model: their equations, sizes and training."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.config import load_recipe, recipe_from_table
from headway.data.loader import CausalBatch
from headway.errors import ConfigError
from headway.training.objectives import LossModule


def test_nplm_is_its_equation():
    """Bengio et al. 2003, eq. 1, for one window and at the start of a text."""
    for direct in (False, True):
        model = headway.create("nplm", vocab_size=11, order=4, d_model=3, d_hidden=5, direct=direct).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        ids = torch.tensor([[7, 2, 9, 4]])
        x = torch.cat([model.C[4], model.C[9], model.C[2]])
        a = torch.tanh(model.hidden_layer.bias + model.hidden_layer.weight @ x)
        y = model.bias + model.U[:, :5] @ a
        if direct:
            y = y + model.U[:, 5:] @ x
        assert_close(model(ids)[0, -1], y, rtol=1e-5, atol=1e-5)
        first = torch.cat([model.C[7], model.padding_embedding[1], model.padding_embedding[2]])
        a = torch.tanh(model.hidden_layer.bias + model.hidden_layer.weight @ first)
        y = model.bias + model.U[:, :5] @ a + (model.U[:, 5:] @ first if direct else 0)
        assert_close(model(ids)[0, 0], y, rtol=1e-5, atol=1e-5)


def test_sizes_are_the_papers():
    """Zaremba et al. 2014, medium: two layers of 650 over 10,000 words; Merity et al. 2018: 24 million."""
    medium = headway.create("lstm", vocab_size=10_000, device="meta")
    assert medium.n_params == 2 * 10_000 * 650 + 2 * (4 * 650 * 1300 + 2 * 4 * 650) + 10_000
    awd = headway.create(
        "lstm", vocab_size=10_000, n_layers=3, d_model=400, d_hidden=1150, tie_embeddings=True, device="meta"
    )
    assert awd.n_params == 24_221_600  # of salesforce/awd-lstm-lm with its defaults


def test_windows_with_carried_state_equal_one_long_text():
    """The loss over three windows that carry the hidden state is the loss of the full text."""
    model = headway.create("lstm", vocab_size=19, n_layers=2, d_model=8, dropout=0.0).train()
    loss_module = LossModule(model, "causal")
    loss_module.carry_state(4)
    ids = torch.randint(19, (4, 31))
    total = torch.zeros(())
    for start in range(0, 30, 10):
        carry = torch.full((4,), float(start > 0))
        inputs, targets = ids[:, start : start + 10], ids[:, start + 1 : start + 11]
        nats, _ = loss_module(CausalBatch(inputs, targets, carry=carry))
        total = total + nats.detach()
    expected = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    assert_close(total, expected, rtol=1e-5, atol=1e-4)
    new_text, _ = loss_module(CausalBatch(ids[:, :10], ids[:, 1:11], carry=torch.zeros(4)))
    expected, _ = LossModule(model, "causal")(CausalBatch(ids[:, :10], ids[:, 1:11]))
    assert_close(new_text, expected)


def test_scoring_a_long_text_in_chunks_changes_nothing(monkeypatch):
    model = headway.create("lstm", vocab_size=19, n_layers=2, d_model=8).eval()
    ids, lengths = torch.randint(19, (3, 50)), torch.tensor([50, 7, 33])
    targets = ids.roll(-1, 1).masked_fill(torch.arange(50) >= lengths[:, None], -100)
    batch = CausalBatch(ids, targets, lengths)
    expected, _ = LossModule(model, "causal").eval()(batch)
    monkeypatch.setattr("headway.training.objectives.EVAL_CHUNK_TOKENS", 9)
    assert_close(LossModule(model, "causal").eval()(batch)[0], expected)


@pytest.mark.parametrize("family", ["rnn", "lstm", "nplm"])
def test_training_saving_and_generation(family, tmp_path):
    (tmp_path / "a.txt").write_text("abcdefgh" * 400)
    recipe = recipe_from_table({
        "model": {"family": family, "d_model": 16, "d_hidden": 24, "dropout": 0.0},
        "tokenizer": {"kind": "char"},
        "data": {"path": str(tmp_path / "a.txt")},
        "train": {"steps": 150, "batch_size": 8, "seq_len": 16, "lr": 0.02, "warmup_steps": 5, "save_every": 0},
        "eval": {"every_steps": 0},
    })  # fmt: skip
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.score.bits_per_byte < 0.6
    model = headway.load(tmp_path / "run")
    text = "".join(token.text for token in headway.generate(model, "abcd", temperature=0, max_new_tokens=8))
    assert text == "efghabcd"


def test_invalid_recurrent_settings_are_refused():
    for settings, message in (
        (["model.name=gpt-mini", "train.carry_state=true"], "is for recurrent models"),
        (
            ["model.name=lstm", "train.carry_state=true", "train.grad_accum_steps=2"],
            "one process, train.grad_accum_steps=1",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            headway.train(load_recipe("demo", [*settings, "train.steps=1"]), out="/nowhere/run")
    with pytest.raises(ConfigError, match="embedding_dropout=1"):
        headway.create("lstm", embedding_dropout=1)
    with pytest.raises(ConfigError, match="cell='ltsm' is not one of"):
        headway.create("rnn", cell="ltsm")
