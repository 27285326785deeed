"""Stop strings: the same end however a text is cut."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.sampling import find_stop, safe_length


def by_letters(text, stops):
    """A reader that goes letter by letter."""
    for end in range(1, len(text) + 1):
        starts = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            start, stop = min(starts)
            return start, end, stop
    return None


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_first_to_end_is_found(text, stops):
    assert find_stop(text, stops) == by_letters(text, stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_may_become_a_stop_is_held_back(text, stops):
    """Nothing that is safe can be part of a stop, whatever follows; and no more than needed is held."""
    safe = safe_length(text, stops)
    if (match := find_stop(text, stops)) is not None:
        assert safe == match.start
        return
    for more in ("".join(p) for n in range(5) for p in itertools.product("ab", repeat=n)):
        match = find_stop(text + more, stops)
        assert match is None or match.start >= safe
    if safe < len(text):
        assert any(stop.startswith(text[safe:]) for stop in stops)


@pytest.mark.parametrize("seed", range(30))
def test_streaming_emits_the_same_for_every_way_of_cutting(seed):
    rng = random.Random(seed)
    text = "".join(rng.choice("abc") for _ in range(20))
    stops = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
    whole = by_letters(text, stops)
    expected = text if whole is None else text[: whole[0]]
    for _ in range(10):
        cuts = sorted(rng.sample(range(1, 20), rng.randint(0, 8)))
        seen, emitted = "", ""
        for start, end in itertools.pairwise([0, *cuts, 20]):
            seen += text[start:end]
            emitted = seen[: max(len(emitted), safe_length(seen, stops))]
            assert expected.startswith(emitted)
            if find_stop(seen, stops):
                break
        else:
            emitted = seen  # ended for another reason: what was held is let out
        assert emitted == expected


def test_stops_that_cannot_be():
    with pytest.raises(ConfigError, match="an empty string"):
        find_stop("a", [""])
    with pytest.raises(ConfigError, match="a list of strings"):
        find_stop("a", "a")
    assert find_stop("abc", []) is None
    assert safe_length("abc", []) == 3
