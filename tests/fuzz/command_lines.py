"""Random command lines: any verb with any of its options, with valid, borderline and hostile values.

The parser itself lists verbs, options and their types, so a new option is fuzzed from the day it exists. The tables
below have values for options whose type says too little. Options that say how much work to do get small values, or
values that must be refused, so that every case ends soon.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from headway.cli import app
from headway.cli.option_use import name_of
from headway.cli.unknown_options import recipe_settings, sampler_settings

INPUTS = "../inputs"  # from the folder in which commands run
ENCODERS = ("classifier", "tagger", "reader", "masked")
TRAINED = ("gpt", "ngram", "translator", *ENCODERS)
MODELS = [f"{INPUTS}/{name}" for name in (*TRAINED, "model", "words.arpa", "damaged")]
RUNS = [f"{INPUTS}/{name}" for name in TRAINED]
FILE_NAMES = ("my.txt", "pairs.tsv", "labels.csv", "tags.conll", "squad.json", "texts.jsonl", "lines.bin", "empty.txt")
FILES = [f"{INPUTS}/{name}" for name in FILE_NAMES]
RECIPES = [f"{INPUTS}/tiny.toml", f"{INPUTS}/pairs.toml", f"{INPUTS}/broken.toml"]
SHIPPED = ["demo", "reverse", "ngram", "gpt2-124m"]
TOKENIZERS = [f"{INPUTS}/tokenizer", f"{INPUTS}/gpt", f"{INPUTS}/my.txt"]
PLACES = ["new", "new/deeper", "out.jsonl", "out.png", "out.arpa", "out.txt", ".", "", "nodir/out.png", "/dev/full",
          "/dev/null", "/proc/nothing/x", "x" * 300, "~nouser/x", "existing", "existing.jsonl", "loop"]  # fmt: skip
TEXTS = ["The cat", "abc", "", " ", "-", "é 😀", "a\nb", "\x1b[31m", "x" * 3000]
HOSTILE = ["", " ", "~nouser/x", "~", "a\udcffb", "a\0b", "x" * 100_000, "/dev/zero", "/dev/null", "/proc/self/mem",
           "..", f"{INPUTS}/pipe", "loop", f"{INPUTS}/my.txt/x", "\u202e", "%s%n", "{0}", "*", "a=b", "."]  # fmt: skip
INTEGERS = ["1", "2", "3", "0", "-1", "", "x", "1.5", "nan", "1e309", "99999999999999999999", "٣", " 2", "1_0", "0x2"]
FLOATS = ["0.5", "1", "0", "0.9", "-1", "nan", "inf", "-inf", "1e309", "1e-320", "", "x", "1,5", "-0.0"]
VALUES = ["0", "1", "2", "-1", "0.5", "true", "none", "x", "nan", "inf", "1e400", "[]", "{}", '""', "[[[[",
          "2024-01-01", "1000000000000000000000000000000", "[1, 2]", "{a=1.0}", "", "'''", "[" * 5000]  # fmt: skip

# Option or argument → values to choose from, most of which it accepts.
POOLS = {
    "MODEL": MODELS,
    "MODELS": [*MODELS, "ngram", "gpt", "rnn", "seq2seq"],
    "RUNS": [*RUNS, INPUTS],
    "RECIPE": [*RECIPES, *RUNS],
    "SOURCE": [*FILES, "dates+2", INPUTS],
    "TARGET": FILES,
    "DIR": [INPUTS, "."],
    "TOKENIZER": TOKENIZERS,
    "TOKENIZERS": TOKENIZERS,
    "IDS": INTEGERS,
    "OUT": PLACES,
    "--out": PLACES,
    "--plot": PLACES,
    "--cache": PLACES,
    "--sentences": PLACES,
    "--in": FILES,
    "--references": FILES,
    "--hypotheses": FILES,
    "--against": [*FILES, *MODELS],
    "--reverse-model": MODELS,
    "--lm": MODELS,
    "--data": FILES,
    "--long-data": FILES,
    "--tokenizer": [*TOKENIZERS, "char", "word"],
    "--device": ["cpu", "auto", "cuda", "cuda:99", "meta", "mps"],
    "--dtype": ["float32", "bfloat16", "float16", "float64", "auto", "int8"],
    "--format": ["auto", "text", "lines", "jsonl", "csv", "tsv", "conll", "squad", "misspellings"],
    "--kind": ["char", "word", "bpe", "wordpiece", "unigram", "sinusoidal", "learned", "rotary", "alibi", "binary"],
    "--by": ["cosine", "dot", "x"],
    "--direction": ["forward", "backward", "x"],
    "TOKENS": ["a", "the", "b", " c", "[MASK]", "abc"],
    "WORDS": ["a", "b", "c", "the"],
    "--weights": ["lm=1", "channel=0.5,lm=0.2", "length=nan", "x=1", "direct=inf"],
    "--tune": ["valid", *FILES],
    "--set": [],  # made by `_setting`
    "--grid": ["train.lr=1e-3,1e-2", "model.n_layers=1", "train.lr=", "train.lr=nan", "x"],
    "--range": ["train.lr=1e-4..1e-2:log", "train.lr=1..0", "train.lr=nan..inf", "x..y"],
    "--filter": ["family=gpt", "score<2", "score<nan", "x", "=", "steps>=1"],
    "--sort": ["name", "score", "train.lr", "x"],
    "--columns": ["name,score", "train.lr", ",", "name,,x"],
    "--metric": ["loss", "lr", "bits_per_byte", "x"],
    "--answer": [
        "0.88,0.12",
        "b",
        "b,c",
        "2nmk, nm+mk+nk",
        "n^2+ns",
        "1,1,-1.36",
        "nan",
        "1e999,1",
        "((n",
        "n/0",
        "²",
        ",",
    ],
    "--only": ["leak,padding", "step", "", "x"],
    "--logits": ["1,2", "nan,1", "-inf,0", "inf", ",", "1e309,1"],
    "--sampler-order": ["top_k,temperature", "temperature", "x", ",", "top_k,top_k"],
    "--sampler-preset": ["default", "temperature_first", "x"],
    "--side": ["cross", "encoder", "decoder", "x"],
    "--logit-bias": ["5=-1", "5=nan", "a=1", "999999=1", "=", "5=-inf"],
    "--early-stopping": ["true", "false", "never", "x"],
    "--length-norm": ["power", "gnmt", "x"],
    "--pairs": ["1,2", "source,target", "1", "9,9", ","],
    "--text": ["text", "1", "9", *TEXTS],
    "--label": ["label", "2", "9"],
    "--label-separator": [";", ",", "", " "],
    "--text-pair": ["abc", "label", "", "9"],
    "--tag-scheme": ["bio", "bioes", "iob1", "any", "x"],
    "--init-from": [*MODELS, "minilm", "gpt"],
    "--adapter": [*MODELS, "new"],
    "--context-file": [*FILES, "-"],
    "--pooling": ["mean", "cls", "pooler", "x"],
    "--separator": ["\\n", "---", "", "\\"],
    "--plugin": ["nowhere", "", "json", "a.b", "./x.py", "headway"],
}
# Beyond their type, options that say how much to do: all other values must be refused.
AMOUNTS = {
    "--tokens": ["100", "1k", "0", "-1", "1e309", "nan", "inf", "", "x", "1e400k", "0.0001"],
    "--params": ["2k", "1000", "0", "-1", "1e309", "nan", "1e18", "", "x"],
    "--epochs": ["1", "0.5", "0", "-1", "nan", "inf", "1e309", "", "x"],
    "--seconds": ["0.1", "0", "-1", "nan", "inf", "-inf", "", "x"],
    "--steps": ["10", "0", "-1", "nan", "", "99999999999999999999"],
    "--kills": ["0", "-1", "x"],
    "--ranks": ["0", "-1", "x"],
    "--jobs": ["1", "0", "-1", "x"],
    "--random": ["1", "2", "0", "-1", "x"],
    "-n": ["1", "2", "0", "-1", "x"],
}
BOUNDS = ("train.steps=2", "train.batch_size=2", "train.device=cpu", "train.save_every=0")
BOUNDED_SETTINGS = [word for setting in BOUNDS for word in ("--set", setting)]
UNBOUNDED = (
    "train.steps",
    "train.epochs",
    "train.max_seconds",
    "train.parallel",
    "train.loggers",
    "train.compile",
    "train.threads",
)


# The kinds of model that a verb is for.
FITTING = {
    ("generate",): {"MODEL": [f"{INPUTS}/gpt", f"{INPUTS}/ngram", f"{INPUTS}/model"]},
    ("translate",): {"MODEL": [f"{INPUTS}/translator"]},
    ("classify",): {"MODEL": [f"{INPUTS}/classifier"]},
    ("tag",): {"MODEL": [f"{INPUTS}/tagger"]},
    ("answer",): {"MODEL": [f"{INPUTS}/reader"], "QUESTIONS": ["which", "abc"]},
    ("fill",): {"MODEL": [f"{INPUTS}/masked"], "TEXTS": ["The [MASK] cat", "[MASK]", "[MASK] [MASK]"]},
    ("embed",): {"MODEL": [f"{INPUTS}/{name}" for name in ENCODERS]},
    ("convert",): {"OUT": ["new", "new/deeper", "out.arpa"]},
    ("show", "lens"): {"MODEL": [f"{INPUTS}/{name}" for name in ("gpt", "translator", "masked")], "TARGET": []},
    ("show", "neighbors"): {"MODEL": [f"{INPUTS}/{name}" for name in ("gpt", "translator", "masked", "classifier")]},
    ("show", "vectors"): {"MODEL": [f"{INPUTS}/{name}" for name in ("gpt", "translator", "masked", "classifier")]},
    ("show", "positions"): {"MODEL": [f"{INPUTS}/{name}" for name in ("gpt", "translator", "masked")]},
    ("show", "sensitivity"): {"MODELS": [f"{INPUTS}/gpt", f"{INPUTS}/model"]},
    ("tokenizer", "encode"): {"TOKENIZER": TOKENIZERS[:2]},
    ("tokenizer", "decode"): {"TOKENIZER": TOKENIZERS[:2], "IDS": ["1", "2", "0"]},
    ("tokenizer", "train"): {"TARGET": []},
    ("data",): {"TARGET": []},
    ("quiz",): {"NAME": ["1", "6", "9", "12", "forgetting", "gpt3-size", "0", "nothing"]},
}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(app.parser))
PRINTS = ("--json", "--help-samplers")
SLOW = {("demo",), ("check", "resume"), ("sweep",), ("compare",), ("lr-find",), ("train",)}  # they train


def random_command(rng: random.Random) -> list[str]:
    """A command line that ends soon, whether or not it succeeds."""
    verb = rng.choice([*COMMANDS, *(path for path in COMMANDS if path not in SLOW)])
    hostility = rng.choice([0.0, 0.0, 0.1, 0.3])  # without any, most commands get far
    command = COMMANDS[verb]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and name_of(p) not in PRINTS]
    operands = [value for parameter in arguments for value in _operands(verb, parameter, hostility, rng)]
    chosen = rng.sample(options, min(len(options), rng.choice([0, 1, 1, 2, 2, 3, 5])))
    words = [word for parameter in chosen for word in _option(verb, parameter, hostility, rng)]
    if verb in SLOW:
        words = _bounded(verb, words, rng)
    if verb == ("cost",) and {"--measure", "--growth"} & set(words):  # they run the model
        operands, words = [rng.choice(["gpt-tiny", f"{INPUTS}/gpt"])], [*words, "--seq", "8", "--batch-size", "2"]
    line = [*verb, *(rng.sample([*operands, *words], len(operands) + len(words)) if rng.random() < 0.02 else [])]
    line = line if len(line) > len(verb) else [*verb, *operands, *words]
    return [*line, "--json"] if rng.random() < 0.4 else line


def _operands(verb: tuple[str, ...], parameter: Any, hostility: float, rng: random.Random) -> list[str]:
    """Values of an argument: none, one or several of them."""
    pool = POOLS.get(name_of(parameter), TEXTS)
    if verb == ("train",) and rng.random() < 0.1:
        pool = SHIPPED  # with --print-config: see `_bounded`
    count = rng.choice([1, 1, 2]) if parameter.nargs != 1 else 1
    if verb in FITTING and not hostility:
        pool = FITTING[verb].get(name_of(parameter), pool)
    if not pool or rng.random() < (0.05 if parameter.required else 0.3):
        return []
    return [rng.choice(HOSTILE) if rng.random() < hostility else rng.choice(pool) for _ in range(count)]


def _option(verb: tuple[str, ...], parameter: Any, hostility: float, rng: random.Random) -> list[str]:
    name, flag = name_of(parameter), rng.choice([*parameter.opts, *parameter.secondary_opts])
    if getattr(parameter, "is_flag", False):
        return [flag]
    if name == "--set":
        value = _setting(verb, rng)
    elif rng.random() < hostility and name not in AMOUNTS:
        value = rng.choice(HOSTILE)
    elif name in AMOUNTS:
        value = rng.choice(AMOUNTS[name]) if hostility else AMOUNTS[name][0]
    elif name in POOLS:
        value = rng.choice(POOLS[name])
    else:
        kind = str(COMMANDS[verb].callback.__annotations__[parameter.name])  # "typing.Annotated[int | None, …"
        pool = INTEGERS if re.search(r"\bint\b", kind) else FLOATS if "float" in kind else TEXTS
        value = rng.choice(pool if hostility else pool[:3])  # the first three are plain
    return [f"{flag}={value}"] if flag.startswith("--") and rng.random() < 0.2 else [flag, value]


def _setting(verb: tuple[str, ...], rng: random.Random) -> str:
    """NAME=VALUE of a sampler or of a recipe."""
    if rng.random() < 0.1:
        return rng.choice(HOSTILE)
    is_sampler = verb in (("generate",), ("translate",), ("show", "sampling"))
    names = sorted(sampler_settings()) if is_sampler else [n for n in recipe_settings() if n not in UNBOUNDED]
    return f"{rng.choice(names)}={rng.choice(VALUES)}"


def _bounded(verb: tuple[str, ...], words: list[str], rng: random.Random) -> list[str]:
    """The options of a command that trains, with a limit to what it may train."""
    if verb == ("train",):
        return [*words, *(["--print-config"] if rng.random() < 0.4 else BOUNDED_SETTINGS)]
    if verb == ("lr-find",):
        return [*words, *([] if "--steps" in words else ["--steps", "10"]), "--set", "train.batch_size=2"]
    if verb == ("sweep",):
        return [*words, *([] if "--grid" in words else ["--grid", "train.lr=1e-3"]), *BOUNDED_SETTINGS]
    if verb == ("compare",):
        budget = [] if {"--tokens", "--seconds", "--epochs"} & set(words) else ["--tokens", "100"]
        size = [] if "--params" in words else ["--params", "2k"]
        data = [] if "--data" in words else ["--data", f"{INPUTS}/my.txt"]
        return [*words, *budget, *size, *data, "--set", "tokenizer.kind=char"]
    return [*words, "--set", "nothing=1"]  # refused before the work, which takes minutes
