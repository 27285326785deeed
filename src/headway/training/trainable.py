"""Which parameters a run trains: all, or, to fine-tune, some of them.

model.lora_rank        low-rank updates of the matrices, and the head
train.frozen_layers    all but the embeddings and the first layers; with LoRA, their updates do not train either
"""

from headway.config import Recipe
from headway.errors import ConfigError, with_article
from headway.models import Model
from headway.models.lora_adapters import head_parameters
from headway.nn.lora import add_lora, n_lora_params
from headway.training.layers import freeze_layers


def choose_trainable(model: Model, recipe: Recipe) -> None:
    """Add LoRA updates and freeze parameters, as the recipe says. Draws from torch's generator."""
    finetune = recipe.finetune
    if finetune.lora_rank:
        add_lora(model, finetune.lora_rank, lora_alpha(recipe))
        for parameter in head_parameters(model).values():
            parameter.requires_grad_(True)
    if recipe.train.frozen_layers is not None:
        freeze_layers(model, recipe.train.frozen_layers)


def lora_alpha(recipe: Recipe) -> float:
    alpha = recipe.finetune.lora_alpha
    return 2.0 * recipe.finetune.lora_rank if alpha is None else alpha


def check_lora(recipe: Recipe) -> None:
    """Refuse LoRA where it cannot be."""
    rank, family = recipe.finetune.lora_rank, recipe.model.family
    if not rank:
        return
    if family not in ("gpt", "bert"):
        raise ConfigError(
            f"model.lora_rank={rank} is for the families gpt and bert, not for {with_article(family)}: leave it out",
            setting="model.lora_rank",
        )
    if recipe.train.parallel == "fsdp":
        raise ConfigError(
            f"model.lora_rank={rank} with train.parallel='fsdp': updates are merged into whole matrices, which no rank "
            f"of a sharded model has; set train.parallel=ddp"
        )
    if recipe.train.optimizer == "muon":
        raise ConfigError(
            f"model.lora_rank={rank} with train.optimizer='muon': Muon is for whole matrices, not for the two factors "
            f"of an update; set train.optimizer=adamw"
        )


def check_base(recipe: Recipe) -> None:
    """Refuse LoRA updates of random weights."""
    if (rank := recipe.finetune.lora_rank) and recipe.finetune.init_from is None:
        raise ConfigError(
            f"model.lora_rank={rank} trains updates of given weights: name them with model.init_from, or leave it out",
            setting="model.lora_rank",
        )


def describe_trained(model: Model, recipe: Recipe) -> str:
    """The number of parameters and, if some are frozen, of those that the run trains."""
    n_total, n_trained = n_saved_params(model), sum(p.numel() for p in model.parameters() if p.requires_grad)
    text = f"{n_total:,} parameters"
    if recipe.finetune.lora_rank:
        return f"{text}, {n_trained:,} trained by LoRA of rank {recipe.finetune.lora_rank}"
    return text if recipe.train.frozen_layers is None else f"{text}, {n_trained:,} trained"


def n_saved_params(model: Model) -> int:
    """The number of parameters once LoRA updates are merged."""
    return model.n_params - n_lora_params(model)
