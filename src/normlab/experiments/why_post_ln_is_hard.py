"""Why Post-LN is hard: measurements that three explanations from the literature can be held against."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab import data, device, fast, probes, training
from normlab.experiments import small_models
from normlab.experiments.placement.trained import PLATEAU, stack
from normlab.record import Recipe, grid
from normlab.training.losses import next_token_loss
from normlab.transformer import Transformer

POST_INIT = "Post-LN, lower blocks small"
NAMES = ("Post-LN", "Pre-LN", "DeepNorm", "Post-LN, N(0, 0.02)", POST_INIT)
DEPTHS = (3, 6, 12, 24)
LARGE, SMALL = 8e-3, 1e-4  # learning rates: Post-LN fails and Pre-LN trains at one, the other changes little


def model_of(name: str, layers: int, seed: int) -> Transformer:
    """One of ``NAMES``: those of ``placement_trained.STACKS``, or POST_INIT.

    POST_INIT is Post-LN with value, out and MLP matrices of block l divided by L - l + 1: small below, unchanged on
    top, after the control "Post-LN-init" of Wang et al. 2022, arXiv:2203.00555.
    """
    if name != POST_INIT:
        return stack(name, layers, seed)
    model = stack("Post-LN", layers, seed)
    with torch.no_grad():
        for below, block in enumerate(reversed(model.blocks), start=1):
            attention, mlp = (residual.sublayer for residual in block.residuals)
            for matrix in (attention.value, attention.out, mlp.up, mlp.down):
                matrix.weight /= below
    return model


# --- at initialization ------------------------------------------------------------------------------------------------


def output(model: Transformer) -> Tensor:
    """What the head reads on held-out passages, [B, T, d], on the CPU and without gradient."""
    kept = []
    handle = model.head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].cpu()))
    try:
        with torch.no_grad():
            model(small_models.passages()[0].to(next(model.parameters()).device))
    finally:
        handle.remove()
    return kept[0]


def relative_change(before: Tensor, after: Tensor) -> float:
    """Size of the difference over the size of what was there before."""
    return probes.size(after - before) / probes.size(before)


def perturbed(model: Transformer, share: float = 0.01, seed: int = 0) -> Transformer:
    """A copy in which every matrix of the blocks got noise, normal and ``share`` of the matrix in size."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.blocks.parameters():
            if p.dim() == 2:
                noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                p += share * probes.size(p) * noise.to(p)
    return model


def after_one_step(model: Transformer, lr: float, loss_scale: float = 1.0) -> Transformer:
    """A copy after one step of Adam on the loss times ``loss_scale``, from held-out passages of *Hamlet*.

    The first step of Adam is lr g / (|g| + 1e-8), with both averages freed of their bias: lr times the sign of every
    gradient that is not tiny. Source: Kingma and Ba 2015, arXiv:1412.6980.
    """
    model = copy.deepcopy(model)
    (loss_scale * next_token_loss(model, *small_models.passages(seed=98))).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad / (p.grad.abs() + 1e-8)
    return model


def mlp_gradients(model: Transformer) -> list[float]:
    """Norm of the gradient of the MLP's second matrix in every block, on held-out passages."""
    matrices = [block.residuals[1].sublayer.down.weight for block in model.blocks]
    return [g.norm().item() for g in torch.autograd.grad(next_token_loss(model, *small_models.passages()), matrices)]


def gradient_norm(model: Transformer) -> float:
    """Norm of the gradient of all parameters together, on held-out passages: what clipping looks at."""
    slopes = torch.autograd.grad(next_token_loss(model, *small_models.passages()), list(model.parameters()))
    return sum(g.square().sum().item() for g in slopes) ** 0.5


def at_initialization(name: str, seed: int) -> dict:
    """Gradients and sensitivity of a stack at each of DEPTHS, in float64.

    Returns:
        Lists over DEPTHS. ``first``, ``last``: gradient norms of the MLP's second matrix in these blocks. ``noise``:
        relative change of the output by noise of 1 %; ``small``, ``large``: by one step of Adam at these rates.
    """
    result: dict[str, list[float]] = {key: [] for key in ("first", "last", "noise", "small", "large")}
    with device.single_thread():
        for layers in DEPTHS:
            model = model_of(name, layers, seed).double()
            gradients, before = mlp_gradients(model), output(model)
            changed = (perturbed(model, seed=seed), after_one_step(model, SMALL), after_one_step(model, LARGE))
            changes = (relative_change(before, output(other)) for other in changed)
            for key, value in zip(result, (gradients[0], gradients[-1], *changes)):
                result[key].append(value)
    return result


# --- the first steps --------------------------------------------------------------------------------------------------

GRID = (0, 1, 2, 3, 5, 10, 20, 50, 100)  # steps at which a run is looked at
CONSTANT: dict[str, Any] = {"warmup": 0, "floor": None, "clip": None, "betas": (0.9, 0.98)}
SGD = {"optimizer": "sgd", "lr": 1.0}

RUNS: dict[str, dict[str, Any]] = {name: {"name": name} for name in NAMES} | {"Post-LN, warm-up": {"name": "Post-LN", "warmup": 100}}
CONTROLS: dict[str, dict[str, Any]] = {
    "Post-LN, clipped": {"name": "Post-LN", "clip": 0.1},
    "Post-LN, SGD": {"name": "Post-LN", **SGD},
    "Pre-LN, SGD": {"name": "Pre-LN", **SGD},
}


def spread(x: Tensor) -> float:
    """Root mean square distance of the tokens x [B, T, d] from their common mean, per feature."""
    return probes.size(x - x.mean((0, 1)))


def look(model: Transformer) -> dict[str, float]:
    """A model on held-out passages, in float64.

    Returns:
        ``norm_input``: size of what the sublayers' norms are given, a mean over the norms.
        ``gradient``: its norm for the MLP's second matrix in block 1.
        ``cosine``: :func:`normlab.probes.token_cosine` of what the head reads.
        ``forward``: :func:`spread` of the tokens behind the last block over that before the first.
        ``backward``: norm of the loss's gradient at the stream before the first block over that behind the last.
    """
    model = copy.deepcopy(model).cpu().double()
    ids, targets = small_models.passages()
    sizes: list[float] = []
    streams = [model.embed(ids)]
    norms = [residual.norm for block in model.blocks for residual in block.residuals]
    handles = [norm.register_forward_pre_hook(lambda _, inputs: sizes.append(probes.size(inputs[0].detach()))) for norm in norms]
    for block in model.blocks:
        streams.append(block(streams[-1]))
    for handle in handles:
        handle.remove()
    read = model.final_norm(streams[-1])
    loss = F.cross_entropy(model.head(read).flatten(0, 1), targets.flatten())
    down = model.blocks[0].residuals[1].sublayer.down.weight
    at_down, at_start, at_end = (g.norm().item() for g in torch.autograd.grad(loss, (down, streams[0], streams[-1])))
    return {
        "norm_input": sum(sizes) / len(sizes),
        "gradient": at_down,
        "cosine": probes.token_cosine(read),
        "forward": spread(streams[-1].detach()) / spread(streams[0].detach()),
        "backward": at_start / at_end,
    }


def train_and_look(
    run: str, seed: int, layers: int = 6, steps: int = 300, progress: str | None = None
) -> tuple[Transformer, dict]:
    """Train one of RUNS or CONTROLS as in ``placement_trained.train_stack``; the model, and what was seen on the way.

    Returns:
        The lists of :func:`look` at the steps of GRID. ``change``: by how much each of these steps changed the output
        (0 for step 0). ``last``: mean training loss of the last 20 steps.
    """
    options = {"lr": LARGE, **CONSTANT, **(RUNS | CONTROLS)[run]}
    model = model_of(options.pop("name"), layers, seed)
    with device.single_thread(), fast.enabled():
        seen = {key: [value] for key, value in (look(model) | {"change": 0.0}).items()}
        before = [output(model)]

        def each(step: int, _) -> None:
            if step + 1 in GRID:
                found = look(model) | {"change": relative_change(before[0], output(model))}
                for key, value in found.items():
                    seen[key].append(value)
            if step + 2 in GRID:
                before[0] = output(model)

        history = small_models.train(model, steps, options.pop("lr"), seed, progress=progress, each_step=each, **options)
    return model.cpu(), seen | {"last": sum(history.loss[-20:]) / 20}


def stuck(result: dict) -> bool:
    """Whether a run's training loss ended on the plateau of a model that knows only how frequent each character is."""
    return result["last"] > small_models.character_entropy() - PLATEAU


def shrink_writers(model: Transformer, factor: float = 0.1, sublayers: Sequence[int] = (0, 1)) -> Transformer:
    """A copy in which the last matrix of the chosen sublayers (0 attention, 1 MLP) of every block is scaled."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for block in model.blocks:
            attention, mlp = (residual.sublayer for residual in block.residuals)
            for index in sublayers:
                (attention.out, mlp.down)[index].weight *= factor
    return model


def go_on(model: nn.Module, lr: float, seed: int, steps: int = 200, progress: str | None = None) -> float:
    """Train a copy further at a constant rate with a new Adam; mean training loss of the last 20 steps."""
    with device.single_thread(), fast.enabled():
        history = small_models.train(copy.deepcopy(model), steps, lr, 50 + seed, progress=progress, **CONSTANT)
    return sum(history.loss[-20:]) / 20


def common_share(model: Transformer) -> float:
    """How much of what the last sublayer adds is the same for all tokens: size of its mean over its own size."""
    added = probes.readings(model, small_models.passages()[0])[-1].increment
    return probes.size(added.mean((0, 1))) / probes.size(added)


def rescue(seed: int) -> dict[str, float]:
    """Ways on from a Post-LN model that is stuck after 100 steps, with a new Adam: final losses of 200 more.

    ``same``: the old rate. ``slower``: an eighth of it. ``shrunk``: the old rate, :func:`shrink_writers`; ``attention``,
    ``mlp``: only one kind of sublayer shrunk. And two looks at the stuck model: ``noise``, relative change of its output by
    noise of 1 %, as in :func:`at_initialization`; ``common``: :func:`common_share`.
    """
    stuck, _ = train_and_look("Post-LN", seed, steps=100)
    exact = copy.deepcopy(stuck).double()
    with device.single_thread():
        noise = relative_change(output(exact), output(perturbed(exact, seed=seed)))
    return {
        "same": go_on(stuck, LARGE, seed),
        "slower": go_on(stuck, LARGE / 8, seed),
        "shrunk": go_on(shrink_writers(stuck), LARGE, seed),
        "attention": go_on(shrink_writers(stuck, sublayers=(0,)), LARGE, seed),
        "mlp": go_on(shrink_writers(stuck, sublayers=(1,)), LARGE, seed),
        "noise": noise,
        "common": common_share(stuck),
    }


# --- suspect one under SGD, whose step is proportional to the gradient ------------------------------------------------

SGD_RATES = (0.1, 0.3, 1.0, 3.0)
SGD_ARMS: dict[str, dict[str, Any]] = {
    "no warm-up": {},
    "100 steps of warm-up": {"warmup": 100},
    "clipped at norm 1": {"clip": 1.0},  # Pre-LN of this size begins with 1.5 to 2.1, Post-LN with 2.0 to 3.3
}


def sgd(name: str, arm: str, lr: float, seed: int, layers: int = 6, steps: int = 300) -> dict[str, float | None]:
    """Train with plain SGD at a constant rate, else as ``placement_trained.train_stack``; arms: SGD_ARMS.

    Returns:
        ``last``: mean training loss of the last 20 steps, None if loss or gradient stopped being finite.
    """
    options = {"warmup": 0, "floor": None, "clip": None} | SGD_ARMS[arm]
    with device.single_thread(), fast.enabled():
        try:
            history = small_models.train(stack(name, layers, seed), steps, lr, seed, optimizer="sgd", **options)
        except training.NonFiniteError:
            return {"last": None}
    return {"last": sum(history.loss[-20:]) / 20}


# --- accounts of warm-up ----------------------------------------------------------------------------------------------

BETAS = (0.9, 0.98)
ACCOUNTS: dict[str, dict[str, Any]] = {  # optimizer, its options, steps of linear warm-up, steps at rate 0 before
    "AdamW": {},
    "AdamW, 100 steps of warm-up": {"warmup": 100},
    "AdamW, averages first": {"frozen": 100},  # both moments are averages of 100 gradients before anything moves
    "AdamW, ε = 1e-4": {"eps": 1e-4},
    "AdamW, ε = 1e-2": {"eps": 1e-2},  # about as large as the gradients' typical entries, so that the steps get shorter
    "RAdam": {"optimizer": torch.optim.RAdam},
}


def account(name: str, arm: str, layers: int, lr: float, seed: int, steps: int = 300) -> dict[str, float]:
    """Train as ``placement_trained.train_stack`` with one of ACCOUNTS; ``last``: mean training loss of the last 20 steps.

    RAdam holds the rate down while the variance of its second moment is large (Liu et al. 2020, arXiv:1908.03265).
    """
    options = {"optimizer": torch.optim.AdamW, "eps": 1e-8, "warmup": 0, "frozen": 0} | ACCOUNTS[arm]
    model = stack(name, layers, seed).to(device.pick())
    batches = data.sampler(data.corpus().train.to(device.pick()), small_models.BATCH, small_models.TOKENS)
    generator = torch.Generator().manual_seed(1000 + seed)  # the batches of train_stack
    optimizer = options["optimizer"](model.parameters(), lr=lr, betas=BETAS, eps=options["eps"], weight_decay=0.0)
    losses = []
    with device.single_thread(), fast.enabled():
        for step in range(-options["frozen"], steps):
            optimizer.param_groups[0]["lr"] = 0.0 if step < 0 else lr * min(1.0, (step + 1) / max(1, options["warmup"]))
            loss = next_token_loss(model, *(t.to(device.pick()) for t in batches(generator)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"last": sum(losses[-20:]) / 20}


RECORDS = (
    Recipe(
        "post_at_init",
        "gradients and sensitivity of Post-LN and its rivals at initialization, 3 to 24 blocks, float64",
        grid(name=NAMES, seed=range(5)),
        lambda **setting: small_models.five_digits(at_initialization(**setting)),
    ),
    Recipe(
        "post_first_steps",
        "what happens inside Post-LN and its rivals in the first 300 steps (controls 150) on Hamlet, float32, one thread",
        grid(run=list(RUNS), seed=range(5), layers=[6], steps=[300])
        + grid(run=list(CONTROLS), seed=range(5), layers=[6], steps=[150])
        + grid(run=["Post-LN"], seed=range(5), layers=[12], steps=[100]),  # stuck by then
        lambda **setting: small_models.five_digits(train_and_look(**setting)[1]),
    ),
    Recipe(
        "post_rescue",
        "a stuck Post-LN model of 6 blocks, trained on in five ways, float32, one thread",
        grid(seed=range(5)),
        lambda **setting: small_models.five_digits(rescue(**setting)),
    ),
    Recipe(
        "post_sgd",
        "Post-LN and Pre-LN of 6 blocks under plain SGD: four rates, with and without warm-up, clipped; 300 steps on Hamlet, "
        "float32, one thread",
        grid(name=["Post-LN", "Pre-LN"], arm=list(SGD_ARMS), lr=SGD_RATES, seed=range(5)),
        lambda **setting: small_models.five_digits(sgd(**setting)),
    ),
    Recipe(
        "warmup_accounts",
        "Post-LN at two settings that need warm-up, under the remedies of other accounts of it: 300 steps on Hamlet, float32, "
        "one thread",
        grid(name=["Post-LN"], arm=list(ACCOUNTS), layers=[6], lr=[8e-3], seed=range(5))
        + grid(name=["Post-LN"], arm=list(ACCOUNTS), layers=[12], lr=[1e-3], seed=range(5)),
        lambda **setting: small_models.five_digits(account(**setting)),
    ),
)
