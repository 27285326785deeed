"""Recurrent layers: the definition, the fused kernels and torch.nn agree, outputs and gradients."""

import pytest
import torch
from torch.testing import assert_close

from headway.nn.recurrent import GATES, Bidirectional, Recurrent, reverse_sequences, variational_dropout

FUSED = ("tanh", "relu", "lstm", "gru")
close = {"rtol": 1e-5, "atol": 1e-6}


def make_layer(kind: str, d_in: int = 5, d_out: int = 7, **options) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(kind, d_in, d_out, **options)


def random_state(layer: Recurrent, n_rows: int) -> tuple:
    return tuple(torch.randn(n_rows, layer.d_out, requires_grad=True) for _ in range(layer.n_state_tensors))


def gradients(layer: Recurrent, outputs, new_state, x, state) -> list:
    loss = (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum()
    loss = loss + sum(t.pow(2).sum() for t in new_state)
    return list(torch.autograd.grad(loss, [x, *state, *layer.parameters()]))


@pytest.mark.parametrize("kind", FUSED)
def test_fused_kernels_equal_the_definition(kind):
    layer = make_layer(kind)
    x, state = torch.randn(3, 9, 5, requires_grad=True), random_state(layer, 3)
    fast, slow = layer(x, state), layer.steps(x, state)
    assert_close(fast, slow, **close)
    assert_close(gradients(layer, *fast, x, state), gradients(layer, *slow, x, state), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", FUSED)
def test_torch_modules_with_the_same_weights_agree(kind):
    layer = make_layer(kind)
    torch_layer = {
        "lstm": torch.nn.LSTM(5, 7, batch_first=True),
        "gru": torch.nn.GRU(5, 7, batch_first=True),
        "tanh": torch.nn.RNN(5, 7, batch_first=True),
        "relu": torch.nn.RNN(5, 7, nonlinearity="relu", batch_first=True),
    }[kind]
    names = ("weight_x", "weight_h", "bias_x", "bias_h")
    torch_names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    torch_layer.load_state_dict({b: layer.get_parameter(a).detach() for a, b in zip(names, torch_names, strict=True)})
    x = torch.randn(3, 9, 5)
    assert_close(layer(x, layer.start(3))[0], torch_layer(x)[0], **close)


def test_peepholes_are_the_lectures_equations():
    """Graves 2013, eq. 7 to 11, written out for one step."""
    layer = make_layer("peephole", 2, 3)
    x, (h, c) = torch.randn(1, 1, 2), layer.start(1)
    c = c + torch.tensor([[0.5, -1.0, 2.0]])
    W_ci, W_cf, W_co = layer.weight_c
    a = x[:, 0] @ layer.weight_x.T + layer.bias_x + h @ layer.weight_h.T + layer.bias_h
    i, f = torch.sigmoid(a[:, :3] + W_ci * c), torch.sigmoid(a[:, 3:6] + W_cf * c)
    c_new = f * c + i * torch.tanh(a[:, 6:9])
    o = torch.sigmoid(a[:, 9:] + W_co * c_new)
    outputs, new_state = layer(x, (h, c))
    assert_close(new_state, (o * torch.tanh(c_new), c_new), **close)
    assert_close(outputs[:, 0], new_state[0], **close)


def test_a_peephole_lstm_with_zero_peepholes_is_an_lstm():
    peephole, plain = make_layer("peephole"), make_layer("lstm")
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            peephole.get_parameter(name).copy_(parameter)
        peephole.weight_c.zero_()
    x = torch.randn(2, 6, 5)
    assert_close(peephole(x, peephole.start(2)), plain(x, plain.start(2)), **close)


@pytest.mark.parametrize("kind", GATES)
def test_consecutive_windows_equal_one_long_pass(kind):
    layer = make_layer(kind)
    x, state = torch.randn(3, 20, 5), layer.start(3)
    expected, final_state = layer(x, state)
    outputs = []
    for window in x.split([7, 1, 12], dim=1):
        y, state = layer(window, state)
        outputs.append(y)
    assert_close(torch.cat(outputs, dim=1), expected, **close)
    assert_close(state, final_state, **close)


@pytest.mark.parametrize("kind", GATES)
def test_a_ragged_batch_equals_its_rows_one_by_one(kind):
    layer = make_layer(kind)
    x, state, lengths = torch.randn(4, 6, 5), random_state(layer, 4), torch.tensor([6, 0, 2, 5])
    outputs, new_state = layer(x, state, lengths)
    for b, n in enumerate(lengths.tolist()):
        row_state = tuple(t[b : b + 1] for t in state)
        expected, final_state = layer(x[b : b + 1, :n], row_state) if n else (outputs[b : b + 1, :0], row_state)
        assert_close(outputs[b : b + 1, :n], expected, **close)
        assert_close(tuple(t[b : b + 1] for t in new_state), final_state, **close)


def test_an_elman_network_with_half_the_identity_forgets():
    """The lecture's exercise: with W_hh = ½ I, an input t steps ago counts at most ½^t. The gradient of h_T by x_1 is
    the product of T − 1 Jacobians ½ diag(1 − h²), and 1 − h² ≤ 1."""
    layer = make_layer("tanh", 4, 4)
    with torch.no_grad():
        layer.weight_x.copy_(torch.eye(4))
        layer.weight_h.copy_(torch.eye(4) / 2)
        layer.bias_x.zero_()
        layer.bias_h.zero_()
    T = 24
    x = (0.1 * torch.randn(1, T, 4)).requires_grad_()
    outputs, _ = layer(x, layer.start(1))
    gradient = torch.autograd.grad(outputs[0, -1].sum(), x)[0][0].abs().amax(dim=-1)  # of h_T by x_1 … x_T
    assert (gradient <= 0.5 ** torch.arange(T - 1, -1, -1.0) + 1e-9).all()
    assert gradient[0] < 1e-6 < 0.9 < gradient[-1]
    changed = x.detach().clone()
    changed[0, 0] += 5
    assert_close(layer(changed, layer.start(1))[0][0, -1], outputs[0, -1], rtol=0, atol=1e-6)


def test_an_lstm_with_open_gates_does_not_forget():
    layer = make_layer("lstm", 4, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.weight_x[8:12] = torch.eye(4)  # the cell's input is x
        layer.bias_x[4:8] = 20.0  # forget gate open
        layer.bias_x[:4] = layer.bias_x[12:] = 20.0  # input and output gates open
    x = (0.1 * torch.randn(1, 24, 4)).requires_grad_()
    _, (_, cell) = layer(x, layer.start(1))
    gradient = torch.autograd.grad(cell.sum(), x)[0][0].abs().amax(dim=-1)
    assert (gradient > 0.9).all()


def test_a_ragged_bidirectional_batch_equals_torch_row_by_row():
    layer = Bidirectional("lstm", 5, 7)
    torch_layer = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True)
    weights = {}
    for rnn, suffix in ((layer.forward_rnn, ""), (layer.backward_rnn, "_reverse")):
        weights |= {f"weight_ih_l0{suffix}": rnn.weight_x, f"weight_hh_l0{suffix}": rnn.weight_h}
        weights |= {f"bias_ih_l0{suffix}": rnn.bias_x, f"bias_hh_l0{suffix}": rnn.bias_h}
    torch_layer.load_state_dict({name: p.detach() for name, p in weights.items()})
    x, lengths = torch.randn(3, 8, 5), torch.tensor([8, 3, 5])
    outputs, forward_state, backward_state = layer(x, lengths)
    for b, n in enumerate(lengths.tolist()):
        expected, (h, _) = torch_layer(x[b : b + 1, :n])
        assert_close(outputs[b : b + 1, :n], expected, **close)
        assert_close(torch.stack((forward_state[0][b], backward_state[0][b])), h[:, 0], **close)


def test_reversing_leaves_padding_in_place():
    x = torch.tensor([[1, 2, 3, 9], [4, 5, 9, 9]])
    assert reverse_sequences(x, torch.tensor([3, 2])).tolist() == [[3, 2, 1, 9], [5, 4, 9, 9]]


def test_weight_drop_uses_one_mask_for_all_steps_and_is_off_in_eval_mode():
    layer = make_layer("lstm", weight_drop=0.5)
    x = torch.randn(2, 9, 5)
    torch.manual_seed(3)
    fast = layer(x, layer.start(2))[0]
    torch.manual_seed(3)
    dropped = torch.nn.functional.dropout(layer.weight_h, 0.5, True)
    assert_close(fast, layer.steps(x, layer.start(2), dropped)[0], **close)
    assert_close(layer.eval()(x, layer.start(2)), layer.steps(x, layer.start(2)), **close)


def test_variational_dropout_uses_one_mask_for_all_steps():
    x = variational_dropout(torch.ones(4, 6, 50), 0.5, True)
    assert (x == x[:, :1]).all()
    assert set(x.unique().tolist()) == {0.0, 2.0}
    assert (variational_dropout(torch.ones(1, 2, 3), 0.5, False) == 1).all()
