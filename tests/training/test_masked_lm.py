"""Masked language models: what contributes to the loss, whole words and segments through the trainer, and scores."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.data.loader import IGNORE_INDEX
from headway.errors import ConfigError
from headway.evaluation.tasks import TaskScore
from headway.training.distributed import DistContext
from headway.training.objectives import LossModule
from headway.training.run_evaluation import evaluate_documents, evaluate_split
from headway.training.task import make_model, make_task
from tests.training.recipes import for_objective
from tests.training.test_objectives import assert_resumes_exactly


def model_and_batch(folder, **train):
    task = make_task(for_objective("masked", folder, **train))
    torch.manual_seed(0)
    return make_model(task, "cpu"), task.loader(DistContext()).at(0, 0)


def test_positions_that_were_not_selected_do_not_contribute_to_the_loss(tmp_path):
    """The gradient of the loss with respect to their hidden states is zero."""
    model, batch = model_and_batch(tmp_path)
    hidden = []
    original = model.hidden_states

    def captured(*arguments):
        hidden.append(original(*arguments).detach().requires_grad_())
        return hidden[-1]

    model.hidden_states = captured
    nats, _ = LossModule(model, "masked").train()(batch)
    nats.backward()
    is_target = batch.targets != IGNORE_INDEX
    row_norms = hidden[0].grad.norm(dim=-1)  # (B, T)
    assert (row_norms[is_target] > 0).all()
    assert (row_norms[~is_target] == 0).all()
    assert 0 < is_target.sum() < is_target.numel() / 2


def test_the_batches_of_a_run_have_the_published_proportions(tmp_path):
    """15 % of the tokens, of these 80/10/10, over many epochs; every row has a target, every token its turn. Devlin et
    al. 2019, §3.1; tolerances are five standard deviations."""
    task = make_task(for_objective("masked", tmp_path, batch_size=32))
    loader, special_ids = task.loader(DistContext()), torch.tensor(sorted(task.tokenizer.special_ids.values()))
    n_batches = len(task.dataset) // 32
    batches = [loader.at(epoch, step) for epoch in range(60) for step in range(n_batches)]
    ids, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("ids", "targets"))
    is_target = targets != IGNORE_INDEX
    assert is_target.any(dim=1).all()
    original = torch.where(is_target, targets, ids)
    maskable = ~torch.isin(original, special_ids)
    assert not is_target[~maskable].any()
    n = int(is_target.sum())

    def assert_close_to(fraction, expected, n):
        assert abs(float(fraction) - expected) < 5 * (expected * (1 - expected) / n) ** 0.5

    assert_close_to(is_target.sum() / maskable.sum(), 0.15, int(maskable.sum()))
    is_mask, is_kept = ids[is_target] == task.tokenizer.mask_id, ids[is_target] == targets[is_target]
    n_ordinary = task.tokenizer.vocab_size - len(special_ids)
    assert_close_to(is_mask.float().mean(), 0.8, n)
    assert_close_to(is_kept.float().mean(), 0.1 + 0.1 / n_ordinary, n)
    by_column = is_target.sum(dim=0)[maskable.all(dim=0)]  # no place in a row is spared
    assert (by_column > 0.08 * len(is_target)).all()


@pytest.mark.parametrize("train", [{}, {"segment_pairs": True, "whole_word_masking": True, "mask_prob": 0.3}])
def test_training_and_evaluation_compute_the_same_loss_and_count_correct_predictions(train, tmp_path):
    model, batch = model_and_batch(tmp_path, **train)
    model.encoder.dropout.p = 0.0
    logits = model(batch.ids, batch.mask, batch.segments)
    expected = F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    loss_module = LossModule(model, "masked")
    with torch.no_grad():
        training_nats, _ = loss_module.train()(batch)
        nats, n_correct = loss_module.eval()(batch)
    assert_close(training_nats, expected, rtol=1e-5, atol=1e-4)
    assert_close(nats, expected, rtol=1e-5, atol=1e-4)
    assert int(n_correct) == int((logits.argmax(dim=-1) == batch.targets).sum())


def test_segments_reach_the_model(tmp_path):
    model, batch = model_and_batch(tmp_path, segment_pairs=True)
    nats, _ = LossModule(model, "masked").train()(batch)
    nats.backward()
    assert set(batch.segments.unique().tolist()) == {0, 1}
    assert (model.encoder.segments.grad.norm(dim=-1) > 0).all()


def test_whole_words_and_segments_train_resume_exactly_and_are_evaluated_alike(tmp_path):
    recipe = for_objective(
        "masked", tmp_path, steps=8, save_every=3, log_every=1, segment_pairs=True, whole_word_masking=True
    )
    assert_resumes_exactly(recipe.replace(model=recipe.model.replace(dropout=0.1)), tmp_path)
    logged = headway.open_run(tmp_path / "undisturbed").scores
    score = evaluate_split(headway.load(tmp_path / "undisturbed"), headway.load_recipe(tmp_path / "undisturbed"))
    assert isinstance(score, TaskScore)
    assert 0 <= score.accuracy <= 1
    assert score.accuracy == pytest.approx(logged["accuracy"])
    assert score.nats_per_target == pytest.approx(logged["nats_per_target"], rel=1e-5)


def test_a_masked_lm_without_a_run_is_scored_on_masked_tokens(tmp_path):
    recipe = for_objective("masked", tmp_path)
    task = make_task(recipe)
    torch.manual_seed(0)
    model = make_model(task, "cpu").eval()
    documents = ["one two three four five six seven eight nine ten. " * 20]
    score = evaluate_documents(model, None, documents, context=None, batch_size=4)
    assert isinstance(score, TaskScore)
    assert score.accuracy is not None
    assert 0.5 < score.perplexity / model.config.vocab_size < 2  # untrained: about a uniform guess
    assert score == evaluate_documents(model, None, documents, context=None, batch_size=4)


def test_scores_with_other_masks_are_not_comparable(tmp_path):
    def evaluation(**train):
        return make_task(for_objective("masked", tmp_path, **train)).evaluation

    settings = [{}, {"mask_prob": 0.3}, {"whole_word_masking": True}, {"segment_pairs": True}, {"seq_len": 24}]
    assert len({evaluation(**train) for train in settings}) == len(settings)
    assert evaluation(seq_len=48) == evaluation()  # the model's context


def test_two_segments_need_two_embeddings(tmp_path):
    recipe = for_objective("masked", tmp_path, segment_pairs=True)
    recipe = recipe.replace(model=recipe.model.replace(n_segments=1))
    with pytest.raises(ConfigError, match=r"needs two segment embeddings, and model\.n_segments=1"):
        make_task(recipe)
