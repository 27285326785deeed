"""The homework, a Transformer with blanks, and its checker: `check_homework`."""

from headway.exercises.homework.check import check_homework
from headway.exercises.homework.mistakes import MISTAKES
from headway.exercises.homework.report import HomeworkReport, PartResult

__all__ = ["MISTAKES", "HomeworkReport", "PartResult", "check_homework"]
