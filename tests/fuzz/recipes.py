"""Damaged recipes: one that loads is the same after being written and read again, and in --print-config."""

import contextlib
import io
import random
import re
import tomllib

import tomli_w

from headway.cli import main
from headway.config import RECIPES, load_recipe
from headway.config.setting_use import settings_in, unused_settings
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json

HOSTILE_LINES = [
    "[model]", "[model.x]", "[[train]]", "[train", "steps = 1", 'family = "gpt"', 'name = "gpt2"', "preset = 'x'",
    "x = " + "[" * 3000, "x = " + "{a=" * 3000, "steps = " + "9" * 5000, "lr = 1e999", "lr = nan", "lr = -inf",
    "steps = 99999999999999999999", "steps = 1979-05-27T07:32:00Z", 'path = "\\u0000"', "path = '''\n", "\0", "\ufeff",
    'loggers = ["x"]', "mix = {a = 1, b = nan}", "prune = [0, -1]", 'd_model = "64"', "[eval]", "steps.x.y = 1",
    '"model"."n_layers" = 3', "[data]\nmix = {}", "a.b.c.d.e = {}", "= 1", "special_tokens = [1]", "threads = true",
]  # fmt: skip
OVERRIDES = ["train.steps=3", "model.family=lstm", "tokenizer.kind=char", "x", "train.lr=nan", "model={}", "train=1",
             "model.n_layers=", "data.path=", "a.b.c=1", "model.name=gpt2", "train.steps.x=1", "eval.context=none",
             ".=1", "train.lr=" + "9" * 400, "data.mix={a=1.0}"]  # fmt: skip


class Recipes(Area):
    name = "recipes"
    full_count = 2_000
    ci_count = 40

    def prepare(self) -> None:
        self.texts = [file.read_text(encoding="utf-8") for file in sorted(RECIPES.glob("*.toml"))]
        self.file = self.folder / "recipe.toml"

    def case(self, rng: random.Random) -> str:
        data = self._damaged(rng.choice(self.texts), rng)
        self.file.write_bytes(data)
        overrides = rng.sample(OVERRIDES, rng.choice([0, 0, 0, 1, 2]))
        recipe = load_recipe(self.file, overrides)
        written = self.folder / "written.toml"
        written.write_text(recipe.to_toml(), encoding="utf-8")
        if (again := load_recipe(written)) != recipe:
            self.fail(f"{recipe!r} is {again!r} after being written and read: {recipe.to_toml()}")
        explained = self.folder / "explained.toml"
        explained.write_text(recipe.explained(), encoding="utf-8")
        self._check_explained(recipe, load_recipe(explained))
        recipe.model.resolved()
        unused_settings(recipe, settings_in(tomllib.loads(written.read_text(encoding="utf-8"))))
        self._check_printed(overrides, recipe.explained())
        return "loaded"

    def _damaged(self, text: str, rng: random.Random) -> bytes:
        """A recipe as a careless editor leaves it: other values and tables, lines that do not belong, wrong bytes."""
        match rng.randrange(4):
            case 0:
                return mutate_bytes(text.encode(), rng)
            case 1:
                table = mutate_json(tomllib.loads(text), rng)
                try:
                    return tomli_w.dumps(table).encode() if isinstance(table, dict) else b"x"
                except (TypeError, ValueError, AttributeError):  # TOML has no null, and only tables at the top
                    return text.encode() + repr(table).encode("utf-8", "surrogatepass")
            case 2:
                lines = text.split("\n")
                for _ in range(rng.choice([1, 1, 2, 3])):
                    lines.insert(rng.randrange(len(lines) + 1), rng.choice(HOSTILE_LINES))
                return "\n".join(lines).encode()
            case _:
                values = r"(?m)(?<== )(.+)$"
                n_values = len(re.findall(values, text))
                chosen = {rng.randrange(n_values) for _ in range(rng.choice([1, 1, 3]))}
                counter = iter(range(n_values))
                other = [line.partition("= ")[2] for line in HOSTILE_LINES if " = " in line]
                return re.sub(
                    values, lambda found: rng.choice(other) if next(counter) in chosen else found[0], text
                ).encode()

    def _check_explained(self, recipe: object, again: object) -> None:
        """What --print-config prints is the recipe, but for what follows from the tokenizer and the data."""
        for table in ("tokenizer", "data", "train", "eval"):
            if getattr(recipe, table) != getattr(again, table):
                self.fail(f"--print-config changes [{table}]: {getattr(recipe, table)} to {getattr(again, table)}")

    def _check_printed(self, overrides: list[str], expected: str) -> None:
        words = ["train", str(self.file), "--print-config", *(w for o in overrides for w in ("--set", o))]
        out, err = io.StringIO(), io.StringIO()
        code: object = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(words)
        except SystemExit as end:
            code = end.code or 0
        if code != 0 or out.getvalue() != expected:
            self.fail(f"--print-config of a recipe that loads: exit {code}, {err.getvalue()[-300:]}")
