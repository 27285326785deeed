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
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from headway.comparison.budget import Budget, SharedSettings
from headway.comparison.lineup import PAIRS, TEXT, ModelTemplate
from headway.comparison.manifest import check_recipes, check_same, digest, write_plan
from headway.comparison.scoring import Evaluator, LengthBucket, PairsEvaluator, TextEvaluator
from headway.comparison.selection import (
    Candidate,
    check_candidate,
    check_settings,
    context_for,
    find_candidates,
    is_done,
    split_doubt,
)
from headway.config import (
    DataConfig,
    NGramConfig,
    Recipe,
    TokenizerConfig,
    load_recipe,
    recipe_from_table,
)
from headway.config.recipe import apply_setting
from headway.costs import flops_per_token
from headway.data.readers import format_of
from headway.data.splits import read_split, sources_of, with_absolute_paths
from headway.data.synthetic_tasks import is_task
from headway.errors import CheckpointError, ConfigError
from headway.files import finite, free_name, write_text
from headway.models import load
from headway.runs import Run
from headway.tokenizers import Tokenizer
from headway.training.task import OnMessage, iter_pairs, prepare_tokenizer
from headway.training.train import train
from headway.training.trainer import Progress

TOKENIZERS = {
    "text": TokenizerConfig(kind="bpe", vocab_size=2000),
    "pairs": TokenizerConfig(kind="bpe", vocab_size=8000),
    "task": TokenizerConfig(kind="char"),
}

OnModelStep = Callable[[Progress], None]


@dataclass(frozen=True)
class CurvePoint:
    """Somewhere along the way of learning."""

    tokens: float
    flops: float
    seconds: float
    score: float  # bits per byte, or nats per target of pairs


@dataclass(frozen=True)
class ModelResult:
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
    curve: list[CurvePoint] = field(default_factory=list)
    by_length: list[LengthBucket] = field(default_factory=list)
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
    rows: list[ModelResult]
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
    long_data: str | None = None,
    limit: int = 1000,
    num_beams: int = 1,
    prompt: str | None = None,
    sample_tokens: int = 50,
    out: str | Path | None = None,
    resume: bool = False,
    say: OnMessage = lambda line: None,
    report: OnModelStep = lambda progress: None,
) -> Comparison | None:
    """Train and score several models on the same data; None if someone stopped it.

    `names`: contestants (`TEXT`, `PAIRS`), recipes, TOML files, and runs, which are scored as they are; by default all
    contestants there are for this kind of data. `settings` are those of recipes, for all ("train.seed=2"; a setting of
    the model for those that have it) or for one ("gpt:model.dropout=0.1"). Of pairs, the first `limit` held-out ones
    are written by each model, and as many of `long_data`, which is more data, of long_data sentences. With `resume`,
    contestants that are done in `out` are not trained again.
    """
    general, special = _settings(settings)
    plan = _plan(data, general)
    kind = _kind(plan.data)
    entrants = find_candidates(names, TEXT if kind == "text" else PAIRS)
    for name, entrant in entrants.items():
        check_candidate(name, entrant, kind)
    check_settings(general, special, entrants)
    window, budget = context_for(context, kind, entrants), Budget(params, tokens, seconds)
    judge = _evaluator(plan, kind, window, long_data, limit, num_beams)
    place = Path(out) if out is not None else free_name(Path("runs") / "compare")
    if place.exists() and any(place.iterdir()) and not resume:
        raise CheckpointError(f"{place} is there already; choose another place with --out, or go on with it: --resume")
    asked = {"data": data, **asdict(budget), "context": window, "settings": general, "of one": special}
    asked["content"] = digest(chain(_texts(plan, kind, "train"), _texts(plan, kind, judge.part)))
    done = [name for name in entrants if is_done(place / name)]
    check_same(place, asked, done)
    tokenizer = _tokenizer(plan, kind, place, is_asked=any(setting.startswith("tokenizer.") for setting in general))
    say(f"tokenizer   {tokenizer.kind}, {tokenizer.vocab_size:,} tokens, the same for all")
    rules = SharedSettings(plan, kind, window, budget, tokenizer, place)
    recipes = {
        name: rules.recipe(entrant, general, special.get(name, []))
        for name, entrant in entrants.items()
        if not isinstance(entrant, Path)
    }
    asked["recipes"] = check_recipes(place, recipes, done)
    for name, entrant in entrants.items():
        if isinstance(entrant, Path) and (doubt := split_doubt(entrant, plan.data)):
            say(f"note        {name} {doubt}")
    write_plan(place, asked, tokenizer)  # all that could be wrong with it has been found by now
    if not _train_all(recipes, place, resume, say, report):
        return None
    prompt = judge.prompt if prompt is None else prompt
    rows = []
    for name, entrant in entrants.items():
        say(f"scoring     {name}")
        run = entrant if isinstance(entrant, Path) else place / name
        rows.append(_model_result(name, run, entrant, judge, tokenizer, prompt, sample_tokens))
    found = Comparison(
        data=data,
        kind=kind,
        part=judge.part,
        size=judge.size,
        context=window,
        vocab_size=tokenizer.vocab_size,
        budget=budget.summary if recipes else "as they were trained",
        rows=rows,
        metric=judge.metric,
        longest=judge.longest_learned(tokenizer) if recipes else None,
        prompt=prompt,
        path=str(place),
    )
    write_text(place / "compare.json", json.dumps(finite(found.to_dict()), indent=1, ensure_ascii=False) + "\n")
    return found


def _train_all(recipes: Mapping[str, Recipe], place: Path, resume: bool, say: OnMessage, report: OnModelStep) -> bool:
    """One after the other, but for those that are done; False if someone asked to stop."""
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        if is_done(place / name):
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
    return plan.replace(data=with_absolute_paths(found))


def _kind(data: DataConfig) -> str:
    kinds = {source.kind for source, _ in sources_of(data).values()}
    if kinds not in ({"text"}, {"pairs"}):
        raise ConfigError(f"{data.path} holds {' and '.join(kinds)}: what is compared learns from text, or from pairs")
    return kinds.pop()


def _evaluator(plan: Recipe, kind: str, window: int, long_data: str | None, limit: int, num_beams: int) -> Evaluator:
    if kind == "pairs":
        return PairsEvaluator(plan, long_data=long_data, limit=limit, num_beams=num_beams)
    if long_data is not None:
        raise ConfigError(f"long_data={long_data!r}: longer sentences are asked of pairs, and {plan.data.path} is text")
    return TextEvaluator(plan, window)


def _tokenizer(plan: Recipe, kind: str, place: Path, *, is_asked: bool) -> Tokenizer:
    """One for all, made from the training part; a comparison that is gone on with has the same."""
    if (place / "tokenizer" / "tokenizer.json").is_file():
        return prepare_tokenizer(TokenizerConfig(path=str(place / "tokenizer")), [])
    config = plan.tokenizer if is_asked else TOKENIZERS["task" if is_task(plan.data.path) else kind]
    return prepare_tokenizer(config, _texts(plan, kind, "train"))


def _texts(plan: Recipe, kind: str, part: Literal["train", "valid", "test"]) -> Iterator[str]:
    if kind == "text":
        return iter(read_split(plan.data, part))
    return chain.from_iterable((pair.source, pair.target) for pair in iter_pairs(plan, part))


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def _model_result(
    name: str, run: Path, entrant: Candidate, judge: Evaluator, tokenizer: Tokenizer, prompt: str, n_tokens: int
) -> ModelResult:
    model, recipe, log = load(run, device="auto"), load_recipe(run), Run(run).read_log()
    begin, end = (next(record for record in log[::-1] if record.get("event") == name) for name in ("start", "end"))
    learned, steps = int(end["train_tokens"]), int(end["step"])
    window = recipe.train.seq_len or recipe.model.context or 0
    per_token = begin.get("flops_per_token") or flops_per_token(model.config, window)
    points = []
    if not isinstance(entrant, Path):
        for record in log:
            score = record.get("bits_per_byte", record.get("nats_per_target"))
            if "event" not in record and score is not None and steps:
                seen = learned * record["step"] / steps
                points.append(CurvePoint(seen, seen * per_token, record["seconds"], score))
    known = entrant if isinstance(entrant, ModelTemplate) else None
    scores, by_length = judge.score(model, tokenizer)
    return ModelResult(
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
