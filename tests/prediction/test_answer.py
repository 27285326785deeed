"""An answer is found wherever it lies in a passage of any length, and its text is that of the passage."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.data.datasets.passage_windows import encode_questions
from headway.errors import InputError
from headway.models import SpanReader
from headway.models.heads import Tagger
from headway.prediction.answer import AnswerCandidates, PredictedAnswer, answer_all, find_answers

N_WORDS = 120
WORDS = [f"word{i}" for i in range(N_WORDS)]  # every word is a token of its own, so that a token tells its place
WORD = tokenizers.train("word", [" ".join(["who", *WORDS])], pre_tokenizer="whitespace")
TEXT = ["Who sat where? The cat sat on the mat in Paris, and Jean-Luc looked. über naïve 日本語 1987 (U.S.)"] * 5
WORDPIECE = tokenizers.train("wordpiece", TEXT, 120)
BPE = tokenizers.train("bpe", TEXT, 300)  # tokens begin with the space before a word
CHAR = tokenizers.train("char", ["".join(map(chr, range(33, 127))) + " äöü日本語\n🎉\u0301"])


def encoder(tokenizer, family="bert", seed=0, **config):
    torch.manual_seed(seed)
    sizes = {"bert": {"n_layers": 1, "n_heads": 2, "d_model": 16}, "bilstm": {"d_model": 12, "d_hidden": 8}}[family]
    model = headway.create(family, device="cpu", **{"vocab_size": tokenizer.vocab_size, "context": 64} | sizes | config)
    model.tokenizer = tokenizer
    return model


def small_reader(tokenizer=WORDPIECE, family="bert", seed=0, **config):
    reader = SpanReader(encoder(tokenizer, family, seed, **config)).eval()
    with torch.no_grad():
        reader.output.weight.normal_()  # scores that differ from token to token
    return reader


class MarkingReader(SpanReader):
    """Marks one token as the start and one as the end of the answer, wherever they are, also in the question."""

    start_id = end_id = -1
    no_answer = -5.0

    def forward(self, ids, mask=None, segments=None):
        self.encoder(ids, mask, segments)  # refuses what the model cannot read
        scores = torch.stack([(ids == self.start_id).float(), (ids == self.end_id).float()], dim=1) * 10  # (B, 2, T)
        scores[:, :, 0] = self.no_answer
        return scores if mask is None else scores.masked_fill(~mask[:, None], 99.0)  # padding may hold anything


@pytest.fixture(scope="module")
def marking_reader():
    return MarkingReader(encoder(WORD)).eval()


# ── an answer wherever it lies ────────────────────────────────────────────────────────────────────────────────────


@given(
    first=st.integers(0, N_WORDS - 1),
    length=st.integers(1, 12),
    n_words=st.integers(1, N_WORDS),
    n_question=st.integers(1, 50),
    window=st.integers(5, 64),
    overlap=st.integers(0, 40),
)
@example(first=0, length=1, n_words=N_WORDS, n_question=50, window=5, overlap=0)
@example(first=N_WORDS - 1, length=1, n_words=N_WORDS, n_question=1, window=5, overlap=40)
def test_windows_find_an_answer_at_every_position(marking_reader, first, length, n_words, n_question, window, overlap):
    """Questions may be longer than half the window. An answer must not be longer than the overlap plus one token, which
    is at most half of the passage's space."""
    space = window - 3  # [CLS], [SEP], [SEP], or what takes their place
    width = space - min(n_question, space // 2)
    first = min(first, n_words - 1)
    last = min(first + min(length, 1 + min(overlap, width // 2)), n_words) - 1
    passage = "  ".join(WORDS[:n_words])
    marking_reader.start_id, marking_reader.end_id = (WORD.encode(WORDS[i])[0] for i in (first, last))
    question = " ".join(["who"] * (n_question - 1) + [WORDS[last]])  # the marked word in the question is no answer
    best = headway.answer(marking_reader, question, passage, window=window, overlap=overlap, batch_size=3)
    assert best.text == passage[best.start : best.end] == "  ".join(WORDS[first : last + 1])
    assert best.score == 20.0


@pytest.mark.parametrize(("window", "overlap"), [(9, 3), (40, 12)])
def test_every_position_is_found(marking_reader, window, overlap):
    passage = " ".join(WORDS)
    n_answer = min(overlap, (window - 4) // 2) + 1  # the question has one token
    for first in range(N_WORDS):
        last = min(first + n_answer, N_WORDS) - 1
        marking_reader.start_id, marking_reader.end_id = (WORD.encode(WORDS[i])[0] for i in (first, last))
        best = headway.answer(marking_reader, "who", passage, window=window, overlap=overlap)
        assert best.text == " ".join(WORDS[first : last + 1])


def test_the_tokenizer_of_the_marked_words_gives_one_token_per_word():
    ids = [WORD.encode(word) for word in WORDS]
    assert {len(tokens) for tokens in ids} == {1}
    assert len({tokens[0] for tokens in ids}) == N_WORDS
    assert len(WORD.build_inputs([], [])[0]) <= 3


@given(st.text("abä日🎉\u0301 \n.", min_size=1, max_size=60), st.data())
def test_the_text_is_that_of_the_passage_in_any_script(text, data):
    passage = f"<{text}>"
    first = data.draw(st.sampled_from([i for i, char in enumerate(passage) if not char.isspace()]))
    passage = f"{passage[:first]}[{passage[first:]}]"  # two characters that mark the answer
    reader = MarkingReader(encoder(CHAR)).eval()
    reader.start_id, reader.end_id = CHAR.encode("[")[0], CHAR.encode("]")[0]
    best = headway.answer(reader, "Wo?", passage, max_answer_tokens=100)
    assert best.text == passage[best.start : best.end] == passage[first:]


# ── a naive reader ────────────────────────────────────────────────────────────────────────────────────────────────

PASSAGE = "The cat sat on the mat in Paris, and Jean-Luc looked.  Über naïve 日本語 (U.S.) 1987.\n\nThe cat sat."
QUESTION = "Who sat on the mat?"


def naive_candidates(reader, question, passage, max_answer_tokens, window, overlap):
    """Spans of characters → score, by loops over windows, starts and ends; the sum over all spans of tokens; and the
    score of no answer."""
    tokenizer = reader.tokenizer
    ids, offsets = tokenizer.encode_with_offsets(passage)
    space = window - len(tokenizer.build_inputs([], [])[0])
    question_ids = tokenizer.encode(question)[: space // 2]
    width = space - len(question_ids)
    stride = width - min(overlap, width // 2)
    spans, no_answer = {}, math.inf
    for start in range(0, len(ids), stride):
        part = ids[start : start + width]
        row, segments = tokenizer.build_inputs(question_ids, part)
        with torch.no_grad():
            starts, ends = reader(torch.tensor([row]), None, torch.tensor([segments]))[0].tolist()
        column = len(tokenizer.build_inputs(question_ids)[0])
        no_answer = min(no_answer, starts[0] + ends[0])
        for i in range(len(part)):
            for j in range(i, min(i + max_answer_tokens, len(part))):
                (a, b), (c, d) = offsets[start + i], offsets[start + j]
                if passage[a:b].strip() and passage[c:d].strip():
                    key = (start + i, start + j)
                    spans[key] = max(spans.get(key, -math.inf), starts[column + i] + ends[column + j])
        if start + width >= len(ids):
            break
    by_characters = {}
    for (i, j), score in spans.items():
        text = passage[offsets[i][0] : offsets[j][1]]
        first = offsets[i][0] + len(text) - len(text.lstrip())
        key = (first, first + len(text.strip()))
        by_characters[key] = max(by_characters.get(key, -math.inf), score)
    return by_characters, sum(math.exp(score) for score in [*spans.values(), no_answer]), no_answer


@pytest.mark.parametrize("family", ["bert", "bilstm"])
@pytest.mark.parametrize("tokenizer", [WORDPIECE, CHAR, BPE], ids=["wordpiece", "char", "bpe"])
@pytest.mark.parametrize(("window", "overlap", "longest"), [(64, 128, 30), (24, 5, 4), (12, 0, 30), (20, 128, 1)])
def test_answers_are_those_of_loops_over_windows_starts_and_ends(family, tokenizer, window, overlap, longest):
    reader = small_reader(tokenizer, family, seed=5)
    options = {"max_answer_tokens": longest, "window": window, "overlap": overlap}
    spans, total, no_answer = naive_candidates(reader, QUESTION, PASSAGE, **options)
    best = headway.answer(reader, QUESTION, PASSAGE, top=8, threshold=math.inf, **options)
    found = [candidate for candidate in (best, *best.alternatives) if candidate.text]
    assert best.text
    for candidate, (start, end) in zip(found, sorted(spans, key=lambda span: -spans[span]), strict=False):
        assert (candidate.start, candidate.end) == (start, end)
        assert candidate.text == PASSAGE[start:end]
        assert candidate.score == pytest.approx(spans[start, end], abs=1e-4)
        assert candidate.probability == pytest.approx(math.exp(spans[start, end]) / total, rel=1e-3)
    nothing = headway.answer(reader, QUESTION, PASSAGE, threshold=-math.inf, **options)
    assert (nothing.text, nothing.start, nothing.end) == ("", 0, 0)
    assert nothing.score == pytest.approx(no_answer, abs=1e-4)


def test_many_questions_share_batches_and_keep_their_order():
    reader = small_reader(context=20)
    passages = [PASSAGE, "The cat.", PASSAGE * 2, "Paris", PASSAGE]
    pairs = [(f"Who {'sat ' * n}?", passage) for n, passage in enumerate(passages)]
    done = []
    together = answer_all(reader, pairs, top=3, batch_size=4, on_progress=done.append)
    assert done == [1, 2, 3, 4, 5]
    for (question, passage), answer in zip(pairs, together, strict=True):
        alone = headway.answer(reader, question, passage, top=3)
        for a, b in zip((answer, *answer.alternatives), (alone, *alone.alternatives), strict=True):
            assert (a.text, a.start, a.end) == (b.text, b.start, b.end)
            assert a.probability == pytest.approx(b.probability, abs=1e-5)
    assert answer_all(reader, []) == []


def test_probabilities_of_all_spans_and_no_answer_sum_to_one():
    reader = small_reader()
    best = headway.answer(reader, "Who?", "The cat sat", top=1000)
    candidates = [best, *best.alternatives]
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1, abs=1e-5)
    assert sum(candidate.text == "" for candidate in candidates) == 1
    assert len({(candidate.start, candidate.end) for candidate in candidates}) == len(candidates)
    scores = [candidate.score for candidate in best.alternatives]
    assert scores == sorted(scores, reverse=True)


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_answer_wins_if_it_exceeds_the_best_span_by_more_than_the_threshold():
    spans = tuple(PredictedAnswer(text, 0, 1, score, 0.1) for text, score in (("a", 3.0), ("b", 1.0)))
    candidates = AnswerCandidates(spans, PredictedAnswer("", 0, 0, 4.0, 0.5))
    assert candidates.no_answer_margin == 1.0
    assert candidates.answer(0.99).text == ""
    assert candidates.answer(1.0).text == "a"
    assert candidates.answer(math.inf).text == "a"
    assert candidates.answer(-math.inf).text == ""
    best = candidates.answer(0.0, top=3)
    assert [best.text, *(other.text for other in best.alternatives)] == ["", "a", "b"]
    best = candidates.answer(1.0, top=3)
    assert [best.text, *(other.text for other in best.alternatives)] == ["a", "", "b"]  # by score, but for the answer
    assert candidates.answer(1.0, top=1).alternatives == ()


def test_there_is_no_answer_only_if_no_window_has_one(marking_reader):
    """The score of no answer is the lowest of all windows, as in the released code of BERT."""
    passage = " ".join(WORDS[:30])

    class OneWindow(MarkingReader):
        def forward(self, ids, mask=None, segments=None):
            scores = super().forward(ids, mask, segments)
            scores[:, :, 0] = torch.where((ids == self.start_id).any(dim=1), -3.0, 50.0)[:, None]
            return scores

    reader = OneWindow(marking_reader.encoder).eval()
    reader.start_id = reader.end_id = WORD.encode(WORDS[7])[0]
    assert headway.answer(reader, "who", passage, window=10, overlap=2).text == WORDS[7]
    reader.start_id = reader.end_id = -1
    nothing = headway.answer(reader, "who", passage, window=10, overlap=2)
    assert nothing.text == ""
    assert nothing.score == 100.0


@pytest.mark.parametrize("passage", ["\u200b", "\u200b\u200b \u200b"])
def test_a_passage_without_tokens_has_no_answer(passage):
    reader = small_reader()
    assert encode_questions([("Who?", passage)], WORDPIECE)[0].passage_ids == []
    for threshold in (0.0, math.inf):
        best = headway.answer(reader, "Who?", passage, top=3, threshold=threshold)
        assert (best.text, best.probability, best.alternatives) == ("", pytest.approx(1.0), ())
    assert dict(find_answers(reader, [("Who?", "")]))[0].spans == ()


def test_spaces_neither_begin_nor_end_an_answer():
    reader = small_reader(CHAR)
    for seed in range(3):
        torch.manual_seed(seed)
        passage = "".join(np.random.default_rng(seed).choice(list("ab \n"), size=30))
        best = headway.answer(reader, "Wo?", f"x{passage}", top=500)
        for candidate in (best, *best.alternatives):
            assert candidate.text == candidate.text.strip() == f"x{passage}"[candidate.start : candidate.end]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_models_that_find_no_answers_are_refused_with_a_way_out():
    gpt = headway.create("gpt-tiny", device="cpu")
    with pytest.raises(InputError, match=r"answer needs an encoder with a head for answer spans, and this is a GPT: "):
        headway.answer(gpt, QUESTION, PASSAGE)
    bert = encoder(WORDPIECE, labels=["a", "b"])
    with pytest.raises(
        InputError, match=r"this is a BERT without a head: fine-tune it .*headway train answer --init-from"
    ):
        headway.answer(bert, QUESTION, PASSAGE)
    with pytest.raises(InputError, match="this is an encoder with a tagging head: use `headway tag`"):
        headway.answer(Tagger(bert), QUESTION, PASSAGE)
    with pytest.raises(InputError, match="load"):
        headway.answer("runs/squad", QUESTION, PASSAGE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": " "}, "the question is empty: give some text"),
        ({"context": "\n"}, "the passage is empty: give some text"),
        ({"top": 0}, "top=0 is not at least 1"),
        ({"max_answer_tokens": 0}, "max_answer_tokens=0 is not at least 1"),
        ({"batch_size": 0}, "batch_size=0 is not at least 1"),
        ({"overlap": -1}, "overlap=-1 is negative"),
        ({"window": 65}, "window=65 exceeds the context of this model: use at most 64"),
        ({"window": 4}, "window=4 has no space for a question and a passage next to 3 special tokens: use at least 5"),
        ({"window": 0}, "window=0 has no space"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        headway.answer(small_reader(), **{"question": QUESTION, "context": PASSAGE, **arguments})


def test_an_empty_question_is_named_by_its_number():
    with pytest.raises(InputError, match="the question of pair 2 is empty"):
        answer_all(small_reader(), [(QUESTION, PASSAGE), ("", PASSAGE)])
