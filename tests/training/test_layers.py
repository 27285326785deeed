"""Layers: each has its factor of the learning rate, and frozen ones do not change in training."""

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.config import TrainConfig
from headway.errors import ConfigError
from headway.models import Classifier, MaskedLM
from headway.training.layers import freeze_layers, layer_lr_factors, layer_numbers
from headway.training.optimizers import OPTIMIZERS, Optimizer
from headway.training.task import resolve_objective
from tests.models.variants import POSITIONS
from tests.training.recipes import TINY, for_objective, make

SIZES = {"vocab_size": 41, "context": 16, "n_layers": 3, "n_heads": 2, "d_model": 12, "dropout": 0.0}
N = SIZES["n_layers"]
MODELS = {
    "gpt": lambda: headway.create("gpt", **SIZES),
    "gpt, not tied": lambda: headway.create("gpt", **SIZES, tie_embeddings=False),
    "bert": lambda: headway.create("bert", **SIZES),
    "classifier": lambda: Classifier(headway.create("bert", **SIZES, labels=["a", "b"])),
    "pre-norm masked LM": lambda: MaskedLM(headway.create("bert", **SIZES, norm_order="pre", tie_embeddings=False)),
    **{f"gpt, {positions}": lambda p=positions: headway.create("gpt", **SIZES, positions=p) for positions in POSITIONS},
}


def number_by_hand(name):
    """The layer of a parameter, from its name alone."""
    name = name.removeprefix("encoder.") if name.startswith("encoder.blocks") else name
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    first = name.removeprefix("encoder.").split(".")[0]
    return 0 if first in ("embedding", "positions", "segments", "embedding_norm") else N + 1


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_counted_from_the_embeddings_to_the_head(name):
    model = MODELS[name]()
    numbers = layer_numbers(model)
    assert numbers == {key: number_by_hand(key) for key, _ in model.named_parameters()}
    assert set(numbers.values()) == set(range(N + 2))


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_the_rate_of_the_one_above_times_the_decay(name):
    model = MODELS[name]()
    factors = layer_lr_factors(model, 0.5)
    for key, number in layer_numbers(model).items():
        assert factors[key] == 0.5 ** (N + 1 - number)
    assert layer_lr_factors(model, 1.0) == {}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_uses_the_factors(optimizer):
    """Also Muon, whose matrices have a rate of their own, and after the schedule has changed the rate."""
    model = MODELS["classifier"]()
    config = TrainConfig(optimizer=optimizer, lr=0.1, layer_lr_decay=0.5, device="cpu")
    made = Optimizer(model, config, device=torch.device("cpu"))
    matrices = {p for m in model.modules() if isinstance(m, torch.nn.Linear) for p in [m.weight]}
    for lr in (0.1, 0.03):
        made.set_lr(lr)
        rates = {parameter: group["lr"] for group in made.groups for parameter in group["params"]}
        assert len(rates) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            base = 0.02 * lr / 0.1 if optimizer == "muon" and parameter in matrices else lr
            assert rates[parameter] == pytest.approx(base * 0.5 ** (N + 1 - number_by_hand(name))), name


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_step_is_as_long_as_its_factor(optimizer):
    """Against the step without decay, from the same gradients."""

    def changes(decay):
        torch.manual_seed(3)
        model = MODELS["classifier"]()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        config = TrainConfig(optimizer=optimizer, lr=0.1, weight_decay=0.0, layer_lr_decay=decay, beta2=0.9)
        made = Optimizer(model, config, device=torch.device("cpu"))
        for i, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
        made.step()
        return {name: p.detach() - before[name] for name, p in model.named_parameters()}

    plain, decayed = changes(1.0), changes(0.5)
    for name, change in plain.items():
        assert change.any()
        assert_close(decayed[name], change * 0.5 ** (N + 1 - number_by_hand(name)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n_layers", range(N + 1))
def test_the_embeddings_and_the_first_layers_are_frozen(name, n_layers):
    model = MODELS[name]()
    freeze_layers(model, n_layers)
    frozen = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {key for key, _ in model.named_parameters() if number_by_hand(key) <= n_layers}


def test_more_layers_than_there_are_cannot_be_frozen():
    with pytest.raises(ConfigError, match=r"train\.frozen_layers=4 of 3: freeze 3 at most, or leave it out") as error:
        freeze_layers(MODELS["bert"](), 4)
    assert error.value.setting == "train.frozen_layers"


# ── in a run ──────────────────────────────────────────────────────────────────────────────────────────────────────

RUNS = {
    "gpt": lambda folder, **train: make(folder, model={**TINY, "n_layers": 2}, train=train),
    "classifier": lambda folder, **train: _deep(for_objective("classify", folder, **train)),
}
SHORT = {"steps": 3, "batch_size": 8, "lr": 1e-2, "warmup_steps": 0, "save_every": 0, "keep_checkpoints": 0}


def _deep(recipe):
    return recipe.replace(model=recipe.model.replace(n_layers=2))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("n_layers", [0, 1, 2])
@pytest.mark.parametrize("name", RUNS)
def test_frozen_layers_stay_bit_identical_and_all_others_change(name, n_layers, optimizer, tmp_path):
    """Weight decay would change a frozen matrix too, were it part of the optimizer. Also if every block is frozen."""
    recipe = RUNS[name](tmp_path, **{**SHORT, "frozen_layers": n_layers, "optimizer": optimizer, "weight_decay": 0.5})
    messages = []
    result = headway.train(recipe, out=tmp_path / "run", on_message=messages.append)
    first = headway.load(tmp_path / "run" / "checkpoints" / "step-0").state_dict()
    changed = {key for key, tensor in result.model.state_dict().items() if not torch.equal(tensor, first[key])}
    numbers = layer_numbers(result.model)
    assert changed == {key for key, number in numbers.items() if number > n_layers}
    n_trained = sum(first[key].numel() for key in changed)
    line = next(line for line in messages if line.startswith("model "))
    assert f"{result.model.n_params:,} parameters, {n_trained:,} trained" in line


@pytest.mark.parametrize("setting", ["train.layer_lr_decay=0.9", "train.frozen_layers=1"])
def test_layers_are_those_of_a_gpt_or_a_bert(setting):
    recipe = headway.load_recipe("demo", ["model.family=lstm", setting])
    with pytest.raises(ConfigError, match=rf"{setting} is for the families gpt and bert, not for an lstm: leave"):
        resolve_objective(recipe)
