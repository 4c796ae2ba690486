"""The experiments of chapter 2 against closed forms, torch and float64."""

import copy
import math

import pytest
import torch
from draw import normal
from torch.nn import functional as F

from normlab import data, functional, norms, record, training
from normlab.experiments import batchnorm_pitfalls as bn

# --- digits -----------------------------------------------------------------------------------------------------


def test_digits_are_standardized():
    images = bn.standardized_digits()
    assert images.train.mean().abs() < 1e-6 and abs(images.train.std() - 1) < 1e-6
    assert images.val.shape == (360, 64)


def test_digits_mlp_is_torchs_stack():
    """Without a norm: eight times linear and GELU, then the head; with BatchNorm torch's BatchNorm1d in between."""
    x = bn.standardized_digits().train[:32]
    for norm in ("none", "batchnorm"):
        model = bn.DigitsMLP(norm, seed=1)
        layers = []
        for linear in model.linears:
            between = torch.nn.BatchNorm1d(64, eps=1e-6) if norm == "batchnorm" else torch.nn.Identity()
            layers += [copy.deepcopy(linear), between, torch.nn.GELU()]
        reference = torch.nn.Sequential(*layers, copy.deepcopy(model.head))
        torch.testing.assert_close(model(x), reference(x), rtol=1e-4, atol=1e-5)


def test_noise_is_that_of_its_step_and_off_in_evaluation():
    noisy, plain = bn.NoisyBatchNorm(5, seed=3), norms.BatchNorm(5)
    x = normal(4000, 5).float()
    first, base = noisy(x), plain(x)
    second = noisy(x)
    assert not torch.equal(first, second)
    noisy.num_batches_tracked.fill_(0)
    assert torch.equal(noisy(x), first)
    # A scale in 1 ± 1/4, a shift in ± 1/2 for each feature, and a jitter with standard deviation 0.1 / sqrt(3).
    shift = first.mean(0)
    scale = (first * base).mean(0)
    assert (shift.abs() <= 0.5 + 0.01).all() and ((scale - 1).abs() <= 0.25 + 0.01).all()
    rest = first - scale * base - shift
    assert abs(rest.std() - 0.1 / 3**0.5) < 2e-3 and rest.abs().max() < 0.11
    noisy.eval(), plain.eval()
    plain.load_state_dict(noisy.state_dict())
    assert torch.equal(noisy(x), plain(x))


def test_shift_of_the_noise_is_a_third():
    """E|u - u'| of two independent draws from ±1/2 is 1/3."""
    model = bn.DigitsMLP("noisy batchnorm", seed=0)
    pixels, means = bn.standardized_digits().train[:128], []
    for _ in range(40):
        means.append(bn.feature_moments(model, pixels)[0])
        for norm in model.norms:
            norm.num_batches_tracked += 1
    moves = torch.stack([(b - a).abs().mean() for a, b in zip(means, means[1:])])
    assert abs(moves.mean() - 1 / 3) < 0.01


def test_looking_around_changes_nothing():
    quick = bn.train_digits("noisy batchnorm", 0.1, 0, steps=60, look_around=False)
    slow = bn.train_digits("noisy batchnorm", 0.1, 0, steps=60)
    assert quick["loss"] == slow["loss"] and quick["early"] is None and slow["late"] is not None


def test_along_the_gradient_of_a_quadratic():
    """Loss |w|^2 / 2 through a model: g(w - tg) - g(w) = -t g exactly, so the ratio is 1."""

    class Bowl(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(normal(6, seed=2))

    model, w = Bowl(), None

    def loss(model, inputs, targets):
        return model.w.square().sum() / 2

    original = training.next_token_loss
    training.next_token_loss = loss
    try:
        w = model.w.detach().clone()
        found = bn.along_the_gradient(model, None, None)
    finally:
        training.next_token_loss = original
    size = w.norm().item()
    assert torch.equal(model.w.detach(), w)
    assert found["gradient"] == pytest.approx(size) and found["lipschitz"] == pytest.approx(1)
    assert found["gradient_change"] == pytest.approx(0.4 * size)
    assert found["loss_range"] == pytest.approx(size**2 / 2 * (1 - 0.6**2))


def test_diverged_run_says_so():
    result = bn.train_digits("none", 1.0, 0, steps=100, look_around=False)
    assert result["final"] is None and result["shift"] is None and len(result["loss"]) < 100


# --- language model ---------------------------------------------------------------------------------------------


def test_layernorm_has_no_gap_and_buffers_stay():
    corpus = data.corpus()
    batches = data.sampler(corpus.val, 2, 8)
    for norm in ("layernorm", "batchnorm"):
        model = bn.language_model(norm, 0, len(corpus.vocabulary))
        before = copy.deepcopy(model.state_dict())
        running, own = bn.loss_by_statistics(model, batches, 3)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert (running == own) == (norm == "layernorm")


def test_running_statistics_equal_to_the_batchs_close_the_gap():
    """A fresh first norm with its running statistics set to the batch's own normalizes exactly as in training."""
    x = normal(40, 6)
    layer = norms.BatchNorm(6).double()
    layer.running_mean.copy_(x.mean(0))
    layer.running_var.copy_(x.var(0, correction=0))
    own = bn._with_buffers(layer, lambda: layer(x))
    torch.testing.assert_close(own, layer.eval()(x))


def test_training_on_noise_is_measured_from_the_entropy():
    result = bn.train_on_noise("layernorm", tokens=8, seed=0, steps=60)
    assert -0.05 < result["training"] < 1 and -0.05 < result["evaluation"] < 1


# --- padding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [0, 1, 7, 400])
def test_padded_moments(zeros):
    x = 3 + 2 * normal(50, 4)
    padded = torch.cat([x, torch.zeros(zeros, 4, dtype=x.dtype)])
    mean, var = bn.padded_moments(x.mean(0), x.var(0, correction=0), 50 / (50 + zeros))
    torch.testing.assert_close(mean, padded.mean(0))
    torch.testing.assert_close(var, padded.var(0, correction=0))


def test_lines_are_zero_exactly_where_masked():
    lines = bn.embedded_lines(3, lines=9, width=5)
    assert torch.equal(lines.x.abs().sum(-1) > 0, lines.mask)
    assert lines.mask[:, 0].all() and not lines.mask.all()
    other = bn.repad(lines, 4, content=7.0)
    assert other.x.shape[1] == lines.x.shape[1] + 4 and torch.equal(other.real, lines.real)
    assert (other.x[~other.mask] == 7).all()


def test_zeros_behind_tokens_follow_the_formula_and_a_mask_ignores_them():
    tokens = 2 + normal(60, 3)
    for zeros in (0, 20, 540):
        padded = bn.with_zeros(tokens, zeros)
        assert padded.x.shape == (1, 60 + zeros, 3) and torch.equal(padded.real, tokens)
        assert padded.x.abs().sum() == tokens.abs().sum()
        mean, var = bn.padded_moments(tokens.mean(0), tokens.var(0, correction=0), 60 / (60 + zeros))
        expected = (tokens - mean) / var.sqrt()
        torch.testing.assert_close(functional.batch_norm(padded.x, eps=0.0)[padded.mask], expected)
        masked = functional.batch_norm(padded.x, eps=0.0, mask=padded.mask)[padded.mask]
        torch.testing.assert_close(masked, (tokens - tokens.mean(0)) / tokens.std(0, correction=0))


# --- influence --------------------------------------------------------------------------------------------------


def test_influence_is_the_derivative_of_the_logits_of_the_model():
    """Against central differences of the embedding table, for a token that occurs once."""
    model = bn.fresh_language_model("batchnorm").train()
    ids = bn.reading(6, 2)
    position, place = 2, (1, 4)
    fresh = next(i for i in range(model.config.vocab_size) if not (ids == i).any())
    ids[place] = fresh
    expected = bn.influence(model, ids, position)[place]
    row, slopes = model.token_embedding.weight.data[fresh], []
    for j in range(len(row)):
        values = []
        for h in (1e-5, -1e-5):
            row[j] += h
            with torch.no_grad():
                values.append(model(ids)[0, position, ids[0, position + 1]])
            row[j] -= h
        slopes.append((values[0] - values[1]) / 2e-5)
    torch.testing.assert_close(torch.stack(slopes).norm(), expected, rtol=1e-5, atol=1e-8)


def test_influence_of_the_future():
    ids = bn.reading(8, 2)
    for norm, mode, leaks in (("layernorm", True, False), ("rmsnorm", True, False), ("batchnorm", False, False), ("batchnorm", True, True)):
        seen = bn.influence(bn.fresh_language_model(norm).train(mode), ids, 3)
        assert (seen[0, :4] > 0).all()
        assert ((seen[0, 4:] > 0).all() and (seen[1] > 0).all()) if leaks else ((seen[0, 4:] == 0).all() and (seen[1] == 0).all())


def test_moved_leaves_buffers():
    layer = norms.BatchNorm(3)
    x = normal(2, 4, 3).float()
    assert bn.moved(layer, x, x + 1, (0,)) < 1e-5
    assert layer.num_batches_tracked == 0


# --- fluctuations -----------------------------------------------------------------------------------------------


def test_fluctuation_of_normal_vectors():
    pool = normal(200_000, 8)
    batches = normal(600, 50, 8, seed=1)
    f = bn.fluctuation("normal", pool, batches)
    assert f.expected == pytest.approx(math.sqrt(2 / 50), rel=0.02)
    assert f.measured == pytest.approx(math.sqrt(2 / 50), rel=0.05)


def test_fluctuation_of_a_coin_follows_the_exact_law():
    """Values ±1 with equal chance have kurtosis 1, and a batch variance 1 - mean^2 with standard deviation sqrt(2)/n."""
    n = 64
    coin = 2.0 * torch.randint(2, (4000, n, 3), generator=torch.Generator().manual_seed(0)).double() - 1
    f = bn.fluctuation("coin", coin.flatten(0, 1), coin)
    assert f.expected < 0.02 and f.measured == pytest.approx(math.sqrt(2) / n, rel=0.1)


# --- accumulation and synchronization -----------------------------------------------------------------------------


def test_start_of_the_digits_mlp():
    """Standard deviations of 4096 weights a layer; the same random numbers in both."""
    xavier, wide = (bn.DigitsMLP("none", 1, start).linears[3].weight for start in ("xavier", "fan-in"))
    assert xavier.std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.03)
    torch.testing.assert_close(wide, xavier * 2**0.5)


def test_feature_moments_are_those_of_the_hidden_layers():
    model, pixels = bn.DigitsMLP("none", 0), bn.standardized_digits().train[:50]
    means, spreads = bn.feature_moments(model, pixels)
    x = pixels
    for n, linear in enumerate(model.linears):
        x = linear(F.gelu(x) if n else x).double().detach()
        torch.testing.assert_close(means[n].double(), x.mean(0), rtol=1e-4, atol=1e-5)
        assert spreads[n].item() ** 2 == pytest.approx(x.var(0, correction=0).mean().item(), rel=1e-4)
        x = x.float()


def test_relative_shift_of_batchnorm_with_noise():
    """With a spread near 1 both units agree; the noise itself has a spread of 1.02."""
    result = bn.train_digits("noisy batchnorm", 0.1, 0, steps=60, look_around=False)
    assert result["relative_shift"] == pytest.approx(result["shift"], rel=0.05)
    small = bn.train_digits("none", 0.1, 0, steps=60, look_around=False)
    assert small["relative_shift"] > 3 * small["shift"]  # its layers have spreads far below 1


def test_sync_batchnorm_gathers_and_reduces():
    assert bn.exchanges_of_sync_batchnorm() == {"forward": ["all_gather"], "backward": ["all_reduce"]}


def test_fluctuations_of_shuffled_pixels_and_of_passages():
    found = {f.name: f for f in bn.fluctuations(n=128, count=100)}
    shuffled, in_order = (found[f"gray values, {how}"] for how in ("shuffled", "image by image"))
    assert shuffled.expected == in_order.expected
    assert shuffled.measured == pytest.approx(shuffled.expected, rel=0.25)
    assert found["words of Hamlet, one passage"].measured > 1.05 * found["words of Hamlet, shuffled"].measured


def test_gradient_in_parts_is_torchs():
    x = normal(8, 4)
    generator = torch.Generator().manual_seed(5)
    W, c = (torch.randn(4, 4, generator=generator, dtype=x.dtype) for _ in range(2))
    W.requires_grad_()
    (F.batch_norm(x @ W, None, None, training=True, eps=1e-6) @ c).tanh().sum(-1).mean().backward()
    torch.testing.assert_close(bn.gradient_in_parts(norms.BatchNorm(4).double(), x, [8]), W.grad)


def test_gradient_in_parts_averages_the_means_of_the_parts():
    x = normal(8, 4)
    layer = norms.LayerNorm(4).double()
    parts = [bn.gradient_in_parts(layer, part, [len(part)]) for part in x.split([3, 5])]
    torch.testing.assert_close(bn.gradient_in_parts(layer, x, [3, 5]), sum(parts) / 2)


@pytest.mark.parametrize("cuts", [[3, 5], [2, 2, 4], [30, 900]])
def test_combined_moments(cuts):
    x = 1 + normal(sum(cuts), 5)
    found = bn.combined_moments([functional.batch_moments(p) for p in x.split(cuts)])
    torch.testing.assert_close(found.mean, x.mean(0))
    torch.testing.assert_close(found.unbiased_var, x.var(0))
    assert found.count == sum(cuts)


# --- records ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", bn.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    runs = record.load(recipe.name)["runs"]
    assert [run["setting"] for run in runs] == recipe.settings
    assert len({run["setting"]["seed"] for run in runs}) >= 5
