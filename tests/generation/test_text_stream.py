"""Incremental detokenization and stop strings: no partial character and no part of a stop string is ever shown."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.generation.text_stream import StopAwareText, StopConditions, TextStream, detokenize
from headway.sampling import Pipeline
from tests.generation.small_models import char_gpt_that_ends, model_that_writes, text_of

TEXT = ["To be, or not to be, that is the question:\n\tWhether 'tis nobler…", "naïve café 42 — ünïcödé"] * 3
BPE = tokenizers.train("bpe", TEXT, 300)


@given(st.text())
@settings(max_examples=300)
def test_streamed_pieces_join_to_the_text_and_hold_whole_characters(text):
    stream = TextStream(BPE)
    pieces = [stream.push(id) for id in BPE.encode(text)] + [stream.flush()]
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.text(alphabet="abc é", max_size=20), st.lists(st.text(alphabet="abc é", min_size=1, max_size=3), max_size=2))
@settings(max_examples=200)
def test_the_text_ends_before_the_first_stop_string(text, stop_strings):
    ids = BPE.encode(text)
    stream = StopAwareText(TextStream(BPE), StopConditions(len(ids) or 1, stop_strings=stop_strings))
    shown, finish = "", None
    for id in ids:
        if finish is None:
            update = stream.push(id)
            shown, finish = shown + update.text, update.finish_reason
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stop_strings if stop in text]
    assert shown == (text[: min(ends)[1]] if ends else text)
    assert finish == ("stop" if ends else "length" if ids else None)


def test_words_without_spaces_are_separated_from_the_prompt():
    lines = ["the cat sat", "the dog sat down"] * 5
    tokenizer = tokenizers.train("word", lines, pre_tokenizer="whitespace")
    special_ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=4, **special_ids)
    model.tokenizer = tokenizer
    model.fit(torch.tensor(tokenizer.encode_stream(lines)))
    assert text_of(headway.generate(model, "the dog", temperature=0, max_new_tokens=5)) == " sat down"
    assert text_of(headway.generate(model, "", temperature=0, max_new_tokens=3)).startswith("the ")
    ids = tokenizer.encode("the dog sat")
    assert detokenize(tokenizer, ids[-1:], previous_id=ids[-2]) == " sat"


def test_nothing_of_a_stop_string_is_shown():
    model = model_that_writes("one two three four")
    shown = ""
    for token in headway.generate(model, "one", temperature=0, stop=["three", "zero"], max_new_tokens=30):
        shown += token.text
        assert "t" not in shown[5:], shown
    assert shown == " two "
    assert (token.finish_reason, token.stop) == ("stop", "three")
    tokens = headway.generate(model, "one", temperature=0, stop=["three"], include_stop=True, max_new_tokens=30)
    assert text_of(tokens) == " two three"


def test_text_that_was_held_back_is_shown_when_the_row_ends_otherwise():
    model = model_that_writes("one two three four")
    tokens = list(headway.generate(model, "one", temperature=0, stop=["two thrice"], max_new_tokens=9))
    assert text_of(tokens) == " two thre"
    assert tokens[-1].finish_reason == "length"
    tokens = list(headway.generate(model, "one", temperature=0, stop=["fourth"], max_new_tokens=50))
    assert text_of(tokens) == " two three four"
    assert (tokens[-1].finish_reason, tokens[-1].stop) == ("stop", None)


def test_stop_strings_wait_for_min_new_tokens():
    model = model_that_writes("one two three two four")
    options = {"temperature": 0, "stop": ["two"], "max_new_tokens": 30}
    assert text_of(headway.generate(model, "one", **options)) == " "
    assert text_of(headway.generate(model, "one", min_new_tokens=8, **options)) == " two three "


def test_the_stop_string_that_ends_first_after_min_new_tokens_counts():
    """Even if it starts before an earlier match that came too early; of equal ends, the longer one."""
    model = model_that_writes("xaatty")
    options = {"temperature": 0, "max_new_tokens": 5}
    assert text_of(headway.generate(model, "x", stop=["att", "a"], min_new_tokens=4, **options)) == "a"
    assert text_of(headway.generate(model, "x", stop=["a", "aa"], min_new_tokens=2, **options)) == ""
    pipe = Pipeline(
        [{"stage": "min_new_tokens", "min_new": 4, "eos_ids": []}, {"stage": "temperature", "temperature": 0}]
    )
    tokens = headway.generate(model, "x", stop=["att", "a"], pipeline=pipe, max_new_tokens=5)
    assert text_of(tokens) == "a"


def test_a_stop_token_ends_a_text_like_eos():
    model = model_that_writes("one two three")
    w = model.tokenizer.encode("w")[0]
    tokens = list(headway.generate(model, "one", temperature=0, stop_token_ids=[w], max_new_tokens=30))
    assert text_of(tokens) == " t"
    assert tokens[-1].finish_reason == "stop"


def test_eos_ends_a_text_and_has_no_text_itself():
    model = char_gpt_that_ends()
    tokens = list(headway.generate(model, "the", max_new_tokens=30))
    assert [(t.id, t.text, t.finish_reason) for t in tokens] == [(model.config.eos_id, "", "stop")]


def test_min_new_tokens_bans_eos():
    tokens = list(headway.generate(char_gpt_that_ends(), "the", max_new_tokens=30, min_new_tokens=4, seed=0))
    assert len(tokens) == 5
    assert tokens[-1].finish_reason == "stop"
