"""Gates equal a naive loop over the definition, in every family that has them."""

import numpy as np
import pytest
import torch

import headway
from headway.analysis.gates import gated_layers, plot, render_text, text_gates
from headway.analysis.plotting import use_theme
from headway.errors import InputError
from headway.models import Classifier
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import amplified

TEXT = "abca"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("char", ["abc"])


def small(family, tokenizer, **config):
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 6, "n_layers": 2}
    if family in ("seq2seq", "bahdanau"):
        sizes |= {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    if family == "bahdanau":
        sizes = {name: size for name, size in sizes.items() if name != "n_layers"} | {"d_hidden": 5}
    model = amplified(headway.create(family, device="cpu", **sizes | config))
    model.tokenizer = tokenizer
    return model


def naive_gates(layer, x):
    """The equations of nn/recurrent.py with numpy, unit by unit: name → (T, D), and the last state of each token."""
    w_x, w_h, b_x, b_h = (
        p.detach().double().numpy() for p in (layer.weight_x, layer.weight_h, layer.bias_x, layer.bias_h)
    )
    D = layer.d_out
    h, c = np.zeros(D), np.zeros(D)
    peep = np.zeros((3, D)) if layer.weight_c is None else layer.weight_c.detach().double().numpy()

    def sigma(z):
        return 1 / (1 + np.exp(-z))

    gates, states = {}, []
    for x_t in x:
        a, r = w_x @ x_t + b_x, w_h @ h + b_h
        if layer.kind == "gru":
            reset, update = sigma(a[:D] + r[:D]), sigma(a[D : 2 * D] + r[D : 2 * D])
            h = (1 - update) * np.tanh(a[2 * D :] + reset * r[2 * D :]) + update * h
            values, state = {"reset": reset, "update": update}, h
        else:
            z = a + r
            i, f = sigma(z[:D] + peep[0] * c), sigma(z[D : 2 * D] + peep[1] * c)
            c = f * c + i * np.tanh(z[2 * D : 3 * D])
            o = sigma(z[3 * D :] + peep[2] * c)
            h = o * np.tanh(c)
            values, state = {"input": i, "forget": f, "output": o}, c
        for name, value in values.items():
            gates.setdefault(name, []).append(value)
        states.append(state)
    return {name: np.array(rows) for name, rows in gates.items()}, np.array(states)


@pytest.mark.parametrize("cell", ["lstm", "gru", "peephole"])
def test_gates_of_a_language_model_equal_a_naive_loop(cell, tokenizer):
    model = small("rnn", tokenizer, cell=cell)
    result = text_gates(model, TEXT, layer=0)
    x = model.embedding[tokenizer.encode(TEXT)].detach().double().numpy()
    gates, states = naive_gates(model.layers[0], x)
    assert result.tokens == list(TEXT)
    assert list(result.gates) == list(gates)
    for name, expected in gates.items():
        np.testing.assert_allclose(result.gates[name], expected, atol=1e-5)
        np.testing.assert_allclose(result.of_unit(None)[name], expected.mean(axis=1), atol=1e-5)
        np.testing.assert_allclose(result.of_unit(3)[name], expected[:, 3], atol=1e-5)
    np.testing.assert_allclose(result.state, states, atol=1e-5)
    np.testing.assert_allclose(result.state_norm, np.linalg.norm(states, axis=1), atol=1e-4)


@pytest.mark.parametrize("cell", ["lstm", "gru", "peephole"])
def test_the_last_layer_ends_in_the_state_that_the_fused_path_reaches(cell, tokenizer):
    model = small("rnn", tokenizer, cell=cell)
    result = text_gates(model, TEXT)
    assert result.layer == 1
    _, state = model.step(torch.tensor([tokenizer.encode(TEXT)]), model.start(1))
    torch.testing.assert_close(result.state[-1], state.layers[1][-1][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_bidirectional_encoder_has_gates_in_both_directions(direction, tokenizer):
    model = small("bilstm", tokenizer, d_hidden=5, labels=["a", "b"])
    ids = tokenizer.build_inputs(tokenizer.encode(TEXT))[0]
    x = model.embedding[ids].detach().double().numpy()
    gates, _ = naive_gates(gated_layers(model, direction)[0], x if direction == "forward" else x[::-1])
    for one in (model, Classifier(model)):
        result = text_gates(one, TEXT, layer=0, direction=direction)
        expected = gates["forget"] if direction == "forward" else gates["forget"][::-1]
        np.testing.assert_allclose(result.gates["forget"], expected, atol=1e-5)
        assert (result.direction, len(result.tokens)) == (direction, len(ids))


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau"])
def test_a_translation_model_shows_its_encoder(family, tokenizer):
    model = small(family, tokenizer, cell="gru")
    result = text_gates(model, TEXT, layer=0)
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_id]
    x = model.embedding[ids].detach().double().numpy()
    is_reversed = family == "seq2seq"  # Sutskever et al. encode the source backwards
    gates, _ = naive_gates(gated_layers(model)[0], x[::-1] if is_reversed else x)
    expected = gates["update"][::-1] if is_reversed else gates["update"]
    np.testing.assert_allclose(result.gates["update"], expected, atol=1e-5)
    assert result.tokens[:-1] == list(TEXT)
    assert (result.direction == "backward") == is_reversed
    with pytest.raises(InputError, match="an empty text has no tokens to read"):
        text_gates(model, " ")


def test_models_without_gates_and_wrong_values_are_answered(tokenizer):
    lstm = small("lstm", tokenizer)
    gpt = headway.create("gpt", vocab_size=9, d_model=8, n_heads=2, n_layers=1)
    for model, options, message in [
        (gpt, {}, "a GPT has no gates: use an lstm"),
        (headway.create("ngram", vocab_size=9), {}, "a 3-gram has no gates: use an lstm"),
        (small("rnn", tokenizer), {}, "tanh cells have no gates: use an lstm, or an rnn with model.cell=lstm"),
        (lstm, {"layer": 2}, "layer 2 does not exist: choose 0 to 1"),
        (lstm, {"direction": "backward"}, "an LSTM reads in one direction: leave direction out"),
        (lstm, {"direction": "up"}, "no direction named 'up': choose forward or backward"),
    ]:
        with pytest.raises(InputError, match=message):
            text_gates(model, TEXT, **options)
    with pytest.raises(InputError, match="unit 6 does not exist: choose 0 to 5"):
        text_gates(lstm, TEXT, layer=0).of_unit(6)


def test_text_and_pictures(tokenizer, tmp_path):
    result = text_gates(small("lstm", tokenizer), TEXT)
    lines = render_text(result).splitlines()
    assert lines[0] == "layer 1, the mean of 6 units"
    assert lines[2].split() == ["token", "input", "forget", "output", "|c|"]
    assert [line.split()[0] for line in lines[3:]] == list(TEXT)
    assert "unit 2 of 6" in render_text(result, 2)
    plot(result, tmp_path / "gates.png", model="tiny")
    with use_theme("dark"):
        plot(result, tmp_path / "unit.png", unit=2)
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("gates.png", "unit.png"))
