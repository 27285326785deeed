"""Nothing is ignored in silence: every option of every command, where it cannot matter, is answered by an error that
names it, or by a note. An option that matters everywhere is listed as such; a new option in neither list fails."""

import re

import pytest

from headway.cli.option_use import name_of
from headway.sampling.specs import FLAT_NAMES, SAMPLER_SPECS, SHARED_PARAMETERS
from tests.cli.running import run
from tests.cli.test_help import COMMANDS

GENERAL = {"--plugin", "--json"}  # --json has no effect only where another option leaves nothing to print

# Command → command lines with the options that cannot matter there, each tried by itself in place of {}.
CONTEXTS: dict[str, dict[str, list[str]]] = {
    "train": {
        "train --list {}": ["RECIPE demo", "--set train.steps=2", "--out x", "--resume", "--device cpu",
                            "--dtype float32", "--print-config", "--init-from runs/mine"],
        "train runs/mine --resume {}": ["--init-from runs/demo"],
        "train demo --print-config {}": ["--out x", "--resume", "--list"],
        "train demo {}": ["--force"],
    },
    "sweep": {
        "sweep demo --grid train.lr=1 {}": ["--seed 1"],
        "sweep runs/lr --resume {}": ["--out x", "--grid train.lr=1", "--set train.steps=2", "--range train.lr=1..2",
                                      "--random 2", "--halving", "--device cpu"],
    },
    "compare": {
        "compare --list {}": ["MODELS gpt", "--data my.txt", "--params 1k", "--tokens 1k", "--seconds 1", "--context 8",
                              "--set train.seed=1", "--long-data dates", "--limit 2", "--num-beams 2", "--prompt A",
                              "--epochs 1", "--out x", "--resume", "--plot x.png", "--theme dark"],
        "compare ngram --data my.txt {}": ["--long-data dates", "--limit 2", "--num-beams 2", "--epochs 1"],
        "compare seq2seq --data letters.tsv {}": ["--prompt A"],
        "compare bow --data labels.csv --set data.label=label {}": ["--tokens 1k", "--prompt A", "--limit 2"],
        "compare runs/mine --data my.txt {}": ["--params 1k", "--tokens 1k", "--seconds 1"],
        "compare runs/labels --data labels.csv --set data.label=label {}": ["--params 1k", "--epochs 1"],
    },
    "lr-find": {"lr-find demo --set data.path=my.txt --steps 10 {}": ["--theme dark"]},
    "generate": {
        "generate --list-samplers {}": ["MODEL runs/demo", "PROMPT runs/demo The", "--max-new-tokens 2", "--seed 1",
                                        "--batch-size 2", "--device cpu", "--dtype float32", "--in prompts.txt",
                                        "--out x.jsonl", "--num-beams 2", "--stop-token-id 1"],
        "generate runs/demo The --num-beams 2 {}": ["--stop x", "--include-stop", "-n 2", "--seed 1", "--greedy",
                                                    "--contrastive-alpha 0.6", "--stream", "--logprobs 1", "--explain",
                                                    "--sampler-order top_k", "--sampler-preset default"],
        "generate runs/demo The {}": ["--n-best 2", "--length-penalty 1", "--length-norm gnmt", "--early-stopping true",
                                      "--contrastive-k 2", "--overwrite", "--resume", "--include-stop"],
        "generate runs/demo The --max-new-tokens 1 --greedy {}": ["--seed 1"],
        "generate runs/demo The --out x.jsonl {}": ["--stream"],
    },
    "translate": {
        "translate runs/reverse abc {}": ["--overwrite", "--weights lm=1", "--tune valid", "--seed 1"],
        "translate runs/reverse abc --temperature 1 {}": ["--explain"],
        "translate runs/reverse abc --greedy {}": ["--length-penalty 1", "--length-norm gnmt", "--early-stopping true",
                                                   "--num-beams 3", "--reverse-model runs/reverse", "--lm runs/demo",
                                                   "--sampler-preset default"],
    },
    "classify": {"classify runs/labels cat {}": ["--overwrite", "--threshold 0.3", "--column x", "--pair-column x"],
                 "classify runs/labels cat dog {}": ["--text-pair x"]},
    "tag": {"tag runs/tagger Anna {}": ["--overwrite", "--column x"],
            "tag runs/tagger --in news.conll {}": ["--column x"]},
    "answer": {
        "answer runs/squad Who -c cat {}": ["--overwrite", "--context-file passage.txt"],
        "answer runs/squad --in squad.json {}": ["QUESTIONS Who", "--context cat", "--context-file passage.txt"],
        "answer runs/squad Who -c cat --out answers.json {}": ["--top 2"],
    },
    "fill": {"fill runs/bert 'The [MASK].' {}": ["--overwrite", "--column x"]},
    "embed": {
        "embed runs/labels cat {}": ["--overwrite", "--top 3", "--column x"],
        "embed runs/labels cat --similar mat {}": ["--normalize", "--out vectors.npy"],
    },
    "convert": {
        "convert words.arpa my-ngrams {}": ["--dtype float32", "--adapter my-adapter", "--adapter-only"],
        "convert runs/lora new-adapter --adapter-only {}": ["--dtype float32", "--adapter my-adapter"],
    },
    "eval": {
        "eval --hypotheses mine.de --references right.de {}": [
            "MODEL runs/demo", "TEXT runs/demo my.txt", "--text abc", "--split valid", "--context 8", "--num-beams 2",
            "--length-penalty 1", "--reverse-model x", "--lm x", "--weights lm=1", "--tune valid", "--device cpu",
            "--dtype float32", "--batch-size 2", "--sources mine.de",
        ],
        "eval runs/demo {}": ["--references right.de", "--metric gleu", "--sources mine.de", "--against x",
                              "--sentences s.jsonl", "--num-beams 2",
                              "--length-penalty 1", "--limit 2", "--lowercase", "--reverse-model x", "--lm x",
                              "--hypotheses mine.de"],
        "eval runs/reverse --limit 2 {}": ["--context 8", "--weights lm=1", "--tune valid"],
        "eval runs/demo my.txt {}": ["--split valid", "--text abc", "--set data.label=x"],
        "eval runs/labels {}": ["--set data.label=x", "--context 8", "--references right.de", "--num-beams 2"],
    },
    "score": {
        "score runs/demo The {}": ["--target x", "--theme dark", "--in my.txt"],
        "score runs/reverse abc {}": ["--context 8"],
    },
    "data": {
        "data my.txt {}": ["--cache x", "--workers 2", "--text 1", "--pairs 1,2", "--label 1", "--tag-scheme any"],
        "data letters.tsv {}": ["--separator x", "--tag-scheme any", "--text-pair 2", "--label-separator x"],
        "data pydocs {}": ["--format lines", "--errors replace", "TARGET my.txt"],
        "data my.txt --tokenizer my-bpe --prepare {}": ["--samples 1", "--limit 2"],
    },
    "quiz": {
        "quiz --list {}": ["NAME swap", "--answer 1", "--solution"],
        "quiz {}": ["--answer 1", "--solution"],
        "quiz swap --answer 1,2,3 {}": ["--solution"],
    },
    "show curves": {"show curves runs/demo {}": ["--theme dark"]},
    "show routing": {"show routing {}": ["--seed 1", "--theme dark"]},
    "show sensitivity": {"show sensitivity runs/demo --distance 2 {}": ["--theme dark"]},
    "show sampling": {
        "show sampling {}": ["--seed 1", "--theme dark"],
        "show sampling runs/demo The {}": ["--logits 1,2"],
        "show sampling --set top_k=2 {}": ["--temperatures 1,2"],
        "show sampling --set top_k=2 --sampler-order top_k {}": ["--sampler-preset default"],
    },
    "show tradeoff": {"show tradeoff runs/demo The -n 2 --max-new-tokens 1 {}": ["--theme dark"]},
    "show attention": {
        "show attention runs/demo 'The cat' {}": ["TARGET x", "--side encoder", "--theme dark", "--occurrence 1",
                                                  "--d-head 64", "--scores 1,2"],
        "show attention runs/demo 'The cat' --token cat {}": ["--steps"],
        "show attention --scores 112,96 --d-head 64 {}": ["MODEL runs/demo", "TEXT runs/demo The", "--side encoder",
                                                          "--layer 0", "--head 0", "--steps", "--token cat"],
    },
    "show lens": {"show lens runs/demo 'The cat' {}": ["TARGET x", "--theme dark"]},
    "show neighbors": {"show neighbors runs/demo the {}": ["--unembedding", "--theme dark"]},
    "show vectors": {"show vectors runs/words-only cat dog {}": ["--layer 0", "--head 0", "--theme dark"]},
    "show gates": {"show gates runs/lstm 'The cat' {}": ["--direction backward", "--theme dark"]},
    "show positions": {
        "show positions --kind alibi {}": ["--width 8"],
        "show positions --kind binary {}": ["--width 8", "--heads 2"],
        "show positions {}": ["--heads 2", "--side encoder", "--theme dark"],
        "show positions runs/demo {}": ["--width 8", "--heads 2", "--side encoder"],
    },
    "show masks": {
        "show masks {}": ["--theme dark"],
        "show masks --kind causal {}": ["--window 2"],
        "show masks --json {}": ["--numbers"],
    },
    "show scaling": {"show scaling --d-head 4 {}": ["--theme dark"]},
    "tokenizer train": {
        "tokenizer train my.txt --kind char {}": ["--vocab-size 9", "--min-frequency 2", "--lowercase",
                                                  "--pre-tokenizer spaces", "--explain 3"],
        "tokenizer train my.txt {}": ["--text 1", "--pairs 1,2", "--tag-scheme any"],
        "tokenizer train letters.tsv {}": ["--separator x"],
        "tokenizer train pydocs {}": ["--format lines", "--errors replace", "TARGET my.txt"],
    },
    "tokenizer show": {"tokenizer show my-bpe {}": ["--lines 2", "--merges"]},
    "cost": {
        "cost gpt-tiny {}": ["--source-len 5", "--num-devices 2", "--theme dark"],
        "cost bert-mini {}": ["--new-tokens 4", "--window 4"],
        "cost gpt-tiny --json {}": ["--explain"],
        "cost gpt-tiny --measure {}": ["--device h200", "--growth"],
        "cost gpt-tiny --growth {}": ["--measure"],
    },
}  # fmt: skip

ALWAYS: dict[str, list[str]] = {
    "demo": ["--out", "--seconds", "--set"],
    "train": [],
    "lr-find": ["RECIPE", "--set", "--low", "--high", "--steps", "--out", "--device"],
    "sweep": ["RECIPE", "--jobs", "--resume", "--plot", "--theme"],
    "compare": ["--list"],
    "generate": ["--list-samplers", "--help-samplers", "--set"],
    "translate": ["MODEL", "TEXTS", "--greedy", "--n-best", "--max-new-tokens", "--truncate", "--align", "--set",
                  "--sampler-order", "--help-samplers", "--in", "--out", "--device", "--dtype", "--batch-size"],
    "classify": ["MODEL", "TEXTS", "--top", "--in", "--out", "--device", "--dtype", "--batch-size"],
    "tag": ["MODEL", "TEXTS", "--unconstrained", "--in", "--out", "--device", "--dtype", "--batch-size"],
    "answer": ["MODEL", "--threshold", "--max-answer-tokens", "--window", "--overlap", "--in", "--out", "--device",
               "--dtype", "--batch-size"],
    "fill": ["MODEL", "TEXTS", "--top", "--in", "--out", "--device", "--dtype", "--batch-size"],
    "embed": ["MODEL", "TEXTS", "--pooling", "--similar", "--in", "--device", "--dtype", "--batch-size"],
    "convert": ["MODEL", "OUT", "--force"],
    "runs": ["DIR", "--filter", "--sort", "--reverse", "--columns"],
    "eval": [],
    "score": ["MODEL", "TEXT", "--top", "--out", "--device", "--dtype"],
    "data": ["SOURCE", "--tokenizer", "--valid-fraction", "--test-fraction", "--split", "--prepare"],
    "show curves": ["RUNS", "--metric", "--x", "--out", "--log"],
    "show sampling": ["MODEL", "PROMPT", "--set", "--sampler-order", "--top", "--out"],
    "show tradeoff": ["MODEL", "PROMPT", "--temperature", "--top-p", "--top-k", "--min-p", "-n", "--max-new-tokens",
                      "--judge", "--seed", "--out"],
    "show attention": ["--out"],
    "show masks": ["--kind", "--size", "--out"],
    "show scaling": ["--d-head", "--sigma", "--n-keys", "--seed", "--out"],
    "show sensitivity": ["MODELS", "--text", "--distance", "--n-positions", "--out"],
    "show lens": ["MODEL", "TEXT", "--top", "--position", "--out"],
    "show neighbors": ["MODEL", "TOKENS", "--top", "--by", "--out"],
    "show vectors": ["MODEL", "WORDS", "--out"],
    "show gates": ["MODEL", "TEXT", "--layer", "--unit", "--out"],
    "show positions": ["MODEL", "--kind", "--length", "--out"],
    "check resume": ["RECIPE", "--set", "--steps", "--kills", "--ranks", "--seed", "--out", "--device"],
    "check cached": ["MODEL", "TEXT", "--atol", "--device", "--dtype"],
    "check batched": ["MODEL", "TEXT", "--atol", "--device", "--dtype"],
    "check contract": ["MODEL", "--only", "--batch-size", "--length", "--atol", "--seed", "--device", "--dtype"],
    "check homework": ["FILE"],
    "quiz": ["--list"],
    "tokenizer train": ["SOURCE", "--kind", "--special-token", "--out"],
    "tokenizer encode": ["TOKENIZER", "TEXTS"],
    "tokenizer decode": ["TOKENIZER", "IDS", "--special"],
    "tokenizer show": ["TOKENIZERS"],
    "models": ["WORD"],
    "cost": ["MODELS", "--set", "--batch-size", "--seq-len", "--dtype", "--plot"],
    "show model": ["MODEL", "--set"],
    "show routing": ["--tokens", "--width", "--out"],
}  # fmt: skip


def sampler_flags():
    """Sampler flags, and whether a switch has to turn their sampler on, with the words of a search about the rest."""
    for spec in SAMPLER_SPECS.values():
        for name, parameter in spec.parameters.items():
            if parameter.flag and name not in SHARED_PARAMETERS:
                is_switch = not spec.switches or name in spec.switches
                yield f"--{spec.flat_name(name).replace('_', '-')}", is_switch, spec.group


SAMPLER_FLAGS = {flag: (is_switch, group) for flag, is_switch, group in sampler_flags()}
VALUES = {"--repetition-scope": "generated", "--frequency-scope": "generated", "--presence-scope": "generated",
          "--dry-breakers": "1", "--typical": "0.9", "--tail-free": "0.9", "--top-p": "0.9", "--min-p": "0.1",
          "--top-a": "0.1", "--eta-cutoff": "0.1", "--epsilon-cutoff": "0.1", "--xtc-threshold": "0.1",
          "--xtc-probability": "0.5", "--dynamic-temperature-low": "0.5", "--dry-base": "1.5"}  # fmt: skip


def sampler_cases():
    for verb in ("generate runs/demo The --max-new-tokens 1", "translate runs/reverse abc --max-new-tokens 1"):
        for flag, (is_switch, group) in SAMPLER_FLAGS.items():
            value = VALUES.get(flag, "2")
            if not is_switch:
                yield f"{verb} --num-beams 2 {{}}", f"{flag} {value}"
                if verb.startswith("generate"):
                    yield f"{verb} --seed 1 {{}}", f"{flag} {value}"
                    yield f"{verb} --greedy {{}}", f"{flag} {value}"
            elif group not in ("constraint", "penalty"):
                yield f"{verb} --num-beams 2 {{}}", f"{flag} {value}"
        yield f"{verb} --num-beams 2 {{}}", "--min-keep 2"


CASES = [(line, option) for lines in CONTEXTS.values() for line, options in lines.items() for option in options]


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_tried_where_it_cannot_matter_or_matters_everywhere(name):
    tried = {option.split()[0] for options in CONTEXTS.get(name, {}).values() for option in options}
    if name in ("generate", "translate"):
        tried |= {*SAMPLER_FLAGS, "--min-keep"}
    if name == "generate":
        tried |= {"--temperature"}
    options = {name_of(parameter) for parameter in COMMANDS[name].params} - GENERAL
    assert options - tried - set(ALWAYS[name]) == set()
    assert tried & set(ALWAYS[name]) == set()


def is_told(command, option, capsys):
    name, _, value = option.partition(" ")
    is_argument = name.isupper()
    code, out, err = run(command.format(value if is_argument else option), capsys)
    told = " ".join(err.split())
    assert "Traceback" not in err
    if code == 0:
        assert "note: " in told
        assert names(name, told), err
    else:
        assert out == ""
        assert "Error: " in told
        assert is_argument or names(name, told) or value in told, err


def names(option, text):
    """Whether a text names an option: as a flag, as the setting of a sampler, or by its sampler."""
    setting = option.lstrip("-").replace("-", "_")
    sampler = FLAT_NAMES.get(setting, (setting,))[0]
    return any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) for word in (option, setting, sampler))


@pytest.mark.parametrize(("command", "option"), CASES)
def test_an_option_that_cannot_matter_is_told(command, option, capsys):
    is_told(command, option, capsys)


@pytest.mark.parametrize(("command", "option"), sampler_cases())
def test_a_sampler_flag_that_cannot_matter_is_told(command, option, capsys):
    is_told(command, option, capsys)


def test_the_defaults_of_options_are_not_complained_about(capsys):
    assert run("generate runs/demo The --max-new-tokens 1 --num-beams 2", capsys)[2] == ""
    assert run("translate runs/reverse abc", capsys)[2] == ""
