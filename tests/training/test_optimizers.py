"""Optimisers: each against the plain form of its paper, and Muon's own promise."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from headway.config import TrainConfig
from headway.nn.linear import Linear
from headway.training.optimizers import OPTIMIZERS, Muon, Optimizer, orthogonalize

CPU = torch.device("cpu")


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inside = Linear(6, [4, 4, 4])
        self.norm = nn.LayerNorm(12)
        self.table = nn.Parameter(torch.randn(5, 12))

    def forward(self, x):
        return self.norm(self.inside(x)) @ self.table.T


def learn(name, steps=5, **changes):
    model = Tiny()
    optimizer = Optimizer(model, TrainConfig(optimizer=name, lr=0.01, warmup_steps=0, **changes), device=CPU)
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_lowers_the_loss(name):
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    before = nn.functional.cross_entropy(Tiny()(x), y)
    model, _ = learn(name, 30)
    assert nn.functional.cross_entropy(model(x), y) < before


def test_adamw_decays_matrices_alone():
    """By hand: θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ), Loshchilov & Hutter 2019, Algorithm 2."""
    model, _ = learn("adamw", steps=1, weight_decay=0.5, beta1=0.9, beta2=0.95)
    plain = Tiny()
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    nn.functional.cross_entropy(plain(x), y).backward()
    for p, learned in zip(plain.parameters(), model.parameters(), strict=True):
        decay = 0.5 if p.dim() >= 2 else 0.0  # after one step, m̂ = g and v̂ = g²
        expected = p - 0.01 * (p.grad / (p.grad.abs() + 1e-8) + decay * p)
        assert_close(learned, expected, rtol=1e-5, atol=1e-6)


def test_sgd_is_plain_by_default():
    model, _ = learn("sgd", steps=1, weight_decay=0.0)
    plain = Tiny()
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    nn.functional.cross_entropy(plain(x), y).backward()
    for p, learned in zip(plain.parameters(), model.parameters(), strict=True):
        assert_close(learned, p - 0.01 * p.grad)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 16), (2, 32, 8)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    made = orthogonalize(torch.randn(*shape, generator=torch.Generator().manual_seed(3)))
    values = torch.linalg.svdvals(made)
    assert values.max() < 1.3  # Jordan et al. 2024: the iteration aims at [0.7, 1.2]; small ones lag behind
    assert values.median() > 0.6
    assert made.shape == shape


def test_muon_orthogonalizes_each_part_of_a_joined_matrix_for_itself():
    model = Tiny()
    grad = torch.randn(12, 6, generator=torch.Generator().manual_seed(4))
    optimizer = Muon({model.inside.weight: [4, 4, 4]}, lr=1.0, momentum=0.0, weight_decay=0.0)
    before = model.inside.weight.detach().clone()
    model.inside.weight.grad = grad
    optimizer.step()
    parts = [orthogonalize(part[None])[0] for part in grad.split(4)]
    assert_close(before - model.inside.weight, torch.cat(parts), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(name):
    model, optimizer = learn(name, 3)
    before = [p.detach().clone() for p in model.parameters()]
    kept = {key: value.clone() for key, value in optimizer.state().items()}
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step(skip=torch.tensor(1.0))
    for p, old in zip(model.parameters(), before, strict=True):
        assert_close(p.detach(), old, rtol=0, atol=0)
    for key, value in optimizer.state().items():
        assert_close(value, kept[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_named_by_parameter_and_is_there_from_the_start(name):
    model = Tiny()
    optimizer = Optimizer(model, TrainConfig(optimizer=name), device=CPU)
    names = {name for name, _ in model.named_parameters()}
    blank = optimizer.state()
    assert {key.partition("/")[2] for key in blank} <= names
    assert all(not value.any() for value in blank.values())
    _, used = learn(name, 2)
    assert set(used.state()) == set(blank)


def test_rates_follow_the_schedule_in_their_own_units():
    optimizer = Optimizer(Tiny(), TrainConfig(optimizer="muon", lr=1e-3, muon_lr=0.05), device=CPU)
    optimizer.set_rate(5e-4)  # half way
    assert sorted({group["lr"] for group in optimizer.groups}) == pytest.approx([5e-4, 0.025])
