"""`complete`: whole texts with their log-probabilities, for any language model, in any batch."""

import pytest
import torch

import headway
from headway.errors import ConfigError, InputError
from headway.generation.complete import Completion
from tests.generation.small_models import char_gpt, char_gpt_that_ends, char_model, ids_of, model_that_writes, text_of

PROMPTS = ["a dog", "the cat sat", ""]
OPTIONS = {"seed": 5, "max_new_tokens": 8, "temperature": 1.5, "top_k": 6}
FAMILIES = {
    "gpt": {"n_layers": 1, "n_heads": 2, "d_model": 16, "context": 32},
    "lstm": {"n_layers": 1, "d_model": 16},
    "ngram": {"order": 3},
}


class DuckTyped:
    """A model of no class of ours, with the three methods of the contract and a tokenizer."""

    def __init__(self):
        self._model = char_gpt()
        self.tokenizer = self._model.tokenizer

    def __call__(self, ids, lengths=None):
        return self._model(ids, lengths)

    def start(self, batch_size=1):
        return self._model.start(batch_size)

    def step(self, ids, state, lengths=None):
        return self._model.step(ids, state, lengths)


def make(name):
    return DuckTyped() if name == "duck-typed" else char_model(name, **FAMILIES[name])


@pytest.mark.parametrize("name", [*FAMILIES, "duck-typed"])
def test_a_completion_is_what_generate_streams(name):
    model = make(name)
    completions = headway.complete(model, PROMPTS, **OPTIONS)
    tokens = list(headway.generate(model, PROMPTS, logprobs=0, **OPTIONS))
    for row, completion in enumerate(completions):
        streamed = [token for token in tokens if token.row == row]
        assert (completion.prompt, completion.index, completion.sample) == (PROMPTS[row], row, 0)
        assert completion.tokens == ids_of(tokens, row)
        assert completion.text == text_of(streamed) == "".join(completion.token_texts)
        assert completion.logprobs == [token.logprob for token in streamed]
        assert completion.finish_reason == streamed[-1].finish_reason


def test_log_probabilities_are_those_of_one_forward_pass():
    model = char_gpt()
    for completion in headway.complete(model, PROMPTS, n=2, **OPTIONS):
        ids = torch.tensor([[*completion.prompt_tokens, *completion.tokens]])
        log_p = model(ids)[0, :, : model.tokenizer.vocab_size].double().log_softmax(-1)
        n_prompt = len(completion.prompt_tokens)
        expected = [log_p[n_prompt - 1 + i, id].item() for i, id in enumerate(completion.tokens)]
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
        assert completion.logprob == pytest.approx(sum(expected), abs=1e-3)


def test_samples_follow_their_prompt_and_repeat_alone():
    model = char_gpt()
    completions = headway.complete(model, PROMPTS, n=3, **OPTIONS)
    assert [(c.index, c.sample, c.seed) for c in completions] == [
        (i, j, 5 + 3 * i + j) for i in range(3) for j in range(3)
    ]
    assert len({c.text for c in completions}) > 3  # samples of a prompt differ
    for completion in completions:
        [alone] = headway.complete(model, completion.prompt, **{**OPTIONS, "seed": completion.seed})
        assert (alone.text, alone.tokens) == (completion.text, completion.tokens)
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-5)
    by_prompt = headway.complete(model, PROMPTS, n=2, **{**OPTIONS, "seed": [7, 70, 700]})
    assert [c.seed for c in by_prompt] == [7, 8, 70, 71, 700, 701]


def test_a_setting_per_prompt_holds_for_all_its_samples():
    model = char_gpt()
    completions = headway.complete(
        model, PROMPTS, n=2, seed=1, max_new_tokens=6, temperature=[0, 2.0, 0], top_k=[0, 3, 0]
    )
    for i in (0, 2):  # temperature 0 is greedy: both samples are the same
        greedy, same = completions[2 * i : 2 * i + 2]
        assert (
            greedy.tokens
            == same.tokens
            == headway.complete(model, PROMPTS[i], do_sample=False, max_new_tokens=6)[0].tokens
        )
    with pytest.raises(ConfigError, match="settings for 2 rows, but 3 prompts"):
        headway.complete(model, PROMPTS, n=2, top_k=[1, 2])


def test_the_batch_size_changes_nothing():
    model = char_gpt()
    whole = headway.complete(model, PROMPTS, n=2, **OPTIONS)
    pieces = headway.complete(model, PROMPTS, n=2, batch_size=2, **OPTIONS)
    assert [(c.prompt, c.text, c.seed) for c in whole] == [(c.prompt, c.text, c.seed) for c in pieces]


def test_prompts_may_be_token_ids():
    model = char_gpt()
    ids = model.tokenizer.encode("a dog")
    [completion] = headway.complete(model, [ids], **OPTIONS)
    assert (completion.prompt, completion.prompt_tokens) == ("a dog", ids)
    assert completion.text == headway.complete(model, "a dog", **OPTIONS)[0].text


def test_how_a_text_ended():
    [ended] = headway.complete(char_gpt_that_ends(), "the", max_new_tokens=5)
    assert (ended.finish_reason, ended.text, len(ended.tokens), ended.stop) == ("stop", "", 1, None)
    model = model_that_writes("one two three four")
    [stopped] = headway.complete(model, "one", temperature=0, stop=["thr"])
    assert (stopped.text, stopped.finish_reason, stopped.stop) == (" two ", "stop", "thr")
    assert "".join(stopped.token_texts) == stopped.text
    [cut] = headway.complete(model, "one", temperature=0, max_new_tokens=4)
    assert (cut.text, cut.finish_reason) == (" two", "length")


def test_wrong_arguments_are_errors():
    model = char_gpt()
    with pytest.raises(ConfigError, match="n=0 must be at least 1"):
        headway.complete(model, "a", n=0)
    with pytest.raises(ConfigError, match="topk"):
        headway.complete(model, "a", topk=3)
    with pytest.raises(InputError, match="no prompt"):
        headway.complete(model, [])


def test_its_repr_is_short():
    parts = {
        "tokens": [1] * 40,
        "token_texts": [],
        "logprobs": [],
        "index": 0,
        "sample": 0,
        "seed": 1,
        "prompt_tokens": [],
    }
    long = Completion(prompt="The", text=" statement\nis" + " very" * 50, finish_reason="length", **parts)
    assert repr(long) == "Completion(' statement\\nis very very very v …', 40 tokens, length)"
    assert repr(Completion(prompt="", text="no", finish_reason="stop", **{**parts, "tokens": [1]})) == (
        "Completion('no', 1 token, stop)"
    )
