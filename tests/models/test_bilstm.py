"""The bidirectional encoder: equal to torch.nn, invariant to padding; it tags, classifies, saves and loads."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import headway
from headway.errors import ConfigError, InputError
from headway.models import BiLSTM, Classifier, Tagger
from tests.models.variants import amplified
from tests.training.recipes import for_objective

SIZE = {"vocab_size": 31, "d_model": 10, "d_hidden": 7, "dropout": 0.0}
VARIANTS = [{"n_layers": n, "cell": cell} for n in (1, 2, 3) for cell in ("lstm", "gru", "tanh")]


def headway_and_torch_models(n_layers, cell):
    model = amplified(headway.create("bilstm", **SIZE, n_layers=n_layers, cell=cell))
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}[cell]
    torch_model = kind(10, 7, num_layers=n_layers, bidirectional=True, batch_first=True)
    for i, layer in enumerate(model.layers.layers):
        for rnn, suffix in ((layer.forward_rnn, ""), (layer.backward_rnn, "_reverse")):
            names = {"weight_ih": "weight_x", "weight_hh": "weight_h", "bias_ih": "bias_x", "bias_hh": "bias_h"}
            for torch_name, name in names.items():
                getattr(torch_model, f"{torch_name}_l{i}{suffix}").data.copy_(getattr(rnn, name).data)
    return model, torch_model


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_outputs_and_gradients_equal_torch(variant):
    model, torch_model = headway_and_torch_models(**variant)
    ids = torch.randint(0, 31, (3, 6))
    hidden = model(ids)
    expected, _ = torch_model(model.embedding[ids])
    assert_close(hidden, expected)
    weights = torch.randn_like(hidden)
    leaves = [model.embedding, model.layers.layers[0].backward_rnn.weight_h]
    gradients = torch.autograd.grad((hidden * weights).sum(), leaves)
    torch_leaves = [model.embedding, torch_model.weight_hh_l0_reverse]
    expected_gradients = torch.autograd.grad((expected * weights).sum(), torch_leaves)
    for a, b in zip(gradients, expected_gradients, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", [*VARIANTS, {"n_layers": 2, "cell": "peephole"}], ids=str)
def test_batch_equals_rows_one_by_one_for_any_padding(variant):
    model = amplified(headway.create("bilstm", **SIZE, **variant))
    ids, lengths = torch.randint(0, 31, (4, 9)), [9, 1, 5, 3]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    hidden = model(ids, mask)
    for row, n in enumerate(lengths):
        assert_close(hidden[row, :n], model(ids[row : row + 1, :n])[0])
    repadded = ids.clone()
    repadded[~mask] = 7
    assert_close(model(repadded, mask)[mask], hidden[mask], rtol=0, atol=0)


def test_every_token_depends_on_its_left_and_right_context():
    model = amplified(headway.create("bilstm", **SIZE))
    ids = torch.zeros(1, 8, dtype=torch.long)
    for t in range(8):
        changed = ids.clone()
        changed[0, t] = 5
        assert ((model(changed) - model(ids)).abs().amax(dim=-1) > 0).all()


@pytest.mark.parametrize("objective", ["tag", "classify"])
def test_it_learns_saves_and_loads(objective, tmp_path):
    recipe = for_objective(objective, tmp_path)
    table = {"family": "bilstm", "n_layers": 2, "d_model": 16, "d_hidden": 16, "dropout": 0.0, "context": 48}
    recipe = headway.config.recipe_from_table({
        "model": table,
        "tokenizer": {"kind": "wordpiece", "vocab_size": 80},
        "data": {k: getattr(recipe.data, k) for k in ("path", "format", "text", "label") if getattr(recipe.data, k)},
        "train": {"device": "cpu", "steps": 100, "batch_size": 16, "lr": 1e-2, "objective": objective},
    })  # fmt: skip
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.score.accuracy > 0.95
    loaded = headway.load(tmp_path / "run")
    assert type(loaded) is (Tagger if objective == "tag" else Classifier)
    assert type(loaded.encoder) is BiLSTM
    ids = torch.tensor([loaded.tokenizer.build_inputs([5, 6, 7, 8])[0]])
    assert_close(loaded(ids), result.model(ids))


def test_segments_and_missing_labels_are_refused():
    model = headway.create("bilstm", **SIZE)
    with pytest.raises(InputError, match="no segments"):
        model(torch.zeros(1, 3, dtype=torch.long), segments=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"BiLSTMConfig\(labels="):
        Tagger(model)
