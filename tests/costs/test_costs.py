"""Costs from configs alone, against counting and against published numbers."""

import pytest
import torch

import headway
from headway.config import TrainConfig, model_config
from headway.costs import flops_per_token, peak_flops, training_memory
from headway.costs.flops import matrix_weights


def test_gpt2_costs_what_nanogpt_counts():
    """6 N + 12 L H Q T with N the parameters without positions: 124M and 1024 tokens, 854.9 MFLOP per token."""
    config = model_config("gpt2", {"bias": False, "vocab_size": 50304})
    n_params = headway.create(config, device="meta").n_params - 1024 * 768 - 25 * 768  # without positions, gains
    assert matrix_weights(config) == n_params
    assert flops_per_token(config, 1024) == pytest.approx(6 * n_params + 12 * 12 * 768 * 1024)


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "bert-base", "transformer-base", "gpt-mini"])
def test_weights_in_products_are_the_models_matrices(name):
    config = model_config(name)
    model = headway.create(config, device="meta")
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    linear -= model.pooler.weight.numel() if name == "bert-base" else 0  # once per text, not per token
    table = config.vocab_size * config.d_model
    assert matrix_weights(config) == linear + table


def test_devices_are_known_by_their_words():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("Some L40X card") is None


def test_memory_grows_with_what_is_held():
    config, n = model_config("gpt2"), 124_439_808

    def total(rows=8, ranks=1, **changes):
        return training_memory(config, n, TrainConfig(**changes), rows=rows, width=1024, ranks=ranks, bytes_each=2)

    plain = total()
    assert plain.total == sum(plain.__dict__.values())
    assert total(rows=16).activations == 2 * plain.activations
    assert total(checkpoint_activations=True).activations < plain.activations / 4
    assert total(ema=0.9).average == 4 * n
    assert total(optimizer="sgd").optimizer == 0
    assert total(ranks=4, parallel="fsdp").optimizer == plain.optimizer / 4
    assert total(ranks=4, parallel="ddp").optimizer == plain.optimizer


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_estimate_is_what_a_gpu_measures():
    """Within a quarter, for a compiled step of GPT-2 small."""
    from headway.data.loader import CausalBatch
    from headway.training.objectives import LossModule
    from headway.training.optimizers import Optimizer
    from headway.training.train_step import StepBatch, TrainStep, compile_blocks

    device, train = torch.device("cuda"), TrainConfig()
    config = model_config("gpt2", {"dropout": 0.0})
    model = headway.create(config, device=device).train()
    compile_blocks(model)
    step = TrainStep(
        LossModule(model, "causal"), Optimizer(model, train, device=device), clip=1.0, autocast=True, device=device
    )
    ids = torch.randint(50257, (8, 1025), device=device)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step(StepBatch([CausalBatch(ids[:, :-1], ids[:, 1:])], [True], 8192), 1 / 8192)
    estimate = training_memory(config, model.n_params, train, rows=8, width=1024, bytes_each=2).total
    assert estimate == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.25)
