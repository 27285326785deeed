"""How tags mark entities: BIO, BIOES and IOB1.

    words   Peter   Blackburn   visits   Rome
    BIO     B-PER   I-PER       O        B-LOC      B begins an entity, I continues it, O is outside
    BIOES   B-PER   E-PER       O        S-LOC      E ends it, S is an entity of one word
    IOB1    I-PER   I-PER       O        I-LOC      as BIO, but B only right after an entity of the same type

Files in IOB1 (Ramshaw & Marcus 1995) are converted to BIO when they are read, so models know BIO and BIOES only.
Tags of another kind, such as parts of speech, have no scheme: every sequence of them is valid.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from headway.errors import DataError

TAG_SCHEMES = ("bio", "bioes", "iob1", "any")
OUTSIDE = "O"


class TagSpan(NamedTuple):
    """An entity as tags mark it: its type, and its first and last word."""

    type: str
    first: int
    last: int


# ── which tags may follow which ───────────────────────────────────────────────────────────────────────────────────


def can_follow(previous: str, tag: str, scheme: Literal["bio", "bioes"]) -> bool:
    """Whether `tag` may come right after `previous`. A sentence starts and ends as if O stood before and after it."""
    is_same_type = previous[2:] == tag[2:]
    if scheme == "bio":
        return tag[0] != "I" or (previous[0] in "BI" and is_same_type)
    if previous[0] in "BI":  # the entity goes on
        return tag[0] in "IE" and is_same_type
    return tag[0] in "OBS"


def is_valid(tags: Sequence[str], scheme: Literal["bio", "bioes"]) -> bool:
    """Whether a whole sentence keeps the rules of the scheme."""
    return all(can_follow(previous, tag, scheme) for previous, tag in pairwise([OUTSIDE, *tags, OUTSIDE]))


def mark_entities(labels: Sequence[str]) -> bool:
    """Whether these tags mark entities: all of them are O, or B-, I-, E- or S- with a type."""
    return any(label != OUTSIDE for label in labels) and all(re.fullmatch(r"O|[BIES]-.+", label) for label in labels)


def scheme_of(labels: Sequence[str]) -> Literal["bio", "bioes"] | None:
    """The scheme that the tags of a model imply; None if they have none, so that no sequence of them is invalid.

    Every tag must be of use: an I-X without a B-X is not BIO, nor an E-X without a B-X, or a B-X without an E-X, BIOES.
    Such models mark entities without saying where one begins or ends. In BIOES, a sentence of one word needs O or an
    S-X.
    """
    if not mark_entities(labels):
        return None
    begun, inside, ended, single = ({label[2:] for label in labels if label[0] == prefix} for prefix in "BIES")
    if ended or single:
        return "bioes" if begun == ended >= inside and (single or OUTSIDE in labels) else None
    return "bio" if inside <= begun else None


def entity_spans(tags: Sequence[str]) -> list[TagSpan]:
    """The entities of a tagged sentence, in order, also if the tags are not a valid sequence.

    The rules are those of conlleval and of seqeval's default mode: an entity begins at B, at S, and at any other tag
    that does not continue the one before, and it ends before such a tag, before O, and after E and S.
    """
    spans: list[TagSpan] = []
    first = 0
    for i, (previous, tag) in enumerate(pairwise([OUTSIDE, *tags, OUTSIDE])):
        is_continued = previous[0] in "BI" and tag[0] in "IE" and previous[2:] == tag[2:]
        if previous != OUTSIDE and not is_continued:
            spans.append(TagSpan(previous[2:], first, i - 1))
        if tag != OUTSIDE and not is_continued:
            first = i
    return spans


# ── conversion ────────────────────────────────────────────────────────────────────────────────────────────────────


def to_bio(tags: Sequence[str]) -> list[str]:
    """BIO tags with the entities of tags in any scheme.

    >>> to_bio(["B-PER", "E-PER", "O", "S-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-LOC']
    """
    bio = [OUTSIDE] * len(tags)
    for type, first, last in entity_spans(tags):
        bio[first : last + 1] = [f"B-{type}", *[f"I-{type}"] * (last - first)]
    return bio


def to_bioes(tags: Sequence[str]) -> list[str]:
    """BIOES tags with the entities of tags in any scheme.

    >>> to_bioes(["B-PER", "I-PER", "O", "B-LOC"])
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    bioes = [OUTSIDE] * len(tags)
    for type, first, last in entity_spans(tags):
        is_single = first == last
        inner = [f"I-{type}"] * (last - first - 1)
        bioes[first : last + 1] = [f"S-{type}"] if is_single else [f"B-{type}", *inner, f"E-{type}"]
    return bioes


# ── tags of a file ────────────────────────────────────────────────────────────────────────────────────────────────


def check_tags(tags: Sequence[str], tag_scheme: str, location: str = "tag ", first: int = 1) -> list[str]:
    """The tags of a sentence, if they keep the rules of a scheme; those of IOB1 are converted to BIO. Errors name
    `location` and the number of the tag, counted from `first`."""
    if tag_scheme == "any":
        return list(tags)
    forms, prefixes = ("BIOES", "BIES") if tag_scheme == "bioes" else ("BIO", "BI")
    for i, (previous, tag) in enumerate(pairwise([OUTSIDE, *tags])):
        where = f"{location}{first + i}"
        if not re.fullmatch(rf"O|[{prefixes}]-.+", tag):
            raise DataError(_wrong_form(f"{where}: tag {tag!r}", tag, forms, prefixes))
        if tag_scheme == "bio" and not can_follow(previous, tag, "bio"):
            raise DataError(
                f"{where}: tag {tag!r} follows {previous!r}, but in BIO an entity begins with B-{tag[2:]}; if the file "
                f"uses IOB1, read it with --tag-scheme iob1 (data.tag_scheme)"
            )
        if tag_scheme == "bioes" and not can_follow(previous, tag, "bioes"):
            raise DataError(f"{where}: tag {tag!r} follows {previous!r}, {_bioes_rule(previous, tag)}")
    if tag_scheme == "bioes" and tags and not can_follow(tags[-1], OUTSIDE, "bioes"):
        raise DataError(
            f"{location}{first + len(tags) - 1}: the sentence ends with {tags[-1]!r}, {_bioes_end(tags[-1])}"
        )
    return to_bio(tags) if tag_scheme == "iob1" else list(tags)


def _wrong_form(subject: str, tag: str, forms: str, prefixes: str) -> str:
    listed = ", ".join(f"{prefix}-TYPE" for prefix in prefixes[:-1])
    problem = f"{subject} is not {forms} (O, {listed} or {prefixes[-1]}-TYPE); "
    if re.fullmatch("[ES]-.+", tag):
        return f"{problem}if the file uses BIOES, read it with --tag-scheme bioes (data.tag_scheme)"
    return f"{problem}read other tags, such as parts of speech, with --tag-scheme any (data.tag_scheme)"


def _bioes_rule(previous: str, tag: str) -> str:
    if previous[0] in "BI":
        return _bioes_end(previous)
    return f"but in BIOES an entity begins with B-{tag[2:]}, or is one word, S-{tag[2:]}"


def _bioes_end(tag: str) -> str:
    return f"but in BIOES that entity ends with E-{tag[2:]}, or is one word, S-{tag[2:]}: repair the file"
