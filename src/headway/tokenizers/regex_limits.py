r"""Regular expressions in untrusted tokenizer files: refused if they can take more than linear time.

The `tokenizers` library matches by backtracking. `(a+)+$` then takes 2^n steps on n letters, and `\s+$` takes n² on n
spaces. Two checks bound the time, before any text is encoded:

1. By structure. A *path* through a pattern is one choice at every `|`, `?` and `{m,n}`. The number of paths is limited,
   so is the number of unbounded repeats on one path, and a repeated part must have a fixed length: `(a+)+`,
   `(a|bc)*` and `(a?)+` are refused.
2. By trial. The pattern splits long runs of one character, for each of several characters; the time must grow with the
   length, not with its square.

A pattern that passes both checks may still be slow on some text. It then ends in an error, at the engine's own limit of
ten million steps per match.
"""

import math
import re
import time
from functools import lru_cache
from typing import NamedTuple

import tokenizers as rust

from headway.tokenizers.native_errors import is_panic, native_errors
from headway.tokenizers.pre_tokenizers import CHAR_PATTERN, PATTERNS, WORD_PATTERNS

MAX_PATTERN_CHARS = 8192  # the longest published pattern, DeepSeek's, has some 400
MAX_PATHS = 10_000  # o200k, the pattern with most choices of those published, has 84
MAX_UNBOUNDED = 4  # repeats on one path; published patterns have 2
MAX_REPEAT = 1000  # of {m,n}
MAX_DEPTH = 50  # of nested groups

TRIAL_CHARS = (" ", "\n", "a", "A", "1", "!", "'", "é", "中", "\u0301")  # U+0301 is a combining accent
MAX_TRIAL_LITERALS = 12  # characters of the pattern itself that are tried as well
TRIAL_LENGTHS = (8, 12, 16, 20, 24, 32, 64, 128, 256, 512, 1024, 2048)  # small steps first: time may double with each
LONG_TRIAL_LENGTHS = (4096, 8192, 16_384)  # for a run that was not quick
QUICK_SECONDS = 0.004  # for 2048 characters; linear patterns take up to 0.0007 s, quadratic ones 0.007 s and more
MAX_TRIAL_SECONDS = 0.04  # for 16,384 characters, linear patterns take up to 0.006 s, quadratic ones 0.4 s and more

# Published patterns that the checks would refuse; reviewed by hand.
_PUBLISHED = (
    r"\d{1,3}(?=(?:\d{3})*\b)",  # Cohere's, digits in groups of three from the right: quadratic in a run of digits
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"  # EXAONE's
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
)
_KNOWN = frozenset({CHAR_PATTERN, *PATTERNS.values(), *WORD_PATTERNS.values(), *_PUBLISHED})
_QUANTIFIER = re.compile(r"[*+?]|\{(?=[\d,]*\d)(\d*)(,?)(\d*)\}")
_GROUP_START = re.compile(r"\((\?(?:[:>=!]|<[=!]|[a-zA-Z-]*:|<[A-Za-z_]\w*>))?")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*\)")
_ESCAPE = re.compile(r"\\(?:[pPxuo]\{[^}]*\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|[^0-9kgcCMXRKQE])", re.DOTALL)


@lru_cache(maxsize=256)
def check_pattern(pattern: str) -> None:
    """Raise `ValueError` if a pattern can take much more than linear time, or if that cannot be decided."""
    if pattern in _KNOWN:
        return
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"a regular expression has {len(pattern):,} characters; at most {MAX_PATTERN_CHARS:,} are read"
        )
    parser = _Parser(pattern)
    parser.check()
    with native_errors(f"compiling the regular expression {_shown(pattern)}"):
        splitter = rust.pre_tokenizers.Split(rust.Regex(pattern), "contiguous")  # few pieces: little work for Python
    literals = "".join(dict.fromkeys(parser.literals))[:MAX_TRIAL_LITERALS]
    for char in dict.fromkeys([*TRIAL_CHARS, *literals]):
        # With the literals after the run, the engine does not give up because a character that it needs is missing.
        ends = ("\x00", f"\x00{literals}", f"a{literals}", f"\n{literals}")
        if not all(_is_linear(splitter, char, end) for end in ends):
            raise ValueError(
                f"the regular expression {_shown(pattern)} takes more than linear time on a run of {char!r}"
            )


def _is_linear(splitter: rust.pre_tokenizers.PreTokenizer, char: str, end: str) -> bool:
    """Whether runs of a character are split in time that grows with their length; stops at the first slow one."""
    seconds = 0.0
    for length in (*TRIAL_LENGTHS, *LONG_TRIAL_LENGTHS):
        if length in LONG_TRIAL_LENGTHS and seconds < QUICK_SECONDS:
            return True
        seconds = _seconds(splitter, char * length + end)
        if MAX_TRIAL_SECONDS < seconds < 10 * MAX_TRIAL_SECONDS:  # something else may have taken the time, such as gc
            seconds = _seconds(splitter, char * length + end)
        if seconds > MAX_TRIAL_SECONDS:
            return False
    return True


def _seconds(splitter: rust.pre_tokenizers.PreTokenizer, text: str) -> float:
    start = time.thread_time()  # of this thread alone: a busy machine must not make a pattern look slow
    try:
        splitter.pre_tokenize_str(text)
    except BaseException as error:
        if not is_panic(error):  # the engine's own limit
            raise
        return math.inf
    return time.thread_time() - start


class _Cost(NamedTuple):
    """The cost of matching a part of a pattern."""

    paths: int = 1
    unbounded: int = 0  # repeats without a bound, on the path that has most
    length: int | None = 1  # in characters; None if it is not fixed


class _Parser:
    """Reads the structure of a pattern in the syntax of `tokenizers`, Oniguruma's; what it does not know is refused."""

    def __init__(self, pattern: str):
        self.pattern, self.position, self.depth = pattern, 0, 0
        self.literals: list[str] = []  # characters that the pattern names, in order

    def check(self) -> None:
        cost = self._alternatives()
        if self.position < len(self.pattern):
            raise self._error("has a ')' too many")
        if cost.paths > MAX_PATHS:
            raise self._error(f"offers more than {MAX_PATHS:,} ways to match")

    def _alternatives(self) -> _Cost:
        branches = [self._sequence()]
        while self._peek() == "|":
            self.position += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        lengths = {branch.length for branch in branches}
        return _Cost(
            paths=sum(branch.paths for branch in branches),
            unbounded=max(branch.unbounded for branch in branches),
            length=lengths.pop() if len(lengths) == 1 else None,
        )

    def _sequence(self) -> _Cost:
        total = _Cost(length=0)
        while self._peek() not in ("", "|", ")"):
            part = self._quantified(self._atom())
            total = _Cost(
                paths=total.paths * part.paths,
                unbounded=total.unbounded + part.unbounded,
                length=None if total.length is None or part.length is None else total.length + part.length,
            )
            if total.paths > MAX_PATHS:
                raise self._error(f"offers more than {MAX_PATHS:,} ways to match")
            if total.unbounded > MAX_UNBOUNDED:
                raise self._error(f"has more than {MAX_UNBOUNDED} unbounded repeats in a row")
        return total

    def _quantified(self, cost: _Cost) -> _Cost:
        while match := _QUANTIFIER.match(self.pattern, self.position):
            self.position = match.end()
            minimum, maximum = _bounds(match)
            suffixes = ("?", "+") if match[0] in ("*", "+", "?") else ("?",)  # lazy or possessive
            self.position += self._peek() in suffixes
            cost = self._repeated(cost, minimum, maximum)
        return cost

    def _repeated(self, cost: _Cost, minimum: int, maximum: int | None) -> _Cost:
        if max(minimum, maximum or 0) > MAX_REPEAT:
            raise self._error(f"repeats a part more than {MAX_REPEAT:,} times")
        if maximum != 1 and cost.length is None:
            raise self._error("repeats a part that itself has no fixed length, as (a+)+ does")
        if maximum is None:
            return _Cost(paths=cost.paths, unbounded=1, length=None)
        paths = sum(cost.paths**n for n in range(minimum, maximum + 1)) if cost.paths < MAX_PATHS else MAX_PATHS + 1
        length = cost.length * minimum if minimum == maximum and cost.length is not None else None
        return _Cost(paths, cost.unbounded, length)

    def _atom(self) -> _Cost:
        char = self._peek()
        if char == "(":
            return self._group()
        if char == "[":
            self._character_class()
            return _Cost()
        if char == "\\":
            self._escape()
            return _Cost()
        if char in "*+?":
            raise self._error(f"repeats nothing at {char!r}")
        self.position += 1
        if char not in ".^$":
            self.literals.append(char)
        return _Cost()

    def _group(self) -> _Cost:
        if match := _FLAGS.match(self.pattern, self.position):
            self._check_flags(match[0])
            self.position = match.end()
            return _Cost()
        match = _GROUP_START.match(self.pattern, self.position)
        assert match is not None
        self._check_flags(match[0] if match[0].endswith(":") else "")
        if self.pattern.startswith(("(*", "(?"), self.position) and match[1] is None:
            raise self._error("has a group of a kind that tokenizers do not need")
        self.position = match.end()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"has groups nested deeper than {MAX_DEPTH}")
        cost = self._alternatives()
        if self._peek() != ")":
            raise self._error("has a '(' without its ')'")
        self.position += 1
        self.depth -= 1
        return cost

    def _check_flags(self, flags: str) -> None:
        if set(flags) & set("xyP"):
            raise self._error(f"sets a flag in {flags!r} that changes how it is read")

    def _character_class(self) -> None:
        depth = 0
        while True:
            char = self._peek()
            if not char:
                raise self._error("has a '[' without its ']'")
            if char == "\\":
                self._escape(in_class=True)
                continue
            self.position += 1
            if char == "[":
                depth += 1
                if depth > MAX_DEPTH:
                    raise self._error(f"has groups nested deeper than {MAX_DEPTH}")
                self.position += self._peek() == "^"
                self.position += self._peek() == "]"  # as the first character it stands for itself
            elif char == "]":
                depth -= 1
                if not depth:
                    return
            else:
                self.literals.append(char)

    def _escape(self, *, in_class: bool = False) -> None:
        match = _ESCAPE.match(self.pattern, self.position)
        if match is not None:
            self.position = match.end()
        elif in_class and self.pattern[self.position + 1 : self.position + 2].isdigit():
            self.position += 2
        else:
            raise self._error(f"has {self.pattern[self.position : self.position + 2]!r}, which tokenizers do not need")

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"the regular expression {_shown(self.pattern)} {reason}")


def _bounds(match: re.Match[str]) -> tuple[int, int | None]:
    """The least and the greatest number of repeats; None for no upper bound."""
    if match[0] in ("*", "+", "?"):
        return (1 if match[0] == "+" else 0), (1 if match[0] == "?" else None)
    low, comma, high = match.groups()
    minimum = int(low[:9] or 0)
    return minimum, (minimum if not comma else int(high[:9]) if high else None)


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else pattern[:57] + "…")
