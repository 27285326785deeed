"""Costs computed from configs match counted parameters, published numbers and measured memory."""

import pytest
import torch

import headway
from headway.config import TrainConfig, model_config
from headway.costs import count_parameters, flops_per_token, peak_flops, training_memory
from headway.costs.operations import count_pass


def test_gpt2_flops_match_nanogpt():
    """6 N + 12 L H Q T, N without position embeddings: 124M parameters and 1024 tokens give 854.9 MFLOP per token."""
    config = model_config("gpt2", {"bias": False, "vocab_size": 50304})
    n_params = (
        headway.create(config, device="meta").n_params - 1024 * 768 - 25 * 768
    )  # without positions and norm gains
    assert flops_per_token(config, 1024) == pytest.approx(6 * n_params + 12 * 12 * 768 * 1024)


def test_a_head_for_labels_has_no_product_with_the_vocabulary():
    config = model_config("bert-base")
    rows = {operation.name for operation in count_pass(config.replace(labels=["no", "yes"])).operations}
    assert "unembedding" not in rows
    assert {"pooler", "labels"} <= rows


def test_peak_flops_matches_devices_by_the_words_of_their_name():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("Some L40X card") is None


def test_training_memory_follows_the_settings():
    config, n_params = model_config("gpt2"), 124_439_808

    def memory(batch_size=8, ranks=1, **settings):
        train = TrainConfig(**settings)
        return training_memory(
            config, n_params, train, batch_size=batch_size, seq_len=1024, ranks=ranks, bytes_per_element=2
        )

    default = memory()
    assert default.total == sum(default.__dict__.values())
    assert memory(batch_size=16).activations == 2 * default.activations
    assert memory(checkpoint_activations=True).activations < default.activations / 4
    assert memory(ema=0.9).ema == 4 * n_params
    assert memory(optimizer="sgd").optimizer_state == 0
    assert memory(ranks=4, parallel="fsdp").optimizer_state == default.optimizer_state / 4
    assert memory(ranks=4, parallel="ddp").optimizer_state == default.optimizer_state


@pytest.mark.parametrize(
    ("settings", "batch_size"),
    [({}, 4), ({"feed_forward": "relu"}, 4), ({"n_heads": 3, "d_ff": 500}, 1), ({"bias": False}, 2)],
)
def test_autograd_saves_what_is_counted_of_a_layer(settings, batch_size):
    """Under bfloat16 autocast: activations, and a copy of each matrix. Norms also keep two numbers per token."""
    seq_len, n_layers = 128, (1, 3)

    def saved_bytes(n):
        model = headway.create("gpt-mini", n_layers=n, **settings).train()
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        saved = {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        ids = torch.randint(1024, (batch_size, seq_len))
        autocast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
            hidden = model.hidden_states(ids)
        assert hidden.requires_grad
        return sum(saved.values())

    def counted(n):
        config = model_config("gpt-mini", {"n_layers": n, **settings})
        sizes = {"batch_size": batch_size, "seq_len": seq_len, "bytes_per_element": 2}
        memory = training_memory(config, count_parameters(config), TrainConfig(), **sizes)
        return memory.activations + memory.weight_copies

    saved, expected = (count(n_layers[1]) - count(n_layers[0]) for count in (saved_bytes, counted))
    assert saved == pytest.approx(expected, rel=0.01)


def test_checkpointing_keeps_the_weight_copies_of_one_layer():
    config = model_config("gpt2")
    sizes = {"batch_size": 8, "seq_len": 1024, "bytes_per_element": 2}
    plain, checkpointed = (
        training_memory(config, 124_439_808, TrainConfig(checkpoint_activations=is_on), **sizes)
        for is_on in (False, True)
    )
    assert plain.weight_copies == 2 * (124_439_808 - (50_257 + 1024) * 768)
    assert checkpointed.weight_copies == plain.weight_copies / 12


def test_gradients_are_complete_at_the_peak_only_with_few_activations_or_several_micro_batches():
    config, n_params = model_config("gpt2"), 124_439_808

    def gradients(batch_size, **settings):
        sizes = {"batch_size": batch_size, "seq_len": 1024, "bytes_per_element": 2}
        return training_memory(config, n_params, TrainConfig(**settings), **sizes).gradients

    assert gradients(16) == 4 * 50_257 * 768  # of the output matrix, which the loss computes
    assert gradients(16, grad_accum_steps=2) == 4 * n_params


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_estimated_memory_is_within_a_quarter_of_measured_memory():
    """For a compiled training step of GPT-2 small."""
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
    estimate = training_memory(config, model.n_params, train, batch_size=8, seq_len=1024, bytes_per_element=2).total
    assert estimate == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.25)
