"""The report of each task: a model's predictions for records of a kind, compared with the truth."""

from collections.abc import Callable, Sequence
from typing import Any

from headway.data.records import Record
from headway.evaluation.classification import classification_report
from headway.evaluation.question_answering import answer_report
from headway.evaluation.tagging import tagging_report
from headway.evaluation.tasks import TaskReport
from headway.models import Model

Report = Callable[..., TaskReport]  # (model, records, *, context, batch_size, check_stop) → its report

REPORTS: dict[str, Report] = {  # by objective
    "classify": classification_report,
    "tag": tagging_report,
    "span": answer_report,
}


def make_report(
    objective: str,
    model: Model,
    records: Sequence[Record],
    *,
    context: int | None = None,
    batch_size: int = 32,
    check_stop: Callable[[], None] = lambda: None,
    **options: Any,
) -> TaskReport | None:
    """The report of an objective, or None if it has none beside its loss. `context` is the longest input in tokens,
    by default the model's; `check_stop` is called after each batch, and may raise."""
    if objective not in REPORTS:
        return None
    return REPORTS[objective](model, records, context=context, batch_size=batch_size, check_stop=check_stop, **options)
