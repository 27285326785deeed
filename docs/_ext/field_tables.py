"""The fields of a config, dataclass or named tuple as a Markdown table: name, type, default and meaning.

A config states the meaning of a field with `about("…")`. Other classes state it in a comment at the end of the line:

    logprob: float | None = None  # ln p under the model itself, before any sampler
"""

import ast
import dataclasses
import inspect
import textwrap

from headway.config.base import Config, descriptions


def field_table(kind: type) -> list[str]:
    """The table of a class, or nothing for a class without fields."""
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or hasattr(kind, "__struct_fields__")):
        return []
    meanings = descriptions(kind) if issubclass(kind, Config) else {}
    rows = [
        f"| `{name}` | {code(annotation)} | {code(default)} | {cell(meanings.get(name) or comment)} |"
        for name, annotation, default, comment in _fields_in_source(kind)
    ]
    if not rows:
        return []
    return ["", "| field | type | default | meaning |", "|---|---|---|---|", *rows]


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def _fields_in_source(kind: type) -> list[tuple[str, str, str, str]]:
    """(name, type, default, comment) of every field that the class statement defines itself."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (statement,) = ast.parse("\n".join(lines)).body
    assert isinstance(statement, ast.ClassDef)
    fields = []
    for field in statement.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if field.target.id.startswith("_") or ast.unparse(field.annotation).startswith("ClassVar"):
                continue
            comment = lines[(field.end_lineno or 1) - 1].encode()[field.end_col_offset :].decode()
            default = ast.unparse(field.value) if field.value else ""
            fields.append((field.target.id, _type(field.annotation), default, comment.strip().removeprefix("# ")))
    return fields


def _type(annotation: ast.expr) -> str:
    """`Annotated[int, about(…)]` → `int`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    return ast.unparse(annotation)
