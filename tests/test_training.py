"""The training loop, what stops it, and its checkpoints."""

import math
import re
import signal

import pytest
import torch
from draw import normal
from torch import nn
from torch.nn import functional as F
from wrong_masks import WRONG_MASKS

from normlab import data, device, training
from normlab.training import checkpoint, interrupt, nonfinite
from normlab.transformer import Transformer, TransformerConfig


def tiny(seed=0, **options):
    settings = {"vocab_size": 5, "context": 8, "layers": 1, "width": 16, "heads": 2, "norm": "layernorm", **options}
    return Transformer(TransformerConfig(**settings), seed)


def counting(batch=4, length=8):
    """Batches of a text that counts 0 1 2 3 4 0 1 ...: a model that works learns it."""
    return data.sampler(data.counting(5, 400), batch, length)


def small(*extra, seed=0):
    """A classifier of 3 features into 3 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), *extra, nn.Linear(8, 3))


def points(batch=4):
    return data.rows(normal(40, 3, seed=5, dtype=torch.float32), torch.arange(40) % 3, batch)


def state(model):
    return {name: t.clone() for name, t in model.state_dict().items()}


def assert_same(model, other):
    left, right = (m if isinstance(m, dict) else m.state_dict() for m in (model, other))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


class Broken(nn.Module):
    """The identity, until ``forward_factor`` or ``backward_factor`` is set to something else."""

    forward_factor, backward_factor = 1.0, 1.0

    def forward(self, x):
        y = x * self.forward_factor
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * self.backward_factor)
        return y


# --- loop ------------------------------------------------------------------------------------------------------------


def test_a_model_learns_to_count():
    model = tiny()
    history = training.train(model, counting(), 80, lr=1e-2, seed=0, warmup=5, floor=0.0, clip=1.0, weight_decay=0.1)
    assert history.loss[0] > 1.0
    assert training.validation_loss(model, counting()) < 0.1
    assert len(history.loss) == len(history.lr) == len(history.gradient_norm) == 80
    assert not history.interrupted


def test_attention_learns_to_copy():
    model = Transformer(TransformerConfig(vocab_size=5, context=8, layers=2, width=32, heads=2), seed=0)
    task = data.copying(vocabulary=4, length=4, batch=16)
    training.train(model, task, 300, lr=1e-2, seed=0, warmup=20, floor=0.0, clip=1.0)
    assert training.validation_loss(model, task) < 0.3 < math.log(4)


def test_same_seed_same_run_and_each_seed_matters():
    def run(weights, batches):
        with device.single_thread():
            return training.train(tiny(weights), counting(), 5, lr=1e-3, seed=batches).loss

    assert run(1, 2) == run(1, 2)
    assert run(1, 2) != run(1, 3)
    assert run(1, 2) != run(4, 2)


@pytest.mark.parametrize("clip, decay", [(None, 0.0), (0.3, 0.1)])
def test_equals_a_plain_torch_loop_to_the_last_bit(clip, decay):
    model, twin = tiny(), tiny()
    with device.single_thread():
        history = training.train(
            model, counting(), 25, lr=1e-2, seed=7, warmup=5, floor=0.1, clip=clip, weight_decay=decay
        )
        matrices = [p for p in twin.parameters() if p.dim() == 2]
        vectors = [p for p in twin.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
        generator, losses, norms = torch.Generator().manual_seed(7), [], []
        for step in range(25):
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate(step, 25, 1e-2, 5, 0.1)
            inputs, targets = counting()(generator)
            optimizer.zero_grad()
            loss = F.cross_entropy(twin(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            norms.append(torch.cat([p.grad.flatten() for p in twin.parameters()]).norm().item())
            if clip:
                nn.utils.clip_grad_norm_(twin.parameters(), clip)
            optimizer.step()
            losses.append(loss.item())
    assert history.loss == losses
    assert history.gradient_norm == pytest.approx(norms, rel=1e-5)
    assert_same(model, twin)


def test_plain_sgd():
    model, twin = small(nn.Tanh()), small(nn.Tanh())
    training.train(model, points(), 1, lr=0.1, seed=3, optimizer="sgd")
    x, y = points()(torch.Generator().manual_seed(3))
    F.cross_entropy(twin(x), y).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad)


def test_each_step_sees_the_updated_model():
    model, seen = small(), []
    watch = lambda step, history: seen.append((step, history.loss[-1], model[0].weight[0, 0].item()))
    history = training.train(model, points(), 3, lr=0.1, seed=0, each_step=watch)
    assert [s[:2] for s in seen] == list(enumerate(history.loss))
    assert seen[-1][2] == model[0].weight[0, 0].item() != seen[0][2]


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"steps": 0}, "steps .* 0"),
        ({"lr": 0.0}, "lr .* 0.0"),
        ({"lr": math.nan}, "lr .* nan"),
        ({"clip": 0.0}, "clip .* 0.0"),
        ({"warmup": -1}, "warmup .* -1"),
        ({"floor": -0.1}, "floor .* -0.1"),
        ({"weight_decay": math.nan}, "weight_decay .* nan"),
        ({"optimizer": "lion"}, "'lion'"),
        ({"precision": "fp8"}, "'fp8'"),
        ({"save_every": 0}, "save_every .* 0"),
        ({"lr": math.inf}, "finite, got inf"),
    ],
)
def test_bad_settings_are_named(bad, words):
    with pytest.raises(ValueError, match=words):
        training.train(tiny(), counting(), **{"steps": 1, "lr": 1e-3, "seed": 0, **bad})


class Constant(nn.Module):
    """Logits that no parameter decides."""

    def forward(self, x):
        return torch.stack([x.sum(-1), -x.sum(-1)], -1)


def test_a_model_without_anything_to_train_is_refused():
    for model, words in ((Constant(), "Constant"), (nn.Sequential(Constant()), "Sequential"), (small(), "Sequential")):
        model.requires_grad_(False)
        with pytest.raises(ValueError, match=rf"the model \({words}\) has no parameter to train"):
            training.train(model, points(), 1, lr=1e-3, seed=0)


def test_thread_count_is_restored():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), device.single_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


# --- which targets count ---------------------------------------------------------------------------------------------


def test_only_targets_that_count_enter_the_mean():
    generator = torch.Generator().manual_seed(0)
    model, ids = tiny().double(), torch.randint(5, (3, 9), generator=generator)
    inputs, targets = ids[:, :-1], ids[:, 1:].clone()
    counts = torch.rand(targets.shape, generator=generator) < 0.6
    expected = -model(inputs).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)[counts].mean()
    loss = training.next_token_loss(model, inputs, targets.masked_fill(~counts, -100))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


def test_the_mask_goes_to_the_model_and_to_the_loss():
    """Sequences padded on the left and on the right give the loss of the sequences without padding."""
    model, ids = tiny().double(), torch.randint(5, (9,), generator=torch.Generator().manual_seed(0))
    short = [(ids[None, :4], ids[None, 1:5]), (ids[None, :7], ids[None, 1:8])]
    sums = [training.summed_loss(model, *pair) for pair in short]
    inputs, targets, mask = (torch.zeros(2, 8, dtype=torch.long) for _ in range(3))
    for row, (x, y) in enumerate(short):
        n = x.shape[1]
        inputs[row, :n], targets[row, :n], mask[row, :n] = x, y, 1
    expected = (sums[0][0] + sums[1][0]) / 11
    torch.testing.assert_close(training.next_token_loss(model, inputs, targets, mask), expected, rtol=1e-12, atol=0)
    with pytest.raises(TypeError, match="attention_mask"):
        x = normal(2, 3, dtype=torch.float32)
        training.next_token_loss(small(), x, torch.zeros(2, dtype=torch.long), torch.ones(2))


def test_validation_weighs_batches_by_their_tokens():
    model = tiny().double()
    lines = data.line_sampler(torch.tensor([1, 2, 0, 3, 1, 4, 2, 1, 3, 0, 2, 0]), newline=0, batch=1, longest=8)
    generator = torch.Generator().manual_seed(9)
    pairs = [training.summed_loss(model, *lines(generator)) for _ in range(6)]
    total, count = (sum(p[i].item() for p in pairs) for i in range(2))
    assert training.validation_loss(model, lines, count=6, seed=9) == pytest.approx(total / count, rel=1e-12)
    assert model.training


def test_validation_passes_over_batches_without_targets():
    """Whether it comes first or later; without any target there is no mean."""
    model = tiny().double()
    inputs = torch.randint(5, (3, 2, 8), generator=torch.Generator().manual_seed(0))
    targets = inputs.roll(-1, -1)

    def loss(*empty):
        numbers = iter(range(3))

        def batches(generator):
            i = next(numbers)
            return inputs[i], targets[i] if i not in empty else torch.full_like(targets[i], -100)

        return training.validation_loss(model, batches, count=3)

    alone = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in zip(inputs, targets)]
    assert loss() == pytest.approx(sum(alone) / 3, rel=1e-12)
    for i in range(3):
        assert loss(i) == pytest.approx((sum(alone) - alone[i]) / 2, rel=1e-12)
    assert loss(0, 2) == pytest.approx(alone[1], rel=1e-12)
    with pytest.raises(ValueError, match="no target of the 3 batches counts"):
        loss(0, 1, 2)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        training.validation_loss(model, counting(), count=0)


def test_validation_leaves_the_modes_of_all_modules_as_they_were():
    def broken(generator):
        raise KeyError("data")

    model = small(nn.BatchNorm1d(8), nn.Dropout(0.5))
    model[1].eval()  # as one freezes a BatchNorm
    modes = [module.training for module in model.modules()]
    assert training.validation_loss(model, points()) == training.validation_loss(model, points())
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(KeyError, match="data"):
        training.validation_loss(model, broken)
    assert [module.training for module in model.modules()] == modes


def test_validation_of_a_model_without_parameters():
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    expected = F.cross_entropy(torch.tensor([[1.0, -1], [2, -2]]), y).item()
    assert training.validation_loss(Constant(), lambda generator: (x, y), count=2) == pytest.approx(expected)


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_a_mask_that_is_none_is_refused(name):
    """Also where the model does not look at it."""
    mask, error, words = WRONG_MASKS[name]
    ids = torch.zeros(2, 5, dtype=torch.long)
    embedding = nn.Embedding(5, 5)
    for loss in (training.summed_loss, training.next_token_loss):
        for model in (tiny(), lambda x, attention_mask: embedding(x)):
            with pytest.raises(error, match=f"mask must .*{words}"):
                loss(model, ids, ids, mask)


@pytest.mark.parametrize("by_mask", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_in_the_logits_of_a_target_that_does_not_count_matters(bad, by_mask):
    ids = torch.tensor([[0, 1, 2, 4], [4, 3, 1, 2]])
    mask = ids != 4

    def run(content):
        table = normal(5, 5).index_fill(0, torch.tensor([4]), content).requires_grad_()
        model = lambda x, attention_mask=None: table[x]
        targets = ids % 4 if by_mask else (ids % 4).masked_fill(~mask, -100)
        total, count = training.summed_loss(model, ids, targets, mask if by_mask else None)
        total.backward()
        return total, count, table.grad

    for ours, expected in zip(run(bad), run(0.7), strict=True):
        assert torch.equal(ours, expected) and ours.isfinite().all()


def test_a_batch_without_targets_is_refused():
    nothing = lambda generator: (torch.zeros(2, 8, dtype=torch.long), torch.full((2, 8), -100))
    with pytest.raises(ValueError, match="no target of the batch of step 0 counts"):
        training.train(tiny(), nothing, 1, lr=1e-3, seed=0)


# --- gains in half precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", ["llama", "gemma"])
def test_gains_near_one_in_bfloat16_do_not_move_and_a_warning_says_so(convention, recwarn):
    """At 6e-4 in 100 steps: 1 + 6e-4 is rounded to 1. A gain of 1 + w, with w = 0 stored, moves."""
    model = tiny(norm="rmsnorm", convention=convention).bfloat16()
    gains = {name: p for name, p in model.named_parameters() if "norm" in name}
    before = {name: p.clone() for name, p in gains.items()}
    training.train(model, counting(), 100, lr=6e-4, seed=0)
    still = [name for name, p in gains.items() if torch.equal(p, before[name])]
    messages = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    if convention == "gemma":
        assert not still and not messages
    else:
        assert still == list(gains) and len(messages) == 1
        assert re.search(
            f"0.0006 is too small to move {', '.join(gains)}: .*bfloat16.*float32 .*precision='bf16'.*1 \\+ w",
            messages[0],
        )


@pytest.mark.parametrize(
    "options, bf16",
    [({"lr": 4e-3}, True), ({"lr": 6e-4, "optimizer": "sgd"}, True), ({"lr": 6e-4, "precision": "bf16"}, False)],
)
def test_no_warning_where_gains_can_move_or_nobody_knows(options, bf16, recwarn):
    """The steps of SGD are as long as the gradients; with autocast the weights are float32."""
    model = tiny(norm="rmsnorm")
    training.train(model.bfloat16() if bf16 else model, counting(), 1, seed=0, **options)
    assert not [warning for warning in recwarn if "too small to move" in str(warning.message)]


def test_a_long_list_of_gains_that_cannot_move_is_cut(recwarn):
    training.train(tiny(layers=3, qk_norm="per_head").bfloat16(), counting(), 1, lr=1e-4, seed=0)
    (message,) = [str(w.message) for w in recwarn if "too small to move" in str(w.message)]
    assert re.search(r"(\S+norm\.weight, ){2}\S+norm\.weight and 10 more: ", message)


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_trains_like_full_precision(precision, dtype):
    if not device.supports_autocast(torch.device("cpu"), dtype):
        pytest.skip(f"this torch does not autocast to {dtype} on the CPU")
    model, seen = tiny(), set()
    model.blocks[0].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    model.head.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    options = {"lr": 1e-2, "seed": 0, "warmup": 5, "floor": 0.0, "clip": 1.0}
    half = training.train(model, counting(), 60, precision=precision, **options)
    full = training.train(tiny(), counting(), 60, **options)
    assert dtype in seen and all(p.dtype is torch.float32 for p in model.parameters())
    assert half.loss != full.loss
    assert half.loss == pytest.approx(full.loss, abs=0.05)
    assert half.gradient_norm[0] == pytest.approx(full.gradient_norm[0], rel=0.02)  # unscaled before clipping


def test_precision_that_cannot_be_had_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="'bf16' needs float32 weights, got torch.float64"):
        training.train(tiny().double(), counting(), 1, lr=1e-3, seed=0, precision="bf16")
    assert not device.supports_autocast(torch.device("cpu"), torch.float64)  # torch warns and goes on in float32
    monkeypatch.setattr("normlab.training.run.supports_autocast", lambda where, dtype: False)
    with pytest.raises(ValueError, match="'fp16' needs a device that computes in torch.float16, got cpu"):
        training.train(tiny(), counting(), 1, lr=1e-3, seed=0, precision="fp16")


def test_an_overflow_of_the_scaled_loss_is_no_error():
    """In fp16 the first steps may overflow: the scaler skips them and lowers its scale."""
    model = small(Broken())
    model[1].backward_factor = 1e4

    def heal(step, history):
        if step == 1:
            model[1].backward_factor = 1.0

    history = training.train(model, points(), 3, lr=1e-3, seed=0, precision="fp16", each_step=heal)
    finite = [math.isfinite(norm) for norm in history.gradient_norm]
    assert finite == [False, False, True]


def test_a_gradient_that_no_scale_can_save_is_an_error():
    model = small(Broken())
    model[1].backward_factor = math.inf
    with pytest.raises(training.NonFiniteError, match=r"at step 16; .* inputs of 1 \(Broken\)"):
        training.train(model, points(), 40, lr=1e-3, seed=0, precision="fp16")


# --- NaN and infinity ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_step_and_module():
    model, before = tiny(), []

    def breaks(step, history):
        if step == 2:
            with torch.no_grad():
                model.blocks[0].residuals[1].sublayer.up.weight[0, 0] = math.inf
            before.append(state(model))

    culprit = r"blocks\.0\.residuals\.1\.sublayer\.up \(Linear, whose weight is not finite\)"
    with pytest.raises(FloatingPointError, match=f"nan at step 3; .*: the output of {culprit}$") as error:
        training.train(model, counting(), 10, lr=1e-3, seed=0, each_step=breaks)
    assert len(error.value.history.loss) == 3
    assert_same(model, before[0])


def test_a_loss_broken_between_two_modules_names_the_one_around_them():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.second((self.first(x) - 1e9).log())

    with pytest.raises(FloatingPointError, match=r"nan at step 0; .*: the output of 1 \(Block\)$"):
        training.train(small(Block()), points(), 2, lr=1e-3, seed=0)


def test_bad_inputs_are_named():
    batches = lambda generator: (torch.tensor([[1.0, math.nan, 2.0]]), torch.tensor([1]))
    with pytest.raises(FloatingPointError, match="nan at step 0; .*: the inputs of the batch"):
        training.train(small(), batches, 2, lr=1e-3, seed=0)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_names_step_and_module(clip):
    model, before = small(nn.Tanh(), Broken(), nn.Tanh()), []

    def breaks(step, history):
        if step == 1:
            model[2].backward_factor = math.nan
            before.append(state(model))

    with pytest.raises(training.NonFiniteError, match=r"gradients became nan at step 2; .* inputs of 2 \(Broken\)$"):
        training.train(model, points(), 5, lr=1e-3, seed=0, clip=clip, each_step=breaks)
    assert_same(model, before[0])


def test_a_square_root_at_zero():
    """The loss is finite, its gradient is not: the usual accident of a norm without epsilon."""

    class Norm(nn.Module):
        def forward(self, x):
            return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3)

    model = nn.Sequential(nn.Linear(3, 8), Norm(), nn.Linear(8, 3))
    for p in model[0].parameters():
        nn.init.zeros_(p)
    with pytest.raises(FloatingPointError, match=r"nan at step 0; .* inputs of 1 \(Norm\)$"):
        training.train(model, points(), 1, lr=1e-3, seed=0)


def test_the_gradient_of_a_parameter_alone():
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(FloatingPointError, match=r"gradient of weight of 0 \(Linear\)"):
        training.train(model, points(), 1, lr=1e-3, seed=0)


def test_gradients_whose_squares_overflow():
    model = small()
    model[0].weight.register_hook(lambda gradient: gradient * 1e30)
    with pytest.raises(FloatingPointError, match=r"gradients became inf at step 0; .*: the sum of squares$"):
        training.train(model, points(), 1, lr=1e-3, seed=0)


def test_no_hook_is_left_behind():
    model = small(Broken())
    model[1].forward_factor = math.nan
    with pytest.raises(FloatingPointError):
        training.train(model, points(), 1, lr=1e-3, seed=0)
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_finite_everywhere_in_nested_outputs():
    good, bad = torch.ones(2), torch.tensor([1.0, math.inf])
    assert nonfinite.is_finite({"a": (good, [good, None]), "b": "text"})
    assert not nonfinite.is_finite({"a": (good, [good, bad])})


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def press(*steps, times=1):
    """Ctrl-C in the middle of the given steps, as the batch is drawn."""
    calls = iter(range(100))

    def batches(generator):
        if next(calls) in steps:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return counting()(generator)

    return batches


def test_ctrl_c_finishes_the_step_and_leaves_a_usable_result():
    model, twin = tiny(), tiny()
    with device.single_thread():
        history = training.train(model, press(3), 10, lr=1e-2, seed=0)
        expected = training.train(twin, counting(), 4, lr=1e-2, seed=0)
    assert history.interrupted and history.loss == expected.loss
    assert_same(model, twin)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_does_not_wait():
    history = training.train(tiny(), press(3, times=2), 10, lr=1e-2, seed=0)
    assert history.interrupted and len(history.loss) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_last_step_interrupts_nothing():
    assert not training.train(tiny(), press(9), 10, lr=1e-2, seed=0).interrupted


def test_keyboard_interrupt_raised_by_a_callback():
    def stop(step, history):
        if step == 4:
            raise KeyboardInterrupt

    history = training.train(tiny(), counting(), 10, lr=1e-2, seed=0, each_step=stop)
    assert history.interrupted and len(history.loss) == 5


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None], ids=["ignored", "handled otherwise"])
def test_ctrl_c_means_what_the_program_wants_it_to_mean(own):
    usual = signal.signal(signal.SIGINT, own)
    try:
        history = training.train(tiny(), press(3, times=2), 10, lr=1e-2, seed=0)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, usual)
    assert not history.interrupted and len(history.loss) == 10


def test_ctrl_c_in_a_strict_block_ends_everything():
    with pytest.raises(KeyboardInterrupt), interrupt.strict():
        training.train(tiny(), press(3), 10, lr=1e-2, seed=0)
    assert not interrupt.is_strict()


# --- checkpoints -----------------------------------------------------------------------------------------------------


class Passes:
    """Batches with a state of their own: rows in order, which the generator alone does not know."""

    def __init__(self, inputs, targets, batch):
        self.inputs, self.targets, self.batch, self.position = inputs, targets, batch, 0

    def __call__(self, generator):
        rows = torch.arange(self.position, self.position + self.batch) % len(self.inputs)
        self.position += self.batch
        noise = torch.randn(len(rows), self.inputs.shape[1], generator=generator)
        return self.inputs[rows] + 0.01 * noise, self.targets[rows]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def passes():
    return Passes(normal(40, 3, seed=5, dtype=torch.float32), torch.arange(40) % 3, 7)


def with_everything():
    """Dropout draws from the global generator, BatchNorm has buffers."""
    return small(nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3))


LONG = {"steps": 30, "lr": 1e-2, "seed": 1, "warmup": 4, "floor": 0.1, "clip": 1.0, "weight_decay": 0.1}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("save_every, last", [(5, 10), (1, 13), (100, None)])
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path, optimizer, save_every, last):
    """Killed in the middle of step 13; ``last`` steps are in the file."""
    file, options = tmp_path / "folder" / "run.pt", {**LONG, "optimizer": optimizer, "save_every": save_every}

    class Killed(Exception):
        pass

    def kill(step, history):
        if step == 13:
            raise Killed

    with device.single_thread():
        model, whole = with_everything(), with_everything()
        torch.manual_seed(3)
        expected = training.train(whole, passes(), **options)
        torch.manual_seed(3)
        with pytest.raises(Killed):
            training.train(model, passes(), checkpoint=file, each_step=kill, **options)
        assert file.exists() == (last is not None)
        model, steps = with_everything(), []
        torch.manual_seed(3 if last is None else 4)  # without a file it starts anew
        history = training.train(
            model, passes(), checkpoint=file, each_step=lambda step, history: steps.append(step), **options
        )
    assert steps[0] == (last or 0)
    assert history == expected
    assert_same(model, whole)


def test_resumed_after_ctrl_c(tmp_path):
    with device.single_thread():
        whole, model = tiny(), tiny()
        expected = training.train(whole, counting(), 10, lr=1e-2, seed=0)
        first = training.train(model, press(3), 10, lr=1e-2, seed=0, checkpoint=tmp_path / "run.pt")
        assert first.interrupted and len(first.loss) == 4
        model = tiny(seed=1)
        history = training.train(model, counting(), 10, lr=1e-2, seed=0, checkpoint=str(tmp_path / "run.pt"))
    assert history == expected and not history.interrupted
    assert_same(model, whole)


def test_a_finished_run_is_only_read(tmp_path):
    model, again = tiny(), tiny(seed=1)
    history = training.train(model, counting(), 5, lr=1e-2, seed=0, checkpoint=tmp_path / "run.pt")
    assert training.train(again, counting(), 5, lr=1e-2, seed=0, checkpoint=tmp_path / "run.pt") == history
    assert_same(model, again)


@pytest.mark.parametrize(
    "model, batches, options, words",
    [
        (tiny, counting, {"lr": 2e-2}, "lr: 0.01 there, 0.02 here"),
        (tiny, counting, {"steps": 6}, "steps: 5 there, 6 here"),
        (tiny, counting, {"seed": 1}, "seed: 0 there, 1 here"),
        (tiny, counting, {"clip": 1.0}, "clip: None there, 1.0 here"),
        (tiny, counting, {"optimizer": "sgd"}, "optimizer: adamw there, sgd here"),
        (lambda: tiny(eps=1e-3), counting, {}, "eps"),
        (lambda: tiny(mlp_width=32), counting, {}, "mlp_width.*64 there, .*32 here"),
        (lambda: tiny(layers=3), counting, {}, "layers: 1 there, 3 here.*; and [0-9]+ more"),
        (lambda: tiny().double(), counting, {}, r"\[5, 16\] torch.float32 there, \[5, 16\] torch.float64 here"),
        (tiny, lambda: counting(batch=5), {}, "other data: batch 4"),
        (tiny, lambda: data.sampler(torch.arange(401) % 4, 4, 8), {}, "other data: batch 4"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, model, batches, options, words):
    settings = {"steps": 5, "lr": 1e-2, "seed": 0, "checkpoint": tmp_path / "run.pt"}
    training.train(tiny(), counting(), **settings)
    other = model()
    before = state(other)
    with pytest.raises(ValueError, match=f"run.pt belongs to a run .*{words}"):
        training.train(other, batches(), **{**settings, **options})
    assert_same(other, before)


def test_what_identifies_a_model_is_the_same_in_every_process():
    """No addresses, and no sets: their order differs from process to process."""
    settings = checkpoint.model_settings(tiny())
    assert settings["config.width"] == "16" and settings["head.weight"] == "[5, 16] torch.float32"
    assert not [name for name, value in settings.items() if " at 0x" in value or value.startswith("{")]


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", None])
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    file = tmp_path / "run.pt"
    if content is None:
        torch.save({"weights": torch.ones(2)}, file)
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match="run.pt is not a checkpoint"):
        training.train(tiny(), counting(), 5, lr=1e-2, seed=0, checkpoint=file)


def test_an_interrupted_write_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    file = tmp_path / "run.pt"
    training.train(tiny(), counting(), 5, lr=1e-2, seed=0, checkpoint=file)
    before = file.read_bytes()

    def torn(state, stream):
        stream.write(b"half a")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(file, {})
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
