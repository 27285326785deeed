"""headway quiz"""

import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.option_use import AllowsOnly, OnlyWith, OnlyWithout
from headway.cli.options import Json, print_json
from headway.errors import InputError

if TYPE_CHECKING:
    from headway.exercises.quiz import Quiz, Solution, Verdict

MAX_COLUMNS = 100


def quiz(
    name: Annotated[str | None, typer.Argument(help="A quiz by name or number, from 1 to 15.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the quizzes and exit."), AllowsOnly("--json")] = False,
    answer: Annotated[
        str | None, typer.Option(help="Your answer, in place of typing it when asked."), OnlyWith("NAME")
    ] = None,
    solution: Annotated[
        bool,
        typer.Option("--solution", help="Print the answer and why it is right."),
        OnlyWith("NAME"),
        OnlyWithout("--answer"),
    ] = False,
    json: Json = False,
) -> None:
    """Ask a quiz of the lectures, then check and explain your answer.

    The answer is computed by Headway's own code. In a terminal you are asked for yours; for a wrong one you get a hint
    about the mistake. Without --answer and without a terminal, the question and the solution are printed. Exits with
    0 if your answer is right, with 1 if it is wrong.

    \b
    Examples:
      headway quiz --list
      headway quiz scaled-scores --answer 0.88,0.12
      headway quiz 9 --answer "2nmk, nm+mk+nk"
      headway quiz forgetting --solution
    """
    from headway.exercises.quizzes import find_quiz

    if show_list or name is None:
        _print_list(json)
        return
    try:
        chosen = find_quiz(name)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    if answer is not None:
        _judge(chosen, answer, json)
    elif solution or json or not sys.stdin.isatty():
        _print_solution(chosen, json)
    else:
        _ask(chosen)


def _print_list(json: bool) -> None:
    from headway.exercises.quizzes import QUIZZES, render_list

    if json:
        rows = [{"number": q.number, "name": q.name, "topic": q.topic, "lecture": q.lecture} for q in QUIZZES.values()]
        print_json({"quizzes": rows})
    else:
        print(render_list(shutil.get_terminal_size().columns))


def _judge(quiz: "Quiz", answer: str, json: bool) -> None:
    solution = quiz.solve()
    try:
        verdict = solution.answer.grade(answer)
    except InputError as error:
        raise typer.BadParameter(f"{error}. Type {quiz.answer_format}", param_hint="--answer") from None
    if json:
        print_json({**_as_dict(quiz, solution), "given": answer, "right": verdict.is_right,
                    "feedback": verdict.feedback})  # fmt: skip
    else:
        _print_verdict(solution, verdict)
        if not verdict.is_right:
            print(f"note: headway quiz {quiz.name} --solution shows the answer", file=sys.stderr)
    raise typer.Exit(0 if verdict.is_right else 1)


def _print_solution(quiz: "Quiz", json: bool) -> None:
    solution = quiz.solve()
    if json:
        print_json(_as_dict(quiz, solution))
    else:
        print(f"{_wrapped(quiz.question)}\n\nanswer: {solution.answer}\n\n{_wrapped(solution.explanation)}")


def _ask(quiz: "Quiz") -> None:
    """Ask until the answer is right; an empty one asks for the solution."""
    solution = quiz.solve()
    print(_wrapped(quiz.question))
    while True:
        try:
            text = input(f"\nYour answer ({quiz.answer_format}; Enter for the solution): ")
        except EOFError:
            text = ""
        if not text.strip():
            print(f"\nanswer: {solution.answer}\n\n{_wrapped(solution.explanation)}")
            raise typer.Exit(1)
        try:
            verdict = solution.answer.grade(text)
        except InputError as error:
            print(f"{error}.", file=sys.stderr)
            continue
        _print_verdict(solution, verdict)
        if verdict.is_right:
            return


def _print_verdict(solution: "Solution", verdict: "Verdict") -> None:
    print("right" if verdict.is_right else "wrong")
    if verdict.feedback:
        print(_wrapped(verdict.feedback))
    if verdict.is_right:
        print(f"\n{_wrapped(solution.explanation)}")


def _wrapped(text: str) -> str:
    from headway.exercises.quiz import wrap_text

    return wrap_text(text, min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 1)).columns))


def _as_dict(quiz: "Quiz", solution: "Solution") -> dict[str, Any]:
    return {
        "number": quiz.number,
        "name": quiz.name,
        "topic": quiz.topic,
        "lecture": quiz.lecture,
        "question": quiz.question,
        "answer": str(solution.answer),
        "explanation": solution.explanation,
    }
