"""Generation: cached = uncached, batched = single, and the rules for beginning and end of text."""

import pytest
import torch

import headway
from headway import tokenizers
from headway.errors import ConfigError, InputError
from headway.generation.decode_loop import DecodeLoop
from headway.generation.reference import decode, pipeline_chooser
from headway.sampling import Pipeline
from tests.models.variants import GPTS, TINY, gpt, loud, name

TEXTS = ["the cat sat on the mat", "a dog", "cats and dogs and mats"]


def writer(**config):
    tokenizer = tokenizers.train("char", TEXTS)
    ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    shape = {**TINY, "n_layers": 2, "context": 64, "vocab_size": tokenizer.vocab_size}
    model = loud(headway.create("gpt", **{**shape, **ids, **config}))
    model.tokenizer = tokenizer
    return model


def naive(model, prompt, n, seed, **settings):
    """No cache, no batch: the whole text through the model for every token."""
    ids, choose = list(prompt), pipeline_chooser(Pipeline(preset="default", **settings), [prompt], [seed])
    for _ in range(n):
        ids.append(int(choose(model(torch.tensor([ids]))[:, -1].detach(), [ids])))
    return ids[len(prompt) :]


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"top_k": 20, "top_p": 0.9, "temperature": 1.3, "repetition_penalty": 1.3},
    {"mirostat_v2_tau": 3.0, "dry_multiplier": 0.8, "no_repeat_ngram": 3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.02, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("config", GPTS[::3], ids=name)
def test_cached_and_batched_equals_naive(config, settings):
    """By the reference loop and by the faster one, whose rows end at different times and give their slots up."""
    model, prompts = gpt(**config), [[1, 2, 3], [7], [5, 5, 5, 5, 9], [1, 2, 3]]
    seeds = [11 + i for i in range(4)]
    pipe = Pipeline(preset="default", **settings)
    rows = torch.stack(list(decode(model, prompts, pipeline_chooser(pipe, prompts, seeds), 12)), dim=1).tolist()
    for i, prompt in enumerate(prompts):
        assert rows[i] == naive(model, prompt, 12, seeds[i], **settings)
    loop, found = DecodeLoop(model, prompts, pipe, 12, seeds=seeds), {i: [] for i in range(4)}
    for n in range(12):
        for row, _, token in loop.step():
            found[row].append(token)
            if n == 3 + 2 * row:
                loop.end(row)
    assert found == {i: rows[i][: 4 + 2 * i] for i in range(4)}
    assert len(loop.rows) < 4


def text(tokens):
    return "".join(token.text for token in tokens)


def test_the_same_seed_gives_the_same_text_and_others_do_not():
    model = writer()
    first = text(headway.generate(model, "the ", seed=3, max_new_tokens=30))
    assert first == text(headway.generate(model, "the ", seed=3, max_new_tokens=30))
    assert first != text(headway.generate(model, "the ", seed=4, max_new_tokens=30))


def test_a_text_does_not_depend_on_its_batch():
    model = writer()
    together = list(headway.generate(model, ["a dog", "the cat sat", ""], seed=5, max_new_tokens=20))
    for row, prompt in enumerate(["a dog", "the cat sat", ""]):
        alone = headway.generate(model, prompt, seed=5 + row, max_new_tokens=20)
        assert [t.id for t in together if t.row == row] == [t.id for t in alone]


def test_generation_ends_at_the_end_token_which_is_no_text():
    model = writer()
    with torch.no_grad():  # end of text becomes certain
        model.norm.weight.zero_()
        model.norm.bias.copy_(model.embedding.weight[model.config.eos_id] * 100)
    tokens = list(headway.generate(model, "the", max_new_tokens=30))
    assert [(t.id, t.text, t.finish) for t in tokens] == [(model.config.eos_id, "", "stop")]


def test_length_is_the_other_way_to_end():
    tokens = list(headway.generate(writer(eos_id=None), "the", max_new_tokens=3, seed=1))
    assert [t.finish for t in tokens][:-1] == [None] * (len(tokens) - 1)
    assert tokens[-1].finish in ("length", "stop")


def test_an_empty_prompt_needs_a_begin_token():
    model = writer()
    assert next(headway.generate(model, "", seed=1)).row == 0
    model.tokenizer.special_tokens["bos"] = None
    with pytest.raises(InputError, match="an empty prompt needs a begin token"):
        headway.generate(model, "")


def test_entries_past_the_tokenizers_vocabulary_are_never_chosen():
    model = writer(vocab_size=64)
    known = model.tokenizer.vocab_size
    ids = {t.id for s in range(20) for t in headway.generate(model, "a", seed=s, temperature=5.0, max_new_tokens=20)}
    assert max(ids) < known
    assert len(ids) > known / 2


def test_the_context_is_kept_to():
    model = writer()
    assert len(list(headway.generate(model, "the cat", temperature=0))) <= 64 - 7
    with pytest.raises(InputError, match=r"7 tokens and 58 new ones do not fit in the context of 64.* at most 57"):
        headway.generate(model, "the cat", max_new_tokens=58)
    with pytest.raises(InputError, match="shorten the prompt"):
        headway.generate(model, "the cat " * 10)
    rotary = writer(positions="rotary")
    assert len(list(headway.generate(rotary, "the cat", temperature=0))) <= 64 - 7  # unless asked for more
    assert len(list(headway.generate(rotary, "the cat " * 10, max_new_tokens=70, seed=0))) >= 1


def test_wrong_requests_are_refused_before_any_token():
    model = writer()
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        headway.generate(model, "a", max_new_tokens=0)
    with pytest.raises(ConfigError, match="temperature=-1"):
        headway.generate(model, "a", temperature=-1)
    with pytest.raises(InputError, match="no prompt"):
        headway.generate(model, [])
    model.tokenizer = None
    with pytest.raises(InputError, match="has no tokenizer"):
        headway.generate(model, "a")


def test_a_new_seed_leaves_the_callers_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    model = writer()
    torch.manual_seed(3)
    list(headway.generate(model, "a", max_new_tokens=3))
    assert torch.equal(torch.rand(2), expected)


def test_dropout_is_off_while_writing_and_on_again_after():
    model = writer(dropout=0.5).train()
    texts = {text(headway.generate(model, "the", temperature=0, max_new_tokens=10)) for _ in range(5)}
    assert len(texts) == 1
    assert model.training


def test_a_request_far_past_the_context_allocates_as_it_goes():
    tokens = headway.generate(writer(positions="rotary"), "the", max_new_tokens=10**12, seed=0)
    assert next(tokens).row == 0


def test_gradients_are_on_again_between_tokens():
    """`inference_mode` inside a generator must not reach into the caller."""
    for _ in headway.generate(writer(), "a", max_new_tokens=3, seed=0):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_an_ngram_writes_too():
    tokenizer = tokenizers.train("char", TEXTS)
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=6)
    model.fit(torch.tensor(tokenizer.stream(TEXTS * 20)))
    model.tokenizer = tokenizer
    assert text(headway.generate(model, "the c", temperature=0, max_new_tokens=8)) == "at sat o"
