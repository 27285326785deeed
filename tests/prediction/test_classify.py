import numpy as np
import pytest
import torch

import headway
from headway.errors import InputError
from headway.models.heads import Classifier
from headway.tokenizers import train as train_tokenizer

TEXTS = ["the cat sat", "a dog", "on the mat the cat sat on the mat", "dog"]
TOKENIZER = train_tokenizer("wordpiece", ["the cat sat on the mat", "a dog"] * 5, 60)


def classifier(family="bert", **config):
    """A small classifier with random weights, far from uniform."""
    torch.manual_seed(0)
    sizes = {"vocab_size": TOKENIZER.vocab_size, "d_model": 16, "context": 12, "labels": ["animal", "other", "place"]}
    if family == "bert":
        sizes |= {"n_heads": 2, "n_layers": 2}
    encoder = headway.create(family, device="cpu", **sizes | config)
    model = Classifier(encoder)
    model.tokenizer = TOKENIZER
    with torch.no_grad():
        model.output.weight.normal_()
    return model.eval()


@pytest.mark.parametrize("family", ["bert", "bilstm", "bow"])
def test_probabilities_are_the_softmax_of_the_logits_in_any_batch(family):
    model = classifier(family)
    for batch_size in (1, 3, 8):
        found = headway.classify(model, TEXTS, batch_size=batch_size)
        for text, result in zip(TEXTS, found, strict=True):
            ids, _ = TOKENIZER.build_inputs(TOKENIZER.encode(text)[:10])
            with torch.no_grad():
                expected = model(torch.tensor([ids])).softmax(dim=-1)[0]
            by_label = dict(zip(model.config.labels, expected.tolist(), strict=True))
            assert dict(result.probabilities) == pytest.approx(by_label, abs=1e-5)
            assert result.label == max(by_label, key=by_label.__getitem__)
            assert result.labels == (result.label,)
            assert list(result.probabilities.values()) == sorted(result.probabilities.values(), reverse=True)


def test_a_multi_label_model_gives_every_label_that_reaches_the_threshold():
    model = classifier(multi_label=True)
    [low], [high] = (headway.classify(model, ["the cat"], threshold=t) for t in (0.01, 0.99))
    assert set(low.labels) == {label for label, p in low.probabilities.items() if p >= 0.01}
    assert set(high.labels) == {label for label, p in high.probabilities.items() if p >= 0.99}
    assert dict(low.probabilities) == dict(high.probabilities)
    ids, _ = TOKENIZER.build_inputs(TOKENIZER.encode("the cat"))
    with torch.no_grad():
        expected = model(torch.tensor([ids])).sigmoid()[0].tolist()
    assert dict(low.probabilities) == pytest.approx(dict(zip(model.config.labels, expected, strict=True)), abs=1e-5)


def test_a_pair_of_texts_is_read_with_segments_and_the_longer_one_is_truncated():
    model = classifier()
    [pair], [swapped] = (headway.classify(model, [texts]) for texts in (("the cat", "a dog"), ("a dog", "the cat")))
    ids, segments = (
        torch.tensor([row]) for row in TOKENIZER.build_inputs(*map(TOKENIZER.encode, ("the cat", "a dog")))
    )
    with torch.no_grad():
        expected = model(ids, None, segments).softmax(dim=-1)[0].tolist()
    assert dict(pair.probabilities) == pytest.approx(dict(zip(model.config.labels, expected, strict=True)), abs=1e-5)
    assert dict(pair.probabilities) != pytest.approx(dict(swapped.probabilities), abs=1e-5)
    [long] = headway.classify(model, [("dog", "the cat sat on the mat the cat sat")])
    assert long.is_truncated
    assert not pair.is_truncated


def test_texts_longer_than_the_context_lose_their_end():
    model = classifier()
    [long, cut] = headway.classify(model, ["dog " * 50, "dog " * 10])
    assert (long.is_truncated, cut.is_truncated) == (True, False)
    assert dict(long.probabilities) == pytest.approx(dict(cut.probabilities), abs=1e-6)


def test_nothing_is_classified_without_texts():
    assert headway.classify(classifier(), []) == []


def test_one_string_is_refused():
    with pytest.raises(InputError, match=r"classify takes several: pass a list, \[text\]"):
        headway.classify(classifier(), "the cat")


def test_a_threshold_outside_0_and_1_is_refused():
    with pytest.raises(InputError, match=r"threshold=1\.5 is not a probability"):
        headway.classify(classifier(), ["the cat"], threshold=1.5)


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_models_without_the_head_are_told_what_to_do(family):
    sizes = {"vocab_size": 20, "n_layers": 1, "n_heads": 2, "d_model": 8, "device": "cpu"}
    with pytest.raises(
        InputError, match=r"classify needs an encoder with a classification head.*headway train classify"
    ):
        headway.classify(headway.create(family, **sizes), ["the cat"])


def test_what_is_no_text_is_named():
    model = classifier()
    for wrong in (None, 3.5, float("nan")):
        with pytest.raises(InputError, match=f"text 2 is {wrong}, not a text"):
            headway.classify(model, ["the cat", wrong])
    for wrong in [("the cat", None), ("the cat",), ("a", "b", "c"), (), b"the cat"]:
        with pytest.raises(InputError, match=r"text 1 is .*, not a text"):
            headway.classify(model, [wrong])


def test_any_iterable_of_texts_will_do():
    model = classifier()
    expected = [result.probabilities for result in headway.classify(model, ["the cat", "a dog"])]
    for texts in (
        iter(["the cat", "a dog"]),
        ("the cat", "a dog"),
        np.array(["the cat", "a dog"]),
        {"the cat": 1, "a dog": 2},
    ):
        assert [result.probabilities for result in headway.classify(model, texts)] == expected
