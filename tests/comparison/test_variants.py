"""Variants of one model side by side, and the leak that a missing mask causes."""

import pytest

from headway.comparison.compare import compare
from headway.comparison.report import best_result, render_text
from headway.comparison.selection import Variant, find_candidates
from headway.config import load_recipe
from headway.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "settings", "label"),
    [
        ("gpt:model.norm=none", ["model.norm=none"], "gpt:norm=none"),
        ("gpt:norm=none", ["model.norm=none"], "gpt:norm=none"),
        ("gpt:norm=none,train.lr=1e-3", ["model.norm=none", "train.lr=1e-3"], "gpt:norm=none,train.lr=1e-3"),
        ("mine.toml:n_layers=8", ["model.n_layers=8"], "mine:n_layers=8"),
        ("ngram:prune=[0,1]", ["model.prune=[0,1]"], "ngram:prune=[0,1]"),
    ],
)
def test_a_variant_is_a_name_and_settings(name, settings, label):
    variant = Variant.parse(name)
    assert (variant.settings, variant.label) == (settings, label)


def test_a_plain_name_is_no_variant_and_half_of_one_is_an_error():
    assert Variant.parse("gpt") is None
    for name in ("gpt:", "gpt:norm", ":norm=none", "gpt:norm="):
        with pytest.raises(ConfigError, match="is not a variant of a model: write it as"):
            Variant.parse(name)


def test_mistakes_in_a_variant_name_the_setting(tmp_path):
    for name, message in (
        ("gptt:model.norm=none", "Did you mean 'gpt'"),
        ("gpt:model.nrom=none", "Did you mean 'model.norm'"),
        ("gpt:model.norm=nothing", "norm"),
        ("gpt:data.path=x", "data.path"),
        ("gpt:tokenizer.kind=char", "for one model set model., train. or eval. settings"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare([name], data="letters", tokens=1000, params=20_000, out=tmp_path / "out", quiet=True)
    with pytest.raises(ConfigError, match="'gpt:norm=none' is listed twice"):
        find_candidates(["gpt:norm=none", "gpt:model.norm=none"], "text")


@pytest.mark.parametrize("mask", ["none"])
def test_on_random_letters_only_a_model_that_sees_its_targets_gets_below_3_bits(mask, tmp_path):
    """8 letters, each as likely: log2(8) = 3 bits per byte is the least for a model that does not cheat."""
    comparison = compare(
        ["gpt", f"gpt:attention_mask={mask},n_layers=1"],
        data="letters",
        params=8_000,
        tokens=40_000,
        context=16,
        settings=["tokenizer.kind=char", "train.device=cpu", "train.threads=1", "gpt:model.n_layers=1"],
        out=tmp_path / "out",
        quiet=True,
    )
    causal, leaking = comparison.results
    assert 2.99 < causal.scores["bits_per_byte"] < 3.1
    assert not causal.sees_future
    assert leaking.scores["bits_per_byte"] < 1
    assert leaking.sees_future
    assert best_result(comparison) is causal
    text = render_text(comparison)
    assert f"{leaking.name}: this model sees what it predicts" in text
    assert "leaks" in text
    assert load_recipe(tmp_path / "out" / leaking.name).model.attention_mask == mask
