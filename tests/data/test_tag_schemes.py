"""Tags that mark entities: which sequences are valid, which entities they mark, and how one scheme becomes another."""

import re
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.tag_schemes import (
    TagSpan,
    check_tags,
    entity_spans,
    is_valid,
    mark_entities,
    scheme_of,
    to_bio,
    to_bioes,
)
from headway.errors import DataError

TYPES = ("PER", "LOC", "geo-loc")
# A whole sentence, every tag followed by a space. \1 and \2 are the type that the entity began with.
VALID = {
    "bio": re.compile(r"(?:O |B-(\S+) (?:I-\1 )*)*"),
    "bioes": re.compile(r"(?:O |S-\S+ |B-(\S+) (?:I-\1 )*E-\1 )*"),
}


def tag_lists(prefixes, **sizes):
    tags = ["O", *(f"{prefix}-{type}" for prefix in prefixes for type in TYPES)]
    return st.lists(st.sampled_from(tags), **sizes)


@st.composite
def entities(draw):
    """The length of a sentence and its entities, which may touch."""
    spans, n_words = [], 0
    for type in draw(st.lists(st.sampled_from((*TYPES, "O")), max_size=8)):
        if type == "O":
            n_words += 1
        else:
            length = draw(st.integers(1, 4))
            spans.append(TagSpan(type, n_words, n_words + length - 1))
            n_words += length
    return n_words, spans


def bio_tags(n_words, spans):
    tags = ["O"] * n_words
    for type, first, last in spans:
        for i in range(first, last + 1):
            tags[i] = f"{'B' if i == first else 'I'}-{type}"
    return tags


# ── valid sequences ───────────────────────────────────────────────────────────────────────────────────────────────


@given(tag_lists("BI", max_size=6))
def test_a_valid_bio_sentence_is_a_row_of_outside_words_and_whole_entities(tags):
    assert is_valid(tags, "bio") == bool(VALID["bio"].fullmatch("".join(f"{tag} " for tag in tags)))


@given(tag_lists("BIES", max_size=6))
def test_a_valid_bioes_sentence_is_a_row_of_outside_words_and_whole_entities(tags):
    assert is_valid(tags, "bioes") == bool(VALID["bioes"].fullmatch("".join(f"{tag} " for tag in tags)))


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "bio"),
        (["B-PER", "I-PER"], "bio"),  # every word is in an entity
        (["O", "B-PER", "I-PER", "B-LOC"], "bio"),  # no place of two words was seen
        (["O", "B-geo-loc", "I-geo-loc"], "bio"),
        (["O", "I-PER", "B-LOC", "I-LOC"], None),  # IOB1, in which no two people were neighbours
        (["O", "I-PER"], None),
        (["O", "B-PER", "I-PER", "E-PER", "S-PER"], "bioes"),
        (["O", "B-PER", "E-PER", "S-LOC"], "bioes"),
        (["O", "S-LOC"], "bioes"),
        (["S-LOC"], "bioes"),
        (["B-PER", "E-PER"], None),  # no sentence of one word is valid
        (["O", "I-PER", "E-PER"], None),  # IOE: an entity ends, but does not begin
        (["O", "B-PER", "I-PER", "S-LOC"], None),  # a PER never ends
        (["O", "B-PER", "E-PER", "E-LOC"], None),
        (["O", "B-PER", "E-PER", "I-LOC"], None),
        (["O"], None),
        ([], None),
        (["NOUN", "VERB", "O"], None),
        (["O", "B-PER", "I-PER", "[CLS]"], None),
        (["O", "B-", "I-"], None),
        (["LABEL_0", "LABEL_1"], None),
    ],
)
def test_the_tags_of_a_model_tell_its_scheme(labels, scheme):
    assert scheme_of(labels) == scheme


@given(st.sets(st.sampled_from(["O", *(f"{prefix}-{type}" for prefix in "BIES" for type in TYPES[:2])])))
def test_with_a_scheme_there_is_a_valid_sentence_of_any_length_and_every_tag_is_part_of_one(labels):
    if scheme := scheme_of(sorted(labels)):
        valid = [[s for s in product(labels, repeat=n) if is_valid(s, scheme)] for n in (1, 2, 3)]
        assert all(valid)
        assert {tag for sentences in valid for sentence in sentences for tag in sentence} == labels


def test_only_tags_with_a_prefix_and_a_type_mark_entities():
    assert mark_entities(["O", "B-PER"])
    assert not mark_entities(["O"])
    assert not mark_entities(["O", "B-PER", "NN"])
    assert not mark_entities(["B", "I", "O"])


# ── entities ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(entities())
def test_the_entities_of_valid_tags_are_found_and_survive_every_conversion(sentence):
    n_words, spans = sentence
    bio = bio_tags(n_words, spans)
    bioes = to_bioes(bio)
    assert entity_spans(bio) == entity_spans(bioes) == spans
    assert is_valid(bio, "bio")
    assert is_valid(bioes, "bioes")
    assert to_bio(bioes) == bio
    assert to_bioes(bioes) == bioes


@given(tag_lists("BIES", max_size=8))
def test_invalid_tags_too_become_valid_ones_with_the_same_entities(tags):
    spans = entity_spans(tags)
    assert is_valid(to_bio(tags), "bio")
    assert is_valid(to_bioes(tags), "bioes")
    assert entity_spans(to_bio(tags)) == entity_spans(to_bioes(tags)) == spans
    words = [i for _, first, last in spans for i in range(first, last + 1)]
    assert words == [i for i, tag in enumerate(tags) if tag != "O"]  # each tagged word is in one entity


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-PER I-PER", [("PER", 0, 1)]),
        ("O I-PER B-PER", [("PER", 1, 1), ("PER", 2, 2)]),
        ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),
        ("E-PER E-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER S-PER I-PER", [("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 2)]),
        ("B-PER E-PER I-PER", [("PER", 0, 1), ("PER", 2, 2)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
    ],
)
def test_entities_of_invalid_tags_are_those_of_conlleval(tags, spans):
    assert entity_spans(tags.split()) == spans


# ── tags of a file ────────────────────────────────────────────────────────────────────────────────────────────────


@given(entities())
def test_iob1_becomes_bio_with_the_same_entities(sentence):
    """In IOB1, B is only written between two neighbouring entities of one type."""
    n_words, spans = sentence
    iob1 = [tag.replace("B-", "I-") for tag in bio_tags(n_words, spans)]
    for previous, span in pairwise(spans):
        if previous.type == span.type and previous.last + 1 == span.first:
            iob1[span.first] = f"B-{span.type}"
    assert check_tags(iob1, "iob1") == bio_tags(n_words, spans)


@given(tag_lists("BIES", max_size=5), st.sampled_from(["bio", "bioes"]))
def test_tags_of_a_file_are_accepted_if_and_only_if_they_are_valid(tags, scheme):
    has_right_form = scheme == "bioes" or not any(tag[0] in "ES" for tag in tags)
    if has_right_form and is_valid(tags, scheme):
        assert check_tags(tags, scheme) == tags
    else:
        with pytest.raises(DataError, match=r"^f, line \d+: "):
            check_tags(tags, scheme, "f, line ", 10)
    assert check_tags(tags, "any") == tags


@pytest.mark.parametrize(
    ("tags", "scheme", "message"),
    [
        ("O I-PER", "bio", r"line 8: tag 'I-PER' follows 'O', but in BIO an entity begins with B-PER; .* iob1"),
        ("B-PER I-LOC", "bio", r"line 8: tag 'I-LOC' follows 'B-PER'"),
        ("NN", "bio", r"line 7: tag 'NN' is not BIO \(O, B-TYPE or I-TYPE\); .* --tag-scheme any"),
        ("S-PER", "bio", r"line 7: tag 'S-PER' is not BIO .*; if the file uses BIOES, .* --tag-scheme bioes"),
        ("B-", "bio", r"line 7: tag 'B-' is not BIO"),
        ("B-PER O", "bioes", r"line 8: tag 'O' follows 'B-PER', but in BIOES that entity ends with E-PER, or is one"),
        ("O E-PER", "bioes", r"line 8: tag 'E-PER' follows 'O', but in BIOES an entity begins with B-PER, or is one"),
        ("O B-PER", "bioes", r"line 8: the sentence ends with 'B-PER', but in BIOES that entity ends with E-PER"),
        ("NN", "bioes", r"line 7: tag 'NN' is not BIOES \(O, B-TYPE, I-TYPE, E-TYPE or S-TYPE\)"),
    ],
)
def test_wrong_tags_are_named_with_their_line_and_the_way_out(tags, scheme, message):
    with pytest.raises(DataError, match=message):
        check_tags(tags.split(), scheme, "line ", 7)
