"""What `headway eval` scores a model on: a path of the user, or a text itself."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.cli.options import read_lines

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.data.records import Record
    from headway.models import Model


@dataclass(frozen=True)
class TextInput:
    """A text on the command line: the path of a source, or the text itself."""

    name: str
    content: str | None = None

    @property
    def hint(self) -> str:
        """What the user gave it by."""
        return "--text" if self.name == "--text" else "TEXT"

    def documents(self, model: "Model", recipe: "Recipe | None") -> list[str]:
        from headway.training.run_evaluation import load_evaluation_text, split_evaluation_text

        if self.content is None:
            return load_evaluation_text(model, self.name, recipe)
        return split_evaluation_text(model, self.content, recipe)

    def records(self, recipe: "Recipe") -> "list[Record]":
        """The records of a file, of the kind that the run trains on."""
        from headway.training.run_evaluation import load_evaluation_records

        assert self.content is None
        return load_evaluation_records(recipe, self.name)

    def lines(self) -> list[str]:
        return read_lines(self.name) if self.content is None else self.content.splitlines()


def read_text_input(path: str | None, content: str | None) -> TextInput | None:
    from headway.data.text_files import decode_text

    if path == "-":
        content = decode_text(sys.stdin.buffer.read(), "stdin")
        if content.lstrip().startswith("{") and "\n" in content:
            print("note: stdin is scored as plain text; to read JSON lines, name a file .jsonl", file=sys.stderr)
        return TextInput("stdin", content)
    if content is not None:
        return TextInput("--text", content)
    return None if path is None else TextInput(path)
