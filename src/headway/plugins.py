"""Plug-ins: your own families, attention functions, samplers, … beside the built-in ones.

    headway.register("optimizer", "lion", lion)         # from now on: train.optimizer = "lion"

Register from any module. On the command line, `--plugin MODULE` imports yours before the command runs; an installed
package can declare what it offers (entry_points.py). A recipe or a checkpoint never imports code.
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from headway.config.choices import BASE_OBJECTIVES, CHOICES
from headway.config.models import FAMILIES, ModelConfig
from headway.errors import ConfigError, HeadwayError, suggest, with_article

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from headway.config import TrainConfig
    from headway.data.readers import ReadOptions
    from headway.data.records import Kind, Record
    from headway.models import Model
    from headway.nn.attention import AttentionFn
    from headway.sampling.parameters import Parameter
    from headway.tokenizers import Tokenizer

NAME_PATTERN = r"[A-Za-z][A-Za-z0-9_.\-]*"

REGISTERED: set[tuple[str, str]] = set()  # (kind, name): only these may be registered again


@overload
def register(
    kind: Literal["family"], name: str, value: "type[Model]", *, config: type[ModelConfig], replace: bool = False
) -> None: ...
@overload
def register(kind: Literal["attention"], name: str, value: "AttentionFn", *, replace: bool = False) -> None: ...
@overload
def register(
    kind: Literal["sampler"],
    name: str,
    value: "Callable[..., Tensor]",
    *,
    parameters: "Mapping[str, Parameter]",
    summary: str = "",
    group: Literal["constraint", "penalty", "filter", "reshape"] = "filter",
    needs: Sequence[str] = (),
    replace: bool = False,
) -> None: ...
@overload
def register(
    kind: Literal["tokenizer"], name: str, value: "Callable[..., Tokenizer]", *, replace: bool = False
) -> None: ...
@overload
def register(
    kind: Literal["dataset"],
    name: str,
    value: "Callable[[], Iterable[Record]]",
    *,
    records: "Kind" = "text",
    replace: bool = False,
) -> None: ...
@overload
def register(
    kind: Literal["reader"],
    name: str,
    value: "Callable[[Path, ReadOptions], Iterator[Record]]",
    *,
    records: "Kind" = "text",
    endings: Sequence[str] = (),
    replace: bool = False,
) -> None: ...
@overload
def register(
    kind: Literal["objective"],
    name: str,
    value: "Callable[[Any, Any, float], tuple[Tensor, Tensor | None]]",
    *,
    like: str,
    replace: bool = False,
) -> None: ...
@overload
def register(
    kind: Literal["optimizer"],
    name: str,
    value: "Callable[[torch.nn.Module, TrainConfig], torch.optim.Optimizer | list[torch.optim.Optimizer]]",
    *,
    replace: bool = False,
) -> None: ...
@overload
def register(
    kind: Literal["metric"],
    name: str,
    value: Callable[[Sequence[str], Sequence[str]], float],
    *,
    higher_is_better: bool = True,
    replace: bool = False,
) -> None: ...


def register(kind: str, name: str, value: Any, *, replace: bool = False, **options: Any) -> None:
    """Add something of your own under a name: to recipes, the command line and the functions of Headway.

    | kind | value | then |
    |---|---|---|
    | family | a subclass of `headway.models.Model`; `config`: its config class | `model.family = "NAME"` |
    | attention | a function like `headway.nn.fast_attention` | `model.attention = "NAME"` |
    | sampler | `f(logits, **parameters)` → logits, both (B, V); `parameters`: name → `NumberParam` | `NAME=…` |
    | tokenizer | `f(texts, vocab_size, …)` → Tokenizer | `tokenizer.kind = "NAME"` |
    | dataset | `f()` → records; `records`: their kind | `data.path = "NAME"` |
    | reader | `f(file, options)` → records; `endings`: of its files | `data.format = "NAME"` |
    | objective | `f(model, batch, smoothing)` → (nats, n_correct); `like`: whose batches | `train.objective = "NAME"` |
    | optimizer | `f(model, config)` → torch optimizer | `train.optimizer = "NAME"` |
    | metric | `f(hypotheses, references)` → number; `higher_is_better` | `eval.metric = "NAME"` |

    A name that exists is refused, unless it is your own and `replace=True`. docs/extend.md has an example of each.
    """
    if kind not in _REGISTRARS:
        raise ConfigError(
            f"register({kind!r}, …): no such kind."
            + suggest(str(kind), _REGISTRARS, otherwise=f" Kinds: {', '.join(_REGISTRARS)}")
        )
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"{name!r} is not a name for {with_article(kind)}: use letters, digits, '_', '-' and '.', such as 'mine'"
        )
    if not callable(value):
        raise ConfigError(f"register({kind!r}, {name!r}, …) needs a function or class, not {value!r:.60}")
    if name in _taken(kind) and not ((kind, name) in REGISTERED and replace):
        way_out = "pass replace=True to replace yours" if (kind, name) in REGISTERED else "choose another name"
        raise ConfigError(f"there is already {with_article(kind)} named {name!r}: {way_out}")
    _check_options(kind, options)
    _REGISTRARS[kind](name, value, **options)
    REGISTERED.add((kind, name))
    if kind in CHOICES and name not in CHOICES[kind]:
        CHOICES[kind].append(name)


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a kind does not have, and name those it needs."""
    _, _, *parameters = inspect.signature(_REGISTRARS[kind]).parameters.values()
    names = [parameter.name for parameter in parameters]
    if unknown := [name for name in options if name not in names]:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ConfigError(f"register({kind!r}, …) has no option {unknown[0]!r}; {has}")
    if missing := [p.name for p in parameters if p.default is p.empty and p.name not in options]:
        raise ConfigError(f"register({kind!r}, …) needs {missing[0]}=…: see docs/extend.md")


def load_plugin(name: str) -> None:
    """Import a module that registers something: by its name, or by the path of its file, such as ./mine.py.

    Modules in the working directory are found too.
    """
    try:
        if name.endswith(".py"):
            _import_file(Path(name))
            return
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.append(folder)  # last: a file here must not hide an installed module
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise ConfigError(f"--plugin {name} imports {error.name!r}, which is not installed") from error
        raise ConfigError(
            f"no plug-in {name!r}: neither an installed module nor a file {name}.py in this folder"
        ) from None
    except HeadwayError:
        raise
    except Exception as error:
        raise ConfigError(f"--plugin {name} fails: {_where(error)}{type(error).__name__}: {error}") from error


def _where(error: BaseException) -> str:
    """The last line of a plug-in that an error passed through: "mine.py, line 3: "."""
    if isinstance(error, SyntaxError):
        return ""  # its message has the line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""


def _import_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(f"no plug-in at {file}")
    # A name of its own: two files may have one name, and none may hide an installed module.
    name = f"headway_plugin_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# ── one function per kind ─────────────────────────────────────────────────────────────────────────────────────────


def _taken(kind: str) -> Iterable[str]:
    """The names of a kind that exist."""
    if kind == "family":
        from headway.config.presets import PRESETS

        return {*FAMILIES, *PRESETS}
    if kind == "sampler":
        from headway.sampling.specs import FLAT_NAMES, SAMPLER_SPECS

        return {*SAMPLER_SPECS, *FLAT_NAMES}
    if kind == "dataset":
        from headway.data.builtin import CORPORA

        return CORPORA
    if kind == "attention":
        from headway.nn.attention import ATTENTIONS

        return {*ATTENTIONS, *CHOICES[kind]}
    return CHOICES[kind]


def _register_family(name: str, model: Any, *, config: type[ModelConfig]) -> None:
    from headway.models.base import Model
    from headway.models.registry import MODELS

    if not isinstance(model, type) or not issubclass(model, Model):
        raise ConfigError(
            f"the family {name!r} needs a subclass of headway.models.Model, which can be saved and trained, not "
            f"{model!r:.60}; generate and evaluate take any object that keeps the contract, unregistered"
        )
    if not isinstance(config, type) or not issubclass(config, ModelConfig):
        raise ConfigError(f"the config of the family {name!r} must be a subclass of headway.config.ModelConfig")
    if (tag := config.__struct_config__.tag) != name:
        raise ConfigError(
            f"{config.__name__} is the config of a family {tag!r}, not {name!r}: rename the class, or declare "
            f"class {config.__name__}(ModelConfig, frozen=True, kw_only=True, tag={name!r})"
        )
    FAMILIES[name] = config
    MODELS[name] = model


def _register_attention(name: str, function: Any) -> None:
    from headway.nn.attention import ATTENTIONS

    ATTENTIONS[name] = function


def _register_sampler(
    name: str,
    function: Any,
    *,
    parameters: Any,
    summary: str = "",
    group: str = "filter",
    needs: Sequence[str] = (),
) -> None:
    from headway.sampling.samplers import SAMPLERS, Sampler
    from headway.sampling.specs import SamplerSpec, add_spec

    if not name.isidentifier():
        raise ConfigError(f"{name!r} is not a name for a sampler, which is a keyword: use letters, digits and '_'")
    _check_flat_names(name, parameters)
    summary = summary or (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    primary = next(iter(parameters), None)
    add_spec(SamplerSpec(name, group, summary, summary, dict(parameters), primary=primary))
    SAMPLERS[name] = Sampler(
        function, needs=tuple(needs), by_id=True, registered_name=name
    )  # by id: it sees the whole vocabulary


def _check_flat_names(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse a sampler whose keywords are those of another sampler or of `generate`."""
    from headway.generation.generate import generate
    from headway.sampling.specs import FLAT_NAMES, SHARED_PARAMETERS, SamplerSpec

    spec = SamplerSpec(name, "filter", "", "", dict(parameters), primary=next(iter(parameters), None))
    arguments = {*inspect.signature(generate).parameters, *SHARED_PARAMETERS, "n"}
    for flat in map(spec.flat_name, parameters):
        owner = FLAT_NAMES.get(flat, ("", ""))[0]
        if owner not in ("", name) or (flat in arguments and flat not in FLAT_NAMES):
            taken_by = f"the sampler {owner}" if owner else "headway.generate"
            raise ConfigError(
                f"the keyword {flat!r} of the sampler {name!r} belongs to {taken_by}: choose another name"
            )


def _register_tokenizer(name: str, train: Any) -> None:
    from headway.tokenizers.factory import KINDS

    KINDS[name] = train


def _register_dataset(name: str, read: Any, *, records: str = "text") -> None:
    from headway.data.builtin import CORPORA, CORPUS_KINDS

    CORPORA[name], CORPUS_KINDS[name] = read, _record_kind(records)


def _register_reader(name: str, read: Any, *, records: str = "text", endings: Sequence[str] = ()) -> None:
    from headway.data.readers import ENDINGS, READER_KINDS, READERS

    kind = _record_kind(records)
    endings = [endings] if isinstance(endings, str) else endings
    for ending in endings:
        if ENDINGS.get(ending, name) != name:
            raise ConfigError(f"files ending in {ending!r} are read as {ENDINGS[ending]!r}: choose another ending")
    READERS[name], READER_KINDS[name] = read, kind
    ENDINGS.update(dict.fromkeys(endings, name))


def _record_kind(records: str) -> "Kind":
    from headway.data.records import Kind

    for kind in get_args(Kind):
        if kind == records:
            return kind
    raise ConfigError(f"records={records!r} is not one of {', '.join(get_args(Kind))}")


def _register_objective(name: str, loss: Any, *, like: str) -> None:
    from headway.training.objectives import OBJECTIVES

    built_in = [objective for objective in OBJECTIVES if objective not in BASE_OBJECTIVES]
    if like not in built_in:
        raise ConfigError(f"like={like!r} is not one of {', '.join(built_in)}, whose batches the objective can have")
    OBJECTIVES[name] = loss
    BASE_OBJECTIVES[name] = like


def _register_optimizer(name: str, make: Any) -> None:
    from headway.training.optimizers import OPTIMIZERS

    OPTIMIZERS[name] = make


def _register_metric(name: str, function: Any, *, higher_is_better: bool = True) -> None:
    from headway.evaluation.metrics import METRICS, GenerationMetric
    from headway.evaluation.tasks import SCORE_NAMES

    if name in SCORE_NAMES:
        raise ConfigError(f"{name!r} is a score that every run has: choose another name for the metric")
    METRICS[name] = GenerationMetric(name, function, higher_is_better)


_REGISTRARS: dict[str, Callable[..., None]] = {
    "family": _register_family,
    "attention": _register_attention,
    "sampler": _register_sampler,
    "tokenizer": _register_tokenizer,
    "dataset": _register_dataset,
    "reader": _register_reader,
    "objective": _register_objective,
    "optimizer": _register_optimizer,
    "metric": _register_metric,
}
