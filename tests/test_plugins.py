"""Extending Headway: `headway.register`, `--plugin`, and packages that declare what they offer."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import headway
from headway.analysis.attention import attention_maps
from headway.analysis.curves import loss_unit
from headway.comparison.report import plot
from headway.config import ModelConfig, load_recipe
from headway.errors import CheckpointError, ConfigError, InputError
from headway.evaluation.metrics import METRICS
from headway.generation.beam_search import beam_search
from headway.models import GPT, Model, UncachedLM
from headway.plugins import load_plugin
from headway.sampling import NumberParam, Pipeline
from headway.training.objectives import OBJECTIVES
from headway.training.optimizers import OPTIMIZERS, Optimizer, skips_by_itself
from tests.cli.running import run
from tests.plugin_registries import restored_registries

ROOT = Path(__file__).parent.parent
EXTEND = ROOT / "examples" / "extend"
TINY = "--set train.steps=3 --set train.max_seconds=none --set train.batch_size=2 --set tokenizer.vocab_size=280"


@pytest.fixture(autouse=True)
def _restored_registries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_registries():
        yield


class LastConfig(ModelConfig, frozen=True, kw_only=True):
    context: int = 32


class Last(UncachedLM):
    """A bigram model: the logits after a token are a row of a table."""

    def __init__(self, config: LastConfig):
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)

    def init_weights(self) -> None:
        self.table.reset_parameters()

    def forward(self, ids, lengths=None):
        return self.table(ids)


def register_last():
    headway.register("family", "last", Last, config=LastConfig)


# ── the package in examples/extend ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package of examples/extend, installed by pip into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source") / "extend", tmp_path_factory.mktemp("site")
    shutil.copytree(EXTEND, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--no-index", "--target", str(target), str(source)], check=True)
    return target


def test_an_installed_package_trains_samples_compares_and_saves(installed, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(installed))

    def headway_command(command):
        code, out, err = run(command, capsys)
        assert code == 0, err
        return out

    headway_command(f"train demo --out runs/decay --set model.family=decay --set model.d_model=16 {TINY}")
    assert "headway_extend.roman" not in sys.modules  # only what was asked for is imported
    headway_command(f"train demo --out runs/sigmoid --set model.attention=sigmoid --set model.n_layers=1 {TINY}")
    headway_command(
        f"train reverse --out runs/roman --set data.path=roman --set eval.metric=character_accuracy --set "
        f"model.d_model=32 {TINY}"
    )
    assert "character_accuracy" in (Path("runs/roman") / "log.jsonl").read_text()
    table = headway_command(
        "compare decay gpt --tokens 200 --params 20000 --out runs/both --set tokenizer.vocab_size=280"
    )
    assert re.search(r"decay +[\d,]+", table)
    headway_command('generate runs/decay "The" --max-new-tokens 3 --set top_h=0.4 --seed 1')
    headway_command("convert runs/decay saved")
    assert headway.load("saved").config.family == "decay"
    assert "properties hold" in headway_command("check contract saved")


def test_each_file_of_the_example_is_under_40_lines():
    files = [file for file in (EXTEND / "src").rglob("*.py") if file.name not in ("__init__.py", "all.py")]
    assert len(files) == 5
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) < 40, file


def test_a_file_never_imports_a_plugin(installed, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(installed))
    Path("mine.toml").write_text('[model]\nfamily = "decay"\n')
    code, _, err = run("train mine.toml", capsys)
    assert (code, "add --plugin headway_extend.decay" in err) == (2, True)
    Path("attention.toml").write_text('[model]\nattention = "sigmoid"\n')
    code, _, err = run("train attention.toml", capsys)
    assert (code, "add --plugin headway_extend.sigmoid" in err) == (2, True)
    register_last()
    headway.create("last", vocab_size=5).save("last")
    document = (tmp_path / "last" / "config.json").read_text()
    (tmp_path / "last" / "config.json").write_text(document.replace("headway-last", "headway-decay"))
    with pytest.raises(CheckpointError, match=r"no model family 'decay'.*--plugin headway_extend\.decay"):
        headway.load("last")
    assert not any(name.startswith("headway_extend") for name in sys.modules)


def test_an_unknown_family_in_a_checkpoint_names_plugin(tmp_path):
    register_last()
    headway.create("last", vocab_size=5).save("last")
    with restored_registries():
        del headway.MODELS["last"]
        with pytest.raises(CheckpointError, match=r"no model family 'last'.*--plugin MODULE"):
            headway.load("last")


# ── --plugin ──────────────────────────────────────────────────────────────────────────────────────────────────────


PLUGIN = """
import headway
from tests.test_plugins import Last, LastConfig
headway.register("family", "last", Last, config=LastConfig)
"""


@pytest.mark.parametrize("name", ["mine", "./mine.py"])
def test_plugin_imports_a_module_of_the_working_directory(name, capsys):
    Path("mine.py").write_text(PLUGIN)
    code, _, err = run(f"train demo --plugin {name} --set model.family=last {TINY} --out runs/last", capsys)
    assert code == 0, err
    assert headway.load("runs/last").config.family == "last"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no plug-in 'nowhere'"),
        ("nowhere.py", "no plug-in at nowhere.py"),
        ("yours", "--plugin yours imports 'not_installed', which is not installed"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_explained(name, message, capsys):
    Path("yours.py").write_text("import not_installed")
    code, _, err = run(f"eval runs/demo --plugin {name}", capsys)
    assert code == 2
    assert message in err


def test_an_unregistered_name_points_to_plugin():
    for setting in ("model.family=mine", "train.optimizer=mine", "eval.metric=mine", "tokenizer.kind=mine"):
        with pytest.raises(ConfigError, match="--plugin MODULE"):
            load_recipe("demo", [setting])


# ── register ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_name_is_taken_once():
    register_last()
    with pytest.raises(ConfigError, match="already a family named 'last': pass replace=True"):
        register_last()
    headway.register("family", "last", Last, config=LastConfig, replace=True)
    with pytest.raises(ConfigError, match="already an optimizer named"):
        headway.register("optimizer", "adamw", lambda model, config: torch.optim.SGD(model.parameters()))
    with pytest.raises(ConfigError, match="choose another name"):
        headway.register("metric", "bleu", lambda h, r: 0.0, replace=True)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("famly", "x", Last), {}, "no such kind. Did you mean 'family'"),
        (("family", "a b", Last), {"config": LastConfig}, "not a name for a family"),
        (("family", "last", Last(LastConfig())), {"config": LastConfig}, "subclass of headway.models.Model"),
        (("family", "first", Last), {"config": LastConfig}, "is the config of a family 'last', not 'first'"),
        (("family", "last", Last), {"config": dict}, "subclass of headway.config.ModelConfig"),
        (("optimizer", "x", 3), {}, "needs a function or class"),
        (("objective", "x", print), {"like": "focal"}, "like='focal' is not one of causal"),
        (("reader", "x", print), {"endings": [".csv"]}, "files ending in '.csv' are read as 'csv'"),
        (("dataset", "x", print), {"records": "poems"}, "records='poems' is not one of text, pairs"),
        (("sampler", "top-x", print), {"parameters": {}}, "not a name for a sampler"),
    ],
)
def test_a_wrong_registration_is_explained(arguments, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        headway.register(*arguments, **options)


def test_a_registered_sampler_is_part_of_every_order():
    parameters = {"x": NumberParam("subtracted", off=0.0)}
    headway.register("sampler", "none_at_all", lambda logits, x: logits - x, parameters=parameters)
    logits = torch.randn(2, 8)
    assert torch.equal(Pipeline(none_at_all=1.0, preset="default").apply(logits), logits - 1)
    names = [s.name for s in Pipeline(none_at_all=1.0, temperature=0.5, preset="temperature_first").samplers]
    assert names == ["temperature", "none_at_all"]
    per_row = Pipeline(none_at_all=[0.0, 2.0]).apply(logits)
    assert torch.equal(per_row, logits - torch.tensor([[0.0], [2.0]]))
    assert Pipeline(top_k=2, none_at_all=1.0, preset="default").apply(torch.randn(1, 64)).isfinite().sum() == 2


def test_a_registered_attention_is_shown_with_its_own_weights():
    def uniform(q, k, v, *, mask=None, bias=None, causal=False, dropout=0.0):
        weights = torch.full((*q.shape[:3], k.shape[2]), 0.25)
        return weights @ v, weights

    headway.register("attention", "uniform", uniform)
    headway.register("attention", "hidden", lambda q, k, v, **options: (q, None))
    shape = {"vocab_size": 9, "n_layers": 1, "n_heads": 2, "d_model": 8}
    (map_,) = attention_maps(headway.create("gpt", attention="uniform", **shape), [1, 2, 3])
    assert torch.equal(map_.weights, torch.full((2, 3, 3), 0.25))
    with pytest.raises(InputError, match="returns no weights"):
        attention_maps(headway.create("gpt", attention="hidden", **shape), [1, 2, 3])


# ── models of one's own in Python ─────────────────────────────────────────────────────────────────────────────────


def test_train_takes_a_model(tmp_path):
    register_last()
    recipe = load_recipe("demo", ["train.steps=4", "train.max_seconds=none", "tokenizer.vocab_size=280"])
    tokenizer = headway.tokenizers.train("char", ["abc " * 100])
    with pytest.raises(ConfigError, match="the model has a vocabulary of 256, the tokenizer 280"):
        headway.train(recipe, model=headway.create("last"), out=tmp_path / "wrong", quiet=True)
    model = headway.create("last", vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    with torch.no_grad():
        model.table.weight.zero_()
    seen = []
    result = headway.train(recipe, model=model, out=tmp_path / "run", on_step=seen.append)
    assert result.model is model
    assert [progress.step for progress in seen] == [1, 2, 3, 4]
    assert seen[0].loss == pytest.approx(torch.log(torch.tensor(float(tokenizer.vocab_size))).item(), rel=1e-5)
    loaded = headway.load(tmp_path / "run")
    assert torch.equal(loaded(torch.tensor([[1, 2]])), model(torch.tensor([[1, 2]])))

    class Unregistered(Last):
        pass

    stranger = Unregistered(LastConfig(vocab_size=tokenizer.vocab_size))
    del headway.MODELS["last"]
    with pytest.raises(ConfigError, match="whose family is registered"):
        headway.train(recipe, model=stranger, out=tmp_path / "no")


class Duck:
    """A model of no class of ours: uniform over five tokens, with the least that the contract asks for."""

    def __init__(self, tokenizer=None):
        self.tokenizer = tokenizer

    def __call__(self, ids, lengths=None):
        return torch.zeros(*ids.shape, self.tokenizer.vocab_size if self.tokenizer else 5)

    def start(self, batch_size=1):
        return DuckState(torch.zeros(batch_size, dtype=torch.long))

    def step(self, ids, state, lengths=None):
        n_new = torch.full_like(state.length, ids.shape[1]) if lengths is None else lengths
        return self(ids), DuckState(state.length + n_new)


class DuckState:
    def __init__(self, length):
        self.length, self.nbytes = length, length.nbytes

    def reorder(self, rows):
        return DuckState(self.length[torch.as_tensor(rows)])

    def copy(self):
        return DuckState(self.length.clone())


def test_a_duck_typed_model_generates_is_scored_searched_and_compared(tmp_path):
    duck = Duck(headway.tokenizers.train("char", ["to be or not to be"]))
    assert len(list(headway.generate(duck, "to", max_new_tokens=4, min_new_tokens=4, seed=1))) == 4
    assert [
        len(c.tokens) for c in headway.complete(duck, ["to", "be or"], max_new_tokens=3, min_new_tokens=3, seed=1)
    ] == [3, 3]
    V = duck.tokenizer.vocab_size
    score = headway.evaluate(duck, "to be")
    assert score.nats_per_token == pytest.approx(torch.log(torch.tensor(float(V))).item(), rel=1e-5)
    assert len(beam_search(duck, [[1, 2]], num_beams=2, max_new_tokens=2)[0][0].tokens) == 2
    Path("be.txt").write_text("to be or not to be. " * 40)
    comparison = headway.compare([duck, duck], data="be.txt", out=tmp_path / "both", quiet=True)
    assert [result.name for result in comparison.results] == ["duck", "duck-2"]
    assert comparison.results[0].scores["bits_per_byte"] > 0


def test_what_a_model_lacks_is_named():
    class NoStep:
        def __call__(self, ids):
            return ids

        def start(self, batch_size=1):
            return None

    with pytest.raises(InputError, match="NoStep is not a language model: it has no `step`"):
        headway.evaluate(NoStep(), "text")
    with pytest.raises(InputError, match="BiLSTM is not a language model: it has no `start`, `step`"):
        headway.generate(headway.create("bilstm", vocab_size=9, d_model=8, d_hidden=8), "a")
    with pytest.raises(InputError, match="headway translate"):
        headway.evaluate(headway.create("seq2seq", vocab_size=9, d_model=8, n_layers=1), "text")


# ── optimisers ────────────────────────────────────────────────────────────────────────────────────────────────────


class Counting(torch.optim.Optimizer):
    """SGD whose step size depends on numbers that it counts: one in its group, one per parameter."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "k": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["n"] = state.get("n", 0) + 1
                with torch.no_grad():
                    parameter -= group["lr"] / (group["k"] + state["n"]) * parameter.grad


def two_groups(parameters, lr):
    first, *others = parameters
    return torch.optim.SGD([{"params": [first], "momentum": 0.0}, {"params": others, "momentum": 0.9}], lr=lr)


OPTIMIZERS_OF_OTHERS = [
    torch.optim.RAdam,
    torch.optim.NAdam,
    torch.optim.Rprop,
    torch.optim.Adagrad,
    functools.partial(torch.optim.SGD, momentum=0.9, dampening=0.5),
    two_groups,
    Counting,
]


@pytest.mark.parametrize("make", OPTIMIZERS_OF_OTHERS)
def test_an_optimizer_resumes_exactly(make, tmp_path):
    """Trained in one go, or stopped, saved and resumed: the same weights, with optimizers we know nothing about."""
    Path("my.txt").write_text("The cat sat on the mat. " * 200)
    headway.register("optimizer", "theirs", lambda model, config: make(list(model.parameters()), lr=config.lr))
    settings = ["data.path=my.txt", "tokenizer.kind=char", "model.name=gpt-tiny", "model.dropout=0.0",
                "train.optimizer=theirs", "train.max_seconds=none", "train.schedule=constant", "train.warmup_steps=0",
                "train.batch_size=2"]  # fmt: skip
    at_once = headway.train(load_recipe("demo", [*settings, "train.steps=4"]), out=tmp_path / "once", quiet=True)
    headway.train(load_recipe("demo", [*settings, "train.steps=2"]), out=tmp_path / "twice", quiet=True)
    resumed = headway.train(
        load_recipe(tmp_path / "twice", ["train.steps=4"]), out=tmp_path / "twice", resume=True, quiet=True
    )
    for (name, a), b in zip(at_once.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_saving_does_not_change_what_an_unknown_optimizer_does():
    """Its state is saved as far as it exists: zeros in place of what a first step creates would change that step."""
    model = nn.Linear(3, 2)
    headway.register("optimizer", "theirs", lambda model, config: torch.optim.Rprop(model.parameters()))
    optimizer = Optimizer(model, headway.config.TrainConfig(optimizer="theirs"), device=torch.device("cpu"))
    assert optimizer.state() == {}
    assert optimizer.registered_state() == {}
    assert not optimizer.is_capturable
    assert not skips_by_itself(optimizer.optimizers[0])
    assert skips_by_itself(OPTIMIZERS["adamw"](model, headway.config.TrainConfig())[0])


# ── what an adversary found ───────────────────────────────────────────────────────────────────────────────────────


def test_a_sampler_cannot_take_a_keyword_of_another():
    for name, parameter in (("top", "k"), ("min_new", "tokens"), ("max_new", "tokens"), ("seed", "x")):
        parameters = {"x": NumberParam("x", off=0.0), parameter: NumberParam("y", default=1.0)}
        with pytest.raises(ConfigError, match=r"belongs to|already a sampler"):
            headway.register("sampler", name, lambda logits, **values: logits, parameters=parameters)
    assert headway.sampling.FLAT_NAMES["top_k"] == ("top_k", "k")


def test_two_files_of_one_name_are_two_plugins():
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "random.py").write_text(
            f"import headway\nheadway.register('metric', 'metric_{folder}', lambda h, r: 0.0)\n"
        )
        load_plugin(f"{folder}/random.py")
    assert {"metric_a", "metric_b"} <= set(METRICS)
    assert "metric_a" not in vars(sys.modules["random"])


def test_a_metric_cannot_overwrite_a_score():
    with pytest.raises(ConfigError, match="a score that every run has"):
        headway.register("metric", "perplexity", lambda h, r: 0.0)


def test_options_of_a_registration_are_checked():
    with pytest.raises(ConfigError, match=r"register\('family', …\) needs config=…"):
        headway.register("family", "last", Last)
    with pytest.raises(ConfigError, match="has no option 'parameters'; it has none"):
        headway.register("optimizer", "x", print, parameters={})


class WindowConfig(ModelConfig, frozen=True, kw_only=True):
    context: int = 32
    window: int | None = 4


def test_none_of_a_registered_family_survives_the_recipe(tmp_path):
    headway.register("family", "window", Last, config=WindowConfig)
    recipe = load_recipe("demo", ["model.family=window", "model.window=none"])
    (tmp_path / "r.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "r.toml") == recipe
    (tmp_path / "p.toml").write_text(recipe.explained())
    assert load_recipe(tmp_path / "p.toml").model.window is None


def test_a_model_of_ones_own_keeps_its_mode():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.duck = Duck(headway.tokenizers.train("char", ["to be"]))
            self.tokenizer, self.dropout = self.duck.tokenizer, nn.Dropout(0.5)
            self.start, self.step = self.duck.start, self.duck.step

        def forward(self, ids, lengths=None):
            return self.duck(ids)

    for is_training in (False, True):
        model = Dropping().train(is_training)
        headway.complete(model, "to", max_new_tokens=2)
        headway.evaluate(model, "to be")
        assert (model.training, model.dropout.training) == (is_training, is_training)


def test_uncached_models_are_models():
    assert issubclass(UncachedLM, Model)


def test_a_registered_objective_is_called_for_recurrent_models(tmp_path):
    """Stateful truncated BPTT has a loss of its own, which must not take its place."""
    calls = []

    def counted(model, batch, smoothing=0.0):
        calls.append(batch)
        return OBJECTIVES["causal"](model, batch, smoothing)

    headway.register("objective", "counted", counted, like="causal")
    Path("my.txt").write_text("The cat sat on the mat. " * 200)
    settings = ["data.path=my.txt", "tokenizer.kind=char", "model.family=lstm", "model.d_model=8", "train.steps=3",
                "train.objective=counted", "train.max_seconds=none", "train.batch_size=2"]  # fmt: skip
    headway.train(load_recipe("demo", settings), out=tmp_path / "run", quiet=True)
    assert len(calls) == 3
    assert headway.open_run(tmp_path / "run").metadata["objective"] == "counted"
    with pytest.raises(ConfigError, match=r"train\.ar_alpha=2\.0 is part of the built-in losses"):
        headway.train(load_recipe("demo", [*settings, "train.ar_alpha=2.0"]), out=tmp_path / "no", quiet=True)


def test_a_reader_found_by_its_ending_is_part_of_the_recipe(tmp_path):
    headway.register("reader", "shout", lambda file, options: iter([file.read_text().upper()]), endings=[".shout"])
    Path("my.shout").write_text("The cat sat on the mat. " * 200)
    settings = [
        "data.path=my.shout",
        "tokenizer.kind=char",
        "model.name=gpt-tiny",
        "train.steps=1",
        "train.batch_size=2",
    ]
    headway.train(load_recipe("demo", settings), out=tmp_path / "run", quiet=True)
    assert headway.open_run(tmp_path / "run").settings["data.format"] == "shout"


def test_a_checkpoint_of_changed_code_is_refused(tmp_path):
    register_last()
    Path("my.txt").write_text("The cat sat on the mat. " * 200)
    settings = [
        "data.path=my.txt",
        "tokenizer.kind=char",
        "model.family=last",
        "train.steps=1",
        "train.max_seconds=none",
    ]
    headway.train(load_recipe("demo", settings), out=tmp_path / "run", quiet=True)

    class Narrow(Last):
        def __init__(self, config):
            super().__init__(config)
            del self.table
            self.other = nn.Embedding(config.vocab_size, config.vocab_size)

        def init_weights(self):
            self.other.reset_parameters()

        def forward(self, ids, lengths=None):
            return self.other(ids)

    headway.register("family", "last", Narrow, config=LastConfig, replace=True)
    with pytest.raises(
        CheckpointError, match=r"architectures=\['Last'\] is not one of Narrow: did the code of the model change"
    ):
        headway.train(load_recipe(tmp_path / "run", ["train.steps=2"]), out=tmp_path / "run", resume=True, quiet=True)


def test_a_plugin_that_fails_is_explained(capsys):
    Path("mine.py").write_text("x = 1\ny = x / 0\n")
    code, _, err = run("runs --plugin mine", capsys)
    assert code == 2
    assert "--plugin mine fails: mine.py, line 2: ZeroDivisionError: division by zero" in err
    assert "Traceback" not in err


def test_an_own_tokenizer_is_trained_by_its_command(capsys):
    Path("mine.py").write_text(
        "import headway\nfrom headway.tokenizers.char import train_char\n"
        "headway.register('tokenizer', 'letters', lambda texts: train_char(texts))\n"
    )
    Path("my.txt").write_text("The cat sat on the mat. " * 20)
    code, _, err = run("tokenizer train my.txt --kind letters --plugin mine --out letters", capsys)
    assert code == 0, err


def test_families_of_ones_own_have_a_line_in_the_plot_of_a_comparison(tmp_path):
    register_last()
    Path("my.txt").write_text("The cat sat on the mat. " * 400)
    budget = {"tokens": 600, "params": 20_000, "context": 16, "settings": ["tokenizer.kind=char"]}
    comparison = headway.compare(["last", "gpt"], data="my.txt", **budget, out=tmp_path / "c", quiet=True)
    assert all(result.flops > 0 for result in comparison.results)
    plot(comparison, tmp_path / "c.png")


def test_an_unregistered_subclass_is_not_saved_as_its_parent(tmp_path):
    class Doubled(GPT):
        def forward(self, ids, lengths=None, documents=None):
            return 2 * super().forward(ids, lengths, documents)

    model = Doubled(headway.create("gpt-tiny", vocab_size=9).config)
    with pytest.raises(CheckpointError, match="Doubled is not registered"):
        model.save(tmp_path / "doubled")
    with pytest.raises(ConfigError, match="whose family is registered"):
        headway.train("demo", model=model, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "doubled").exists()


def test_the_loss_of_a_registered_objective_is_not_shown_as_bits_per_byte(tmp_path):
    register_last()
    Path("my.txt").write_text("The cat sat on the mat. " * 200)
    headway.register(
        "objective", "half", lambda m, b, s=0.0: (OBJECTIVES["causal"](m, b, s)[0] / 2, None), like="causal"
    )
    settings = ["data.path=my.txt", "tokenizer.kind=char", "model.family=last", "train.steps=2", "train.objective=half"]
    seen = []
    result = headway.train(load_recipe("demo", settings), out=tmp_path / "run", on_step=seen.append)
    assert [progress.bits_per_byte for progress in seen] == [None, None]
    assert result.scores["bits_per_byte"] > 0
    assert loss_unit({"run": headway.open_run(tmp_path / "run")}) == "nats; of training: half"
