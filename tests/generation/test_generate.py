"""`generate` and `search`: samplers by name, seeds, log-probabilities, explanations, batches of prompts."""

import pytest
import torch

import headway
from headway import tokenizers
from headway.errors import ConfigError, InputError
from headway.generation.generate import encode_prompts, search
from headway.generation.sampling_params import DEFAULT_TEMPERATURE, eos_token_ids, make_pipeline, tokens_containing
from headway.sampling import FLAT_NAMES, SAMPLERS, Pipeline
from tests.generation.small_models import TEXTS, char_gpt, char_model, ids_of, text_of

# ── seeds, prompts and errors ─────────────────────────────────────────────────────────────────────────────────────


def test_a_seed_determines_the_text():
    model = char_gpt()
    first = text_of(headway.generate(model, "the ", seed=3, max_new_tokens=30))
    assert first == text_of(headway.generate(model, "the ", seed=3, max_new_tokens=30))
    assert first != text_of(headway.generate(model, "the ", seed=4, max_new_tokens=30))


def test_a_text_does_not_depend_on_its_batch():
    model, prompts = char_gpt(), ["a dog", "the cat sat", ""]
    together = list(headway.generate(model, prompts, seed=5, max_new_tokens=20))
    for row, prompt in enumerate(prompts):
        alone = headway.generate(model, prompt, seed=5 + row, max_new_tokens=20)
        assert ids_of(together, row) == ids_of(alone)


def test_prompts_may_be_token_ids():
    model, prompts = char_gpt(), ["a dog", "the cat sat", ""]
    encoded = encode_prompts(model, prompts)
    assert encoded == [model.tokenizer.encode_prompt(prompt) for prompt in prompts]
    from_text = list(headway.generate(model, prompts, seed=5, max_new_tokens=9))
    assert list(headway.generate(model, encoded, seed=5, max_new_tokens=9)) == from_text
    assert search(model, encoded, num_beams=2, max_new_tokens=4) == search(
        model, prompts, num_beams=2, max_new_tokens=4
    )
    with pytest.raises(ConfigError, match="there is no token 999"):
        headway.generate(model, [[1, 999]])
    with pytest.raises(InputError, match="at least one token"):
        headway.generate(model, [[]])


def test_the_last_token_says_how_the_row_ended():
    tokens = list(headway.generate(char_gpt(eos_id=None), "the", max_new_tokens=3, seed=1))
    assert [t.finish_reason for t in tokens][:-1] == [None] * (len(tokens) - 1)
    assert tokens[-1].finish_reason in ("length", "stop")


def test_an_empty_prompt_needs_a_bos_token():
    model = char_gpt()
    assert next(headway.generate(model, "", seed=1)).row == 0
    model.tokenizer.special_tokens["bos"] = None
    with pytest.raises(InputError, match="an empty prompt needs"):
        headway.generate(model, "")


def test_logits_past_the_vocabulary_are_never_sampled():
    model = char_gpt(vocab_size=64)
    vocab_size = model.tokenizer.vocab_size
    ids = {t.id for s in range(20) for t in headway.generate(model, "a", seed=s, temperature=5.0, max_new_tokens=20)}
    assert max(ids) < vocab_size
    assert len(ids) > vocab_size / 2


def test_wrong_arguments_raise_before_any_token():
    model = char_gpt()
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        headway.generate(model, "a", max_new_tokens=0)
    with pytest.raises(ConfigError, match="temperature=-1"):
        headway.generate(model, "a", temperature=-1)
    with pytest.raises(ConfigError, match="there is no token 999"):
        headway.generate(model, "a", stop_token_ids=[999])
    with pytest.raises(InputError, match="no prompt"):
        headway.generate(model, [])
    model.tokenizer = None
    with pytest.raises(InputError, match="has no tokenizer"):
        headway.generate(model, "a")


def test_a_new_seed_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    model = char_gpt()
    torch.manual_seed(3)
    list(headway.generate(model, "a", max_new_tokens=3))
    assert torch.equal(torch.rand(2), expected)


def test_dropout_is_off_while_generating_and_restored_afterwards():
    model = char_gpt(dropout=0.5).train()
    texts = {text_of(headway.generate(model, "the", temperature=0, max_new_tokens=10)) for _ in range(5)}
    assert len(texts) == 1
    assert model.training


def test_inference_mode_does_not_leak_into_the_caller():
    for _ in headway.generate(char_gpt(), "a", max_new_tokens=3, seed=0):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_an_ngram_generates_too():
    tokenizer = tokenizers.train("char", TEXTS)
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=6)
    model.fit(torch.tensor(tokenizer.encode_stream(TEXTS * 20)))
    model.tokenizer = tokenizer
    assert text_of(headway.generate(model, "the c", temperature=0, max_new_tokens=8)) == "at sat o"


# ── samplers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_samplers_by_name_equal_a_pipeline():
    model = char_gpt()
    settings = {"top_k": 8, "top_p": 0.9, "temperature": 1.2, "repetition_penalty": 1.2}
    by_name = list(headway.generate(model, "the", seed=3, max_new_tokens=20, **settings))
    pipe = Pipeline(preset="default", **settings)
    assert ids_of(headway.generate(model, "the", seed=3, max_new_tokens=20, pipeline=pipe)) == ids_of(by_name)
    with pytest.raises(ConfigError, match="put the settings into the pipeline"):
        headway.generate(model, "the", pipeline=pipe, top_k=3)


ALL_SETTINGS = {
    "logit_bias": {3: -1.0}, "no_repeat_ngram": 4, "min_new_tokens": 5, "repetition_penalty": 1.1,
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "dry_multiplier": 0.5, "top_n_sigma": 3.0, "top_k": 20,
    "typical": 0.95, "tail_free": 0.98, "top_a": 0.01, "eta_cutoff": 1e-4, "epsilon_cutoff": 1e-4, "top_p": 0.95,
    "min_p": 0.01, "xtc_probability": 0.3, "quadratic_factor": 0.1, "dynamic_temperature_low": 0.8,
    "dynamic_temperature_high": 1.2, "temperature": 0.9,
}  # fmt: skip
MIROSTATS = ({}, {"mirostat_v2_tau": 3.0}, {"mirostat_v1_tau": 3.0})
LANGUAGE_MODELS = {
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


@pytest.mark.parametrize("preset", ["default", "temperature_first"])
@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_all_samplers_together_work_for_every_language_model(family, preset):
    samplers = {FLAT_NAMES[name][0] for name in ALL_SETTINGS}
    assert samplers | {"mirostat_v1", "mirostat_v2"} == set(SAMPLERS)
    model = char_model(family, **LANGUAGE_MODELS[family])
    for mirostat in MIROSTATS:
        options = {"seed": 1, "max_new_tokens": 8, "sampler_preset": preset, **ALL_SETTINGS, **mirostat}
        tokens = list(headway.generate(model, ["the c", "a"], **options))
        assert 5 <= len(ids_of(tokens)) <= 8
        assert ids_of(headway.generate(model, ["the c", "a"], **options)) == ids_of(tokens)


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_each_sampler_alone_works_for_every_language_model(family):
    model = char_model(family, **LANGUAGE_MODELS[family])
    for name in ALL_SETTINGS:
        settings = {name: ALL_SETTINGS[name]}
        if name.startswith("dynamic_temperature"):
            settings = {"dynamic_temperature_low": 0.8, "dynamic_temperature_high": 1.2}
        tokens = list(headway.generate(model, "the c", seed=1, max_new_tokens=6, **settings))
        assert 1 <= len(tokens) <= 6
        assert tokens[-1].finish_reason in ("stop", "length")


@pytest.mark.parametrize("family", TRANSLATORS)
def test_all_samplers_together_work_for_every_translator(family):
    model = char_model(family, **TRANSLATORS[family])
    for mirostat in MIROSTATS:
        options = {"seed": 1, "max_new_tokens": 8, "n_best": 2, **ALL_SETTINGS, **mirostat}
        translations = headway.translate(model, ["the cat", "a"], **options)
        assert all(5 <= len(t.tokens) <= 8 for best in translations for t in (best, *best.others))
        again = headway.translate(model, ["the cat", "a"], **options)
        assert [t.tokens for t in again] == [t.tokens for t in translations]
    beams = headway.translate(model, ["the cat", "a"], num_beams=4, n_best=4, max_new_tokens=8)
    assert all(len(best.others) == 3 for best in beams)


def test_greedy_skips_filters_but_not_penalties():
    model = char_gpt()
    plain = ids_of(headway.generate(model, "the", temperature=0, max_new_tokens=12))
    filters = {"typical": 0.05, "xtc_probability": 1.0, "top_k": 3}
    assert ids_of(headway.generate(model, "the", temperature=0, max_new_tokens=12, **filters)) == plain
    assert ids_of(headway.generate(model, "the", do_sample=False, max_new_tokens=12, **filters)) == plain
    penalised = ids_of(headway.generate(model, "the", temperature=0, max_new_tokens=12, no_repeat_ngram=1))
    assert len(set(penalised)) == len(penalised)


def test_the_default_is_a_temperature_alone():
    tokenizer = char_gpt().tokenizer
    assert make_pipeline(tokenizer, {1}).stages == [{"stage": "temperature", "temperature": DEFAULT_TEMPERATURE}]
    pipe = make_pipeline(tokenizer, {1}, sampler_order=["top_k"], top_k=5)
    assert [call.name for call in pipe.samplers] == ["top_k"]


def test_settings_in_all_their_forms():
    model = char_gpt()
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
        headway.generate(model, "a", pipeline=Pipeline(), sampler_order=["top_k"])


def test_token_defaults_come_from_the_tokenizer():
    tokenizer = tokenizers.train("char", ['a: "b"\nc*d'])
    breakers = tokens_containing(tokenizer, ("\n", ":", '"', "*"))
    assert {tokenizer.decode([id]) for id in breakers} == {"\n", ":", '"', "*"}
    pipe = make_pipeline(tokenizer, {1}, dry_multiplier=1.0, xtc_probability=0.5, min_new_tokens=3)
    settings = {stage.pop("stage"): stage for stage in pipe.stages}
    assert len(settings["dry"]["breakers"]) == 4
    assert settings["xtc"]["protected"] == sorted([1, *tokenizer.encode("\n")])
    assert settings["min_new_tokens"]["eos_ids"] == [1]
    custom = make_pipeline(tokenizer, {1}, dry_multiplier=1.0, dry_breakers=["a", 2])
    assert next(s for s in custom.stages if s["stage"] == "dry")["breakers"] == sorted({2, *tokenizer.encode("a")})


def test_eos_token_ids_are_those_of_model_tokenizer_and_caller():
    model = char_gpt(eos_id=3)
    assert eos_token_ids(model, [4, 5]) == {3, model.tokenizer.eos_id, 4, 5}
    model.tokenizer = None
    assert eos_token_ids(model) == {3}


# ── log-probabilities and explanations ────────────────────────────────────────────────────────────────────────────


def test_log_probabilities_are_the_models_own():
    model = char_gpt()
    tokens = list(headway.generate(model, "the", seed=1, max_new_tokens=5, logprobs=3, top_k=4, temperature=2.0))
    ids = model.tokenizer.encode_prompt("the")
    for token in tokens:
        log_p = model(torch.tensor([ids]))[0, -1, : model.tokenizer.vocab_size].double().log_softmax(-1)
        assert token.logprob == pytest.approx(log_p[token.id].item(), abs=1e-4)
        assert [id for id, _ in token.top] == log_p.topk(3).indices.tolist()
        ids.append(token.id)
    assert next(headway.generate(model, "the", logprobs=0)).top == []
    assert next(headway.generate(model, "the")).logprob is None
    with pytest.raises(ConfigError, match="logprobs=-1"):
        headway.generate(model, "the", logprobs=-1)


def test_an_explanation_follows_a_token_through_the_samplers():
    model = char_gpt()
    settings = {"top_k": 5, "temperature": 0.5, "repetition_penalty": 1.5}
    plain = ids_of(headway.generate(model, ["the", "a"], seed=1, max_new_tokens=6, **settings), row=1)
    tokens = list(headway.generate(model, ["the", "a"], seed=1, max_new_tokens=6, explain=True, **settings))
    assert ids_of(tokens, row=1) == plain
    for token in tokens:
        assert [step.sampler for step in token.sampler_trace] == ["model", "repetition_penalty", "top_k", "temperature"]
        assert [step.n_alive for step in token.sampler_trace[2:]] == [5, 5]
        assert token.sampler_trace[2].n_removed == model.tokenizer.vocab_size - 5
        assert all(step.p > 0 for step in token.sampler_trace)
        assert sum(p for _, p in token.sampler_trace[-1].best) == pytest.approx(1)


def test_explanations_follow_their_rows_when_the_batch_is_compacted():
    """xtc and Mirostat use the row's own random number and mu, though its slot has changed."""
    model = char_gpt()
    options = {"xtc_probability": 0.5, "xtc_threshold": 0.02, "mirostat_v2_tau": 3.0, "seed": 2, "max_new_tokens": 25}
    tokens = list(headway.generate(model, ["the", "a", "dog", "mat"], stop=["a", "e"], explain=True, **options))
    assert len({len(ids_of(tokens, row)) for row in range(4)}) > 1
    assert all(token.sampler_trace[-1].p > 0 for token in tokens)


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_batching_by_length_changes_no_text():
    model = char_gpt()
    prompts = ["a", "the cat sat on", "dog", "the", "a dog and", "", "cats", "mat"]
    together = list(headway.generate(model, prompts, seed=20, max_new_tokens=15, top_p=0.9, batch_size=3))
    for row, prompt in enumerate(prompts):
        alone = headway.generate(model, prompt, seed=20 + row, max_new_tokens=15, top_p=0.9)
        assert ids_of(together, row) == ids_of(alone)


def test_a_text_is_the_same_in_every_row_of_a_batch():
    model = char_gpt()
    alone = ids_of(headway.generate(model, "the cat", seed=5, max_new_tokens=20, top_k=9, typical=0.9))
    for row in range(8):
        prompts = ["a", "dog sat", "mat", "the", "cats and", "dogs", "on"]
        prompts.insert(row, "the cat")
        tokens = headway.generate(model, prompts, seed=5 - row, max_new_tokens=20, top_k=9, typical=0.9)
        assert ids_of(tokens, row) == alone


def test_a_setting_per_prompt_stays_with_its_prompt():
    """Across batches sorted by length, rows that end early, explanations, and greedy rows among others."""
    model = char_gpt()
    prompts, seeds = ["the cat sat", "a", "dog and", "m"], [9, 4, 6, 2]
    settings = {"temperature": [0.0, 0.8, 1.5, 0.0], "top_k": [3, 0, 5, 9], "typical": [0.05, 1.0, 0.9, 0.05]}
    together = list(
        headway.generate(model, prompts, seed=seeds, max_new_tokens=12, batch_size=3, explain=True, **settings)
    )
    for i, prompt in enumerate(prompts):
        row_settings = {name: values[i] for name, values in settings.items()}
        alone = headway.generate(model, prompt, seed=seeds[i], max_new_tokens=12, **row_settings)
        assert ids_of(together, i) == ids_of(alone)
    with pytest.raises(ConfigError, match="settings for 2 rows, but 3 prompts"):
        headway.generate(model, ["a", "b", "c"], top_k=[1, 2])
    with pytest.raises(ConfigError, match="2 seeds for 1 prompts"):
        headway.generate(model, "a", seed=[1, 2])


def test_rows_may_have_different_sampler_orders():
    model = char_gpt()
    hot, cut = {"stage": "temperature", "temperature": 2.0}, {"stage": "top_p", "p": 0.5}
    pipe = Pipeline.for_rows([[hot, cut], [cut, hot]])
    together = list(headway.generate(model, ["the"] * 2, seed=[5, 5], max_new_tokens=10, pipeline=pipe, explain=True))
    for i, stages in enumerate(([hot, cut], [cut, hot])):
        alone = headway.generate(model, "the", seed=5, max_new_tokens=10, pipeline=Pipeline(stages))
        assert ids_of(together, i) == ids_of(alone)
    greedy = list(headway.generate(model, ["the", "the"], max_new_tokens=5, pipeline=pipe, do_sample=False))
    assert ids_of(greedy, 0) == ids_of(headway.generate(model, "the", temperature=0, max_new_tokens=5))


def test_by_default_every_row_fills_its_context():
    """Beside a longer prompt too; rows whose learned positions end leave the batch one by one."""
    model = char_gpt()
    prompts = ["the", "the cat sat on the mat " * 2, "a dog"]
    options = {"top_k": 5, "logit_bias": {model.config.eos_id: float("-inf")}}
    together = list(headway.generate(model, prompts, seed=3, **options))
    for i, prompt in enumerate(prompts):
        assert ids_of(together, i) == ids_of(headway.generate(model, prompt, seed=3 + i, **options))
        assert len(ids_of(together, i)) == 64 - len(prompt)


def test_min_new_tokens_of_one_row_does_not_affect_another():
    model = char_gpt()
    pipes = [
        Pipeline([{"stage": "min_new_tokens", "min_new": 20, "eos_ids": [1]}]),
        Pipeline([{"stage": "top_k", "k": 5}]),
    ]
    options = {"stop": list("abcdefgh"), "max_new_tokens": 30}
    together = list(headway.generate(model, ["the", "the"], seed=[5, 1], pipeline=Pipeline.for_rows(pipes), **options))
    alone = list(headway.generate(model, "the", seed=1, pipeline=pipes[1], **options))
    assert ids_of(together, 1) == ids_of(alone)
    assert len(ids_of(together, 0)) >= 20


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_searches_return_text():
    model = char_gpt()
    [[(best, h), (second, g)]] = search(model, "the", num_beams=3, n_best=2, max_new_tokens=6)
    assert h.score >= g.score
    assert best == model.tokenizer.decode(h.tokens_without_eos)
    assert best != second
    [[(contrasted, _)]] = search(model, "the", alpha=0.6, max_new_tokens=6)
    assert contrasted
    with pytest.raises(ConfigError, match="top_k with beam search"):
        search(model, "the", num_beams=2, top_k=3, max_new_tokens=4)
    with pytest.raises(ConfigError, match="search by num_beams"):
        search(model, "the", max_new_tokens=4)
