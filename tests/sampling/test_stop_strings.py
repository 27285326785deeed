"""Stop strings: a text ends at the same place however it is split into tokens."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.sampling import find_stop, safe_length


def match_by_character(text, stops):
    """The specification: read character by character, and stop at the first stop string that is complete."""
    for end in range(1, len(text) + 1):
        starts = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            start, stop = min(starts)
            return start, end, stop
    return None


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_find_stop_returns_the_match_that_ends_first(text, stops):
    assert find_stop(text, stops) == match_by_character(text, stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_safe_length_holds_back_only_what_may_become_a_stop(text, stops):
    """No continuation turns safe text into a stop, and no more than necessary is held back."""
    safe = safe_length(text, stops)
    if (match := find_stop(text, stops)) is not None:
        assert safe == match.start
        return
    for continuation in ("".join(p) for n in range(5) for p in itertools.product("ab", repeat=n)):
        match = find_stop(text + continuation, stops)
        assert match is None or match.start >= safe
    if safe < len(text):
        assert any(stop.startswith(text[safe:]) for stop in stops)


@pytest.mark.parametrize("seed", range(30))
def test_streaming_emits_the_same_text_for_every_split(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice("abc") for _ in range(20))
    stops = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
    match = match_by_character(text, stops)
    expected = text if match is None else text[: match[0]]
    for _ in range(10):
        cuts = sorted(rng.sample(range(1, 20), rng.randint(0, 8)))
        generated, emitted = "", ""
        for start, end in itertools.pairwise([0, *cuts, 20]):
            generated += text[start:end]
            emitted = generated[: max(len(emitted), safe_length(generated, stops))]
            assert expected.startswith(emitted)
            if find_stop(generated, stops):
                break
        else:
            emitted = generated  # the row ended for another reason, which releases the held-back suffix
        assert emitted == expected


def test_invalid_stop_strings_are_refused():
    with pytest.raises(ConfigError, match="an empty string"):
        find_stop("a", [""])
    with pytest.raises(ConfigError, match="a list of strings"):
        find_stop("a", "a")
    assert find_stop("abc", []) is None
    assert safe_length("abc", []) == 3
