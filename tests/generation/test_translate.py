"""Translation: beam search equals the naive one, batching changes nothing, and every text gets its translation."""

from itertools import cycle

import pytest
import torch
import transformers

import headway
from headway.errors import ConfigError, InputError
from headway.generation.alignment import align
from headway.generation.beam_search import beam_search
from headway.generation.source import encode_sources, start_from_sources
from headway.generation.translate import translate, translations
from headway.nn.masks import padding
from headway.nn.padding import pad_ids
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import POSITIONS, amplified, name
from tests.reference.search import beam

LETTERS = train_tokenizer("char", ["abcdefghijklmnopqrstuvwxyz "])
TEXTS = ["the cat sat", "a", "", "mat", "on the mat sat the cat", "zz top"]


def translator(**config):
    """A model with random weights and a character tokenizer."""
    shape = {"vocab_size": LETTERS.vocab_size, "d_model": 24, "n_heads": 4, "n_layers": 2, "d_ff": 40, "context": 32}
    special_ids = {"bos_id": LETTERS.bos_id, "eos_id": LETTERS.eos_id}
    model = amplified(headway.create("transformer", **{**shape, **special_ids, "dropout": 0.1, **config}))
    model.tokenizer = LETTERS
    return model


# The model and the stopping rule do not interact, so each model is searched with one rule.
CONFIGS = [
    {"positions": positions, "norm_order": norm_order}
    for positions, norm_order in zip(POSITIONS, cycle(("pre", "post")), strict=False)
]
CONFIGS += [
    {"n_kv_heads": 2, "norm": "rms", "feed_forward": "swiglu", "bias": False},
    {"tie_embeddings": False, "feed_forward": "relu2", "n_encoder_layers": 1, "n_decoder_layers": 3},
]


@pytest.mark.parametrize(
    ("config", "early"),
    list(zip(CONFIGS, cycle([True, False, "never"]), strict=False)),
    ids=lambda v: name(v) if isinstance(v, dict) else str(v),
)
def test_beam_search_equals_the_naive_one(config, early):
    """The naive one has no cache and no batch: the whole text goes through the model for every token of every beam."""
    model = translator(**config)
    texts = TEXTS[:2]
    options = {"n_best": 3, "max_new_tokens": 7, "early_stopping": early, "length_penalty": 0.8}
    translated = translate(model, texts, num_beams=4, **options)
    for text, best in zip(texts, translated, strict=True):
        source = torch.tensor(encode_sources(model, LETTERS, [text]))

        def logits_after(tokens, source=source):
            with torch.no_grad():
                return model(torch.tensor([[LETTERS.bos_id, *tokens]]), source=source)[0, -1].double().tolist()

        expected = beam(logits_after, B=4, L=7, eos=(LETTERS.eos_id,), alpha=0.8, early=early, n_best=3)
        for (tokens, score, log_prob, ended), ours in zip(expected, [best, *best.others], strict=True):
            assert ours.tokens == tokens
            assert (ours.ended, ours.score, ours.log_prob) == (
                ended, pytest.approx(score, abs=1e-4), pytest.approx(log_prob, abs=1e-4)
            )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"temperature": 0.9, "seed": 5, "n_best": 2}], ids=str)
def test_a_batch_of_mixed_lengths_equals_one_by_one(options):
    model = translator()
    together = translate(model, TEXTS, max_new_tokens=12, **options)
    for i, text in enumerate(TEXTS):
        seed = {"seed": options["seed"] + i * options["n_best"]} if "seed" in options else {}
        alone = translate(model, text, max_new_tokens=12, **{**options, **seed})[0]
        assert [t.tokens for t in (alone, *alone.others)] == [t.tokens for t in (together[i], *together[i].others)]
    halves = translate(model, TEXTS, max_new_tokens=12, batch_size=2, **options)
    assert [t.tokens for t in halves] == [t.tokens for t in together]


@pytest.mark.parametrize(("order", "kind"), [("post", "MarianMTModel"), ("pre", "PegasusForConditionalGeneration")])
def test_transformers_finds_the_same_translations(order, kind, tmp_path):
    model = translator(norm_order=order, norm_eps=1e-5, n_decoder_layers=3)
    model.save(tmp_path / "model")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    assert type(theirs).__name__ == kind
    loaded = headway.load(tmp_path / "model")
    for saved, read in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(saved, read)
    sources = encode_sources(model, LETTERS, ["the cat sat", "a mat", "zz"])
    ids, lengths = pad_ids(sources)
    mask = padding(lengths, ids.shape[1])
    out = theirs.generate(
        input_ids=ids, attention_mask=mask.long(), num_beams=4, num_return_sequences=2, max_new_tokens=10,
        do_sample=False, length_penalty=1.0, early_stopping=False, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    by_row = beam_search(
        loaded, [[LETTERS.bos_id]] * 3, num_beams=4, n_best=2, max_new_tokens=10, eos_ids=[LETTERS.eos_id],
        state=start_from_sources(loaded, sources, 11),
    )  # fmt: skip
    ours = [hypothesis for row in by_row for hypothesis in row]
    for sequence, score, hypothesis in zip(out.sequences, out.sequences_scores, ours, strict=True):
        n = len(hypothesis.tokens)
        assert sequence[1 : 1 + n].tolist() == hypothesis.tokens
        assert score.item() == pytest.approx(hypothesis.score, abs=1e-4)


def test_a_nonzero_output_bias_is_refused(tmp_path):
    model = translator(norm_eps=1e-5)
    model.save(tmp_path / "model")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    theirs.final_logits_bias += 1.0
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(headway.CheckpointError, match="'final_logits_bias' is not"):
        headway.load(tmp_path / "theirs")


def test_sampling_is_determined_by_the_seed():
    model = translator()
    first = translate(model, TEXTS, top_p=0.9, seed=3, max_new_tokens=8)
    assert [t.text for t in first] == [t.text for t in translate(model, TEXTS, top_p=0.9, seed=3, max_new_tokens=8)]
    assert [t.text for t in first] != [t.text for t in translate(model, TEXTS, top_p=0.9, seed=4, max_new_tokens=8)]
    assert first[0].score == first[0].log_prob
    assert first[0].log_prob < 0
    greedy = translate(model, TEXTS, temperature=0.0, max_new_tokens=8)
    assert [t.tokens for t in greedy] == [t.tokens for t in translate(model, TEXTS, num_beams=1, max_new_tokens=8)]


def test_samples_are_sorted_by_probability():
    best = translate(translator(), "the cat", temperature=2.0, seed=6, n_best=5, max_new_tokens=6)[0]
    log_probs = [t.log_prob for t in (best, *best.others)]
    assert log_probs == sorted(log_probs, reverse=True)


def test_beam_search_takes_penalties_but_no_filters():
    model = translator()
    plain = translate(model, "the cat", max_new_tokens=10)[0]
    constrained = translate(model, "the cat", no_repeat_ngram=1, max_new_tokens=10)[0]
    assert len(set(constrained.tokens)) == len(constrained.tokens)
    assert plain.log_prob >= constrained.log_prob - 1e-6
    with pytest.raises(ConfigError, match="top_k with beam search"):
        translate(model, "the cat", num_beams=2, top_k=5)


def test_wrong_requests_are_refused():
    model = translator()
    with pytest.raises(InputError, match=r"text 2 has 40 tokens, and this model reads at most 31.*--truncate"):
        translate(model, ["a", "b" * 40])
    assert translate(model, "b" * 40, truncate=True, max_new_tokens=3)[0].tokens == (
        translate(model, "b" * 31, max_new_tokens=3)[0].tokens
    )
    for wrong in ({"sampler_preset": "nonsense"}, {"seed": 3}, {"length_norm": "x"}, {"early_stopping": "soon"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            translate(model, [""], **wrong)
    with pytest.raises(ConfigError, match="length_norm='power' is for beam search"):
        translate(model, "a", top_p=0.5, length_norm="power")
    with pytest.raises(ConfigError, match="n_best=6 of num_beams=5"):
        translate(model, "a", n_best=6)
    with pytest.raises(InputError, match="a GPT has no source to translate from"):
        translate(headway.create("gpt-mini"), "a")
    limited = translator(positions="learned")
    with pytest.raises(InputError, match="max_new_tokens=32 do not fit in the context of 32"):
        translate(limited, "a", max_new_tokens=32)


def test_translations_come_from_the_longest_source_to_the_shortest():
    rows = [row for row, _ in translations(translator(), TEXTS, batch_size=2, max_new_tokens=3)]
    assert rows == [2, 4, 0, 5, 3, 1]  # the empty one first


def attend_equally(model, layer):
    """Make all cross-attention weights of a layer equal."""
    block = model.decoder.blocks[layer].cross_attention
    with torch.no_grad():
        block.kv.weight.zero_()
        block.kv.bias.zero_()


def test_words_align_with_the_source_words_they_attend_to():
    tokenizer = train_tokenizer("bpe", ["the cats sat"] * 3, vocab_size=262)
    model = translator(vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id, n_layers=3)
    model.tokenizer = tokenizer
    words = align(model, "the cat sat", "abc de")
    assert [word.word for word in words] == ["abc", "de"]
    assert all(word.source == ["the", "cat", "sat"][word.source_index] and 0 < word.weight <= 1 for word in words)
    assert align(model, "", "abc") == []
    attend_equally(model, layer=1)  # the penultimate
    [word] = align(model, "a cats", "abc")
    n_tokens, n_cats = len(tokenizer.encode("a cats")) + 1, len(tokenizer.encode("a cats")) - 1  # EOS; all but "a"
    assert n_cats > 1
    assert (word.source, word.weight) == ("cats", pytest.approx(n_cats / n_tokens, abs=1e-5))


def test_letters_align_with_letters_if_the_tokens_are_letters():
    model = translator()
    letters = align(model, "the cat", "ab c")
    assert [letter.word for letter in letters] == ["a", "b", " ", "c"]
    assert all(letter.source == "the cat"[letter.source_index] and 0 < letter.weight <= 1 for letter in letters)
    assert all(letter.source == "  the cat"[letter.source_index] for letter in align(model, "  the cat", "ab c"))
    attend_equally(model, layer=1)  # the last of two
    assert [letter.weight for letter in align(model, "the cat", "ab c")] == pytest.approx([1 / 8] * 4, abs=1e-5)
