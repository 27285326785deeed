"""Token ids in, text out: incremental detokenization, EOS, stop strings and length limits.

One character may take several tokens, and a stop string may begin in one token and end in another. So text is shown
only when it is certain: `TextStream` holds back bytes that are not a whole character yet, and `StopAwareText` also
holds back any suffix that is, or could become, a stop string.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headway.sampling import find_stop, partial_stop_length
from headway.tokenizers import Tokenizer


class TextStream:
    """A streaming detokenizer: push token ids, get the text that has become certain.

    Bytes that do not end on a character boundary are held back. `previous_id` is the token before the first one, such
    as the last of a prompt: some decoders put a space between the two.
    """

    def __init__(self, tokenizer: Tokenizer, previous_id: int | None = None):
        self.tokenizer = tokenizer
        self.ids: list[int] = [] if previous_id is None else [previous_id]
        self._start = 0  # decode from here: one emitted piece back, since decoders look at the neighbouring token
        self._n_emitted = len(self.ids)  # ids whose text is out

    def push(self, id: int) -> str:
        """Append a token and return the new text, which may be empty."""
        self.ids.append(int(id))
        return self._emit(hold_back=True)

    def flush(self) -> str:
        """The text that was held back, complete or not."""
        return self._emit(hold_back=False)

    def _emit(self, *, hold_back: bool) -> str:
        emitted = self.tokenizer.decode(self.ids[self._start : self._n_emitted])
        text = self.tokenizer.decode(self.ids[self._start :])
        if (hold_back and text.endswith("\ufffd")) or len(text) <= len(emitted):
            return ""
        self._start, self._n_emitted = self._n_emitted, len(self.ids)
        return text[len(emitted) :]


def detokenize(tokenizer: Tokenizer, ids: Iterable[int], previous_id: int | None = None) -> str:
    """The text of `ids` as it continues after `previous_id`."""
    stream = TextStream(tokenizer, previous_id)
    return "".join(map(stream.push, ids)) + stream.flush()


@dataclass(frozen=True)
class StopConditions:
    """When a text ends: at an EOS token, at a stop string, or at `max_new_tokens`."""

    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop_strings: Sequence[str] = ()
    include_stop: bool = False  # keep the stop string in the text
    min_new_tokens: int = 0  # stop strings that end before it do not count


FinishReason = Literal["stop", "length"]  # EOS or a stop string; the most tokens


class TextUpdate(NamedTuple):
    """What one token adds to a text."""

    text: str
    finish_reason: FinishReason | None = None  # the text ends here
    stop: str | None = None  # the stop string that ended it


class StopAwareText:
    """The growing text of one row: a `TextStream` that knows when to stop."""

    def __init__(self, stream: TextStream, conditions: StopConditions):
        self.stream, self.conditions = stream, conditions
        self.n_tokens, self.text = 0, ""
        self._n_shown = 0  # characters
        self._searched_to = 0  # matches that end at or before this offset are ignored (min_new_tokens)

    def push(self, id: int) -> TextUpdate:
        """Append a token."""
        conditions = self.conditions
        self.n_tokens += 1
        is_eos, is_last = id in conditions.eos_ids, self.n_tokens == conditions.max_new_tokens
        self.text += self.stream.flush() if is_eos else self.stream.push(id)
        if is_last and not is_eos:
            self.text += self.stream.flush()
        if conditions.stop_strings and self.n_tokens >= conditions.min_new_tokens:
            match = find_stop(self.text, conditions.stop_strings, after=self._searched_to)
            if match is not None:
                end = match.end if conditions.include_stop else match.start
                return TextUpdate(self._show_up_to(end), "stop", match.stop)
        self._searched_to = len(self.text)
        if is_eos or is_last:
            return TextUpdate(self._show_up_to(len(self.text)), "stop" if is_eos else "length")
        n_held_back = partial_stop_length(self.text, conditions.stop_strings)
        return TextUpdate(self._show_up_to(len(self.text) - n_held_back))

    def _show_up_to(self, end: int) -> str:
        end = max(end, self._n_shown)
        piece, self._n_shown = self.text[self._n_shown : end], end
        return piece
