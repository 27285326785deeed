"""Every objective computes the plain loss, and is trained, evaluated, saved, loaded and resumed by the same trainer."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.data.datasets.classification import LabelBatch
from headway.data.datasets.seq2seq import Seq2SeqDataset
from headway.data.loader import CausalBatch, RngKey
from headway.data.records import Pair
from headway.errors import ConfigError
from headway.runs import Run
from headway.training.distributed import DistContext
from headway.training.objectives import OBJECTIVES, LossModule
from headway.training.resume_check import differences
from headway.training.task import make_model, make_task
from tests.training.recipes import for_objective, train_until_power_cut

MAX_SELECTION_LOSS = {"causal": 1.0, "masked": 0.8, "pairs": 0.5, "classify": 0.2, "tag": 0.2, "span": 0.2}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_saves_and_loads(objective, tmp_path):
    settings = {"causal": {"steps": 250}, "masked": {"steps": 400, "optimizer": "muon", "lr": 5e-3}}
    recipe = for_objective(objective, tmp_path, **settings.get(objective, {}))
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.score.selection_loss < MAX_SELECTION_LOSS[objective]
    if objective in ("classify", "tag"):
        assert result.score.accuracy > 0.95
    loaded = headway.load(tmp_path / "run")
    assert type(loaded) is type(result.model)
    for saved, trained in zip(loaded.parameters(), result.model.parameters(), strict=True):
        assert_close(saved, trained)


def assert_resumes_exactly(recipe, folder):
    result = headway.train(recipe, out=folder / "undisturbed")
    # both runs share a tokenizer, which need not be trained again
    recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(path=str(result.checkpoint)))
    train_until_power_cut(recipe, folder / "resumed", 5)
    headway.train(recipe, out=folder / "resumed", resume=True)
    assert differences(Run(folder / "undisturbed"), Run(folder / "resumed")) == []


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "causal"])  # causal: test_resume.py
def test_every_objective_resumes_exactly(objective, tmp_path):
    recipe = for_objective(objective, tmp_path, steps=8, save_every=3, log_every=1)
    assert_resumes_exactly(recipe.replace(model=recipe.model.replace(dropout=0.1)), tmp_path)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("objective", ["causal", "masked", "pairs", "classify", "tag", "span"])
def test_the_loss_is_plain_cross_entropy(objective, smoothing, tmp_path):
    task = make_task(for_objective(objective, tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.loader(DistContext()).at(0, 0)
    loss_module = LossModule(model, objective, smoothing).train()  # these models have no dropout
    nats, n_correct = loss_module(batch)
    if objective == "causal":
        logits, targets = model(batch.inputs), batch.targets
    elif objective == "masked":
        logits, targets = model(batch.ids, batch.mask), batch.targets
    elif objective == "pairs":
        logits, targets = model(batch.inputs, source=batch.source, source_mask=batch.source_mask), batch.targets
    elif objective == "classify":
        logits, targets = model(batch.ids, batch.mask)[:, None], batch.labels[:, None]
    elif objective == "tag":
        logits, targets = model(batch.ids, batch.mask), batch.tags
    else:
        scores = model(batch.ids, batch.mask, batch.segments)  # (B, 2, T)
        logits = scores.masked_fill(~batch.mask[:, None], -torch.inf)
        targets = torch.stack((batch.starts, batch.ends), 1)
        smoothing = 0.0  # does not apply to positions
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction="sum")
    assert_close(nats, expected, rtol=1e-5, atol=1e-4)
    if n_correct is not None:
        assert int(n_correct) == int((logits.argmax(-1) == targets).sum())
    assert batch.n_targets == int((targets != -100).sum())
    eval_nats, _ = loss_module.eval()(batch)
    unsmoothed = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert_close(eval_nats, unsmoothed, rtol=1e-5, atol=1e-4)  # evaluation never smooths


def with_all_randomness(tmp_path, **train):
    """Pairs with dropout, BPE-dropout and R-Drop."""
    recipe = for_objective("pairs", tmp_path, rdrop_alpha=4.0, label_smoothing=0.1, **train)
    tokenizer = recipe.tokenizer.replace(kind="bpe", vocab_size=280, bpe_dropout=0.2)
    return recipe.replace(tokenizer=tokenizer, model=recipe.model.replace(dropout=0.3))


def test_rdrop_is_the_papers_formula(tmp_path):
    """Liang et al. 2021, eq. 4: the mean loss of two passes plus α/2 times the symmetric KL divergence."""
    task = make_task(with_all_randomness(tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.loader(DistContext()).at(0, 0)
    loss_module = LossModule(model, "pairs", 0.1, 4.0).train()
    torch.manual_seed(7)
    nats, _ = loss_module(batch)
    nats.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(7)
    twice = [torch.cat((x, x)) for x in (batch.inputs, batch.source, batch.source_mask)]
    logits = model(twice[0], source=twice[1], source_mask=twice[2]).chunk(2)
    is_target = batch.targets != -100
    targets = batch.targets[is_target]
    losses = [F.cross_entropy(l[is_target], targets, label_smoothing=0.1, reduction="sum") for l in logits]
    p, q = (l[is_target].log_softmax(-1) for l in logits)
    kl = sum(F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))) / 2
    expected = sum(losses) / 2 + 4.0 / 2 * kl
    expected.backward()
    assert_close(nats, expected, rtol=1e-5, atol=1e-4)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-4)
    assert kl > 0.01
    loss_module.eval()
    assert_close(loss_module(batch)[0], LossModule(model, "pairs").eval()(batch)[0])  # evaluation has no R-Drop


def test_rdrop_and_bpe_dropout_resume_exactly(tmp_path):
    assert_resumes_exactly(with_all_randomness(tmp_path, steps=8, save_every=3, log_every=1), tmp_path)


def source_rows(batch):
    return [row[mask].tolist() for row, mask in zip(batch.source, batch.source_mask, strict=True)]


def test_bpe_dropout_changes_with_the_epoch_and_spares_validation(tmp_path):
    task = make_task(with_all_randomness(tmp_path))
    loader = task.loader(DistContext())
    batches = [loader.dataset.collate(loader.sampler.indices(0, 0), RngKey(1, epoch)) for epoch in (0, 1)]
    rows = list(zip(*map(source_rows, batches), strict=True))
    decode = task.tokenizer.decode
    assert all(decode(a) == decode(b) for a, b in rows)
    assert any(a != b for a, b in rows)
    for row in source_rows(task.validation.loader.at(0, 0)):
        assert row[:-1] == task.tokenizer.encode(decode(row[:-1]))


def test_bpe_dropout_never_truncates_a_sentence(tmp_path):
    text = "Hello world, this is a test of things."
    tokenizer = headway.tokenizers.train("bpe", [text] * 9, 300)
    context = len(tokenizer.encode(text)) + 1
    dataset = Seq2SeqDataset([Pair(text, text)], tokenizer, context=context, dropout=0.9)
    for epoch in range(5):
        batch = dataset.collate(np.array([0]), RngKey(1, epoch))
        assert tokenizer.decode(batch.source[0].tolist()) == text
        assert batch.targets[0, -1] == tokenizer.eos_id


@pytest.mark.parametrize("setting", ["train.rdrop_alpha=2", "tokenizer.bpe_dropout=0.1", "eval.metric=bleu"])
def test_settings_for_pairs_are_refused_elsewhere(setting):
    with pytest.raises(
        ConfigError, match=rf"{setting.split('=')[0]}=.* is (for pairs and|for an encoder-decoder|not for the objec)"
    ):
        make_task(headway.load_recipe("demo", [setting]))


def test_bucketed_batches_give_the_same_loss_and_gradients(tmp_path):
    task = make_task(for_objective("pairs", tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.loader(DistContext()).at(0, 0)
    bucketed = batch.bucketed(1000)
    assert (len(batch), batch.source.shape[1]) != (16, 8)
    assert (len(bucketed), bucketed.source.shape[1] % 8, bucketed.inputs.shape[1] % 8) == (16, 0, 0)
    assert bucketed.n_targets == batch.n_targets
    longest = max(batch.source.shape[1], batch.inputs.shape[1])
    limited = batch.bucketed(longest)
    assert max(limited.source.shape[1], limited.inputs.shape[1]) == longest
    for rdrop_alpha in (0.0, 3.0):
        losses, gradients = [], []
        for rows in (batch, bucketed):
            model.zero_grad()
            nats, _ = LossModule(model, "pairs", 0.1, rdrop_alpha).train()(rows)
            nats.backward()
            losses.append(nats)
            gradients.append([p.grad.clone() for p in model.parameters()])
        assert_close(*losses, rtol=1e-5, atol=1e-5)
        for a, b in zip(*gradients, strict=True):
            assert_close(a, b, rtol=1e-4, atol=1e-5)


def multi_label_batch(batch, n_labels):
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (len(batch), n_labels)).astype(np.float32))
    return LabelBatch(batch.ids, batch.mask, labels, batch.segments)


@pytest.mark.parametrize(
    ("objective", "rdrop_alpha"),
    [("classify", 0.0), ("classify", 3.0), ("multi-label", 0.0), ("multi-label", 3.0), ("tag", 0.0), ("span", 0.0)],
)
def test_bucketed_batches_of_texts_give_the_same_loss_and_gradients(objective, rdrop_alpha, tmp_path):
    task = make_task(for_objective(objective.replace("multi-label", "classify"), tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.loader(DistContext()).at(0, 0).rows(torch.arange(5))
    if objective == "multi-label":
        batch = multi_label_batch(batch, len(model.config.labels))
    bucketed = batch.bucketed(1000)
    assert (len(bucketed), bucketed.ids.shape[1] % 8) == (8, 0)  # a power of two, then multiples of 32
    assert bucketed.n_targets == batch.n_targets
    assert batch.bucketed(batch.ids.shape[1]).ids.shape[1] == batch.ids.shape[1]
    results, gradients = [], []
    for rows in (batch, bucketed):
        model.zero_grad()
        nats, n_correct = LossModule(model, task.objective, 0.1, rdrop_alpha).train()(rows)
        nats.backward()
        results.append((nats.detach(), n_correct))
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert_close(*results, rtol=1e-5, atol=1e-5)
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_rdrop_of_labels_is_the_papers_formula(is_multi_label, tmp_path):
    """Liang et al. 2021, eq. 4, on labels; the labels of multi-label data are one binary choice each."""
    recipe = for_objective("classify", tmp_path)
    task = make_task(recipe.replace(model=recipe.model.replace(dropout=0.3)))
    torch.manual_seed(0)
    model = make_model(task, "cpu").train()
    batch = task.loader(DistContext()).at(0, 0)
    if is_multi_label:
        batch = multi_label_batch(batch, len(model.config.labels))
    torch.manual_seed(7)
    nats, _ = LossModule(model, "classify", 0.1, 4.0).train()(batch)
    torch.manual_seed(7)
    logits = model(torch.cat((batch.ids, batch.ids)), torch.cat((batch.mask, batch.mask)))
    if is_multi_label:
        smooth = batch.labels * 0.9 + 0.05
        losses = [F.binary_cross_entropy(l.sigmoid(), smooth, reduction="sum") for l in logits.chunk(2)]
        p, q = (torch.stack((l.sigmoid(), 1 - l.sigmoid())).log() for l in logits.chunk(2))
    else:
        losses = [F.cross_entropy(l, batch.labels, label_smoothing=0.1, reduction="sum") for l in logits.chunk(2)]
        p, q = (l.log_softmax(-1) for l in logits.chunk(2))
    kl = sum(F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))) / 2
    assert_close(nats, sum(losses) / 2 + 4.0 / 2 * kl, rtol=1e-5, atol=1e-4)
    assert kl > 1e-4


@pytest.mark.parametrize("carries_state", [True, False])
def test_ar_and_tar_are_the_papers_formulas(carries_state):
    """Merity et al. 2017: α times the mean square of the outputs, β times that of their change between tokens."""
    torch.manual_seed(0)
    model = headway.create("lstm", vocab_size=11, d_model=6, n_layers=2, dropout=0.0).train()
    ids = torch.randint(0, 11, (3, 8))
    batch = CausalBatch(ids[:, :-1], ids[:, 1:], None, carry=torch.zeros(3))
    loss_module = LossModule(model, "causal", ar_alpha=2.0, tar_beta=1.0).train()
    if carries_state:
        loss_module.carry_state(3)
    nats, _ = loss_module(batch)
    with torch.no_grad():
        hidden, _ = model.run(batch.inputs, model.initial_state(3))
    plain = F.cross_entropy(model.unembed(hidden).flatten(0, 1), batch.targets.flatten(), reduction="sum")
    ar = sum(float(h.square().mean()) for row in hidden for h in row)
    tar = sum(float((b - a).square().mean()) for row in hidden for a, b in pairwise(row))
    assert_close(nats.item(), plain.item() + 2.0 * ar + tar * (3 * 7) / (3 * 6), rtol=1e-5, atol=1e-5)
    loss_module.eval()
    assert_close(loss_module(batch)[0].item(), plain.item(), rtol=1e-5, atol=1e-5)


def test_ar_and_tar_are_refused_outside_recurrent_models(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.ar_alpha=1\.0 is for recurrent models"):
        make_task(for_objective("causal", tmp_path, ar_alpha=1.0))


def test_pairs_of_several_sources_are_read_one_after_the_other_and_named(tmp_path):
    recipe, messages = for_objective("pairs", tmp_path), []
    others = tmp_path / "others.tsv"
    others.write_text("source\ttarget\n" + "".join(f"bird {i}\t{i} bird\n" for i in range(90)))
    mix = {recipe.data.path: 1.0, str(others): 1.0}
    task = make_task(recipe.replace(data=recipe.data.replace(mix=mix)), on_message=messages.append)
    assert any(line.startswith(f"examples    {recipe.data.path} + {others}: ") for line in messages)
    assert len(task.dataset) > len(make_task(recipe).dataset) + 50
