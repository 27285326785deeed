"""The bidirectional encoder: torch's own, row by row; padding changes nothing; it tags, classifies, saves and loads."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import headway
from headway.errors import ConfigError, InputError
from headway.models import BiLSTM, Classifier, Tagger
from tests.models.variants import loud
from tests.training.recipes import for_objective

SIZE = {"vocab_size": 31, "d_model": 10, "d_hidden": 7, "dropout": 0.0}
VARIANTS = [{"n_layers": n, "cell": cell} for n in (1, 2, 3) for cell in ("lstm", "gru", "tanh")]


def ours_and_torchs(n_layers, cell):
    model = loud(headway.create("bilstm", **SIZE, n_layers=n_layers, cell=cell))
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}[cell]
    theirs = kind(10, 7, num_layers=n_layers, bidirectional=True, batch_first=True)
    for i, layer in enumerate(model.layers.layers):
        for way, end in ((layer.forward_rnn, ""), (layer.backward_rnn, "_reverse")):
            names = {"weight_ih": "weight_x", "weight_hh": "weight_h", "bias_ih": "bias_x", "bias_hh": "bias_h"}
            for name, own in names.items():
                getattr(theirs, f"{name}_l{i}{end}").data.copy_(getattr(way, own).data)
    return model, theirs


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_it_is_torchs_own_outputs_and_gradients(variant):
    model, theirs = ours_and_torchs(**variant)
    ids = torch.randint(0, 31, (3, 6))
    found = model(ids)
    wanted, _ = theirs(model.embedding[ids])
    assert_close(found, wanted)
    chosen = torch.randn_like(found)
    ours = torch.autograd.grad((found * chosen).sum(), [model.embedding, model.layers.layers[0].backward_rnn.weight_h])
    other = torch.autograd.grad((wanted * chosen).sum(), [model.embedding, theirs.weight_hh_l0_reverse])
    for a, b in zip(ours, other, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", [*VARIANTS, {"n_layers": 2, "cell": "peephole"}], ids=str)
def test_a_batch_is_its_rows_one_by_one_whatever_the_padding_holds(variant):
    model = loud(headway.create("bilstm", **SIZE, **variant))
    ids, lengths = torch.randint(0, 31, (4, 9)), [9, 1, 5, 3]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    found = model(ids, mask)
    for row, n in enumerate(lengths):
        assert_close(found[row, :n], model(ids[row : row + 1, :n])[0])
    other = ids.clone()
    other[~mask] = 7
    assert_close(model(other, mask)[mask], found[mask], rtol=0, atol=0)


def test_every_token_knows_what_stands_before_and_after_it():
    model = loud(headway.create("bilstm", **SIZE))
    ids = torch.zeros(1, 8, dtype=torch.long)
    for changed in range(8):
        other = ids.clone()
        other[0, changed] = 5
        assert ((model(other) - model(ids)).abs().amax(dim=-1) > 0).all()


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
    ids = torch.randint(0, loaded.config.vocab_size, (2, 7))
    assert_close(loaded(ids), result.model(ids))


def test_what_it_does_not_know_is_refused():
    model = headway.create("bilstm", **SIZE)
    with pytest.raises(InputError, match="no segments"):
        model(torch.zeros(1, 3, dtype=torch.long), segments=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"BiLSTMConfig\(labels="):
        Tagger(model)
