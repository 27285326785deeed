"""The pairs "contractions": informal English and the same sentence in formal English, for style transfer.

    She isn't happy 'cause the kids can't find it.      She is not happy because the children cannot find it.

The formal side is a sentence of `phrases` or of the prose of `pydocs`; the informal side contracts it by rule. Every
rule has one inverse, so the formal sentence is the only answer. Some formal sentences stay as they are.
"""

import re
from collections.abc import Iterator

from headway.data.phrases import phrases
from headway.data.prose import prose_sentences
from headway.data.records import Pair

MAX_WORDS = 20
FORMAL_SENTENCES_KEPT = 10  # one in so many sentences that cannot be contracted is a pair of equal sides

NEGATED = ["do", "does", "did", "is", "are", "was", "were", "has", "have", "had", "would", "could", "should", "must"]
PRONOUNS = {"is": "it that there he she what", "are": "they you we", "am": "I", "will": "it they you we I he she"}
SHORT_FORMS = {"is": "'s", "are": "'re", "am": "'m", "will": "'ll"}
CONTRACTIONS: dict[str, str] = {  # formal → informal; longer ones first
    "cannot": "can't",
    "will not": "won't",
    **{f"{verb} not": f"{verb}n't" for verb in NEGATED},
    **{f"{word} {verb}": word + SHORT_FORMS[verb] for verb, words in PRONOUNS.items() for word in words.split()},
    "want to": "wanna",
    "because": "'cause",
    "children": "kids",
    "child": "kid",
}
# Followed by a word: "as it is." has no short form.
_PHRASES = (f"[{text[0].upper()}{text[0]}]{text[1:]}" for text in CONTRACTIONS)
FORMAL = re.compile(rf"\b(?:{'|'.join(_PHRASES)})\b(?= [a-z])")
INFORMAL = re.compile(r"(n't|'s|'re|'m|'ll|'cause|wanna|kids?)\b", re.IGNORECASE)


def contract(sentence: str) -> str:
    """A formal sentence in informal English; a capital stays a capital.

    >>> contract("It is late, and the children do not wait.")
    "It's late, and the kids don't wait."
    """

    def informal(match: re.Match[str]) -> str:
        if match[0] in CONTRACTIONS:
            return CONTRACTIONS[match[0]]
        text = CONTRACTIONS[match[0][0].lower() + match[0][1:]]
        return re.sub("[a-z]", lambda letter: letter[0].upper(), text, count=1)

    return FORMAL.sub(informal, sentence)


def contractions() -> Iterator[Pair]:
    """Pairs (informal, formal) of short sentences, always the same ones."""
    formal = [pair.source for pair in phrases()] + list(prose_sentences())
    n_kept = 0
    for sentence in formal:
        if len(sentence.split()) > MAX_WORDS or INFORMAL.search(sentence):
            continue
        informal = contract(sentence)
        n_kept += informal == sentence
        if informal != sentence or n_kept % FORMAL_SENTENCES_KEPT == 0:
            yield Pair(informal, sentence)
