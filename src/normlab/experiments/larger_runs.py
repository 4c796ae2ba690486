"""A chapter's run at a size for a GPU, behind one variable: NORMLAB_LARGER=1 in the environment.

Set it before the kernel starts, or in a cell above: ``import os; os.environ["NORMLAB_LARGER"] = "1"``. Without it a cell
says what the run would take, and nothing else changes. The settings are the larger ones of a recorded sweep, which
``normlab record NAME --larger`` runs as a whole.
"""

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from inspect import signature

import torch

from normlab import data, device
from normlab.experiments import small_models
from normlab.record import Recipe
from normlab.training import next_token_loss
from normlab.transformer import Transformer

LIMIT_GB = 12
TIMED_STEPS = 3


@dataclass(frozen=True)
class Cost:
    """What a training run takes, counted: nothing is run."""

    parameters: int
    operations: float  #: of all steps
    memory_gb: float  #: at its peak, without what the libraries take

    def with_blocks(self, layers: int, two: "Cost") -> "Cost":
        """The cost with so many blocks, from this one's with one block and that of ``two``: each adds as much."""
        return Cost(*(a + (layers - 1) * (b - a) for a, b in zip(astuple(self), astuple(two))))

    def __str__(self) -> str:
        return f"{self.parameters / 1e6:.1f} million parameters, {self.operations:.1e} operations, about {self.memory_gb:.1f} GB"


def cost(model: Transformer, steps: int, batch: int = small_models.BATCH, tokens: int = small_models.TOKENS) -> Cost:
    """The cost of training a model with float32 weights and AdamW on batches [batch, tokens].

    A parameter costs 6 operations per token, two forward and four backward (arXiv:2001.08361, section 2.1; attention's
    pairs are left out), and 16 bytes: itself, its gradient and two moments. What is kept for the backward pass is, per
    token and block, 9 d numbers around norms and attention and 2 m around the activation; for the head twice the
    vocabulary. An estimate: torch's fused attention keeps no table of scores.
    """
    c, count = model.config, sum(p.numel() for p in model.parameters())
    kept = batch * tokens * (c.layers * (9 * c.width + 2 * c.mlp_width) + 2 * c.vocab_size)
    return Cost(count, 6.0 * count * batch * tokens * steps, (16 * count + 4 * kept) / 1e9)


def offer(name: str, recipes: Iterable[Recipe], build: Callable[..., Transformer]) -> dict | None:
    """Say what the first of a record's larger settings costs, and run it if NORMLAB_LARGER=1; its result, or None.

    Args:
        name: the record.
        recipes: those of the chapter.
        build: makes the model that is trained, from those of the settings that it takes; ``layers`` is one of them.

    Raises:
        ValueError: no such recipe, or one without larger settings; the run needs more memory than the device has.
    """
    recipe = next((recipe for recipe in recipes if recipe.name == name), None)
    if recipe is None:
        raise ValueError(f"no recipe {name!r} among those given")
    larger = recipe.at_larger_size()
    setting = larger.settings[0]
    sizes = {key: value for key, value in setting.items() if key in signature(build).parameters}
    one, two = (cost(build(**sizes | {"layers": layers}), setting["steps"]) for layers in (1, 2))
    needs = one.with_blocks(setting["layers"], two)
    size = f"{setting['layers']} blocks of width {setting['width']}, {setting['steps']:,} steps"
    if not device.larger():
        print(f"Larger: {size}; {needs}. Off; NORMLAB_LARGER=1 turns it on.")
        return None
    place = device.pick()
    if place.type == "cuda" and needs.memory_gb > (free := torch.cuda.mem_get_info(place)[0] / 1e9):
        raise ValueError(f"the larger run needs about {needs.memory_gb:.1f} GB, {place} has {free:.1f} GB free")
    minutes = seconds_per_step(build(**sizes), place) * setting["steps"] / 60
    print(f"Larger, on {place}: {size}; {needs}.")
    print(f"About {minutes:.1f} minutes, from {TIMED_STEPS} steps timed here; interrupt the kernel to stop.", flush=True)
    return larger.run(**setting)


def seconds_per_step(model: Transformer, place: torch.device) -> float:
    """How long a step of training takes on a device, the shortest of a few; the model is left as it is."""
    model = copy.deepcopy(model).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    batches = data.sampler(data.corpus().train.to(place), small_models.BATCH, small_models.TOKENS)
    generator, times = torch.Generator().manual_seed(0), []
    with device.single_thread():
        for _ in range(1 + TIMED_STEPS):  # the first one sets up
            start = time.perf_counter()
            optimizer.zero_grad()
            next_token_loss(model, *batches(generator)).backward()
            optimizer.step()
            model.head.weight.flatten()[0].item()  # waits for the device
            times.append(time.perf_counter() - start)
    return min(times[1:])
