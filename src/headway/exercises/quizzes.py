"""The fifteen quizzes and exercises of the lectures, by name: `QUIZZES["scaled-scores"].grade("0.88, 0.12")`."""

from headway.errors import InputError, suggest
from headway.exercises.attention_quizzes import CAUSAL_MASK, SCALED_SCORES, SOFTMAX_AXIS, SWAPPED_TOKENS, WHY_MASK
from headway.exercises.cost_quizzes import KV_CACHE, PRODUCT, PROJECTION, SUMMARY
from headway.exercises.forgetting_quiz import FORGETTING
from headway.exercises.model_quizzes import ENCODER_LAYER, FREQUENCIES, GPT3_SIZE, OPTIMISED, TEMPERATURE_QUIZ
from headway.exercises.quiz import Quiz
from headway.tables import Column, render_table

QUIZZES: dict[str, Quiz] = {
    quiz.name: quiz
    for quiz in (
        SCALED_SCORES,
        SOFTMAX_AXIS,
        CAUSAL_MASK,
        SWAPPED_TOKENS,
        FREQUENCIES,
        OPTIMISED,
        WHY_MASK,
        ENCODER_LAYER,
        PRODUCT,
        PROJECTION,
        KV_CACHE,
        SUMMARY,
        FORGETTING,
        GPT3_SIZE,
        TEMPERATURE_QUIZ,
    )
}


def find_quiz(name: str) -> Quiz:
    """A quiz by its name or number.

    >>> find_quiz("13").name
    'forgetting'
    """
    by_number = {str(quiz.number): quiz for quiz in QUIZZES.values()}
    quiz = QUIZZES.get(name.strip().lower()) or by_number.get(name.strip())
    if quiz is None:
        names = f" Quizzes are numbered from 1 to {len(QUIZZES)}; names: {', '.join(QUIZZES)}."
        raise InputError(f"no quiz {name!r}." + suggest(name, QUIZZES, otherwise=names))
    return quiz


def render_list(width: int | None = None) -> str:
    """A table of all quizzes."""
    quizzes = QUIZZES.values()
    columns = [
        Column("", [str(quiz.number) for quiz in quizzes]),
        Column("quiz", [quiz.name for quiz in quizzes], is_text=True),
        Column("lecture", [quiz.lecture for quiz in quizzes], is_text=True),
        Column("topic", [quiz.topic for quiz in quizzes], is_text=True),
    ]
    return render_table(columns, width)
