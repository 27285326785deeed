"""Exercises of the lectures: quizzes that the code answers and explains, and a homework that it checks.

QUIZZES["scaled-scores"].grade("0.88, 0.12")         right
check_homework("homework.py").mistakes               ["no scale"]
"""

from headway.exercises.homework import check_homework
from headway.exercises.quizzes import QUIZZES, find_quiz

__all__ = ["QUIZZES", "check_homework", "find_quiz"]
