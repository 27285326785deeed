"""Questions with long passages become windows that cover every token, and each answer lies whole in one of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import Answer, Question, SpanDataset
from headway.data.datasets.passage_windows import EncodedQuestion, encode_questions
from headway.errors import ConfigError, DataError

TEXT = ["Who sat where? The cat sat on the mat in Paris, and Jean-Luc looked. über naïve 日本語 1987 (U.S.)"] * 5
WORDPIECE = tokenizers.train("wordpiece", TEXT, 120)
BPE = tokenizers.train("bpe", TEXT, 300)  # <s> … </s> … </s>
BARE = tokenizers.train("char", TEXT)
BARE.special_tokens = dict.fromkeys(BARE.special_tokens)  # no special tokens at all
TOKENIZERS = {"wordpiece": WORDPIECE, "bpe": BPE, "no special tokens": BARE}
N_SPECIAL = {name: len(tokenizer.build_inputs([], [])[0]) for name, tokenizer in TOKENIZERS.items()}

SIZES = (st.integers(0, 40), st.integers(0, 120), st.integers(2, 50), st.integers(0, 60))


def encoded(n_question, n_passage):
    """Tokens that can be told apart: those of the question are 1000, 1001, …, those of the passage 0, 1, …"""
    offsets = np.array([(i, i + 1) for i in range(n_passage)], dtype=np.int64).reshape(-1, 2)
    return EncodedQuestion(list(range(1000, 1000 + n_question)), list(range(n_passage)), offsets)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(*SIZES)
@example(40, 120, 2, 60)
@example(0, 0, 2, 0)
def test_windows_fit_hold_the_question_and_cover_the_passage_in_order(name, n_question, n_passage, space, overlap):
    tokenizer, context = TOKENIZERS[name], space + N_SPECIAL[name]
    windows = list(encoded(n_question, n_passage).windows(tokenizer, context, overlap))
    covered = []
    for window in windows:
        assert len(window.ids) == len(window.segments) <= context
        passage = list(range(window.start, window.end))
        assert window.ids[window.columns] == passage
        n_kept = min(n_question, space // 2)  # at most half of the space: there is always some for the passage
        question = list(range(1000, 1000 + n_kept))
        assert (window.ids, window.segments) == tokenizer.build_inputs(question, passage)
        assert all(window.segments[column] == 1 for column in range(*window.columns.indices(context)))
        covered += passage
    assert sorted(set(covered)) == list(range(n_passage))
    starts = [window.start for window in windows]
    assert starts == sorted(set(starts))
    assert windows[0].start == 0
    assert windows[-1].end == n_passage


@pytest.mark.parametrize("name", TOKENIZERS)
@given(*SIZES)
def test_every_answer_of_at_most_overlap_plus_one_tokens_lies_whole_in_a_window(
    name, n_question, n_passage, space, overlap
):
    windows = list(encoded(n_question, n_passage).windows(TOKENIZERS[name], space + N_SPECIAL[name], overlap))
    width = space - min(n_question, space // 2)
    n_shared = min(overlap, width // 2)
    for a, b in pairwise(windows):
        assert a.end - b.start == n_shared
        assert a.end - a.start == width  # all but the last are full
    for first in range(n_passage):
        last = min(first + n_shared, n_passage - 1)
        assert any(window.start <= first and last < window.end for window in windows)


def test_a_passage_that_fits_is_one_window():
    [window] = encoded(3, 10).windows(WORDPIECE, 16, overlap=5)
    assert (window.start, window.end) == (0, 10)
    first, second = encoded(3, 11).windows(WORDPIECE, 16, overlap=5)
    assert (first.start, first.end, second.start, second.end) == (0, 10, 5, 11)


def test_a_context_without_space_is_refused():
    with pytest.raises(ConfigError, match="context=4 has no space for text next to 3 special tokens"):
        list(encoded(3, 10).windows(WORDPIECE, 4, overlap=0))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_of_characters_are_all_that_cover_one_of_them(name):
    passage = "The  cat sat, 日本語.\nnaïve"
    [question] = encode_questions([("Who?", passage)], TOKENIZERS[name])
    for start in range(len(passage)):
        for end in range(start + 1, len(passage) + 1):
            covering = [i for i, (a, b) in enumerate(question.offsets) if set(range(a, b)) & set(range(start, end))]
            assert question.tokens_of(start, end) == ((covering[0], covering[-1]) if covering else None)


def test_questions_keep_their_order_and_share_the_tokens_of_their_passage():
    pairs = [("Who?", "The cat sat."), ("Where?", "in Paris"), ("The?", "The cat sat.")]
    together = encode_questions(iter(pairs), WORDPIECE)
    assert together[0].passage_ids is together[2].passage_ids
    for pair, question in zip(pairs, together, strict=True):
        assert question.question_ids == WORDPIECE.encode(pair[0])
        assert question.passage_ids == WORDPIECE.encode(pair[1])


# ── the dataset ───────────────────────────────────────────────────────────────────────────────────────────────────

PASSAGE = " ".join(["The cat sat on the mat in Paris, and Jean-Luc looked."] * 4)


@st.composite
def answers(draw):
    start = draw(st.integers(0, len(PASSAGE) - 1))
    return start, draw(st.integers(start + 1, min(len(PASSAGE), start + 25)))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(answers(), st.integers(16, 60), st.integers(0, 30))
def test_rows_hold_the_answer_or_count_as_unanswerable(name, answer, context, overlap):
    tokenizer = TOKENIZERS[name]
    start, end = answer
    text = PASSAGE[start:end]
    question = Question("q", "Who?", PASSAGE, (Answer(text, start),))
    dataset = SpanDataset([question], tokenizer, context, overlap=overlap)
    batch = dataset.collate(np.arange(len(dataset)))
    visible = [i for i in range(start, end) if PASSAGE[i] != " "]  # spaces around an answer do not count
    tokens = dataset.encoded[0].tokens_of(visible[0], visible[-1] + 1) if visible else None
    n_whole = 0
    for row, (number, columns, first_token) in enumerate(dataset.row_origins):
        assert number == 0
        first, last = int(batch.starts[row]), int(batch.ends[row])
        holds_answer = tokens is not None and (
            first_token <= tokens[0] and tokens[1] < first_token + columns.stop - columns.start
        )
        assert ((first, last) != (0, 0)) == holds_answer
        if holds_answer:
            n_whole += 1
            assert dataset.text(row, first, last).find(text.strip()) >= 0
            assert columns.start <= first <= last < columns.stop
    width = context - N_SPECIAL[name] - len(dataset.encoded[0].question_ids)
    if tokens is not None and tokens[1] - tokens[0] <= min(overlap, width // 2):
        assert n_whole > 0


@pytest.mark.parametrize("text", ["\u200b", " ", ""])
def test_an_answer_that_no_token_covers_is_none(text):
    passage = f"The{text} cat"
    question = Question("q", "Who?", passage, (Answer(text, 3),))
    for tokenizer in (WORDPIECE, BPE) if text != "\u200b" else (WORDPIECE,):
        assert SpanDataset([question], tokenizer, 30).spans.tolist() == [[0, 0]]


def test_a_passage_without_tokens_is_a_row_without_an_answer():
    dataset = SpanDataset([Question("q", "Who?", "\u200b", ())], WORDPIECE, 30)
    assert len(dataset) == 1
    assert dataset.spans.tolist() == [[0, 0]]
    assert dataset.text(0, 1, 2) == ""


def test_only_the_first_gold_answer_is_learned():
    question = Question("q", "Who?", "The cat sat.", (Answer("cat", 4), Answer("The cat", 0)))
    dataset = SpanDataset([question], WORDPIECE, 30)
    assert dataset.text(0, *dataset.spans[0].tolist()) == "cat"


def test_the_columns_of_the_question_are_no_answer():
    dataset = SpanDataset([Question("q", "The cat?", "The cat sat.", ())], WORDPIECE, 30)
    _, columns, _ = dataset.row_origins[0]
    assert dataset.text(0, 1, columns.start) == ""
    assert dataset.text(0, columns.start, columns.stop) == ""
    assert dataset.text(0, columns.start + 1, columns.start) == ""
    assert dataset.text(0, columns.start, columns.stop - 1) == "The cat sat."


def test_no_questions_are_refused():
    with pytest.raises(DataError, match="there are no questions to learn from"):
        SpanDataset([], WORDPIECE, 30)
