"""Properties of `forward`: shapes, determinism, and what a logit may depend on."""

from dataclasses import replace

import torch
from torch import Tensor

from headway.evaluation.contract.probe import Probe, Violation


def check_shape(p: Probe) -> None:
    outputs = {"forward": p.output(p.ids)}
    if p.kind != "encoder" and callable(getattr(p.model, "step", None)):
        p.step(p.ids, p.start())  # says what is wrong if it does not return a pair
        outputs["step"] = p.model.step(p.ids.clone(), p.start())[0]
    for name, output in outputs.items():
        if not isinstance(output, Tensor) or not output.is_floating_point():
            kind = f"{output.dtype} tensor" if isinstance(output, Tensor) else type(output).__name__
            raise Violation(f"{name} returns a {kind}", "Logits are a tensor of floating-point numbers.")
        expected = (p.batch_size, p.n_tokens, p.vocab_size)
        if p.kind != "encoder" and output.shape != expected:
            raise Violation(
                f"{name} returns shape {tuple(output.shape)}, not (B, T, V) = {expected}",
                "One row of logits belongs to every token, over the whole vocabulary (config.vocab_size).",
            )
        _check_finite(name, output)


def _check_finite(name: str, output: Tensor) -> None:
    """No NaN and no +inf; −inf is legal, for a token that is impossible."""
    is_wrong = output.isnan() | (output == torch.inf)
    if is_wrong.any():
        row, position = (int(i) for i in is_wrong.nonzero()[0][:2])
        raise Violation(
            f"{name} gives {int(is_wrong.sum())} values of NaN or +inf, the first at row {row}, position {position}",
            "Usual causes: a softmax over a fully masked row, a division by zero, an overflow in half precision.",
            row=row,
            position=position,
        )


def check_deterministic(p: Probe) -> None:
    p.compare(
        p.forward(p.ids),
        p.forward(p.ids),
        "two calls with the same ids differ",
        "Usual cause: dropout or noise that is active in eval mode. Use nn.Dropout, or pass self.training to "
        "F.dropout. A class that wraps a module has to call .eval() on it.",
    )


def check_inputs(p: Probe) -> None:
    """Ids, lengths and the source stay as they were."""
    inputs = {"ids": p.ids, "lengths": p.lengths}
    if p.source is not None and p.source_mask is not None:
        inputs |= {"source": p.source, "source_mask": p.source_mask}
    originals = {name: tensor.clone() for name, tensor in inputs.items()}

    def compare_inputs(method: str) -> None:
        for name, tensor in inputs.items():
            if not torch.equal(tensor, originals[name]):
                tensor.copy_(originals[name])
                hint = "Usual cause: an in-place operation, such as masked_fill_ or ids[…] = 0. Work on a copy."
                raise Violation(f"{method} changes its argument {name}", hint)

    p = replace(p, shares_inputs=True)
    p.forward(p.ids, p.lengths)
    compare_inputs("forward")
    if p.kind != "encoder":
        state = p.start()
        compare_inputs("start")
        p.step(p.ids, state, p.lengths)
        compare_inputs("step")


def check_leak(p: Probe) -> None:
    expected = p.forward(p.ids)
    for t in range(1, p.n_tokens):
        ids = p.ids.clone()
        ids[:, t] = p.other(ids[:, t])
        p.compare(
            p.forward(ids)[:, :t],
            expected[:, :t],
            f"changing only the token at position {t} (row 0: {p.ids[0, t]} to {ids[0, t]}) changes the logits",
            "Usual causes: attention without a causal mask, or with one that is off by one; a bidirectional layer; a "
            "mean, norm or convolution over positions that reaches to the right.",
        )


def check_batch(p: Probe) -> None:
    expected = p.forward(p.ids)
    for b in p.rows:
        p.compare(
            p.forward(p.ids[b : b + 1], rows=[b]),
            expected[b : b + 1],
            f"row {b} alone and in a batch of {p.batch_size} differ",
            "Usual causes: a mean, norm (BatchNorm) or softmax over the batch dimension, a reshape that mixes rows, "
            "or a value taken from one row for all.",
            rows=[b],
        )


def check_sensitivity(p: Probe) -> None:
    """Without it, every comparison would pass without meaning."""
    difference = (p.forward(p.other(p.ids)) - p.forward(p.ids)).nan_to_num().abs().max()
    if difference <= p.atol:
        raise Violation(
            "other tokens give the same logits, so the comparisons cannot find much",
            "Usual causes: a model before it is trained or fitted, weights that are zero, or ids that are not used.",
        )


def check_source(p: Probe) -> None:
    assert p.source is not None
    assert p.source_mask is not None
    source, mask = p.source, p.source_mask
    expected = p.forward(p.ids)
    hint = "Mask the source with `source_mask` in every attention over it, and in the encoder."
    other = torch.where(mask, source, p.other(source))
    p.compare(
        replace(p, source=other).forward(p.ids),
        expected,
        "other tokens in the source's padding change the logits",
        hint,
    )
    for b in p.rows:
        n = int(mask[b].sum())
        unpadded = replace(p, source=source[:, :n], source_mask=mask[:, :n])
        p.compare(
            unpadded.forward(p.ids[b : b + 1], rows=[b]),
            expected[b : b + 1],
            f"a source of {n} tokens alone and padded to {source.shape[1]} (source_mask given) differ",
            hint,
            rows=[b],
        )
    changed = source.clone()
    changed[0] = p.other(changed[0])
    p.compare(
        replace(p, source=changed).forward(p.ids)[1:],
        expected[1:],
        "another source in row 0 changes the logits of other rows",
        "Usual cause: rows of the source that mix in a reshape or transpose without the batch dimension.",
        rows=p.rows[1:],
    )
    if (replace(p, source=p.other(source)).forward(p.ids) - expected).nan_to_num().abs().max() <= p.atol:
        raise Violation("another source gives the same logits", "The decoder ignores the source.")
