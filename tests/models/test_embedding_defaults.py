"""The files of sentence-transformers: pooling, normalisation and length are read and written again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway.errors import CheckpointError
from headway.models.embedding_defaults import EmbeddingDefaults, read_embedding_defaults, write_embedding_defaults

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}


def write(folder, modules=(TRANSFORMER, POOLING), pooling=None, length=None):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(MEAN if pooling is None else pooling))
    if length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(length))
    return folder


DIRECTORIES = {
    "mean": ({}, EmbeddingDefaults("mean")),
    "normalised": ({"modules": [TRANSFORMER, POOLING, NORMALIZE]}, EmbeddingDefaults("mean", True)),
    "cls": ({"pooling": {**MEAN, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
            EmbeddingDefaults("cls")),
    "max": ({"pooling": {"pooling_mode_max_tokens": True, "include_prompt": True, "word_embedding_dimension": 3}},
            EmbeddingDefaults("max")),
    "two at once": ({"pooling": {**MEAN, "pooling_mode_max_tokens": True}}, EmbeddingDefaults("mean+max")),
    "one that is not ours": ({"pooling": {"pooling_mode_lasttoken": True}}, EmbeddingDefaults("lasttoken")),
    "newer": ({"pooling": {"pooling_mode": "cls", "embedding_dimension": 3}}, EmbeddingDefaults("cls")),
    "length": ({"length": {"max_seq_length": 12, "do_lower_case": False}}, EmbeddingDefaults("mean", max_tokens=12)),
    "no length": ({"length": {"max_seq_length": None}}, EmbeddingDefaults("mean")),
    "lower case": ({"length": {"do_lower_case": True}}, EmbeddingDefaults("mean", unknown=("do_lower_case",))),
    "dense": ({"modules": [TRANSFORMER, POOLING, DENSE, NORMALIZE]},
              EmbeddingDefaults("mean", True, unknown=("Dense",))),
    "transformer only": ({"modules": [TRANSFORMER]}, EmbeddingDefaults("mean")),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_says_how_embeddings_are_made(name, tmp_path):
    files, expected = DIRECTORIES[name]
    assert read_embedding_defaults(write(tmp_path, **files)) == expected


def test_a_directory_without_these_files_says_nothing(tmp_path):
    assert read_embedding_defaults(tmp_path) is None


KNOWN = st.builds(
    EmbeddingDefaults,
    st.sampled_from(["cls", "mean", "max"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10**6)),
)


@given(KNOWN)
def test_what_is_written_is_read_again(tmp_path_factory, defaults):
    folder = tmp_path_factory.mktemp("model")
    write_embedding_defaults(defaults, 24, folder)
    assert read_embedding_defaults(folder) == defaults
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["word_embedding_dimension"] == 24


@pytest.mark.parametrize("defaults", [EmbeddingDefaults("lasttoken"), EmbeddingDefaults("mean", unknown=("Dense",))])
def test_steps_that_are_not_ours_are_not_written(defaults, tmp_path):
    """The directory would describe other embeddings than those of the model it came from."""
    write_embedding_defaults(defaults, 24, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_keeps_them_when_it_is_saved(tmp_path):
    model = headway.create("bert", vocab_size=20, context=8, n_layers=1, n_heads=2, d_model=8)
    model.save(tmp_path / "plain")
    assert headway.load(tmp_path / "plain").embedding_defaults is None
    write(tmp_path / "plain", modules=[TRANSFORMER, POOLING, NORMALIZE], length={"max_seq_length": 6})
    loaded = headway.load(tmp_path / "plain")
    assert loaded.embedding_defaults == EmbeddingDefaults("mean", True, 6)
    loaded.save(tmp_path / "again")
    assert headway.load(tmp_path / "again").embedding_defaults == loaded.embedding_defaults


DAMAGED = {
    "not JSON": ({"modules": "["}, "modules.json is damaged"),
    "not a list": ({"modules": '{"a": 1}'}, "modules.json is damaged"),
    "no type": ({"modules": [{"path": ""}]}, "modules.json is damaged"),
    "a type that is no text": ({"modules": [{**POOLING, "type": 3}]}, "modules.json is damaged"),
    "a folder that is no text": ({"modules": [{**POOLING, "path": 3}]}, "modules.json is damaged"),
    "no pooling file": ({"modules": [{**POOLING, "path": "3_Pooling"}]}, "3_Pooling/config.json cannot be read"),
    "a length below 1": ({"length": {"max_seq_length": 0}}, "max_seq_length=0 is not a number of tokens"),
    "a length in words": ({"length": {"max_seq_length": "12"}}, "max_seq_length='12' is not a number of tokens"),
    "a length that is true": ({"length": {"max_seq_length": True}}, "max_seq_length=True is not a number of tokens"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(name, tmp_path):
    files, message = DAMAGED[name]
    with pytest.raises(CheckpointError, match=message):
        read_embedding_defaults(write(tmp_path, **files))


@pytest.mark.parametrize("path", ["..", "/", "/etc", "../model", "a/b", ".", "1_Pooling/", "a\0b"])
def test_nothing_outside_the_directory_is_opened(path, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    with pytest.raises(CheckpointError, match=r"modules\.json is damaged|config\.json cannot be read"):
        read_embedding_defaults(write(tmp_path / "model", modules=[{**POOLING, "path": path}]))
