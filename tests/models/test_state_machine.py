"""Decoding states under any sequence of steps, copies and reorders: logits are always those of the whole text.

A hypothesis state machine keeps several states alive at once, as beams, branches and finished rows do. The texts that
each of them has read are kept beside it, and the plain forward pass is the reference.
"""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import headway
from headway.errors import InputError

VOCAB, CONTEXT, MAX_STATES = 11, 24, 4
GPT = {"context": CONTEXT, "n_layers": 2, "d_model": 16, "n_heads": 4, "dropout": 0.0}
MODELS = {
    "gpt rotary": ("gpt", {**GPT, "positions": "rotary", "n_kv_heads": 2}),
    "gpt learned": ("gpt", {**GPT, "positions": "learned"}),
    "gpt relative": ("gpt", {**GPT, "positions": "relative", "n_kv_heads": 1}),
    "gpt alibi": ("gpt", {**GPT, "positions": "alibi"}),
    "lstm": ("lstm", {"d_model": 8, "d_hidden": 8, "n_layers": 2, "dropout": 0.0}),
    "nplm": ("nplm", {"order": 4, "d_model": 8}),
}
_built = {}


def model_named(name):
    if name not in _built:
        family, config = MODELS[name]
        torch.manual_seed(0)
        _built[name] = headway.create(family, vocab_size=VOCAB, **config).eval()
    return _built[name]


class DecodingStates(RuleBasedStateMachine):
    """Each entry of `states` is a state and the texts (token ids) that its rows have read."""

    @initialize(name=st.sampled_from(sorted(MODELS)))
    def choose_model(self, name):
        self.model, self.limit = model_named(name), CONTEXT if name in ("gpt learned", "gpt relative") else None
        self.states = []

    def _index(self, data):
        return data.draw(st.integers(0, len(self.states) - 1), label="state")

    @precondition(lambda self: len(self.states) < MAX_STATES)
    @rule(batch_size=st.integers(1, 3), capacity=st.one_of(st.none(), st.integers(1, CONTEXT)))
    def start(self, batch_size, capacity):
        state = self.model.start(batch_size, capacity)
        self.states.append((state, [[] for _ in range(batch_size)], capacity))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), n_tokens=st.integers(1, 5), is_ragged=st.booleans())
    def step(self, data, n_tokens, is_ragged):
        """The state is consumed; each row's new logits are those of its whole text."""
        index = self._index(data)
        state, texts, capacity = self.states.pop(index)
        ids = torch.tensor(data.draw(_rows(st.integers(0, VOCAB - 1), len(texts), n_tokens), label="ids"))
        lengths = None
        if is_ragged:
            lengths = torch.tensor(data.draw(_rows(st.integers(0, n_tokens), 1, len(texts)), label="lengths")[0])
        n_real = [n_tokens] * len(texts) if lengths is None else lengths.tolist()
        longer = [text + row[:n] for text, row, n in zip(texts, ids.tolist(), n_real, strict=True)]
        longest = max(map(len, longer))
        limit = capacity if capacity is not None and isinstance(self.model, type(model_named("gpt alibi"))) else None
        limit = min(filter(None, [limit, self.limit]), default=None)
        if limit is not None and longest > limit:
            with pytest.raises(InputError, match="longer than the context"):
                self.model.step(ids, state, lengths=lengths)
            return
        with torch.no_grad():
            logits, state = self.model.step(ids, state, lengths=lengths)
        for row, (text, n) in enumerate(zip(longer, n_real, strict=True)):
            if n:
                expected = self.model(torch.tensor([text])).detach()[0, -n:]
                torch.testing.assert_close(logits[row, :n], expected, rtol=1e-4, atol=1e-4)
        self.states.append((state, longer, capacity))

    @precondition(lambda self: self.states and len(self.states) < MAX_STATES)
    @rule(data=st.data())
    def copy(self, data):
        state, texts, capacity = self.states[self._index(data)]
        self.states.append((state.copy(), [list(text) for text in texts], capacity))

    @precondition(lambda self: self.states and len(self.states) < MAX_STATES)
    @rule(data=st.data(), n_rows=st.integers(1, 4))
    def reorder(self, data, n_rows):
        """Rows are repeated and dropped; the original stays as it was."""
        state, texts, capacity = self.states[self._index(data)]
        rows = data.draw(_rows(st.integers(0, len(texts) - 1), 1, n_rows), label="rows")[0]
        self.states.append((state.reorder(rows), [list(texts[row]) for row in rows], capacity))

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def forget(self, data):
        self.states.pop(self._index(data))

    @invariant()
    def lengths_are_those_of_the_texts(self):
        for state, texts, _ in getattr(self, "states", []):
            assert state.length.tolist() == [len(text) for text in texts]
            assert state.nbytes >= 0


def _rows(elements, n_rows, n_columns):
    row = st.lists(elements, min_size=n_columns, max_size=n_columns)
    return st.lists(row, min_size=n_rows, max_size=n_rows)


TestDecodingStates = DecodingStates.TestCase
TestDecodingStates.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
