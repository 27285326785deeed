"""Scores: tiny texts and records, models of every family and every objective, scored and trained for a step or two.

Every score must equal its definition, computed in float64 and one window at a time, or be refused. A mean over no
targets and a score of NaN weights must be refused.
"""

import json
import math
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import headway
from headway.config import Recipe, recipe_from_table
from headway.data.datasets.mlm import MLMDataset
from headway.data.loader import IGNORE_INDEX, BatchLoader, RngKey
from headway.data.records import Answer, LabelledText, Pair, Question, TaggedSentence
from headway.data.token_shards import TokenArray
from headway.errors import HeadwayError
from headway.evaluation.perplexity import LMScore, evaluate
from headway.models import BERT, BiLSTM, Model, NGram
from headway.tokenizers import Tokenizer, train
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.record_datasets import record_dataset
from headway.training.run_evaluation import evaluate_documents, evaluate_records
from headway.training.task import HEADS
from headway.training.train_step import StepBatch, TrainStep
from tests.fuzz.harness import Area

ALPHABET = "aab b\n.éZ😀\u200b"
TRAIN_TEXTS = ["ab a b. aab\nba bab é.", "a b ab ba. abba"]
LM_FAMILIES = ("gpt", "nplm", "rnn", "lstm", "ngram")
PAIR_FAMILIES = ("transformer", "seq2seq", "bahdanau")
SMOOTHINGS = ("kneser-ney", "witten-bell", "add-k", "stupid-backoff", "none")
TOLERANCE = 2e-4  # relative: float32 sums of a few hundred terms, against float64
HUGE = 1e30  # a weight that overflows in a product


class Scores(Area):
    name = "scores"
    full_count = 1_000
    ci_count = 15

    def prepare(self) -> None:
        torch.set_num_threads(1)
        self.tokenizers = [
            train("char", TRAIN_TEXTS),
            train("word", TRAIN_TEXTS),
            train("bpe", TRAIN_TEXTS, 270),
            train("wordpiece", TRAIN_TEXTS, 30),
            train("unigram", TRAIN_TEXTS, 30),
        ]
        bare = train("char", TRAIN_TEXTS)  # without BOS and EOS, as some tokenizers of others are
        bare.special_tokens = dict.fromkeys(bare.special_tokens)
        self.tokenizers.append(bare)
        self.mask_tokenizer, self.unigram = self.tokenizers[3:5]

    def case(self, rng: random.Random) -> str:
        kinds = [self.score_text] * 5 + [self.score_masked] * 3 + [self.score_records] * 4 + [self.train_run]
        torch.manual_seed(rng.randrange(2**31))
        return rng.choice(kinds)(rng)

    # ── language models ───────────────────────────────────────────────────────────────────────────────────────────

    def score_text(self, rng: random.Random) -> str:
        tokenizer = rng.choice(self.tokenizers)
        # Unigram tokenizers change spaces, and then bits per byte are refused: mostly give them text without.
        alphabet = "ab.Z" if tokenizer is self.unigram and rng.random() < 0.8 else ALPHABET
        documents = random_documents(rng, alphabet)
        model = random_lm(rng, tokenizer, documents)
        damage = rng.choice(["none"] * 9 + ["nan", "inf", "huge"])
        is_damaged = damage_weights(model, damage, rng)
        context, batch_size = rng.choice([None, None, 1, 2, 5, 24]), rng.choice([1, 2, 16])
        if context is None and model.config.context is None and rng.random() < 0.5:
            context = 7
        score = evaluate(model, documents, context=context, batch_size=batch_size, quiet=True)
        self.check_lm_score(score, model, may_be_infinite=damage == "huge")
        if is_damaged and damage in ("nan", "inf"):
            return "damaged, yet finite"  # an embedding that no token of the text uses
        with self.by_definition():
            expected = naive_lm_score(model, tokenizer, documents, context or model.config.context)
        self.check_equal(score.nats_per_token, expected[0], "nats per token")
        self.check_equal(score.bits_per_byte, expected[1], "bits per byte")
        if score.n_tokens != expected[2]:
            self.fail(f"{score.n_tokens} targets, by the definition {expected[2]}")
        return "text"

    def check_lm_score(self, score: LMScore, model: Model, *, may_be_infinite: bool) -> None:
        if score.n_tokens < 1 or score.n_bytes < 1:
            self.fail(f"a score of {score.n_tokens} tokens, {score.n_bytes} bytes")
        is_finite = all(map(math.isfinite, (score.nats_per_token, score.bits_per_byte)))
        may_be_infinite |= isinstance(model, NGram) and model.config.smoothing == "none"
        if not is_finite and not (may_be_infinite and score.nats_per_token == math.inf):
            self.fail(f"{score} is not finite")
        if score.nats_per_token <= 0 and not isinstance(model, NGram):
            self.fail(f"{score}: a softmax is never certain")

    # ── masked language models ────────────────────────────────────────────────────────────────────────────────────

    def score_masked(self, rng: random.Random) -> str:
        tokenizer, documents = self.mask_tokenizer, random_documents(rng, "ab .éZ" if rng.random() < 0.7 else "ZZZa ")
        model = random_encoder(rng, tokenizer, "masked")
        is_damaged = damage_weights(model, rng.choice(["none"] * 4 + ["nan"]), rng)
        recipe = tiny_recipe(model, "masked", rng)
        score = evaluate_documents(model, recipe, documents, context=None, batch_size=4)
        if score.n_targets < 1 or not score.nats_per_target > 0 or not math.isfinite(score.nats_per_target):
            self.fail(f"{score} of {score.n_targets} targets")
        if is_damaged:
            return "damaged, yet finite"
        nats, n_targets = 0.0, 0
        with self.by_definition():
            tokens = TokenArray.of(tokenizer.encode_stream(documents))
            dataset = MLMDataset(tokens, model.config.context, tokenizer)
            for batch in BatchLoader(dataset, 1, seed=recipe.train.seed, shuffle=False).epoch():
                is_maskable = [id not in tokenizer.special_ids.values() for id in _originals(batch)]
                if any(is_maskable) and not batch.n_targets:
                    self.fail("a window with a maskable token has no target")
                window_nats, n = naive_nll(double_logits(model, batch.ids, batch.mask)[0], batch.targets[0])
                nats, n_targets = nats + window_nats, n_targets + n
        if n_targets != score.n_targets:
            self.fail(f"{score.n_targets} targets, by the definition {n_targets}")
        self.check_equal(score.nats_per_target, nats / n_targets, "nats per target")
        return "masked"

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    def score_records(self, rng: random.Random) -> str:
        objective = rng.choice(["pairs", "classify", "tag", "span"])
        tokenizer = rng.choice(self.tokenizers[: -1 if objective == "pairs" else None])  # targets need BOS and EOS
        records = random_records(rng, objective)
        if objective == "pairs":
            family = rng.choice(PAIR_FAMILIES)
            model = headway.create(family, **tiny_sizes(family, rng, tokenizer))
        else:
            model = random_encoder(rng, tokenizer, objective)
        model.tokenizer = tokenizer
        is_damaged = damage_weights(model, rng.choice(["none"] * 5 + ["nan"]), rng)
        recipe = tiny_recipe(model, objective, rng)
        score = evaluate_records(model.eval(), recipe, records, "random records")
        if score.n_targets < 1 or not 0 <= score.nats_per_target < math.inf:
            self.fail(f"{score} of {score.n_targets} targets")
        if is_damaged:
            return "damaged, yet finite"
        nats, n_targets, n_correct = 0.0, 0, 0
        with self.by_definition():
            dataset, _ = record_dataset(objective, records, tokenizer, model.config.context, model_labels(model))
            for batch in BatchLoader(dataset, 1, shuffle=False).epoch():
                for logits, targets in naive_predictions(model, objective, batch):
                    batch_nats, n = naive_nll(logits, targets)
                    nats, n_targets = nats + batch_nats, n_targets + n
                    n_correct += int(((logits.argmax(-1) == targets) & (targets != IGNORE_INDEX)).sum())
        if n_targets != score.n_targets:
            self.fail(f"{score.n_targets} targets, by the definition {n_targets}")
        self.check_equal(score.nats_per_target, nats / n_targets, "nats per target")
        if score.accuracy is not None and not 0 <= score.accuracy <= 1:
            self.fail(f"accuracy {score.accuracy}")
        if score.accuracy is not None and abs(score.accuracy * n_targets - n_correct) > 1:  # a tie may go either way
            self.fail(f"accuracy {score.accuracy}, by the definition {n_correct} of {n_targets}")
        with self.by_definition():
            self.train_steps(rng, model, objective, dataset)
        return objective

    def train_steps(self, rng: random.Random, model: Model, objective: str, dataset: Any) -> None:
        """One step with gradient accumulation has the loss and the gradient norm of one without."""
        indices = torch.randint(len(dataset), (rng.choice([1, 3, 4]),)).numpy()
        n_parts = rng.choice([1, 2, len(indices)])
        rng_key = RngKey(0, 0)
        whole = [dataset.collate(indices, rng_key)]
        parts = [dataset.collate(part, rng_key) for part in _split(indices, n_parts)]
        n_targets = whole[0].n_targets
        if not n_targets:
            return
        results = [one_step(model, objective, batches, n_targets) for batches in (whole, parts)]
        for (whole_value, part_value), what in zip(zip(*results, strict=True), ("loss", "norm"), strict=True):
            self.check_equal(part_value, whole_value, f"{what} of {n_parts} micro-batches", tolerance=1e-3)

    # ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def train_run(self, rng: random.Random) -> str:
        """A run of a few steps logs a loss for every step that has one, and a score, or is refused."""
        out, text = self.folder / "run", self.folder / "text.txt"
        text.write_text("".join(random_documents(rng)) * rng.choice([1, 4]) + rng.choice(["", "ab ba. " * 20]))
        objective = rng.choice(["causal", "causal", "masked"])
        family = "bert" if objective == "masked" else rng.choice(LM_FAMILIES)
        sizes = {k: v for k, v in tiny_sizes(family, rng, None).items() if k not in ("bos_id", "eos_id", "vocab_size")}
        kind = "wordpiece" if objective == "masked" else rng.choice(["char", "word", "bpe"])
        config = {
            "model": {"family": family, **sizes},
            "tokenizer": {"kind": kind, **({} if kind in ("char", "word") else {"vocab_size": 270})},
            "data": {"path": str(text), "valid_fraction": rng.choice([0.1, 0.5])},
            "train": {"device": "cpu", "threads": 1, "steps": 2, "log_every": 1, "batch_size": rng.choice([1, 4])},
            "eval": {"num_evals": 1, "sample_tokens": 0},
        }
        config["train"] |= {"warmup_steps": 0, "grad_accum_steps": rng.choice([1, 3]), "seq_len": rng.choice([3, 8])}
        try:
            result = headway.train(recipe_from_table(config), out=out, quiet=True)
            log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        finally:
            shutil.rmtree(out, ignore_errors=True)
        losses = [record["loss"] for record in log if "loss" in record]
        n_skipped = sum(record.get("event") == "skipped" for record in log)
        if family != "ngram" and (len(losses) + n_skipped != 2 or not all(0 < loss < 1e4 for loss in losses)):
            self.fail(f"losses {losses}, {n_skipped} steps skipped")
        n = result.scores.get("n_tokens", result.scores.get("n_targets", 0))
        may_be_infinite = family == "ngram" and sizes["smoothing"] == "none"
        if n < 1 or not (0 < result.score.selection_loss < math.inf or may_be_infinite):
            self.fail(f"{result.scores}")
        return f"run, {objective}"

    @contextmanager
    def by_definition(self) -> Iterator[None]:
        """What was scored can also be computed: here even a HeadwayError is a finding."""
        try:
            yield
        except HeadwayError as error:
            self.fail(f"scored, yet refused here: {error}")

    def check_equal(self, value: float, expected: float, what: str, *, tolerance: float = TOLERANCE) -> None:
        is_equal = value == expected or abs(value - expected) <= tolerance * max(abs(expected), 1.0)
        if not is_equal:
            self.fail(f"{what}: {value}, by the definition {expected}")


# ── random inputs ─────────────────────────────────────────────────────────────────────────────────────────────────


def random_documents(rng: random.Random, alphabet: str = ALPHABET) -> list[str]:
    def text() -> str:
        return "".join(rng.choices(alphabet, k=rng.choice([0, 1, 2, 3, 8, 8, 30, 30, 90])))

    return [text() for _ in range(rng.choice([1, 1, 2, 4]))]


def tiny_sizes(family: str, rng: random.Random, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Overrides of a family's config: everything small, some of it random."""
    ids = {} if tokenizer is None else {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    sizes: dict[str, Any] = {} if tokenizer is None else {"vocab_size": tokenizer.vocab_size}
    match family:
        case "gpt" | "bert" | "transformer":
            sizes |= {"n_layers": rng.randrange(3), "d_model": 8, "n_heads": 2, "d_ff": 12, "dropout": 0.0}
            sizes |= {"context": rng.choice([8, 24]), "positions": rng.choice(["learned", "rotary", "alibi"])}
        case "nplm":
            sizes |= {"order": rng.choice([2, 4]), "d_model": 6, "d_hidden": 8}
        case "rnn" | "lstm":
            sizes |= {"n_layers": rng.choice([1, 2]), "d_model": 8, "dropout": 0.0}
        case "seq2seq":
            sizes |= {"n_layers": 1, "d_model": 8, "context": 24}
        case "bahdanau":
            sizes |= {"d_model": 6, "d_hidden": 7, "context": 24}
        case "bilstm":
            sizes |= {"d_model": 6, "d_hidden": 7, "dropout": 0.0, "context": 24}
        case "ngram":
            sizes |= {"order": rng.choice([1, 2, 4]), "smoothing": rng.choice(SMOOTHINGS)}
    return sizes | (ids if family not in ("bert", "bilstm") else {})


def random_lm(rng: random.Random, tokenizer: Tokenizer, documents: list[str]) -> Any:
    family = rng.choice(LM_FAMILIES)
    model: Any = headway.create(family, **tiny_sizes(family, rng, tokenizer))
    if isinstance(model, NGram):
        texts = random_documents(rng) if rng.random() < 0.6 else documents
        if ids := tokenizer.encode_stream(texts):
            model.fit(torch.tensor(ids))
    model.tokenizer = tokenizer
    return model.eval()


def random_encoder(rng: random.Random, tokenizer: Tokenizer, objective: str) -> Any:
    family = "bilstm" if objective in ("tag", "classify") and rng.random() < 0.4 else "bert"
    labels = {"labels": ["x", "y", "z"]} if objective in ("tag", "classify") else {}
    encoder: Any = headway.create(family, **tiny_sizes(family, rng, tokenizer), **labels)
    assert isinstance(encoder, BERT | BiLSTM)
    model = HEADS[objective](encoder)
    model.tokenizer = tokenizer
    return model.eval()


def random_records(rng: random.Random, objective: str) -> list[Any]:
    def text() -> str:
        return "".join(rng.choices("ab .éZ", k=rng.choice([0, 1, 3, 9, 40])))

    n = rng.choice([0, 1, 1, 2, 2, 3, 5, 5])
    match objective:
        case "pairs":
            return [Pair(text(), text()) for _ in range(n)]
        case "classify":
            return [LabelledText(text(), rng.choice("xyz")) for _ in range(n)]
        case "tag":
            words = [tuple(rng.choices(["a", "ab", "Z", "é", "\u200b", "ba."], k=rng.randrange(5))) for _ in range(n)]
            return [TaggedSentence(row, tuple(rng.choice("xyz") for _ in row)) for row in words]
        case _:
            contexts = [text() for _ in range(n)]
            starts = [rng.randrange(len(c) + 1) for c in contexts]
            answers = [(Answer(c[s : s + 3], s),) if c[s:] else () for c, s in zip(contexts, starts, strict=True)]
            return [Question(str(i), text(), contexts[i], answers[i]) for i in range(n)]


def tiny_recipe(model: Any, objective: str, rng: random.Random) -> Recipe:
    recipe = recipe_from_table({"train": {"objective": objective}, "eval": {"batch_size": rng.choice([1, 2, 16])}})
    return recipe.replace(model=model.config)


def damage_weights(model: Any, kind: str, rng: random.Random) -> bool:
    """Put a value that is not a number, or a huge one, into one weight."""
    parameters = [p for p in model.parameters() if p.numel()]
    if kind == "none" or not parameters:
        return False
    parameter = rng.choice(parameters)
    with torch.no_grad():
        value = {"nan": math.nan, "inf": math.inf, "huge": HUGE}[kind]
        parameter.view(-1)[rng.randrange(parameter.numel())] = value
    return True


# ── by the definition ─────────────────────────────────────────────────────────────────────────────────────────────


def naive_nll(logits: Tensor, targets: Tensor) -> tuple[float, int]:
    """−Σ ln softmax(logits)[target] with logits (T, V), in float64 and one target at a time; and their number."""
    nats, n = 0.0, 0
    for row, target in zip(logits.double(), targets.tolist(), strict=True):
        if target != IGNORE_INDEX:
            nats += float(torch.logsumexp(row, 0) - row[target])
            n += 1
    return nats, n


def naive_lm_score(
    model: Any, tokenizer: Tokenizer, documents: list[str], context: int | None
) -> tuple[float, float, int]:
    """Nats per token, bits per byte and the number of targets, one window at a time."""
    stream: list[int] = []
    is_given: list[bool] = []  # BOS is given, not predicted
    for document in documents:
        ids = tokenizer.encode(document)
        if tokenizer.bos_id is not None and not (stream and tokenizer.bos_id == tokenizer.eos_id):
            stream, is_given = [*stream, tokenizer.bos_id], [*is_given, True]
        if tokenizer.eos_id is not None:
            ids = [*ids, tokenizer.eos_id]
        stream, is_given = stream + ids, is_given + [False] * len(ids)
    nats, n_targets = 0.0, 0
    length = context or len(stream)
    for start in range(0, len(stream) - 1, length):
        inputs, targets = stream[start : start + length], stream[start + 1 : start + 1 + length]
        inputs = inputs[: len(targets)]
        given = is_given[start + 1 : start + 1 + length]
        marked = [IGNORE_INDEX if g else t for t, g in zip(targets, given, strict=True)]
        window_nats, n = naive_nll(double_logits(model, torch.tensor([inputs]))[0], torch.tensor(marked))
        nats, n_targets = nats + window_nats, n_targets + n
    if tokenizer.bos_id is None:
        nats, n_targets = nats + math.log(model.config.vocab_size), n_targets + 1
    lost = sum(map(tokenizer.lost_bytes, documents))
    n_bytes = sum(len(document.encode()) for document in documents)
    return nats / n_targets, (nats / math.log(2) + 8 * lost) / n_bytes, n_targets


def naive_predictions(model: Any, objective: str, batch: Any) -> list[tuple[Tensor, Tensor]]:
    """(logits, targets) of a batch of one row."""
    match objective:
        case "pairs":
            logits = double_logits(model, batch.inputs, source=batch.source, source_mask=batch.source_mask)
            return [(logits[0], batch.targets[0])]
        case "classify":
            return [(double_logits(model, batch.ids, batch.mask), batch.labels)]
        case "tag":
            return [(double_logits(model, batch.ids, batch.mask)[0], batch.tags[0])]
        case _:
            logits = double_logits(model, batch.ids, batch.mask, batch.segments)[0]
            return [(logits[:1], batch.starts), (logits[1:], batch.ends)]


def double_logits(model: Any, *args: Any, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(*args, **kwargs)
    return logits.double()


def one_step(model: Any, objective: str, batches: list[Any], n_targets: int) -> tuple[float, float]:
    """The mean loss and the gradient norm of a step over these micro-batches, with a learning rate of 0."""
    train_config = recipe_from_table({"train": {"lr": 0.0, "optimizer": "sgd", "weight_decay": 0.0}}).train
    device = torch.device("cpu")
    optimizer = Optimizer(model, train_config, device=device)
    module = LossModule(model, objective).train()
    step = TrainStep(module, optimizer, clip=0.0, autocast=False, device=device)
    loss, norm = step(StepBatch(batches, [True] * len(batches), n_targets), 1 / n_targets)
    model.eval()
    return float(loss) / n_targets, float(norm)


def model_labels(model: Any) -> list[str] | None:
    return getattr(model.config, "labels", None) or None


def _originals(batch: Any) -> list[int]:
    """The ids of a masked batch of one row before masking, as far as the targets tell."""
    ids, targets = batch.ids[0].tolist(), batch.targets[0].tolist()
    return [id if target == IGNORE_INDEX else target for id, target in zip(ids, targets, strict=True)]


def _split(indices: Any, n: int) -> list[Any]:
    size = -(-len(indices) // n)
    return [indices[i : i + size] for i in range(0, len(indices), size)]
