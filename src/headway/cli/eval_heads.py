"""`headway eval` of encoders with a head: labels, tags and answers."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from headway.cli.eval_inputs import TextInput
from headway.cli.eval_translations import TranslationFlags, print_comparison
from headway.cli.options import describe_split, print_json
from headway.cli.progress import CountDisplay
from headway.runs import Run

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.data.records import Record
    from headway.evaluation.tasks import TaskReport
    from headway.models.heads import Head


@dataclass(frozen=True)
class HeadTask:
    """What an encoder with a head is scored on: a split of its run's data, or data of the same kind."""

    name: str
    model: "Head"
    run_recipe: "Recipe | None"  # None for a model directory
    text_input: TextInput | None
    split: Literal["valid", "test"]
    settings: list[str]
    flags: TranslationFlags

    @property
    def objective(self) -> str:
        from headway.prediction.heads import HEAD_USES

        return HEAD_USES[type(self.model)].objective

    def evaluate(self, *, device: str, dtype: str, json: bool) -> None:
        from headway.evaluation.paired_bootstrap import paired_bootstrap
        from headway.evaluation.tasks import TaskScore
        from headway.training.run_evaluation import evaluate_records

        recipe, records, source = self._load()
        with CountDisplay("examples", len(records)) as display:
            progress = _BatchProgress(display, recipe.eval.batch_size, len(records))
            score = evaluate_records(self.model, recipe, records, source, on_batch=progress)
        assert isinstance(score, TaskScore)
        assert score.report is not None
        comparison = None
        if self.flags.against is not None:
            other = self._other_report(self.flags.against, recipe, records, device, dtype)
            comparison = paired_bootstrap(score.report, other)
        if json:
            against = {} if comparison is None else {"against": self.flags.against, "comparison": asdict(comparison)}
            labels = {"model": self.name, "text": source, "n_params": self.model.n_params}
            print_json({**labels, **score.to_dict(), **score.report.to_dict(), **against})
            return
        print(f"model           {self.name}: {self.model.display_name}, {self.model.n_params:,} parameters")
        print(f"data            {source}, {len(records):,} examples")
        print(f"loss            {score.nats_per_target:.4f} nats per target\n")
        print(score.report.render())
        if comparison is not None:
            print()
            print_comparison([comparison], self.name, str(self.flags.against), percent=True)

    def _load(self) -> "tuple[Recipe, list[Record], str]":
        from headway.training.record_datasets import RECORD_KINDS, load_records
        from headway.training.run_evaluation import default_recipe, load_evaluation_records, with_data_settings

        recipe = with_data_settings(self.run_recipe or default_recipe(self.model), self.settings)
        if self.text_input is None:
            records = load_records(recipe, self.split, RECORD_KINDS[self.objective])
            return recipe, records[: self.flags.limit], describe_split(recipe.data, self.split)
        if self.text_input.content is not None:
            raise typer.BadParameter(_how_to_score(self.model), param_hint=self.text_input.hint)
        records = load_evaluation_records(recipe, self.text_input.name)[: self.flags.limit]
        return recipe, records, self.text_input.name

    def _other_report(
        self, name: str, recipe: "Recipe", records: "list[Record]", device: str, dtype: str
    ) -> "TaskReport":
        """The report of the second system: of a model, or of a file of answers."""
        import headway
        from headway.config import load_recipe
        from headway.data.records import Question
        from headway.evaluation.question_answering import score_predictions
        from headway.file_reading import read_json
        from headway.models.base import described
        from headway.training.run_evaluation import report_on

        if self.objective == "span" and name.lower().endswith(".json"):
            questions = [record for record in records if isinstance(record, Question)]
            return score_predictions(read_json(Path(name)), questions)
        other = headway.load(name, device=device, dtype=dtype)
        if type(other) is not type(self.model):
            raise typer.BadParameter(
                f"{name} is {described(other)}, and {self.name} is {described(self.model)}: name two of a kind",
                param_hint="--against",
            )
        own_recipe = load_recipe(Path(name)) if Run.exists(name) else recipe
        report = report_on(other, own_recipe.replace(data=recipe.data), records)
        assert report is not None
        return report


class _BatchProgress:
    """Progress by batches, as examples."""

    def __init__(self, display: CountDisplay, batch_size: int, n_examples: int):
        self.display, self.batch_size, self.n_examples, self.n_batches = display, batch_size, n_examples, 0

    def __call__(self) -> None:
        self.n_batches += 1
        self.display.update(min(self.n_batches * self.batch_size, self.n_examples))


def _how_to_score(model: "Head") -> str:
    """What to give instead of a plain text, for a model that does not predict text."""
    data, file, verb = {
        "Classifier": ("labelled texts", "FILE.csv", "classify"),
        "Tagger": ("tagged words", "FILE.conll", "tag"),
    }.get(model.display_name, ("questions with answers", "FILE.json", "answer"))
    return f"a {model.display_name} is scored on {data}: headway eval MODEL {file}; to predict, use `headway {verb}`"
