"""Masks are filled with the most probable tokens, and a text without one, or a model that fills none, is refused."""

import pytest
import torch

import headway
from headway import tokenizers
from headway.errors import InputError
from headway.models import MaskedLM
from headway.models.heads import Classifier
from headway.prediction.fill import fill_texts

TEXT = ["The cat sat on the mat. The dog walks and walked; walking talks."] * 5
TOKENIZER = tokenizers.train("wordpiece", TEXT, 90)


def small_bert(seed=0, **config):
    torch.manual_seed(seed)
    sizes = {"vocab_size": TOKENIZER.vocab_size + 3, "n_layers": 2, "n_heads": 2, "d_model": 16, "context": 32}
    bert = headway.create("bert", device="cpu", **sizes | config)
    bert.tokenizer = TOKENIZER
    return bert


@pytest.fixture(scope="module")
def model():
    masked_lm = MaskedLM(small_bert())
    with torch.no_grad():
        masked_lm.bias.normal_(generator=torch.Generator().manual_seed(1))  # probabilities that differ
    return masked_lm.eval()


def test_candidates_are_the_most_probable_ordinary_tokens(model):
    text = "The [MASK] sat on the [MASK]."
    masks = headway.fill(model, text, top=7)
    ids = TOKENIZER.build_inputs(TOKENIZER.encode_with_masks(text))[0]
    with torch.no_grad():
        probs = model(torch.tensor([ids]))[0].softmax(dim=-1)
    special_ids = set(TOKENIZER.special_ids.values())
    columns = [column for column, id in enumerate(ids) if id == TOKENIZER.mask_id]
    assert [mask.start for mask in masks] == [4, 22]
    for column, mask in zip(columns, masks, strict=True):
        ordinary = [id for id in range(TOKENIZER.vocab_size) if id not in special_ids]
        expected = sorted(ordinary, key=lambda id: -probs[column, id])[:7]
        assert [candidate.token for candidate in mask.candidates] == list(map(TOKENIZER.token, expected))
        for id, candidate in zip(expected, mask.candidates, strict=True):
            assert candidate.probability == pytest.approx(float(probs[column, id]), rel=1e-4)


def test_all_ordinary_tokens_can_be_candidates_and_their_probabilities_are_of_the_whole_vocabulary(model):
    (mask,) = headway.fill(model, "[MASK]", top=10_000)
    assert len(mask.candidates) == TOKENIZER.vocab_size - len(TOKENIZER.special_ids)
    assert 0.8 < sum(candidate.probability for candidate in mask.candidates) < 1


def test_the_text_is_filled_in_and_pieces_join_their_word(model):
    (first, second) = headway.fill(model, "The [MASK], walk [MASK]!", top=10_000)
    texts = {candidate.token: candidate.text for candidate in first.candidates}
    assert texts["cat"] == "The cat, walk [MASK]!"
    assert texts["."] == "The ., walk [MASK]!"
    texts = {candidate.token: candidate.text for candidate in second.candidates}
    piece = next(token for token in texts if token.startswith("##"))
    assert texts[piece] == f"The [MASK], walk{piece[2:]}!"
    (mask,) = headway.fill(model, "walk[MASK]", top=10_000)
    assert {c.token: c.text for c in mask.candidates}["cat"] == "walk cat"  # a word of its own, also for the model


def test_texts_of_any_length_share_batches(model):
    texts = ["[MASK]", "The [MASK] sat on the mat and the [MASK] walked.", "A [MASK]."] * 3
    batched = dict(fill_texts(model, texts, batch_size=4))
    for number, text in enumerate(texts):
        for together, alone in zip(batched[number], headway.fill(model, text), strict=True):
            assert [c.text for c in together.candidates] == [c.text for c in alone.candidates]
            for a, b in zip(together.candidates, alone.candidates, strict=True):
                assert a.probability == pytest.approx(b.probability, abs=1e-5)


def test_only_the_mask_token_is_special_and_only_here():
    ids = TOKENIZER.encode_with_masks("The [MASK] [SEP] cat")
    assert ids.count(TOKENIZER.mask_id) == 1
    assert TOKENIZER.special_ids["[SEP]"] not in ids
    plain = TOKENIZER.encode("The [MASK] cat")
    assert TOKENIZER.mask_id not in plain
    without = TOKENIZER.encode_with_masks("The cat walks")
    assert without == TOKENIZER.encode("The cat walks")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("The cat", r"text 1, 'The cat', has no \[MASK\]: write \[MASK\] where a token is to be filled in"),
        ("", r"text 1, '', has no \[MASK\]"),
        ("[mask]", r"has no \[MASK\]"),
        ("[MASK] " * 31, "has 31 tokens, and this model reads at most 30: shorten it"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused(model, text, message):
    with pytest.raises(InputError, match=message):
        headway.fill(model, text)


def test_a_text_is_refused_by_its_number_before_anything_is_computed(model):
    with pytest.raises(InputError, match="text 2, 'a cat', has no"):
        next(fill_texts(model, ["[MASK]", "a cat"]))


def test_models_that_fill_no_masks_are_refused():
    gpt = headway.create("gpt-tiny", device="cpu")
    with pytest.raises(InputError, match="fill needs an encoder with a masked-LM head, and this is a GPT"):
        headway.fill(gpt, "[MASK]")
    with pytest.raises(InputError, match=r"and this is a BERT without a head: .*headway train bert-pydocs"):
        headway.fill(small_bert(), "[MASK]")
    with pytest.raises(InputError, match=r"this is an encoder with a classification head: use `headway classify`"):
        headway.fill(Classifier(small_bert(labels=["a", "b"])), "[MASK]")
