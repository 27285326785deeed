"""Regular expressions of tokenizer files: those of published tokenizers pass, those that explode are refused."""

import pytest

from headway.tokenizers import PATTERNS
from headway.tokenizers.pre_tokenizers import WORD_PATTERNS
from headway.tokenizers.regex_limits import MAX_PATTERN_CHARS, check_pattern

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
PUBLISHED = {
    "deepseek-v3": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "deepseek-han": "[一-龥぀-ゟ゠-ヿ]+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "clip": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "xlm-roberta": " {2,}",
    "chemberta": r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2})",
    "kimi-k2": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lo}\p{M}&&[^\p{Han}]]+"
    + CONTRACTIONS
    + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lo}\p{M}&&[^\p{Han}]]*"
    + CONTRACTIONS
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "k2-horizon": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}|\p{M}|\u200C|\u200D)+|\p{N}{1,3}|\s+(?!\S)|\s+",
    "jais-2": CONTRACTIONS + r"|\p{L}+|\s{512}(?!\S)|\s{256}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    "gpt2-possessive": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cohere-digits": r"\d{1,3}(?=(?:\d{3})*\b)",
    "chameleon": "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "falcon": r"[\p{P}\$\+<=>\^~\|`]+",
    **PATTERNS,
    **WORD_PATTERNS,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_patterns_pass(name):
    check_pattern(PUBLISHED[name])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a+)+$", "repeats a part that itself has no fixed length"),
        ("(a|aa)*", "repeats a part that itself has no fixed length"),
        ("(?:a?){20}b", "repeats a part that itself has no fixed length"),
        ("a**", "repeats a part that itself has no fixed length"),
        ("(x+x+)+y", "repeats a part that itself has no fixed length"),
        ("a?" * 30 + "a" * 30, "offers more than 10,000 ways to match"),
        ("(a|b){14}", "offers more than 10,000 ways to match"),
        (".*" * 5, "more than 4 unbounded repeats in a row"),
        ("a{1,9999999999}", "repeats a part more than 1,000 times"),
        ("(a|a)*b", "takes more than linear time on a run of 'a'"),
        ("a*a*b", "takes more than linear time on a run of 'a'"),
        (r"\s+$", "takes more than linear time on a run of ' '"),
        ("é+é+é+z", "takes more than linear time on a run of 'é'"),
        (".*.*x", "takes more than linear time"),
        (r"[^a]*\p{L}+|", "takes more than linear time on a run of ' '"),
        (r"(a)\1", r"has '\\\\1', which tokenizers do not need"),
        (r"(?<n>a)\g<n>", "which tokenizers do not need"),
        ("(?~abc)", "a group of a kind"),
        ("(*FAIL)", "a group of a kind"),
        ("(?x)a # (", "sets a flag"),
        ("(" * 60 + ")" * 60, "nested deeper than 50"),
        ("(a", r"a '\(' without its '\)'"),
        ("a)", r"a '\)' too many"),
        ("[a", r"a '\[' without its '\]'"),
        ("+", "repeats nothing"),
        ("\\", "which tokenizers do not need"),
        ("a" * (MAX_PATTERN_CHARS + 1), "8,193 characters; at most 8,192"),
    ],
)
def test_patterns_that_explode_or_cannot_be_read_are_refused(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        check_pattern(pattern)
