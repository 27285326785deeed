"""headway translate, eval of translations, and show attention, with a small model that uppercases words."""

import io
import json

import pytest

from tests.cli.running import exit_code, run

SETTINGS = """
model.d_model=48 model.n_layers=2 model.d_ff=64 model.dropout=0 model.context=24
tokenizer.kind=char tokenizer.bpe_dropout=0
train.tokens_per_batch=600 train.steps=200 train.lr=3e-3 train.warmup_steps=20 train.ema=0
data.path=train.{en,de} data.valid_path=train.{en,de} eval.metric=exact_match
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two parallel files, and a run that translates one into the other: red cat → RED CAT."""
    folder = tmp_path_factory.mktemp("translate")
    words = ["red", "blue", "cat", "dog"]
    lines = [f"{a} {b}" for a in words for b in words] * 30
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    (folder / "in.txt").write_text("red cat\n\nblue dog\n")
    (folder / "long.txt").write_text("red\n" + "red " * 9 + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = " ".join(f"--set '{setting}'" for setting in SETTINGS.split())
        assert exit_code(f"train pairs --out runs/up {settings}") == 0
        assert exit_code("train ngram --out runs/lm --set data.path=train.de --set tokenizer.kind=char") == 0
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_each_line_gives_one_line(capsys, folder):
    code, out, _ = run("translate runs/up --in in.txt", capsys)
    assert (code, out) == (0, "RED CAT\n\nBLUE DOG\n")
    code, out, err = run("translate runs/up --in in.txt --out out.txt --greedy", capsys)
    assert (code, out) == (0, "")
    assert (folder / "out.txt").read_text() == "RED CAT\n\nBLUE DOG\n"
    code, out, _ = run("translate runs/up --in in.txt --out out.txt --greedy --overwrite --json", capsys)
    summary = json.loads(out)
    assert (code, summary["n_texts"], summary["out"]) == (0, 3, "out.txt")
    assert "3 lines" in err


def test_n_best_prints_rank_score_and_text(capsys):
    code, out, _ = run('translate runs/up "red cat" "dog dog" --n-best 2', capsys)
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [(rank, text) for rank, _, text in rows[::2]] == [("1", "RED CAT"), ("1", "DOG DOG")]
    assert float(rows[0][1]) > float(rows[1][1])


def test_align_pairs_each_letter_with_a_source_letter(capsys):
    document = json.loads(run('translate runs/up "red cat" --align --json', capsys)[1])
    translation = document["translations"][0]
    assert translation["text"] == "RED CAT"
    assert [word["word"] for word in translation["alignment"]] == list("RED CAT")
    assert all(word["source"] == "red cat"[word["source_index"]] for word in translation["alignment"])
    lines = run('translate runs/up "red cat" --align', capsys)[1].splitlines()[2:]
    assert [line.split()[0] for line in lines] == list("RED␣CAT")
    code, out, err = run("translate runs/up --in long.txt --truncate --align --json", capsys)
    assert code == 0, err
    assert len(json.loads(out)["translations"]) == 2


def test_samplers_replace_beam_search(capsys):
    command = 'translate runs/up "red cat" --temperature 3 --top-k 5 --seed 1'
    assert run(command, capsys) == run(command, capsys)
    assert run('translate runs/up "red cat" --temperature 0', capsys)[1] == "RED CAT\n"
    assert run('translate runs/up "red cat" --top-k 0', capsys)[1] == "RED CAT\n"  # a filter that is off
    code, _, err = run('translate runs/up "red cat" --num-beams 2 --top-k 5', capsys)
    assert code == 2
    assert "top_k with beam search" in err


def test_reranking_changes_scores_and_shows_their_terms(capsys):
    document = json.loads(run('translate runs/up "red cat" --lm runs/lm --weights lm=0.1 --json', capsys)[1])
    translation = document["translations"][0]
    assert translation["text"] == "RED CAT"
    terms = translation["terms"]
    assert translation["score"] == pytest.approx(terms["direct"] + 0.1 * terms["lm"], rel=1e-6)
    code, _, err = run("translate runs/up red --lm runs/lm --tune 'train.{en,de}' --num-beams 2", capsys)
    assert code == 0
    assert "tuning on 480 pairs" in err
    assert "--weights direct=1" in err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("translate runs/up --in train.de", 2, "ends in .de, but this model translates .en to .de"),
        ("translate runs/up --in nowhere.txt", 1, "nowhere.txt cannot be read"),
        ("translate runs/up red --in train.en", 2, "cannot be combined with texts on the command line"),
        (f"translate runs/up {'red' * 10}", 1, "text 1 has 30 tokens, and this model reads at most 23"),
        ("translate runs/up red --early-stopping maybe", 2, "maybe is not one of true, false or never"),
        ("translate runs/up red --greedy --num-beams 3", 2, "cannot be combined with --num-beams 3"),
        ("translate runs/up red --n-best 9", 2, "n_best=9 of num_beams=5"),
        ("translate runs/up red --n-best 0", 2, "0 is not at least 1"),
        ("translate runs/nowhere red", 1, "no model at runs/nowhere"),
        ("translate runs/up red --out nowhere/x.txt", 2, "the folder nowhere of x.txt does not exist"),
        ("translate runs/up red --out runs", 2, "runs is a folder: name a file"),
        ("translate runs/up --in in.txt --out in.txt", 2, "in.txt is the input file"),
        ("translate runs/up red --align --out x.txt", 2, "name a .jsonl file"),
        ("translate runs/up red --out in.txt", 1, "in.txt already exists: name another file, or add --overwrite"),
        ("translate runs/up red --overwrite", 2, "add --out FILE"),
        ("translate runs/up red --num-beams 3 --temperature 0.7", 2, "temperature=0.7 with beam search"),
        ("translate runs/up red --seed 1", 2, "seed=1 with beam search"),
        ("translate runs/up red --top-k 3 --length-penalty 2", 2, "length_penalty=2.0 is for beam search"),
        ("translate runs/up red --min-new-tokens 5 --max-new-tokens 3", 2, "min_new_tokens=5 is more than the 3"),
        ("translate runs/up red --xtc-threshold 0.2", 0, "xtc_threshold is set, but xtc_probability, which turns"),
        ("translate runs/up red --weights lm=1", 2, "needs a reranker: add --reverse-model or --lm"),
        ("translate runs/up red --lm runs/lm --weights channel=1", 2, "add --reverse-model too"),
        ("translate runs/up red --lm runs/lm --weights lm=1 --tune valid", 2, "cannot be combined with --weights"),
        ("translate runs/up red --lm runs/lm --greedy", 2, "one beam leaves nothing to rerank"),
        ("translate runs/up red --lm runs/up", 2, "runs/up translates, so it cannot be the lm"),
        ("translate runs/up red --reverse-model runs/lm", 2, "runs/lm does not translate"),
        ("translate runs/up red --reverse-model runs/up", 2, "the reverse model must translate back"),
        ("eval", 2, "name a model or run"),
        ("eval runs/nowhere", 1, "no model at runs/nowhere"),
        ("eval --hypotheses train.en", 2, "add the references: --references FILE"),
        ("eval --hypotheses in.txt --references in.txt --num-beams 2", 2, "has no effect with --hypotheses"),
        ("eval --hypotheses in.txt --references train.de", 1, "3 translations and 480 lines of reference 1"),
        ("eval runs/up --hypotheses in.txt", 2, "MODEL: has no effect with --hypotheses"),
        ("eval runs/up train.en", 2, "add the references: --references FILE"),
        ("eval runs/up in.txt --references train.de", 1, "3 translations and 480 lines of reference 1"),
        ("eval runs/up train.en --references train.de --against in.txt", 1, "3 translations and 480 lines"),
        ("eval runs/up --references train.de", 2, "needs the text that was translated"),
        ("eval runs/up --context 8", 2, "does not apply to runs/up, which translates"),
        ("eval runs/up --sentences nowhere/s.jsonl", 2, "the folder nowhere of s.jsonl does not exist"),
        ("eval runs/up --lm runs/lm --tune valid", 2, "tunes the weights on the data they are scored on"),
        ("show attention runs/up ''", 2, "an empty text"),
        ("show attention runs/up red --out a.txt", 2, "a.txt does not end in .png, .svg or .pdf"),
        ("show attention runs/up red blue --side encoder", 2, "this encoder sees the source alone"),
        ("show attention runs/up red --layer 7", 1, "layer"),
        ("show attention runs/up red --side sideways", 1, "sideways"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    result, _, err = run(command, capsys)
    assert (result, message in " ".join(err.split())) == (code, True), err


def test_byte_order_marks_and_carriage_returns_are_ignored(capsys, folder):
    (folder / "windows.txt").write_bytes(b"\xef\xbb\xbfred cat\r\nblue dog")
    assert run("translate runs/up --in windows.txt", capsys)[1] == "RED CAT\nBLUE DOG\n"


def test_json_lines_keep_their_fields(capsys, folder):
    (folder / "in.jsonl").write_text('{"id": 7, "source": "red cat"}\n{"source": "blue dog"}\n')
    code, out, err = run("translate runs/up --in in.jsonl --out out.jsonl --greedy", capsys)
    assert (code, out) == (0, ""), err
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [(line.get("id"), line["source"], line["text"]) for line in lines] == [
        (7, "red cat", "RED CAT"),
        (None, "blue dog", "BLUE DOG"),
    ]
    assert run("translate runs/up --in in.jsonl --out out.jsonl", capsys)[0] == 1
    assert run("translate runs/up --in in.jsonl --out out.jsonl --overwrite", capsys)[0] == 0


def test_eval_reads_sources_from_stdin(capsys, monkeypatch, folder):
    (folder / "upper.txt").write_text("RED CAT\nBLUE DOG\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"red cat\nblue dog\n")))
    document = json.loads(run("eval runs/up - --references upper.txt --json", capsys)[1])
    assert (document["exact_match"], document["n_sentences"]) == (1.0, 2)


def test_unknown_characters_are_named(capsys):
    code, out, err = run('translate runs/up "red ☃"', capsys)
    assert code == 0
    assert out
    assert "note: the vocabulary lacks ☃; it becomes <unk>" in err
    err = run("translate runs/up ☃ red ☃", capsys)[2]
    assert "note: the vocabulary lacks ☃ (in text 1, and 1 more of 3); it becomes <unk>" in err


def test_eval_scores_a_translation_model(capsys, folder):
    document = json.loads(run("eval runs/up --limit 40 --sentences sentences.jsonl --json", capsys)[1])
    assert document["exact_match"] == 1.0
    assert document["n_sentences"] == 40
    assert "tok:13a" in document["signatures"]["BLEU"]
    sentences = [json.loads(line) for line in (folder / "sentences.jsonl").read_text().splitlines()]
    assert len(sentences) == 40
    assert sentences[0]["chrF2"] == 100.0
    code, out, _ = run("eval runs/up train.en --references train.de --limit 30 --against runs/up", capsys)
    assert code == 0
    assert "may be chance" in out


def test_a_translation_may_match_any_of_several_references(capsys, folder):
    for name, text in (("h", "a\nb\n"), ("r1", "a\nx\n"), ("r2", "y\nb\n")):
        (folder / name).write_text(text)
    assert json.loads(run("eval --hypotheses h -r r1 -r r2 --json", capsys)[1])["exact_match"] == 1.0
    assert json.loads(run("eval --hypotheses h -r r1 --limit 1 --json", capsys)[1])["n_sentences"] == 1


def test_a_comparison_names_the_better_system(capsys):
    command = "eval --hypotheses train.en --references train.de --against train.de"
    out = run(command, capsys)[1]
    assert "train.de is better, significantly" in out
    assert "BLEU counts up to four words in a row" in out
    rows = json.loads(run(f"{command} --json", capsys)[1])["comparison"]
    assert rows[1]["second"] == pytest.approx(100.0)
    assert rows[1]["p"] < 0.05


def test_eval_says_how_many_texts_it_truncates(capsys):
    code, out, err = run("eval runs/up long.txt --references long.txt", capsys)
    assert code == 0
    assert "note: 1 of 2 texts exceed the model's context and are cut off" in err
    assert "BLEU counts up to four words in a row" not in out


def test_show_attention_prints_and_plots_the_weights(capsys, folder):
    code, out, _ = run('show attention runs/up "red cat" --out a.png', capsys)
    assert code == 0
    assert "cross-attention, layer 1, the mean of 4 heads" in out
    assert (folder / "a.png").stat().st_size > 5000
    document = json.loads(run('show attention runs/up "red cat" --side encoder --head 1 --json', capsys)[1])
    assert document["side"] == "encoder"
    assert len(document["rows"]) == len(document["columns"]) == 8  # seven letters and EOS
    for layer in document["maps"]:
        assert layer["heads"] == [1]
        assert all(sum(row) == pytest.approx(1.0, abs=1e-4) for row in layer["weights"][0])


# ── --explain ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_explain_shows_every_step_and_changes_nothing(capsys):
    plain = run("translate runs/up 'red cat' 'blue dog' --num-beams 2", capsys)[1]
    code, out, _ = run("translate runs/up 'red cat' 'blue dog' --num-beams 2 --explain", capsys)
    assert code == 0
    assert out.endswith(plain)
    assert "── red cat ──\nbeam search with 2 beams: ranked by the sum of ln p; score = sum / length^1" in out
    assert "step 1: fed back the decoder start token; of 4 candidates" in out
    assert "step 2: fed back R, " in out  # the best beam
    assert "done; finished, best first: 'RED CAT'" in out


def test_the_steps_are_in_the_json(capsys, tmp_path):
    result = json.loads(run("translate runs/up 'red cat' --explain --json --num-beams 2", capsys)[1])["translations"][0]
    last = result["steps"][-1]
    assert last["is_done"]
    assert last["finished"][0] == {"text": result["text"], "score": pytest.approx(result["score"])}
    assert {c["fate"] for step in result["steps"] for c in step["candidates"]} == {"live", "finished", "dropped"}
    assert exit_code(f"translate runs/up 'red cat' --explain --out {tmp_path}/out.jsonl") == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["steps"]


def test_greedy_search_is_explained_as_the_token_that_is_fed_back(capsys):
    out = run("translate runs/up 'red' --greedy --explain", capsys)[1]
    assert "greedy search: the most likely token is fed back, up to the first EOS" in out
    assert "step 3: fed back E; of 2 candidates" in out


def test_explain_is_refused_where_it_cannot_be_read(capsys):
    code, _, err = run("translate runs/up 'red cat' --temperature 1 --explain", capsys)
    assert code == 2
    assert "--explain) follows a search, but these settings draw at random" in err
    code, _, err = run(f"translate runs/up {'red ' * 21} --explain", capsys)
    assert code == 2
    assert "21 texts have too many steps to read: give at most 20" in " ".join(err.split())
    code, _, err = run("translate runs/up 'red cat' --explain --out x.txt", capsys)
    assert code == 2
    assert "name a .jsonl file" in err
