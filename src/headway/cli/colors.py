"""Colours in the terminal, and when to use them."""

import os
import sys

BACKGROUNDS = (46, 43, 42, 45, 44, 47)  # ANSI codes: cyan, yellow, green, magenta, blue, white
BLACK, BOLD = 30, 1


def use_colors() -> bool:
    """Whether stdout is a terminal that shows colours, and the user did not turn them off (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def highlighted(text: str, number: int = 0) -> str:
    """Black on a background colour; `number` chooses it."""
    return f"\x1b[{BLACK};{BACKGROUNDS[number % len(BACKGROUNDS)]}m{text}\x1b[0m"


def bold(text: str) -> str:
    return f"\x1b[{BOLD}m{text}\x1b[0m"
