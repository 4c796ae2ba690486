"""Why Post-LN is hard: the measurements against torch, closed forms and the chapter's training run."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from draw import normal, randomize

from normlab import device, fast, probes
from normlab.experiments import small_models
from normlab.experiments import why_post_ln_is_hard as hyp
from normlab.experiments.placement import trained


def disturbed(name, layers=3, seed=0):
    """A stack in float64 whose gains and biases are not 1 and 0."""
    return randomize(hyp.model_of(name, layers, seed).double())


def torch_loss(model):
    ids, targets = small_models.passages()
    return F.cross_entropy(model(ids).transpose(1, 2), targets)


def test_lower_blocks_are_small_and_the_top_one_is_not():
    small, plain = (hyp.model_of(name, 4, 3) for name in (hyp.POST_INIT, "Post-LN"))
    for layer, (a, b) in enumerate(zip(small.blocks, plain.blocks), start=1):
        for scaled in ("residuals.0.sublayer.value", "residuals.0.sublayer.out", "residuals.1.sublayer.up", "residuals.1.sublayer.down"):
            ratio = a.get_submodule(scaled).weight / b.get_submodule(scaled).weight
            torch.testing.assert_close(ratio, torch.full_like(ratio, 1 / (4 - layer + 1)))
        for kept in ("residuals.0.sublayer.query", "residuals.0.sublayer.key", "residuals.0.norm"):
            assert torch.equal(a.get_submodule(kept).weight, b.get_submodule(kept).weight)


def test_output_is_what_the_head_reads():
    for name in ("Post-LN", "Pre-LN"):
        model = disturbed(name)
        logits = model(small_models.passages()[0])
        torch.testing.assert_close(model.head(hyp.output(model)), logits, rtol=1e-12, atol=1e-12)


def test_relative_change():
    x = normal(2, 5, 8)
    assert hyp.relative_change(x, 1.25 * x) == pytest.approx(0.25, rel=1e-12)
    assert hyp.relative_change(3 * x, 3 * x + 3) == pytest.approx(1 / x.square().mean().sqrt().item(), rel=1e-12)


def test_noise_has_the_size_that_it_should_have():
    model = disturbed("Post-LN, N(0, 0.02)")
    before = copy.deepcopy(model.state_dict())
    noisy = hyp.perturbed(model, 0.05, seed=2).state_dict()
    for name, old in model.state_dict().items():
        assert torch.equal(old, before[name])  # the model itself stays
        if name.startswith("blocks") and old.dim() == 2:
            assert hyp.relative_change(old, noisy[name]) == pytest.approx(0.05, rel=0.1)
        else:
            assert torch.equal(noisy[name], old)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_first_step_is_that_of_torch_adam(scale):
    model = disturbed("Pre-LN")
    theirs = copy.deepcopy(model)
    ids, targets = small_models.passages(seed=98)
    (scale * F.cross_entropy(theirs(ids).transpose(1, 2), targets)).backward()
    torch.optim.Adam(theirs.parameters(), lr=3e-3, betas=(0.9, 0.98)).step()
    ours = hyp.after_one_step(model, 3e-3, scale)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_gradients_are_those_of_backward():
    model = disturbed("DeepNorm", layers=4)
    torch_loss(model).backward()
    expected = [block.residuals[1].sublayer.down.weight.grad.norm().item() for block in model.blocks]
    assert hyp.mlp_gradients(model) == pytest.approx(expected, rel=1e-10)
    whole = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    assert hyp.gradient_norm(model) == pytest.approx(whole, rel=1e-10)


def test_spread_of_known_tokens():
    assert hyp.spread(torch.tensor([[[1.0, 5.0], [3.0, 5.0]]])) == pytest.approx(math.sqrt(0.5))
    assert hyp.spread(torch.ones(2, 3, 4)) == 0


def test_a_silent_pre_stack_lets_everything_through():
    seen = hyp.look(hyp.shrink_writers(disturbed("Pre-LN"), 0.0))
    assert seen["forward"] == seen["backward"] == 1


def test_a_silent_post_stack_divides_by_what_its_first_norm_is_given():
    model = hyp.shrink_writers(hyp.model_of("Post-LN", 4, 0).double(), 0.0)
    with torch.no_grad():
        for table in model.embedding_tables():
            table.weight *= 5
    seen, embedded = hyp.look(model), model.embed(small_models.passages()[0]).detach()
    inverse = 1 / probes.size(embedded - embedded.mean(-1, keepdim=True))
    assert seen["forward"] == pytest.approx(inverse, rel=0.05)
    assert seen["backward"] == pytest.approx(inverse, rel=0.1)
    # Of 8 norms the first is given tokens of size 5, the others those of size 1.
    assert seen["norm_input"] == pytest.approx((probes.size(embedded) + 7) / 8, rel=1e-3)


def test_look_reports_the_gradient_of_the_first_block():
    model = disturbed("Post-LN")
    seen = hyp.look(model)
    torch_loss(model).backward()
    assert seen["gradient"] == pytest.approx(model.blocks[0].residuals[1].sublayer.down.weight.grad.norm().item(), rel=1e-10)
    assert seen["cosine"] == pytest.approx(probes.token_cosine(hyp.output(model)), rel=1e-12)


def test_looking_does_not_disturb_the_training():
    losses, kept = trained.train_stack("Post-LN", 2, hyp.LARGE, 0, seed=1, steps=6)
    model, seen = hyp.train_and_look("Post-LN", 1, layers=2, steps=6)
    assert seen["last"] == sum(losses) / 20
    with device.single_thread(), fast.enabled():
        assert small_models.validation_loss(model) == kept["validation"]
    assert [len(seen[key]) for key in ("norm_input", "change")] == [sum(step <= 6 for step in hyp.GRID)] * 2


def test_every_run_can_start():
    for run in hyp.RUNS | hyp.CONTROLS:
        _, seen = hyp.train_and_look(run, 0, layers=1, steps=1)
        assert seen["change"][0] == 0 < seen["change"][1]
        assert all(math.isfinite(v) for values in seen.values() if isinstance(values, list) for v in values)


def test_shrunk_writers_scale_what_a_sublayer_adds():
    model = disturbed("Pre-LN")
    a, b = (probes.readings(m, small_models.passages()[0])[0].increment for m in (model, hyp.shrink_writers(model, 0.1)))
    torch.testing.assert_close(0.1 * a, b, rtol=1e-10, atol=1e-12)


def test_common_share_of_known_increments():
    """An increment that is the same for all tokens has share 1; a silent attention leaves the MLP's, which differs."""
    model = disturbed("Pre-LN", layers=1)
    mlp = model.blocks[0].residuals[1].sublayer
    mlp.forward = lambda x, **context: torch.ones_like(x) * 0.3
    assert hyp.common_share(model) == pytest.approx(1, rel=1e-12)
    mlp.forward = lambda x, **context: x - x.mean((0, 1))
    assert hyp.common_share(model) == pytest.approx(0, abs=1e-12)


def test_a_step_of_sgd_is_the_rate_times_the_gradient():
    """The loss after one step, against a step by hand; clipped, the step is as long as the rate says."""
    ids, targets = trained_batch(seed=4)
    for arm, clip in (("no warm-up", None), ("clipped at norm 1", 1.0)):
        model = trained.stack("Post-LN", 2, 4)
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = sum(p.grad.square().sum() for p in model.parameters()) ** 0.5
        assert norm > 1
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad * (1 if clip is None else clip / norm)
        second = torch.nn.functional.cross_entropy(model(trained_batch(4, skip=1)[0]).flatten(0, 1), trained_batch(4, skip=1)[1].flatten())
        expected = (loss.item() + second.item()) / 20  # the mean of the last 20 losses, of which there are two
        assert hyp.sgd("Post-LN", arm, 0.5, seed=4, layers=2, steps=2)["last"] == pytest.approx(expected, abs=1e-5)


def trained_batch(seed, skip=0):
    """The batch that a training run with this seed sees first, or ``skip`` batches later."""
    from normlab import data

    generator = torch.Generator().manual_seed(1000 + seed)
    draw = data.sampler(data.corpus().train, small_models.BATCH, small_models.TOKENS)
    for _ in range(skip):
        draw(generator)
    return draw(generator)


def test_a_run_of_sgd_that_blows_up_is_no_error():
    assert hyp.sgd("Pre-LN", "no warm-up", 1e6, seed=0, layers=2, steps=20) == {"last": None}


@pytest.mark.parametrize("arm, warmup", [("AdamW", 0), ("AdamW, 100 steps of warm-up", 100)])
def test_the_loop_of_the_accounts_is_the_chapters_training(arm, warmup):
    losses, _ = trained.train_stack("Post-LN", 2, 3e-3, warmup, seed=2, steps=25)
    assert hyp.account("Post-LN", arm, 2, 3e-3, seed=2, steps=25)["last"] == pytest.approx(sum(losses[-20:]) / 20, abs=1e-6)


def test_averages_first_means_that_nothing_moves_before():
    """After 100 steps at rate 0 the first loss is that of the untouched model on batch 101."""
    ids, targets = trained_batch(seed=3, skip=100)
    untouched = F.cross_entropy(trained.stack("Post-LN", 1, 3)(ids).transpose(1, 2), targets).item()
    kept = hyp.account("Post-LN", "AdamW, averages first", 1, 1e-30, seed=3, steps=1)["last"]
    losses = [F.cross_entropy(trained.stack("Post-LN", 1, 3)(i).transpose(1, 2), t).item() for i, t in (trained_batch(3, skip=k) for k in range(81, 101))]
    assert kept == pytest.approx(sum(losses) / 20, abs=1e-5) and losses[-1] == pytest.approx(untouched)


def test_every_account_differs_from_adam():
    plain = hyp.account("Post-LN", "AdamW", 2, 8e-3, seed=1, steps=12)["last"]
    for arm in hyp.ACCOUNTS:
        if arm != "AdamW":
            assert abs(hyp.account("Post-LN", arm, 2, 8e-3, seed=1, steps=12)["last"] - plain) > 1e-4, arm
