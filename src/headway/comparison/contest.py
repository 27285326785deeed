"""The contest: every contestant learns from the same data in the same tokens for the same budget, and is scored alike.

    tokenizer = trained once, on the training part
    for each contestant:  train(recipe of its size, for so many tokens or seconds);  score(its best checkpoint)

Each is an ordinary run in a folder of its own, which `headway eval`, `generate` and `show` take; what is compared is
read back from there, so that a run that was trained before can take part too.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from headway.comparison.contestants import PAIRS, TEXT, Contestant, fitted
from headway.comparison.judging import Judge, Length, PairsJudge, TextJudge
from headway.config import (
    FAMILIES,
    DataConfig,
    ModelConfig,
    NGramConfig,
    Recipe,
    TokenizerConfig,
    load_recipe,
    recipe_from_table,
)
from headway.config.recipes import apply_setting
from headway.costs import flops_per_token
from headway.data.formats import format_of
from headway.data.splits import located, read_part, sources_of
from headway.data.tasks import is_task
from headway.errors import CheckpointError, ConfigError, DataError, suggest
from headway.files import finite, free_name, write_text
from headway.models import load
from headway.tokenizers import Tokenizer
from headway.training import Progress, train
from headway.training.checkpoint import Run
from headway.training.setup import objective_of, part_pairs, prepare_tokenizer

DEFAULT_PARAMS, DEFAULT_SECONDS = 1_000_000, 60.0
CONTEXTS = {"text": 128, "pairs": 512}
TOKENIZERS = {
    "text": TokenizerConfig(kind="bpe", vocab_size=2000),
    "pairs": TokenizerConfig(kind="bpe", vocab_size=8000),
    "task": TokenizerConfig(kind="char"),
}
LEARNING = {"beta2": 0.98, "weight_decay": 0.01, "warmup_steps": 30}  # of contestants that say nothing else
LOOKS = 8  # points of a curve
FOREVER = 10**9  # steps, of a run that ends by the clock

Say = Callable[[str], None]
Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Budget:
    """What all have alike: a size, and tokens or seconds."""

    params: int | None = None  # None: a million, or the size that a recipe has
    tokens: int | None = None
    seconds: float | None = None  # None, without tokens either: a minute

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value} is no budget: a number above 0")
        if self.tokens is not None and self.seconds is not None:
            raise ConfigError(f"tokens={self.tokens:,}, seconds={self.seconds:g}: one of the two")

    @property
    def clock(self) -> float | None:
        """Seconds, where time is what counts."""
        return (self.seconds or DEFAULT_SECONDS) if self.tokens is None else None

    @property
    def summary(self) -> str:
        each = f"{self.clock:g} seconds" if self.tokens is None else f"{self.tokens:,} tokens"
        return f"about {self.params or DEFAULT_PARAMS:,} parameters, {each} each"


@dataclass(frozen=True)
class Point:
    """Somewhere along the way of learning."""

    tokens: float
    flops: float
    seconds: float
    score: float  # bits per byte, or nats per target of pairs


@dataclass(frozen=True)
class Row:
    """What is known of a contestant in the end."""

    name: str
    year: int | None
    title: str
    run: str
    n_params: int
    n_tokens: int  # learned from, with repetitions
    steps: int
    flops: float  # of its training; counting multiplies nothing
    seconds: float
    scores: dict[str, float]  # bits_per_byte, perplexity; or exact_match, bleu, nats_per_target
    curve: list[Point] = field(default_factory=list)
    by_length: list[Length] = field(default_factory=list)
    sample: str = ""


@dataclass(frozen=True)
class Comparison:
    data: str
    kind: str  # "text" or "pairs"
    part: str  # of the data that scores are of
    size: str  # of that part, in words
    context: int
    vocab_size: int
    budget: str
    rows: list[Row]
    metric: str  # what counts: "bits_per_byte", "exact_match", "bleu"
    longest: int | None = None  # pairs: tokens of the longest source that was learned from
    prompt: str = ""
    path: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    names: Sequence[str] = (),
    *,
    data: str = "pydocs",
    params: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    context: int | None = None,
    settings: Sequence[str] = (),
    longer: str | None = None,
    limit: int = 1000,
    num_beams: int = 1,
    prompt: str | None = None,
    sample_tokens: int = 50,
    out: str | Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
    report: Report = lambda progress: None,
) -> Comparison | None:
    """Train and score several models on the same data; None if someone stopped it.

    `names`: contestants (`TEXT`, `PAIRS`), recipes, TOML files, and runs, which are scored as they are; by default all
    contestants there are for this kind of data. `settings` are those of recipes, for all ("train.seed=2"; a setting of
    the model for those that have it) or for one ("gpt:model.dropout=0.1"). Of pairs, the first `limit` held-out ones
    are written by each model, and as many of `longer`, which is more data, of longer sentences. With `resume`,
    contestants that are done in `out` are not trained again.
    """
    general, special = _settings(settings)
    plan = _plan(data, general)
    kind = _kind(plan.data)
    entrants = _entrants(names, TEXT if kind == "text" else PAIRS)
    for name, entrant in entrants.items():
        _check_entrant(name, entrant, kind)
    _check_settings(general, special, entrants)
    window, budget = _window(context, kind, entrants), Budget(params, tokens, seconds)
    judge = _judge(plan, kind, window, longer, limit, num_beams)
    place = Path(out) if out is not None else free_name(Path("runs") / "compare")
    if place.exists() and any(place.iterdir()) and not resume:
        raise CheckpointError(f"{place} is there already; choose another place with --out, or go on with it: --resume")
    asked = {"data": data, **asdict(budget), "context": window, "settings": general, "of one": special}
    _check_same(place, asked, entrants)
    tokenizer = _tokenizer(plan, kind, place, is_asked=any(setting.startswith("tokenizer.") for setting in general))
    say(f"tokenizer   {tokenizer.kind}, {tokenizer.vocab_size:,} tokens, the same for all")
    rules = Rules(plan, kind, window, budget, tokenizer, place)
    recipes = {
        name: rules.recipe(entrant, general, special.get(name, []))
        for name, entrant in entrants.items()
        if not isinstance(entrant, Path)
    }
    _write_plan(place, asked, tokenizer)  # all that could be wrong with it has been found by now
    if not _train_all(recipes, place, resume, say, report):
        return None
    prompt = judge.prompt if prompt is None else prompt
    rows = []
    for name, entrant in entrants.items():
        say(f"scoring     {name}")
        run = entrant if isinstance(entrant, Path) else place / name
        rows.append(_row(name, run, entrant, judge, prompt, sample_tokens))
    found = Comparison(
        data=data,
        kind=kind,
        part=judge.part,
        size=judge.size,
        context=window,
        vocab_size=tokenizer.vocab_size,
        budget=budget.summary,
        rows=rows,
        metric=judge.metric,
        longest=judge.longest_learned(tokenizer),
        prompt=prompt,
        path=str(place),
    )
    write_text(place / "compare.json", json.dumps(finite(found.to_dict()), indent=1, ensure_ascii=False) + "\n")
    return found


def _train_all(recipes: Mapping[str, Recipe], place: Path, resume: bool, say: Say, report: Report) -> bool:
    """One after the other, but for those that are done; False if someone asked to stop."""
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        if _is_done(place / name):
            say(f"done        {name}, before")
            continue
        say(f"\n{name}, {number} of {len(recipes)}")
        counts = isinstance(recipe.model, NGramConfig)
        if counts:  # in one go, and from the beginning where that was cut short
            shutil.rmtree(place / name, ignore_errors=True)
        if train(recipe, out=place / name, resume=resume and not counts, say=say, report=report).interrupted:
            return False
    return True


# ── what all share ────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(settings: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Those for all, and those for one: "gpt:model.dropout=0.1"."""
    general: list[str] = []
    special: dict[str, list[str]] = {}
    for setting in settings:
        name, colon, rest = setting.partition(":")
        if colon and "=" not in name:
            special.setdefault(name, []).append(rest)
        else:
            general.append(setting)
    return general, special


def _plan(data: str, settings: Sequence[str]) -> Recipe:
    """The data, the tokenizer and the rates that all share, as a recipe; its model is nobody's."""
    table: dict[str, Any] = {"data": {"path": data}}
    for setting in settings:
        if not setting.startswith("model."):
            apply_setting(table, setting)
    plan = recipe_from_table(table)
    found = plan.data
    if format_of(found.path) in ("csv", "tsv") and found.pairs is found.text is found.label is None:
        found = found.replace(pairs="1,2")  # what else would they be
    return plan.replace(data=located(found))


def _check_settings(
    general: Sequence[str], special: Mapping[str, Sequence[str]], entrants: Mapping[str, "Entrant"]
) -> None:
    """A setting that would change nothing, or that would be unfair, is refused."""
    instead = {"data.path": "--data", "train.steps": "--tokens", "train.max_seconds": "--seconds"}
    for setting in [*general, *(own for some in special.values() for own in some)]:
        key = setting.partition("=")[0].strip()
        if key in instead:
            raise ConfigError(f"{setting}: that is the same for all, and asked for by {instead[key]}")
    known = {name: _fields(entrant) for name, entrant in entrants.items() if not isinstance(entrant, Path)}
    for setting in general:
        section, _, key = setting.partition("=")[0].strip().partition(".")
        if section == "model" and not any(key in fields for fields in known.values()):
            names = sorted(set().union(*known.values()))
            raise ConfigError(f"{setting}: no contestant has such a setting.{suggest(key, names)}")
    for name, some in special.items():
        if name not in known:
            near = suggest(name, known, otherwise=f" There are: {', '.join(known)}")
            raise ConfigError(f"{name}:{some[0]} is for a contestant that is trained, and {name!r} is none.{near}")
        for setting in some:
            if not setting.startswith(("model.", "train.", "eval.")):
                raise ConfigError(f"{name}:{setting}: data and tokenizer are the same for all; of one: model., train.")


def _fields(entrant: "Contestant | Recipe") -> tuple[str, ...]:
    kind = FAMILIES[entrant.family] if isinstance(entrant, Contestant) else type(entrant.model)
    return kind.__struct_fields__


def _kind(data: DataConfig) -> str:
    kinds = {source.kind for source, _ in sources_of(data).values()}
    if kinds not in ({"text"}, {"pairs"}):
        raise ConfigError(f"{data.path} holds {' and '.join(kinds)}: what is compared learns from text, or from pairs")
    return kinds.pop()


def _judge(plan: Recipe, kind: str, window: int, longer: str | None, limit: int, num_beams: int) -> Judge:
    if kind == "pairs":
        return PairsJudge(plan, longer=longer, limit=limit, num_beams=num_beams)
    if longer is not None:
        raise ConfigError(f"longer={longer!r}: longer sentences are asked of pairs, and {plan.data.path} is text")
    return TextJudge(plan, window)


def _window(asked: int | None, kind: str, entrants: Mapping[str, "Entrant"]) -> int:
    """Tokens that all are scored in windows of: no more than any was made for."""
    window = asked or CONTEXTS[kind]
    for name, entrant in entrants.items():
        own = None if isinstance(entrant, Contestant) else getattr(_recipe_of(entrant).model, "context", None)
        if own is not None and own < window and kind == "text":
            if asked is not None:
                raise ConfigError(f"{name} has a context of {own}, and windows are of {asked}: --context {own}")
            window = own
    return window


def _check_same(place: Path, asked: Mapping[str, Any], entrants: Mapping[str, "Entrant"]) -> None:
    """What is gone on with must be what was begun; of those that are not done, their own settings may change."""
    if not (place / "plan.json").is_file():
        return
    begun = json.loads((place / "plan.json").read_text(encoding="utf-8"))
    shared = [(name, begun.get(name), value) for name, value in asked.items() if name != "of one"]
    own = [
        (f"settings of {name}", begun["of one"].get(name), asked["of one"].get(name))
        for name in entrants
        if _is_done(place / name)
    ]
    for name, before, now in [*shared, *own]:
        if before != now:
            raise ConfigError(f"{place} was begun with {name}={before}, not {now}: the same again, or another --out")


def _write_plan(place: Path, asked: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "plan.json", json.dumps(asked, indent=1) + "\n")
    if not (place / "tokenizer").exists():
        tokenizer.save(place / "tokenizer")


def _tokenizer(plan: Recipe, kind: str, place: Path, *, is_asked: bool) -> Tokenizer:
    """One for all, made from the training part; a comparison that is gone on with has the same."""
    if (place / "tokenizer" / "tokenizer.json").is_file():
        return prepare_tokenizer(TokenizerConfig(path=str(place / "tokenizer")), [])
    config = plan.tokenizer if is_asked else TOKENIZERS["task" if is_task(plan.data.path) else kind]
    return prepare_tokenizer(config, _training_texts(plan, kind))


def _training_texts(plan: Recipe, kind: str) -> Iterator[str]:
    if kind == "text":
        return iter(read_part(plan.data, "train"))
    return chain.from_iterable((pair.source, pair.target) for pair in part_pairs(plan, "train"))


# ── who takes part, and how ───────────────────────────────────────────────────────────────────────────────────────

Entrant = Contestant | Recipe | Path


def _entrants(names: Sequence[str], timeline: Mapping[str, Contestant]) -> dict[str, Entrant]:
    names = list(names) or list(timeline)
    found = {_folder(name): _entrant(name, timeline) for name in names}
    if len(found) < len(names):
        raise ConfigError(f"{', '.join(names)}: two have one name; each takes part once")
    return found


def _folder(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else Path(name).name


def _entrant(name: str, timeline: Mapping[str, Contestant]) -> Entrant:
    """A contestant by name, a run that was trained before, or a recipe."""
    if name in timeline:
        return timeline[name]
    if (Path(name) / "recipe.toml").is_file() and Run(name).steps():
        return Path(name)
    if name in TEXT or name in PAIRS:
        mine, this = ("pairs", "text") if timeline is TEXT else ("text", "pairs")
        raise ConfigError(f"{name} learns from {mine}, and this is {this}; for it there are {', '.join(timeline)}")
    try:
        return load_recipe(name)
    except ConfigError as error:
        if not str(error).startswith("no recipe"):
            raise
        near = suggest(name, timeline, otherwise=f" Contestants: {', '.join(timeline)}")
        raise ConfigError(f"no contestant, recipe, TOML file or run {name!r}.{near}") from None


def _recipe_of(entrant: Recipe | Path) -> Recipe:
    return load_recipe(entrant) if isinstance(entrant, Path) else entrant


def _check_entrant(name: str, entrant: Entrant, kind: str) -> None:
    """Say before anyone is trained that someone cannot take part."""
    if isinstance(entrant, Contestant):
        return
    objective = objective_of(_recipe_of(entrant))
    if objective != {"text": "causal", "pairs": "pairs"}[kind]:
        raise ConfigError(f"{name} learns {objective!r}, which is not what is asked of {kind}: leave it out")
    if isinstance(entrant, Path) and not _is_done(entrant):
        raise DataError(f"{entrant} has not been trained to its end; go on with it: headway train {entrant} --resume")


@dataclass(frozen=True)
class Rules:
    """What is the same for all who take part."""

    plan: Recipe
    kind: str
    window: int
    budget: Budget
    tokenizer: Tokenizer
    place: Path

    def recipe(self, entrant: Contestant | Recipe, general: Sequence[str], special: Sequence[str]) -> Recipe:
        """What a contestant is trained by: its own model and rates, and for the rest what all have."""
        is_text, fields = self.kind == "text", _fields(entrant)
        settings: dict[str, Any] = {"model": {}, "train": {}, "eval": {}}
        for setting in [*general, *special]:
            section, _, key = setting.partition("=")[0].strip().partition(".")
            if section in ("train", "eval") or (section == "model" and (key in fields or setting in special)):
                apply_setting(settings, setting)
        if isinstance(entrant, Contestant):
            model = self._sized(entrant, settings["model"])
            learning = {**LEARNING, "batch_size": 8 if is_text else 64, **entrant.train}
        else:
            model, learning = entrant.model, {**_table(entrant.train), "average": 0}
        train_table = {**learning, "save_every": 0, "keep": 1}
        eval_table = {"times": LOOKS, "batch_size": 16 if is_text else 128}
        if is_text:
            train_table.setdefault("window", self.window)
            eval_table["context"] = self.window
        tokenizer = {"path": str((self.place / "tokenizer").absolute()), "dropout": self.plan.tokenizer.dropout}
        recipe = recipe_from_table({
            "model": {"family": type(model).__struct_config__.tag, **_table(model), **settings["model"]},
            "tokenizer": tokenizer,
            "data": _table(self.plan.data),
            "train": {**train_table, **settings["train"]},
            "eval": {**eval_table, **settings["eval"]},
        })  # fmt: skip
        return self._within_budget(recipe)

    def _sized(self, contestant: Contestant, settings: Mapping[str, Any]) -> ModelConfig:
        given: dict[str, Any] = {"vocab_size": self.tokenizer.vocab_size, **settings}
        if "context" in _fields(contestant):
            given["context"] = self.window
        return fitted(contestant, self.budget.params or DEFAULT_PARAMS, **given)

    def _within_budget(self, recipe: Recipe) -> Recipe:
        config, tokens = recipe.train, self.budget.tokens
        if tokens is None:
            return recipe.replace(train=config.replace(steps=FOREVER, max_seconds=self.budget.clock))
        steps = max(1, round(tokens / self._targets_per_step(recipe)))
        warmup = min(config.warmup_steps, steps // 10)
        return recipe.replace(train=config.replace(steps=steps, warmup_steps=warmup, max_seconds=None))

    def _targets_per_step(self, recipe: Recipe) -> float:
        config = recipe.train
        if self.kind == "text":
            return config.batch_size * (config.window or self.window)
        some = list(islice(part_pairs(recipe, "train"), 1000))
        sources, targets = (
            self.tokenizer.encode_batch([getattr(pair, side) for pair in some]) for side in ("source", "target")
        )
        n_targets = sum(map(len, targets)) / len(some) + 1
        if config.max_tokens is None:
            return config.batch_size * n_targets
        longest = sum(max(len(a), len(b)) + 1 for a, b in zip(sources, targets, strict=True)) / len(some)
        return config.max_tokens / longest * n_targets  # rows are filled up by the longer side


def _table(config: Any) -> dict[str, Any]:
    """Settings as a recipe has them; what is not set is left out."""
    return {key: value for key, value in msgspec.to_builtins(config).items() if value is not None and key != "family"}


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def _is_done(run: Path) -> bool:
    return any(record.get("event") == "end" for record in Run(run).read_log())


def _row(name: str, run: Path, entrant: Entrant, judge: Judge, prompt: str, n_tokens: int) -> Row:
    model, recipe, log = load(run, device="auto"), load_recipe(run), Run(run).read_log()
    begin, end = (next(record for record in log[::-1] if record.get("event") == name) for name in ("start", "end"))
    learned, steps = int(end["train_tokens"]), int(end["step"])
    window = recipe.train.window or int(getattr(recipe.model, "context", 0))
    per_token = begin.get("flops_per_token") or flops_per_token(model.config, window)
    points = []
    if not isinstance(entrant, Path):
        for record in log:
            score = record.get("bits_per_byte", record.get("nats_per_target"))
            if "event" not in record and score is not None and steps:
                seen = learned * record["step"] / steps
                points.append(Point(seen, seen * per_token, record["seconds"], score))
    known = entrant if isinstance(entrant, Contestant) else None
    scores, by_length = judge.score(model)
    return Row(
        name=name,
        year=known.year if known else None,
        title=known.title if known else recipe.description,
        run=str(run),
        n_params=model.n_params,
        n_tokens=learned,
        steps=steps,
        flops=learned * per_token,
        seconds=float(end["seconds"]),
        scores=scores,
        curve=points,
        by_length=by_length,
        sample=judge.sample(model, prompt, n_tokens),
    )
