"""Each optimiser against the formula of its paper, and Muon's orthogonality."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from headway.config import TrainConfig
from headway.nn.linear import Linear
from headway.training.optimizers import OPTIMIZERS, Muon, Optimizer, orthogonalize

CPU = torch.device("cpu")


class TinyModel(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = Linear(6, [4, 4, 4])
        self.norm = nn.LayerNorm(12)
        self.table = nn.Parameter(torch.randn(5, 12))

    def forward(self, x):
        return self.norm(self.qkv(x)) @ self.table.T


def loss_of(model):
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 5
    return nn.functional.cross_entropy(model(x), y)


def train_tiny(name, steps=5, **settings):
    model = TinyModel()
    optimizer = Optimizer(model, TrainConfig(optimizer=name, lr=0.01, warmup_steps=0, **settings), device=CPU)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_lowers_the_loss(name):
    model, _ = train_tiny(name, 30)
    assert loss_of(model) < loss_of(TinyModel())


def test_adamw_decays_matrices_only():
    """By hand: θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ), Loshchilov & Hutter 2019, Algorithm 2."""
    model, _ = train_tiny("adamw", steps=1, weight_decay=0.5, beta1=0.9, beta2=0.95)
    initial = TinyModel()
    loss_of(initial).backward()
    for p, trained in zip(initial.parameters(), model.parameters(), strict=True):
        decay = 0.5 if p.dim() >= 2 else 0.0  # after one step, m̂ = g and v̂ = g²
        expected = p - 0.01 * (p.grad / (p.grad.abs() + 1e-8) + decay * p)
        assert_close(trained, expected, rtol=1e-5, atol=1e-6)


def test_sgd_has_no_momentum_by_default():
    model, _ = train_tiny("sgd", steps=1, weight_decay=0.0)
    initial = TinyModel()
    loss_of(initial).backward()
    for p, trained in zip(initial.parameters(), model.parameters(), strict=True):
        assert_close(trained, p - 0.01 * p.grad)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 16), (2, 32, 8)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    matrices = orthogonalize(torch.randn(*shape, generator=torch.Generator().manual_seed(3)))
    values = torch.linalg.svdvals(matrices)
    assert values.max() < 1.3  # Jordan et al. 2024: the iteration aims at [0.7, 1.2]; small ones lag behind
    assert values.median() > 0.6
    assert matrices.shape == shape


def test_muon_orthogonalizes_each_part_of_a_stacked_matrix():
    model = TinyModel()
    grad = torch.randn(12, 6, generator=torch.Generator().manual_seed(4))
    optimizer = Muon({model.qkv.weight: [4, 4, 4]}, lr=1.0, momentum=0.0, weight_decay=0.0)
    initial = model.qkv.weight.detach().clone()
    model.qkv.weight.grad = grad
    optimizer.step()
    expected = torch.cat([orthogonalize(part[None])[0] for part in grad.split(4)])
    assert_close(initial - model.qkv.weight, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(name):
    model, optimizer = train_tiny(name, 3)
    weights = [p.detach().clone() for p in model.parameters()]
    state = {key: value.clone() for key, value in optimizer.state().items()}
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step(skip=torch.tensor(1.0))
    for p, weight in zip(model.parameters(), weights, strict=True):
        assert_close(p.detach(), weight, rtol=0, atol=0)
    for key, value in optimizer.state().items():
        assert_close(value, state[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_named_by_parameter_and_exists_before_the_first_step(name):
    model = TinyModel()
    initial = Optimizer(model, TrainConfig(optimizer=name), device=CPU).state()
    assert {key.partition("/")[2] for key in initial} <= {name for name, _ in model.named_parameters()}
    assert all(not value.any() for value in initial.values())
    _, optimizer = train_tiny(name, 2)
    assert set(optimizer.state()) == set(initial)


def test_muon_follows_the_schedule_in_its_own_units():
    optimizer = Optimizer(TinyModel(), TrainConfig(optimizer="muon", lr=1e-3, muon_lr=0.05), device=CPU)
    optimizer.set_lr(5e-4)  # half of the peak
    assert sorted({group["lr"] for group in optimizer.groups}) == pytest.approx([5e-4, 0.025])
