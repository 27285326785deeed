"""Properties of trainable models: gradients reach every parameter, and a saved model loads unchanged."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from headway.evaluation.contract.probe import NotApplicable, Probe, Violation
from headway.models import load
from headway.models.base import Model
from headway.models.serialization import is_registered
from headway.temporary_files import TemporaryFolder

MAX_SAVED_PARAMS = 100_000_000  # a larger model is not written to disk


def check_gradients(p: Probe) -> None:
    parameters = dict(p.model.named_parameters()) if isinstance(p.model, nn.Module) else {}
    parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if not parameters:
        raise NotApplicable("it has no parameters to train")
    with torch.enable_grad():
        if p.kind != "encoder" and p.step(p.ids, p.start())[0].requires_grad:
            raise Violation(
                "step records gradients, so a long text keeps the memory of every step",
                "Decorate step with @torch.no_grad().",
            )
        output = p.output(p.ids)
        if not output.requires_grad:
            raise Violation(
                "forward records no gradients, so it cannot be trained",
                "Usual causes: no_grad, detach or .data inside it.",
            )
        targets = p.other(p.ids)
        if p.kind == "encoder":  # a loss in which every number matters
            pooled = [p.model.pool(output)] if hasattr(p.model, "pool") else []
            weights = torch.linspace(-1, 1, output.shape[-1], device=output.device)
            loss = sum((vectors * weights[: vectors.shape[-1]]).square().sum() for vectors in (output, *pooled))
        else:
            loss = F.cross_entropy(output.flatten(0, 1).float(), targets.flatten())
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    unused = [name for name, g in zip(parameters, gradients, strict=True) if g is None or not g.any()]
    if unused:
        shown = ", ".join(unused[:3]) + (", …" if len(unused) > 3 else "")
        raise Violation(
            f"no gradient reaches {len(unused)} of {len(parameters)} parameters: {shown}",
            "Usual causes: a part that forward does not use, a detach, or weights that start at zero.",
        )


def check_save(p: Probe) -> None:
    if not isinstance(p.model, Model):
        raise NotApplicable("it is not a headway.models.Model, so it has no save")
    if not is_registered(p.model):
        raise NotApplicable("its class is not a registered family")
    if p.model.n_params > MAX_SAVED_PARAMS:
        raise NotApplicable(f"it has more than {MAX_SAVED_PARAMS:,} parameters; compare model.save and headway.load")
    expected = p.forward(p.ids)
    with TemporaryFolder() as folder:
        path = p.model.save(folder / "model")
        loaded = load(path, device=p.model.device)
        output = replace(p, model=loaded).forward(p.ids)
    p.compare(
        output,
        expected,
        "the saved and loaded model gives other logits: they differ",
        "Usual cause: weights or settings that are neither parameters, buffers nor fields of the config.",
    )
