"""The parallel set "phrases": a small grammar of English and German, expanded to some thousand sentence pairs.

    The young woman bought a red lamp.             Die junge Frau hat eine rote Lampe gekauft.
    Today the man opens the old door.              Heute macht der Mann die alte Tür auf.
    We know that he can find my key.               Wir wissen, dass er meinen Schlüssel finden kann.

Every clause is built twice from the same choices. English keeps subject, verb, object; German puts the finite verb
second in a main clause, first in a question and last in a subordinate one, and participles, infinitives and separable
prefixes at the end of the clause. Determiners and adjectives agree with the gender, number and case of their noun. Each
English sentence has one translation here, so a translation is right or wrong.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from headway.data.records import Pair

N_PAIRS = 6000
SEED = 1


@dataclass(frozen=True)
class Noun:
    english: str
    german: str
    gender: str  # "m", "f", "n", or "p" for a plural of any gender
    kind: str  # what it can do, or what can be done with it


@dataclass(frozen=True)
class VerbForms:
    """A transitive verb. German forms are those of the simple verb; a separable prefix is attached where it belongs."""

    english: str  # base form: "look for"
    third: str  # "looks for"
    past: str  # "looked for"
    german: tuple[str, str, str]  # I, he, we: "suche", "sucht", "suchen"; the last is also the infinitive
    participle: str  # "gesucht"; with the prefix, if there is one: "aufgemacht"
    objects: str  # kinds of nouns, separated by spaces
    prefix: str = ""  # of a separable verb: "auf"


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun in both languages; `person` selects the form of the verb: 0 I, 1 he, 2 we."""

    english: str
    german: str
    person: int


@dataclass(frozen=True)
class Clause:
    """One clause in both languages. German comes in fields, because each kind of sentence orders them in its own way:
    main     subject finite middle end          question   finite subject middle end
    inverted adverb finite subject middle end   subordinate subject middle end finite, or with a prefix attached
    """

    subject: Phrase
    english: str  # the predicate: "does not open the door"
    english_question: tuple[str, str]  # what stands before and after the subject: ("does", "open the door")
    finite: str
    middle: str  # the object, and "nicht"
    end: str  # a participle, an infinitive, a separable prefix, or ""
    last: str  # end and finite verb of a subordinate clause: "aufmacht", "aufgemacht hat"
    tense: str  # "present", "past", "modal"


PEOPLE = "man:Mann:m woman:Frau:f child:Kind:n teacher:Lehrer:m girl:Mädchen:n doctor:Ärztin:f"
PLURALS = "men:Männer:p women:Frauen:p children:Kinder:p teachers:Lehrer:p girls:Mädchen:p doctors:Ärztinnen:p"
THINGS = {
    "text": "book:Buch:n letter:Brief:m",
    "paper": "newspaper:Zeitung:f magazine:Zeitschrift:f",
    "food": "apple:Apfel:m pear:Birne:f egg:Ei:n cake:Kuchen:m",
    "opening": "door:Tür:f window:Fenster:n box:Kiste:f suitcase:Koffer:m",
    "thing": "key:Schlüssel:m lamp:Lampe:f picture:Bild:n umbrella:Schirm:m",
}
ADJECTIVES = {  # kind of noun → adjectives that suit it
    "person": "tall:groß young:jung small:klein friendly:freundlich",
    "text": "old:alt new:neu beautiful:schön thin:dünn",
    "paper": "old:alt new:neu thin:dünn",
    "food": "small:klein big:groß red:rot fresh:frisch",
    "opening": "old:alt red:rot heavy:schwer small:klein",
    "thing": "old:alt new:neu red:rot beautiful:schön",
}
VERBS = [
    VerbForms("buy", "buys", "bought", ("kaufe", "kauft", "kaufen"), "gekauft", "text paper food thing"),
    VerbForms("sell", "sells", "sold", ("verkaufe", "verkauft", "verkaufen"), "verkauft", "text paper food thing"),
    VerbForms("see", "sees", "saw", ("sehe", "sieht", "sehen"), "gesehen", "text paper food opening thing"),
    VerbForms("find", "finds", "found", ("finde", "findet", "finden"), "gefunden", "text paper food thing"),
    VerbForms("look for", "looks for", "looked for", ("suche", "sucht", "suchen"), "gesucht",
              "text paper food opening thing"),
    VerbForms("write", "writes", "wrote", ("schreibe", "schreibt", "schreiben"), "geschrieben", "text"),
    VerbForms("eat", "eats", "ate", ("esse", "isst", "essen"), "gegessen", "food"),
    VerbForms("forget", "forgets", "forgot", ("vergesse", "vergisst", "vergessen"), "vergessen", "text paper thing"),
    VerbForms("open", "opens", "opened", ("mache", "macht", "machen"), "aufgemacht", "opening", "auf"),
    VerbForms("close", "closes", "closed", ("mache", "macht", "machen"), "zugemacht", "opening", "zu"),
    VerbForms("bring along", "brings along", "brought along", ("bringe", "bringt", "bringen"), "mitgebracht",
              "text paper food thing", "mit"),
]  # fmt: skip
PRONOUNS = [Phrase("I", "ich", 0), Phrase("he", "er", 1), Phrase("she", "sie", 1), Phrase("we", "wir", 2),
            Phrase("they", "sie", 2)]  # fmt: skip
MODALS = [("can", ("kann", "können")), ("must", ("muss", "müssen")), ("want to", ("will", "wollen"))]
HAVE, BE = ("habe", "hat", "haben"), ("bin", "ist", "sind")
ADVERBS = {
    "present": "today:heute now:jetzt often:oft",
    "past": "yesterday:gestern often:oft",
    "modal": "today:heute tomorrow:morgen now:jetzt",
}
BELIEFS = [("know", "knows", ("weiß", "weiß", "wissen")), ("say", "says", ("sage", "sagt", "sagen")),
           ("hope", "hopes", ("hoffe", "hofft", "hoffen"))]  # fmt: skip
FEELINGS = "happy:froh sad:traurig tired:müde"
INTRANSITIVE = [("sleeps", "sleep", ("schläft", "schlafen")), ("laughs", "laugh", ("lacht", "lachen")),
                ("waits", "wait", ("wartet", "warten"))]  # fmt: skip

# Endings by gender, in the nominative and in the accusative.
DEFINITE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das"), "p": ("die", "die")}
INDEFINITE = {"m": ("", "en"), "f": ("e", "e"), "n": ("", "")}  # of ein and mein
WEAK = {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e"), "p": ("en", "en")}  # adjectives after der, die, das
MIXED = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}  # adjectives after ein and mein


def _nouns(table: str, kind: str) -> list[Noun]:
    entries = (entry.split(":") for entry in table.split())
    return [Noun(english, german, gender, kind) for english, german, gender in entries]


PERSONS = _nouns(f"{PEOPLE} {PLURALS}", "person")
OBJECTS = [noun for kind, table in THINGS.items() for noun in _nouns(table, kind)]


def _choose(rng: random.Random, table: str) -> list[str]:
    """One entry of a table, as its English and German."""
    return rng.choice(table.split()).split(":")


def _noun_phrase(rng: random.Random, noun: Noun, case: int) -> Phrase:
    """Determiner, adjective or none, and noun; case 0 is the nominative, 1 the accusative."""
    determiners = {"p": ("the",)}.get(noun.gender, ("the", "the", "a"))
    determiner = rng.choice(determiners if noun.kind == "person" else (*determiners, "my"))
    english, german = _choose(rng, ADJECTIVES[noun.kind]) if rng.random() < 0.5 else ("", "")
    if determiner == "the":
        article, endings = DEFINITE[noun.gender][case], WEAK
    else:
        article = ("ein" if determiner == "a" else "mein") + INDEFINITE[noun.gender][case]
        endings = MIXED
    if determiner == "a" and (english or noun.english)[0] in "aeiou":
        determiner = "an"
    german = german and german + endings[noun.gender][case]
    return Phrase(
        " ".join(filter(None, (determiner, english, noun.english))),
        " ".join(filter(None, (article, german, noun.german))),
        2 if noun.gender == "p" else 1,
    )


def _subject(rng: random.Random) -> Phrase:
    return rng.choice(PRONOUNS) if rng.random() < 0.3 else _noun_phrase(rng, rng.choice(PERSONS), case=0)


def _clause(rng: random.Random, *tenses: str) -> Clause:
    """A random clause in one of the tenses; a third of those without a modal are negated if their object is definite:
    with "a" the negation would be "kein"."""
    tense, subject, verb = rng.choice(tenses), _subject(rng), rng.choice(VERBS)
    person, do = subject.person, "does" if subject.person == 1 else "do"
    noun = rng.choice([noun for noun in OBJECTS if noun.kind in verb.objects.split()])
    thing = _noun_phrase(rng, noun, case=1)
    is_negated = tense != "modal" and not thing.english.startswith(("a ", "an ")) and rng.random() < 1 / 3
    if tense == "modal":
        modal, (singular, plural) = rng.choice(MODALS)
        finite, end = plural if person == 2 else singular, verb.prefix + verb.german[2]
        english, question = f"{modal} {verb.english}", (modal, verb.english)
        if modal == "want to":
            english = f"{'wants' if person == 1 else 'want'} to {verb.english}"
            question = (do, f"want to {verb.english}")
    elif tense == "past":
        finite, end = HAVE[person], verb.participle
        english, question = verb.past, ("did", verb.english)
    else:
        finite, end = verb.german[person], verb.prefix
        english, question = verb.third if person == 1 else verb.english, (do, verb.english)
    if is_negated:
        english, question = f"{question[0]} not {verb.english}", (question[0], f"not {verb.english}")
    return Clause(
        subject,
        f"{english} {thing.english}",
        (question[0], f"{question[1]} {thing.english}"),
        finite,
        f"{thing.german} nicht" if is_negated else thing.german,
        end,
        end + finite if tense == "present" else f"{end} {finite}",
        tense,
    )


def _join(*words: str, mark: str = ".") -> str:
    text = " ".join(filter(None, words)) + mark
    return text[0].upper() + text[1:]


def _main(rng: random.Random) -> Pair:
    """The woman opens the door. → Die Frau macht die Tür auf."""
    c = _clause(rng, "present", "past", "modal")
    return Pair(_join(c.subject.english, c.english), _join(c.subject.german, c.finite, c.middle, c.end))


def _inverted(rng: random.Random) -> Pair:
    """Today the woman opens the door. → Heute macht die Frau die Tür auf."""
    c = _clause(rng, "present", "past", "modal")
    english, german = _choose(rng, ADVERBS[c.tense])
    return Pair(
        _join(english, c.subject.english, c.english), _join(german, c.finite, c.subject.german, c.middle, c.end)
    )


def _question(rng: random.Random) -> Pair:
    """Does the woman open the door? → Macht die Frau die Tür auf?"""
    c = _clause(rng, "present", "past", "modal")
    before, after = c.english_question
    return Pair(
        _join(before, c.subject.english, after, mark="?"),
        _join(c.finite, c.subject.german, c.middle, c.end, mark="?"),
    )


def _belief(rng: random.Random) -> Pair:
    """He knows that the woman opens the door. → Er weiß, dass die Frau die Tür aufmacht."""
    c, who = _clause(rng, "present", "past", "modal"), rng.choice(PRONOUNS)
    base, third, german = rng.choice(BELIEFS)
    return Pair(
        _join(who.english, third if who.person == 1 else base, "that", c.subject.english, c.english),
        _join(who.german, f"{german[who.person]}, dass", c.subject.german, c.middle, c.last),
    )


def _reason(rng: random.Random) -> Pair:
    """She is happy because the woman opens the door. → Sie ist froh, weil die Frau die Tür aufmacht."""
    c, who = _clause(rng, "present", "past", "modal"), rng.choice(PRONOUNS)
    english, german = _choose(rng, FEELINGS)
    be = {"I": "am"}.get(who.english, "is" if who.person == 1 else "are")
    return Pair(
        _join(who.english, be, english, "because", c.subject.english, c.english),
        _join(who.german, BE[who.person], f"{german}, weil", c.subject.german, c.middle, c.last),
    )


def _when(rng: random.Random) -> Pair:
    """When the woman opens the door, the child laughs. → Wenn die Frau die Tür aufmacht, lacht das Kind."""
    c, who = _clause(rng, "present"), _noun_phrase(rng, rng.choice(PERSONS), case=0)
    third, base, german = rng.choice(INTRANSITIVE)
    is_plural = who.person == 2
    return Pair(
        _join("when", c.subject.english, f"{c.english},", who.english, base if is_plural else third),
        _join("wenn", c.subject.german, c.middle, f"{c.last},", german[is_plural], who.german),
    )


SENTENCES = (_main, _inverted, _question, _belief, _reason, _when)


@cache
def _phrases(n: int) -> tuple[Pair, ...]:
    rng = random.Random(SEED)
    pairs: dict[str, Pair] = {}
    while len(pairs) < n:
        pair = rng.choice(SENTENCES)(rng)
        pairs[pair.source] = pair
    return tuple(pairs.values())


def phrases(n: int = N_PAIRS) -> Iterator[Pair]:
    """n different sentences with their translations, always the same ones."""
    return iter(_phrases(n))
