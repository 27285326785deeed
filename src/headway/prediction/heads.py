"""Which head a verb needs, and an error for a model with another head or none that names what to do instead."""

from typing import NamedTuple, TypeVar

from headway.errors import InputError
from headway.models.adapter import refuse_path
from headway.models.base import Model, described
from headway.models.bert import BERT, MaskedLM
from headway.models.heads import Classifier, SpanReader, Tagger, TextEncoder

HeadT = TypeVar("HeadT", Classifier, Tagger, SpanReader, MaskedLM)


class HeadUse(NamedTuple):
    objective: str  # that trains the head
    verb: str  # the command that uses it
    description: str
    example: str  # what to give the command


HEAD_USES: dict[type, HeadUse] = {
    Classifier: HeadUse("classify", "classify", "an encoder with a classification head", "TEXT"),
    Tagger: HeadUse("tag", "tag", "an encoder with a tagging head", "TEXT"),
    SpanReader: HeadUse("span", "answer", "an encoder with a head for answer spans", "QUESTION --context TEXT"),
    MaskedLM: HeadUse("masked", "fill", "an encoder with a masked-LM head", '"… [MASK] …"'),
}


def require_head(model: object, head: type[HeadT], verb: str) -> HeadT:
    """The model, if it has this head and a tokenizer. `verb` is the command, such as "classify"."""
    refuse_path(model)
    if not isinstance(model, head):
        needed = f"{verb} needs {HEAD_USES[head].description}, and this is {_description(model)}"
        raise InputError(f"{needed}: {_way_out(model, head)}")
    _ = model.tokenizer  # raises if there is none
    return model


def _description(model: object) -> str:
    if type(model) in HEAD_USES:
        return HEAD_USES[type(model)].description
    return f"{described(model)} without a head" if isinstance(model, TextEncoder) else described(model)


def _way_out(model: object, head: type[Model]) -> str:
    """Another command for this model, or how to train a model for this command."""
    verb = "bert-pydocs" if head is MaskedLM else HEAD_USES[head].verb  # the recipe
    train = f"headway train {verb} --init-from MODEL --set data.path=FILE"
    if type(model) in HEAD_USES:
        return f"use `headway {HEAD_USES[type(model)].verb}`, or fine-tune it: {train}"
    if head is MaskedLM:
        init = " --init-from MODEL" if isinstance(model, BERT) else ""
        return f"train a bert on text: headway train bert-pydocs --set data.path=FILE{init} (docs/encoders.md)"
    if isinstance(model, TextEncoder):
        return f"fine-tune it on examples: {train}"
    return f"train an encoder on examples: headway train {verb} --set data.path=FILE (docs/encoders.md)"
