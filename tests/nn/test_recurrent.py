"""Recurrent layers: the readable form, the fast form and torch's own are one function, forward and back."""

import pytest
import torch
from torch.testing import assert_close

from headway.nn.recurrent import GATES, Bidirectional, Recurrent, reverse_sequences, variational_dropout

FUSED = ("tanh", "relu", "lstm", "gru")
close = {"rtol": 1e-5, "atol": 1e-6}


def layer(kind: str, d_in: int = 5, d_out: int = 7, **options) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(kind, d_in, d_out, **options)


def carried(made: Recurrent, n_rows: int) -> tuple:
    return tuple(torch.randn(n_rows, made.d_out, requires_grad=True) for _ in range(made.n_state_tensors))


def gradients(made: Recurrent, outputs, after, x, before) -> list:
    loss = (outputs * torch.linspace(-1, 1, outputs.numel()).view_as(outputs)).sum() + sum(
        t.pow(2).sum() for t in after
    )
    return list(torch.autograd.grad(loss, [x, *before, *made.parameters()]))


@pytest.mark.parametrize("kind", FUSED)
def test_the_fast_form_is_the_readable_one(kind):
    made = layer(kind)
    x, before = torch.randn(3, 9, 5, requires_grad=True), carried(made, 3)
    fast, slow = made(x, before), made.steps(x, before)
    assert_close(fast, slow, **close)
    assert_close(gradients(made, *fast, x, before), gradients(made, *slow, x, before), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", FUSED)
def test_torch_with_the_same_weights_says_the_same(kind):
    made = layer(kind)
    theirs = {
        "lstm": torch.nn.LSTM(5, 7, batch_first=True),
        "gru": torch.nn.GRU(5, 7, batch_first=True),
        "tanh": torch.nn.RNN(5, 7, batch_first=True),
        "relu": torch.nn.RNN(5, 7, nonlinearity="relu", batch_first=True),
    }[kind]
    names = ("weight_x", "weight_h", "bias_x", "bias_h")
    own = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    theirs.load_state_dict({b: made.get_parameter(a).detach() for a, b in zip(names, own, strict=True)})
    x = torch.randn(3, 9, 5)
    assert_close(made(x, made.start(3))[0], theirs(x)[0], **close)


def test_peepholes_are_those_of_the_lecture():
    """Graves 2013, eq. 7 to 11, written out for one step."""
    made = layer("peephole", 2, 3)
    x, (h, c) = torch.randn(1, 1, 2), made.start(1)
    c = c + torch.tensor([[0.5, -1.0, 2.0]])
    W_ci, W_cf, W_co = made.weight_c
    a = x[:, 0] @ made.weight_x.T + made.bias_x + h @ made.weight_h.T + made.bias_h
    i, f = torch.sigmoid(a[:, :3] + W_ci * c), torch.sigmoid(a[:, 3:6] + W_cf * c)
    c_now = f * c + i * torch.tanh(a[:, 6:9])
    o = torch.sigmoid(a[:, 9:] + W_co * c_now)
    outputs, after = made(x, (h, c))
    assert_close(after, (o * torch.tanh(c_now), c_now), **close)
    assert_close(outputs[:, 0], after[0], **close)


def test_without_peephole_weights_it_is_an_lstm():
    peephole, plain = layer("peephole"), layer("lstm")
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            peephole.get_parameter(name).copy_(parameter)
        peephole.weight_c.zero_()
    x = torch.randn(2, 6, 5)
    assert_close(peephole(x, peephole.start(2)), plain(x, plain.start(2)), **close)


@pytest.mark.parametrize("kind", GATES)
def test_windows_one_after_the_other_are_one_long_pass(kind):
    made = layer(kind)
    x, state = torch.randn(3, 20, 5), made.start(3)
    whole, end = made(x, state)
    parts = []
    for piece in x.split([7, 1, 12], dim=1):
        outputs, state = made(piece, state)
        parts.append(outputs)
    assert_close(torch.cat(parts, dim=1), whole, **close)
    assert_close(state, end, **close)


@pytest.mark.parametrize("kind", GATES)
def test_rows_of_different_lengths_are_rows_alone(kind):
    made = layer(kind)
    x, before, lengths = torch.randn(4, 6, 5), carried(made, 4), torch.tensor([6, 0, 2, 5])
    outputs, after = made(x, before, lengths)
    for b, n in enumerate(lengths.tolist()):
        own = tuple(t[b : b + 1] for t in before)
        expected, end = made(x[b : b + 1, :n], own) if n else (outputs[b : b + 1, :0], own)
        assert_close(outputs[b : b + 1, :n], expected, **close)
        assert_close(tuple(t[b : b + 1] for t in after), end, **close)


def test_an_elman_network_that_halves_forgets():
    """The lecture's exercise: with W_hh = ½ I what came t steps ago counts at most ½^t. The gradient of h_T by x_1 is
    the product of T − 1 Jacobians ½ diag(1 − h²), and 1 − h² ≤ 1."""
    made = layer("tanh", 4, 4)
    with torch.no_grad():
        made.weight_x.copy_(torch.eye(4))
        made.weight_h.copy_(torch.eye(4) / 2)
        made.bias_x.zero_()
        made.bias_h.zero_()
    T = 24
    x = (0.1 * torch.randn(1, T, 4)).requires_grad_()
    outputs, _ = made(x, made.start(1))
    reach = torch.autograd.grad(outputs[0, -1].sum(), x)[0][0].abs().amax(dim=-1)  # of h_T by x_1 … x_T
    assert (reach <= 0.5 ** torch.arange(T - 1, -1, -1.0) + 1e-9).all()
    assert reach[0] < 1e-6 < 0.9 < reach[-1]
    other = x.detach().clone()
    other[0, 0] += 5  # whatever stood there first
    assert_close(made(other, made.start(1))[0][0, -1], outputs[0, -1], rtol=0, atol=1e-6)


def test_an_lstm_whose_gates_are_open_does_not():
    made = layer("lstm", 4, 4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        made.weight_x[8:12] = torch.eye(4)  # what is written
        made.bias_x[4:8] = 20.0  # all is kept
        made.bias_x[:4] = made.bias_x[12:] = 20.0
    x = (0.1 * torch.randn(1, 24, 4)).requires_grad_()
    (_, cell), _ = made(x, made.start(1))[1], None
    reach = torch.autograd.grad(cell.sum(), x)[0][0].abs().amax(dim=-1)
    assert (reach > 0.9).all()


def test_both_ways_is_torchs_and_each_row_is_alone():
    made = Bidirectional("lstm", 5, 7)
    theirs = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True)
    own = {}
    for side, end in ((made.forward_rnn, ""), (made.backward_rnn, "_reverse")):
        own |= {f"weight_ih_l0{end}": side.weight_x, f"weight_hh_l0{end}": side.weight_h}
        own |= {f"bias_ih_l0{end}": side.bias_x, f"bias_hh_l0{end}": side.bias_h}
    theirs.load_state_dict({name: p.detach() for name, p in own.items()})
    x, lengths = torch.randn(3, 8, 5), torch.tensor([8, 3, 5])
    outputs, after, before = made(x, lengths)
    for b, n in enumerate(lengths.tolist()):
        expected, (h, _) = theirs(x[b : b + 1, :n])
        assert_close(outputs[b : b + 1, :n], expected, **close)
        assert_close(torch.stack((after[0][b], before[0][b])), h[:, 0], **close)


def test_rows_are_turned_round_and_their_padding_stays():
    x = torch.tensor([[1, 2, 3, 9], [4, 5, 9, 9]])
    assert reverse_sequences(x, torch.tensor([3, 2])).tolist() == [[3, 2, 1, 9], [5, 4, 9, 9]]


def test_dropout_of_weights_is_the_same_at_every_step_and_off_when_scoring():
    made = layer("lstm", weight_drop=0.5)
    x = torch.randn(2, 9, 5)
    torch.manual_seed(3)
    fast = made(x, made.start(2))[0]
    torch.manual_seed(3)
    dropped = torch.nn.functional.dropout(made.weight_h, 0.5, True)
    assert_close(fast, made.steps(x, made.start(2), dropped)[0], **close)
    assert_close(made.eval()(x, made.start(2)), made.steps(x, made.start(2)), **close)


def test_locked_dropout_drops_the_same_numbers_at_every_step():
    x = variational_dropout(torch.ones(4, 6, 50), 0.5, True)
    assert (x == x[:, :1]).all()
    assert set(x.unique().tolist()) == {0.0, 2.0}
    assert (variational_dropout(torch.ones(1, 2, 3), 0.5, False) == 1).all()
