"""Generation around the loop: samplers by name, stops, log-probabilities, explanations, batches of prompts."""

import pytest
import torch

import headway
from headway import tokenizers
from headway.errors import ConfigError
from headway.generation.generate import search
from headway.generation.sampling_params import make_pipeline, tokens_containing
from headway.sampling import FLAT, SAMPLERS, Pipeline
from tests.generation.test_decode_loop import TEXTS, text, writer


def ids(tokens, row=0):
    return [token.id for token in tokens if token.row == row]


def test_samplers_by_name_and_as_a_pipeline_are_the_same():
    model = writer()
    given = {"top_k": 8, "top_p": 0.9, "temperature": 1.2, "repetition_penalty": 1.2}
    by_name = list(headway.generate(model, "the", seed=3, max_new_tokens=20, **given))
    pipe = Pipeline(preset="default", **given)
    assert ids(headway.generate(model, "the", seed=3, max_new_tokens=20, pipeline=pipe)) == ids(by_name)
    with pytest.raises(ConfigError, match="put them into the pipeline"):
        headway.generate(model, "the", pipeline=pipe, top_k=3)


STRONG = {
    "logit_bias": {3: -1.0}, "no_repeat_ngram": 4, "min_new_tokens": 5, "repetition_penalty": 1.1,
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "dry_multiplier": 0.5, "top_n_sigma": 3.0, "top_k": 20,
    "typical": 0.95, "tail_free": 0.98, "top_a": 0.01, "eta_cutoff": 1e-4, "epsilon_cutoff": 1e-4, "top_p": 0.95,
    "min_p": 0.01, "xtc_probability": 0.3, "quadratic_factor": 0.1, "dynamic_temperature_low": 0.8,
    "dynamic_temperature_high": 1.2, "temperature": 0.9,
}  # fmt: skip
MIROSTATS = ({}, {"mirostat_v2_tau": 3.0}, {"mirostat_v1_tau": 3.0})
LETTERS = tokenizers.train("char", TEXTS)
WRITERS = {
    "ngram": {"order": 3},
    "nplm": {"d_model": 8, "d_hidden": 8},
    "rnn": {"d_model": 8},
    "lstm": {"d_model": 8, "dropout": 0.0},
    "gpt": {"d_model": 8, "n_heads": 2, "n_layers": 1, "context": 32},
}
TRANSLATORS = {
    "seq2seq": {"d_model": 8, "n_layers": 1, "context": 32},
    "bahdanau": {"d_model": 8, "d_hidden": 8, "context": 32},
    "transformer": {"d_model": 8, "n_heads": 2, "n_layers": 1, "context": 32},
}


def small(family, **config):
    torch.manual_seed(0)
    ids = {"vocab_size": LETTERS.vocab_size, "bos_id": LETTERS.bos_id, "eos_id": LETTERS.eos_id}
    model = headway.create(family, **ids, **config).eval()
    if family == "ngram":
        model.fit(torch.tensor(LETTERS.stream(TEXTS * 5)))
    model.tokenizer = LETTERS
    return model


@pytest.mark.parametrize("preset", ["default", "temperature_first"])
@pytest.mark.parametrize("family", WRITERS)
def test_every_sampler_works_for_every_generative_model(family, preset):
    stages = {FLAT[name][0] for name in STRONG}
    assert stages | {"mirostat_v1", "mirostat_v2"} == set(SAMPLERS)
    model = small(family, **WRITERS[family])
    for extra in MIROSTATS:
        asked = {"seed": 1, "max_new_tokens": 8, "preset": preset, **STRONG, **extra}
        made = list(headway.generate(model, ["the c", "a"], **asked))
        assert 5 <= len(ids(made)) <= 8
        assert ids(headway.generate(model, ["the c", "a"], **asked)) == ids(made)


@pytest.mark.parametrize("name", [n for n in STRONG if n != "dynamic_temperature_high"])
@pytest.mark.parametrize("family", WRITERS)
def test_each_sampler_alone_writes(family, name):
    model = small(family, **WRITERS[family])
    setting = {name: STRONG[name]}
    if name == "dynamic_temperature_low":
        setting["dynamic_temperature_high"] = 1.2
    made = list(headway.generate(model, "the c", seed=1, max_new_tokens=6, **setting))
    assert 1 <= len(made) <= 6
    assert made[-1].finish in ("stop", "length")


@pytest.mark.parametrize("family", TRANSLATORS)
def test_every_sampler_works_for_every_translator(family):
    model = small(family, **TRANSLATORS[family])
    for extra in MIROSTATS:
        asked = {"seed": 1, "max_new_tokens": 8, "n_best": 2, **STRONG, **extra}
        made = headway.translate(model, ["the cat", "a"], **asked)
        assert all(5 <= len(t.tokens) <= 8 for best in made for t in (best, *best.others))
        again = headway.translate(model, ["the cat", "a"], **asked)
        assert [t.tokens for t in again] == [t.tokens for t in made]
    beams = headway.translate(model, ["the cat", "a"], num_beams=4, n_best=4, max_new_tokens=8)
    assert all(len(best.others) == 3 for best in beams)


def test_greedy_skips_filters_but_not_penalties():
    model = writer()
    plain = ids(headway.generate(model, "the", temperature=0, max_new_tokens=12))
    filtered = {"typical": 0.05, "xtc_probability": 1.0, "top_k": 3}
    assert ids(headway.generate(model, "the", temperature=0, max_new_tokens=12, **filtered)) == plain
    assert ids(headway.generate(model, "the", do_sample=False, max_new_tokens=12, **filtered)) == plain
    banned = ids(headway.generate(model, "the", temperature=0, max_new_tokens=12, no_repeat_ngram=1))
    assert len(set(banned)) == len(banned)


def test_an_order_without_temperature_has_none():
    pipe = make_pipeline(writer().tokenizer, {1}, order=["top_k"], top_k=5)
    assert [call.name for call in pipe.samplers] == ["top_k"]
    assert [call.name for call in make_pipeline(writer().tokenizer, {1}).samplers] == ["temperature"]


# ── stops ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def spelled(words):
    """A model that writes this text, letter by letter, whatever the prompt: an n-gram that has seen nothing else."""
    tokenizer = tokenizers.train("char", [words])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=len(words))
    model.fit(torch.tensor(tokenizer.stream([words] * 50)))
    model.tokenizer = tokenizer
    return model


def test_a_stop_ends_a_text_before_it_and_nothing_of_it_is_shown():
    model = spelled("one two three four")
    shown = ""
    for token in headway.generate(model, "one", temperature=0, stop=["three", "zero"], max_new_tokens=30):
        shown += token.text
        assert "t" not in shown[5:], shown
    assert shown == " two "
    assert (token.finish, token.stop) == ("stop", "three")
    kept = headway.generate(model, "one", temperature=0, stop=["three"], include_stop=True, max_new_tokens=30)
    assert text(kept) == " two three"


def test_what_was_held_back_is_let_out_when_the_text_ends_otherwise():
    model = spelled("one two three four")
    tokens = list(headway.generate(model, "one", temperature=0, stop=["two thrice"], max_new_tokens=9))
    assert text(tokens) == " two thre"
    assert tokens[-1].finish == "length"
    tokens = list(headway.generate(model, "one", temperature=0, stop=["fourth"], max_new_tokens=50))
    assert text(tokens) == " two three four"
    assert (tokens[-1].finish, tokens[-1].stop) == ("stop", None)


def test_stops_wait_for_the_least_length():
    model = spelled("one two three two four")
    given = {"temperature": 0, "stop": ["two"], "max_new_tokens": 30}
    assert text(headway.generate(model, "one", **given)) == " "
    assert text(headway.generate(model, "one", min_new_tokens=8, **given)) == " two three "


def test_of_stops_after_the_least_length_the_first_to_end_counts():
    """Also one that begins before an earlier, too early match; and of equal ends the longer."""
    model = spelled("xaatty")
    given = {"temperature": 0, "max_new_tokens": 5}
    assert text(headway.generate(model, "x", stop=["att", "a"], min_new_tokens=4, **given)) == "a"
    assert text(headway.generate(model, "x", stop=["a", "aa"], min_new_tokens=2, **given)) == ""
    pipe = Pipeline(
        [{"stage": "min_new_tokens", "min_new": 4, "eos_ids": []}, {"stage": "temperature", "temperature": 0}]
    )
    found = headway.generate(model, "x", stop=["att", "a"], pipeline=pipe, max_new_tokens=5)
    assert text(found) == "a"


def test_a_stop_token_ends_like_the_end_of_text():
    model = spelled("one two three")
    w = model.tokenizer.encode("w")[0]
    tokens = list(headway.generate(model, "one", temperature=0, stop_token_ids=[w], max_new_tokens=30))
    assert text(tokens) == " t"
    assert tokens[-1].finish == "stop"


def test_least_length_bans_the_end():
    model = writer()
    with torch.no_grad():  # end of text becomes certain
        model.norm.weight.zero_()
        model.norm.bias.copy_(model.embedding.weight[model.config.eos_id] * 100)
    tokens = list(headway.generate(model, "the", max_new_tokens=30, min_new_tokens=4, seed=0))
    assert len(tokens) == 5
    assert tokens[-1].finish == "stop"


# ── what is said about tokens ─────────────────────────────────────────────────────────────────────────────────────


def test_log_probabilities_are_the_models_own():
    model = writer()
    tokens = list(headway.generate(model, "the", seed=1, max_new_tokens=5, logprobs=3, top_k=4, temperature=2.0))
    text_ids = model.tokenizer.prompt("the")
    for token in tokens:
        log_p = model(torch.tensor([text_ids]))[0, -1, : model.tokenizer.vocab_size].double().log_softmax(-1)
        assert token.logprob == pytest.approx(log_p[token.id].item(), abs=1e-4)
        assert [id for id, _ in token.top] == log_p.topk(3).indices.tolist()
        text_ids.append(token.id)
    assert next(headway.generate(model, "the", logprobs=0)).top == []
    assert next(headway.generate(model, "the")).logprob is None
    with pytest.raises(ConfigError, match="logprobs=-1"):
        headway.generate(model, "the", logprobs=-1)


def test_an_explanation_follows_a_token_through_the_stages():
    model = writer()
    given = {"top_k": 5, "temperature": 0.5, "repetition_penalty": 1.5}
    plain = ids(headway.generate(model, ["the", "a"], seed=1, max_new_tokens=6, **given), row=1)
    tokens = list(headway.generate(model, ["the", "a"], seed=1, max_new_tokens=6, explain=True, **given))
    assert ids(tokens, row=1) == plain
    for token in tokens:
        assert [step.sampler for step in token.steps] == ["model", "repetition_penalty", "top_k", "temperature"]
        assert [step.n_alive for step in token.steps[2:]] == [5, 5]
        assert token.steps[2].n_removed == model.tokenizer.vocab_size - 5
        assert all(step.p > 0 for step in token.steps)
        assert sum(p for _, p in token.steps[-1].best) == pytest.approx(1)


def test_explanations_stay_with_their_rows_when_others_end():
    """xtc and Mirostat: the coin and the level of the row itself, though slots have moved."""
    model = writer()
    given = {"xtc_probability": 0.5, "xtc_threshold": 0.02, "mirostat_v2_tau": 3.0, "seed": 2, "max_new_tokens": 25}
    tokens = list(headway.generate(model, ["the", "a", "dog", "mat"], stop=["a", "e"], explain=True, **given))
    assert len({len(ids(tokens, row)) for row in range(4)}) > 1
    assert all(token.steps[-1].p > 0 for token in tokens)


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_prompts_are_batched_by_length_and_none_notices():
    model = writer()
    prompts = ["a", "the cat sat on", "dog", "the", "a dog and", "", "cats", "mat"]
    together = list(headway.generate(model, prompts, seed=20, max_new_tokens=15, top_p=0.9, batch_size=3))
    for row, prompt in enumerate(prompts):
        alone = headway.generate(model, prompt, seed=20 + row, max_new_tokens=15, top_p=0.9)
        assert ids(together, row) == ids(alone)


def test_a_text_is_the_same_in_any_place_of_a_batch():
    model = writer()
    alone = ids(headway.generate(model, "the cat", seed=5, max_new_tokens=20, top_k=9, typical=0.9))
    for place in range(8):
        prompts = ["a", "dog sat", "mat", "the", "cats and", "dogs", "on"]
        prompts.insert(place, "the cat")
        batch = headway.generate(model, prompts, seed=5 - place, max_new_tokens=20, top_k=9, typical=0.9)
        assert ids(batch, place) == alone


def test_a_setting_per_prompt_goes_with_its_prompt():
    """Through batches by length, rows that end early, explanations, and rows that are greedy among others."""
    model = writer()
    prompts = ["the cat sat", "a", "dog and", "m"]
    given = {"temperature": [0.0, 0.8, 1.5, 0.0], "top_k": [3, 0, 5, 9], "typical": [0.05, 1.0, 0.9, 0.05]}
    seeds = [9, 4, 6, 2]
    together = list(
        headway.generate(model, prompts, seed=seeds, max_new_tokens=12, batch_size=3, explain=True, **given)
    )
    for i, prompt in enumerate(prompts):
        own = {name: values[i] for name, values in given.items()}
        assert ids(together, i) == ids(headway.generate(model, prompt, seed=seeds[i], max_new_tokens=12, **own))
    with pytest.raises(ConfigError, match="settings for 2 rows, and 3 prompts"):
        headway.generate(model, ["a", "b", "c"], top_k=[1, 2])
    with pytest.raises(ConfigError, match="2 seeds for 1 prompts"):
        headway.generate(model, "a", seed=[1, 2])


def test_rows_with_orders_of_their_own():
    model = writer()
    heat, cut = {"stage": "temperature", "temperature": 2.0}, {"stage": "top_p", "p": 0.5}
    rows = Pipeline.for_rows([[heat, cut], [cut, heat]])
    found = list(headway.generate(model, ["the", "the"], seed=[5, 5], max_new_tokens=10, pipeline=rows, explain=True))
    for i, stages in enumerate(([heat, cut], [cut, heat])):
        alone = headway.generate(model, "the", seed=5, max_new_tokens=10, pipeline=Pipeline(stages))
        assert ids(found, i) == ids(alone)
    greedy = list(headway.generate(model, ["the", "the"], max_new_tokens=5, pipeline=rows, do_sample=False))
    assert ids(greedy, 0) == ids(headway.generate(model, "the", temperature=0, max_new_tokens=5))


def test_without_a_limit_every_row_has_the_room_it_has_alone():
    """A long neighbour, and positions that end: rows leave one by one."""
    model = writer()
    with torch.no_grad():
        model.embedding.weight[model.config.eos_id] = 0  # nothing ends early
    prompts = ["the", "the cat sat on the mat " * 2, "a dog"]
    together = list(headway.generate(model, prompts, seed=3, top_k=5, logit_bias={model.config.eos_id: float("-inf")}))
    for i, prompt in enumerate(prompts):
        alone = headway.generate(model, prompt, seed=3 + i, top_k=5, logit_bias={model.config.eos_id: float("-inf")})
        assert ids(together, i) == ids(alone)
        assert len(ids(together, i)) == 64 - len(prompt)


def test_one_rows_least_length_is_not_anothers():
    model = writer()
    pipes = [
        Pipeline([{"stage": "min_new_tokens", "min_new": 20, "eos_ids": [1]}]),
        Pipeline([{"stage": "top_k", "k": 5}]),
    ]
    given = {"stop": list("abcdefgh"), "max_new_tokens": 30}
    together = list(headway.generate(model, ["the", "the"], seed=[5, 1], pipeline=Pipeline.for_rows(pipes), **given))
    alone = list(headway.generate(model, "the", seed=1, pipeline=pipes[1], **given))
    assert ids(together, 1) == ids(alone)
    assert len(ids(together, 0)) >= 20


def test_settings_in_all_their_forms():
    model = writer()
    tokenizer = model.tokenizer
    with pytest.raises(ConfigError, match="no setting named 'topp'"):
        headway.generate(model, ["a", "b"], temperature=[0, 0.8], topp=0.9)
    mixed = make_pipeline(tokenizer, {1}, temperature=[0, 0.8], dry={"multiplier": 0.8})
    assert "dry" in [call.name for call in mixed.samplers]
    table = make_pipeline(tokenizer, {1}, xtc={"probability": 0.5}, min_new_tokens=torch.tensor([1, 2]))
    assert 1 in next(s for s in table.stages if s["stage"] == "xtc")["protected"]
    rows = make_pipeline(tokenizer, {1}, dry_multiplier=1.0, dry_breakers=[["a"], [3, 4]])
    assert next(s for s in rows.stages if s["stage"] == "dry")["breakers"][1] == (3, 4)
    with pytest.raises(ConfigError, match="top_k has 2 values, temperature 3"):
        headway.generate(model, ["a"] * 3, temperature=[0, 0.8, 0.8], top_k=[5, 6])
    with pytest.raises(ConfigError):
        headway.generate(model, ["a"] * 2, temperature=[None, 0.8])
    with pytest.raises(ConfigError, match="into the pipeline"):
        headway.generate(model, "a", pipeline=Pipeline(), order=["top_k"])


def test_what_is_left_to_the_tokenizer():
    tokenizer = tokenizers.train("char", ['a: "b"\nc*d'])
    assert {tokenizer.decode([id]) for id in tokens_containing(tokenizer, ("\n", ":", '"', "*"))} == {
        "\n",
        ":",
        '"',
        "*",
    }
    pipe = make_pipeline(tokenizer, {1}, dry_multiplier=1.0, xtc_probability=0.5, min_new_tokens=3)
    settings = {stage.pop("stage"): stage for stage in pipe.stages}
    assert len(settings["dry"]["breakers"]) == 4
    assert settings["xtc"]["protected"] == sorted([1, *tokenizer.encode("\n")])
    assert settings["min_new_tokens"]["eos_ids"] == [1]
    own = make_pipeline(tokenizer, {1}, dry_multiplier=1.0, dry_breakers=["a", 2])
    assert next(s for s in own.stages if s["stage"] == "dry")["breakers"] == sorted({2, *tokenizer.encode("a")})


def test_searches_write_text():
    model = writer()
    [[(best, h), (second, g)]] = search(model, "the", num_beams=3, n_best=2, max_new_tokens=6)
    assert h.score >= g.score
    assert best == model.tokenizer.decode(h.tokens[:-1] if h.ended else h.tokens)
    assert best != second
    [[(contrasted, _)]] = search(model, "the", alpha=0.6, max_new_tokens=6)
    assert contrasted
    with pytest.raises(ConfigError, match="top_k with beam search"):
        search(model, "the", num_beams=2, top_k=3, max_new_tokens=4)
    with pytest.raises(ConfigError, match="search by num_beams"):
        search(model, "the", max_new_tokens=4)


def test_words_without_spaces_have_one_between_prompt_and_answer():
    lines = ["the cat sat", "the dog sat down"] * 5
    tokenizer = headway.tokenizers.train("word", lines, pre_tokenizer="whitespace")
    model = headway.create(
        "ngram", vocab_size=tokenizer.vocab_size, order=4, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model.tokenizer = tokenizer
    model.fit(torch.tensor(tokenizer.stream(lines)))
    text = "".join(token.text for token in headway.generate(model, "the dog", temperature=0, max_new_tokens=5))
    assert text == " sat down"
    text = "".join(token.text for token in headway.generate(model, "", temperature=0, max_new_tokens=3))
    assert text.startswith("the ")
