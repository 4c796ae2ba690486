"""What a norm costs: interleaved timings, as ratios within one run. ``make bench`` prints the tables.

Contenders take turns in random order, so that a change of the machine's speed meets all of them alike. A ratio is the
median over rounds of (time of one) / (time of the base) in the same round. A call is timed together with the release
of its result. Absolute times are those of one machine on one day; ratios carry further, but not everywhere.
"""

import argparse
import copy
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab import fast, functional, norms
from normlab.page.tables import table
from normlab.training.losses import next_token_loss

Call = Callable[[], object]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}

# glibc hands every large block back to the system and pays for the next one in page faults. These settings keep
# them: https://man7.org/linux/man-pages/man3/mallopt.3.html
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_TOP_PAD_": str(1 << 28)}


@dataclass(frozen=True)
class Race:
    """Seconds of every contender, one entry per round."""

    times: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def best(self, name: str) -> float:
        """The shortest time, which other programs disturb least."""
        return min(self.times[name])

    def ratio(self, name: str, base: str) -> float:
        """How many times as long as ``base`` this contender took, the median over rounds."""
        return statistics.median(a / b for a, b in zip(self.times[name], self.times[base]))


def race(
    contenders: dict[str, Call], rounds: int, warmup: int = 3, clock: Clock = time.perf_counter, calls: int = 1
) -> Race:
    """Time the contenders in turns, their order drawn anew in every round.

    Args:
        contenders: what to call, by name.
        rounds: how often each is timed.
        warmup: rounds before those that count.
        calls: how often a contender is called in its turn; the time is that of one call.
        clock: returns seconds. Where other programs run, ``time.process_time`` is steadier (with one thread only).
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    for turn in range(warmup + rounds):
        for name in order.sample(list(contenders), len(contenders)):
            call = contenders[name]
            start = clock()
            for _ in range(calls):
                call()
            seconds = (clock() - start) / calls
            if turn >= warmup:
                times[name].append(seconds)
    return Race(times)


# --- norms --------------------------------------------------------------------------------------------------------

Norm = tuple[Callable[[Tensor], Tensor], list[Tensor]]  # a function of x, and its parameters


def norm_contenders(width: int) -> dict[str, Norm]:
    """The norms of the tables by name, over vectors of ``width`` float32 features with random gains and shifts."""
    weight, bias = (torch.randn(width, generator=_generator(i)).requires_grad_() for i in (1, 2))
    contenders: dict[str, Norm] = {
        "F.layer_norm": (lambda x: F.layer_norm(x, (width,), weight, bias), [weight, bias]),
        "fast.layer_norm": (lambda x: fast.layer_norm(x, weight, bias), [weight, bias]),
        "functional.layer_norm": (lambda x: functional.layer_norm(x, weight, bias), [weight, bias]),
        "F.rms_norm": (lambda x: F.rms_norm(x, (width,), weight, 1e-6), [weight]),
        "fast.rms_norm": (lambda x: fast.rms_norm(x, weight), [weight]),
        "functional.rms_norm": (lambda x: functional.rms_norm(x, weight), [weight]),
    }
    return contenders | _llama_norm(weight) | _compiled_norms(weight, bias)


def _llama_norm(weight: Tensor) -> dict[str, Norm]:
    try:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm
    except ImportError:
        print("transformers is missing: no LlamaRMSNorm")
        return {}
    layer = LlamaRMSNorm(len(weight), eps=1e-6)
    layer.weight = nn.Parameter(weight.detach().clone())
    return {"LlamaRMSNorm": (layer, [layer.weight])}


def _compiled_norms(weight: Tensor, bias: Tensor) -> dict[str, Norm]:
    layer_norm = torch.compile(functional.layer_norm, dynamic=False)
    rms_norm = torch.compile(functional.rms_norm, dynamic=False)
    try:
        rms_norm(torch.ones(2, len(weight)), weight)
    except Exception as error:  # what is raised without a compiler has changed between releases of torch
        print(f"torch.compile does not work here ({type(error).__name__})")
        return {}
    return {
        "compiled layer_norm": (lambda x: layer_norm(x, weight, bias), [weight, bias]),
        "compiled rms_norm": (lambda x: rms_norm(x, weight), [weight]),
    }


def race_forward(contenders: dict[str, Norm], tokens: int, width: int, rounds: int, clock: Clock) -> Race:
    """Forward passes on float32 [tokens, width], and ``x.clone()``."""
    x = torch.randn(tokens, width, generator=_generator(3))
    calls: dict[str, Call] = {"x.clone()": x.clone}
    calls |= {name: lambda f=f: f(x) for name, (f, _) in contenders.items()}  # type: ignore[misc]
    with torch.no_grad():
        return race(calls, rounds, clock=clock)


def race_training(contenders: dict[str, Norm], tokens: int, width: int, rounds: int, clock: Clock) -> Race:
    """Forward and backward passes on float32 [tokens, width], to the gradients of x and of all parameters."""
    x, grad = (torch.randn(tokens, width, generator=_generator(i)) for i in (3, 4))
    x.requires_grad_()

    def call(f: Callable[[Tensor], Tensor], parameters: list[Tensor]) -> Call:
        return lambda: torch.autograd.grad(f(x), [x, *parameters], grad)

    return race({name: call(*norm) for name, norm in contenders.items()}, rounds, clock=clock)


def show_norms(tokens: int, width: int, rounds: int, clock: Clock) -> None:
    """Times of the functions and of others' norms, forward, and forward and backward."""
    contenders = norm_contenders(width)
    size = f"{tokens} × {width} float32"
    forward = race_forward(contenders, tokens, width, rounds, clock)
    _show(forward, {"× x.clone()": "x.clone()"}, f"Forward, {size}")
    training = race_training(contenders, tokens, width, rounds, clock)
    _show(training, {"× F.layer_norm": "F.layer_norm", "× F.rms_norm": "F.rms_norm"}, f"Forward and backward, {size}")


# --- the default modules and their bars -----------------------------------------------------------------------------

SIZES = ((1, 4096), (16, 4096), (2048, 1024), (512, 8192), (2048, 4096))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGE = 1 << 20  # numbers; below, calls cost more than arithmetic


def bar(ratio: str, dtype: torch.dtype, tokens: int, width: int, training: bool) -> float | None:
    """The largest ratio that a default module may reach, None where the ratio is only reported."""
    size = tokens * width
    match ratio:
        case "RMSNorm / F.rms_norm":
            return 1.05 if size >= LARGE else 2.0
        case "LayerNorm / F.layer_norm" if not training:
            return 1.2 if size >= LARGE else 2.0 if tokens > 1 else 4.0
        case "RMSNorm / F.layer_norm" if dtype is torch.float32 and (tokens, width) == (2048, 4096) and training:
            return 1.2
        case "RMSNorm / F.layer_norm" if dtype is not torch.float32 and size >= LARGE and not training:
            return 1.5 if dtype is torch.bfloat16 else 1.9
        case "RMSNorm / x.clone()" if dtype is torch.float32 and (tokens, width) == (2048, 4096) and not training:
            return 1.25
    return None


RATIOS = ("RMSNorm / F.rms_norm", "LayerNorm / F.layer_norm", "RMSNorm / F.layer_norm", "RMSNorm / x.clone()")


def race_modules(dtype: torch.dtype, tokens: int, width: int, rounds: int, clock: Clock, training: bool) -> Race:
    """The default modules against torch's functions on [tokens, width], with random gains and shifts.

    Forward passes without autograd and ``x.clone()``, or forward and backward passes to the gradients of x and of all
    parameters.
    """
    x, grad = (torch.randn(tokens, width, generator=_generator(i)).to(dtype) for i in (3, 4))
    contenders: dict[str, Norm] = {}
    for kind, function in (("LayerNorm", F.layer_norm), ("RMSNorm", F.rms_norm)):
        layer = norms.make_norm(kind.lower(), width)
        with torch.no_grad():
            for i, p in enumerate(layer.parameters()):
                p.copy_(torch.randn(width, generator=_generator(i)))
        layer.to(dtype)
        own: list[Tensor] = list(layer.parameters())
        theirs = [p.detach().clone().requires_grad_() for p in own]
        contenders[kind] = (layer, own)
        eps = 1e-5 if kind == "LayerNorm" else 1e-6
        contenders[f"F.{function.__name__}"] = (_torch_norm(function, theirs, eps), theirs)
    calls = min(max(1, (1 << 19) // (tokens * width)), 100)
    if training:
        x.requires_grad_()
        backward = {n: lambda f=f, p=p: torch.autograd.grad(f(x), [x, *p], grad) for n, (f, p) in contenders.items()}
        return race(backward, rounds, clock=clock, calls=calls)  # type: ignore[arg-type]
    forward: dict[str, Call] = {n: lambda f=f: f(x) for n, (f, _) in contenders.items()}  # type: ignore[misc]
    with torch.no_grad():
        return race({"x.clone()": x.clone} | forward, rounds, clock=clock, calls=calls)


def _torch_norm(function: Callable[..., Tensor], parameters: list[Tensor], eps: float) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x, x.shape[-1:], *parameters, eps=eps)


def show_modules(rounds: int, clock: Clock) -> bool:
    """The ratios of the default modules at all sizes and dtypes, with their bars; whether all bars are met."""
    met = True
    for training in (False, True):
        rows = []
        for dtype in DTYPES:
            for tokens, width in SIZES:
                result = race_modules(dtype, tokens, width, rounds, clock, training)
                cells = []
                for ratio in RATIOS:
                    ours, base = ratio.split(" / ")
                    if base not in result.times:
                        cells.append("–")
                        continue
                    value, most = result.ratio(ours, base), bar(ratio, dtype, tokens, width, training)
                    missed = most is not None and value > most
                    met &= not missed
                    cells.append(f"{value:.2f}" + (f" (≤ {most}{', NOT MET' if missed else ''})" if most is not None else ""))
                rows.append([str(dtype).removeprefix("torch."), f"[{tokens}, {width}]", *cells])
        print()
        table(["", "size", *RATIOS], rows, "Default modules, forward and backward" if training else "Default modules, forward")
    return met


# --- training a model ---------------------------------------------------------------------------------------------


LLAMA: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "attn_implementation": "sdpa",
    "use_cache": False,
}


class Gain(nn.Module):
    """x * w: what is left of a norm without its statistics. A model of these sets the ceiling for any norm."""

    def __init__(self, weight: nn.Parameter | None):
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if self.weight is None else x * self.weight


def without_statistics(model: nn.Module) -> nn.Module:
    """A copy of the model in which every RMSNorm is a :class:`Gain`."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, norms.RMSNorm):
                setattr(parent, name, Gain(child.weight))
    return model


def training_step(model: nn.Module, inputs: Tensor, targets: Tensor, path: bool) -> Call:
    """One step of AdamW on always the same batch, the norms of normlab on the fast path or not."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        with fast.enabled(path):
            loss = next_token_loss(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def show_training(rounds: int, clock: Clock, batch: int = 16, context: int = 256) -> None:
    """Tokens per second of a small Llama: transformers' and ours, with the same weights, optimizer and SDPA."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("transformers is missing: no race against its Llama")
        return
    from normlab.families import from_transformers

    config = LlamaConfig(**LLAMA, max_position_embeddings=context)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = LlamaForCausalLM(config).train()
    ours = from_transformers(theirs).train()
    inputs, targets = (torch.randint(config.vocab_size, (batch, context), generator=_generator(i)) for i in (5, 6))
    with torch.no_grad():
        expected = theirs(inputs).logits
        error = ((ours(inputs) - expected).abs().max() / expected.abs().max()).item()
    name, ceiling = "normlab, fast path", "normlab, x · w for every norm"
    contenders = {
        "transformers": training_step(theirs, inputs, targets, False),
        name: training_step(copy.deepcopy(ours), inputs, targets, True),
        "normlab, reference": training_step(copy.deepcopy(ours), inputs, targets, False),
        ceiling: training_step(without_statistics(ours), inputs, targets, False),
    }
    result = race(contenders, rounds, clock=clock)
    rows = [
        [n, f"{batch * context / result.median(n):.0f}", f"{result.ratio('transformers', n):.3f}"] for n in contenders
    ]
    size = sum(p.numel() for p in theirs.parameters()) / 1e6
    caption = f"Training a Llama of {size:.1f} million parameters, {batch} × {context} tokens, {rounds} rounds"
    table(["", "tokens/s", "× transformers"], rows, caption)
    print(f"largest difference between the logits before training: {error:.0e} of the largest logit")
    _bar("fast path / transformers, tokens/s", result.ratio("transformers", name), at_least=0.98)
    print(f"ceiling: without statistics a step is {result.ratio(name, ceiling):.3f} × as fast as on the fast path")


# --- importing ----------------------------------------------------------------------------------------------------


def import_seconds(runs: int = 5) -> float:
    """What ``import normlab.norms`` takes beyond ``import torch``: the best of a few fresh interpreters."""
    code = "import time, torch; t = time.perf_counter(); import normlab.norms; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(runs))


# --- printing -----------------------------------------------------------------------------------------------------


def _show(result: Race, bases: dict[str, str], caption: str) -> None:
    rows = [
        [name, f"{1e3 * result.median(name):.2f}", *(f"{result.ratio(name, base):.2f}" for base in bases.values())]
        for name in result.times
    ]
    print()
    table(["", "ms", *bases], rows, caption)


def _bar(what: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> None:
    met = value <= at_most if at_most is not None else at_least is not None and value >= at_least
    bar = f"at most {at_most}" if at_most is not None else f"at least {at_least}"
    print(f"{what}: {value:.3f} ({bar}: {'met' if met else 'NOT MET'})")


def _machine() -> str:
    """Class of the machine, threads, versions, and how busy it is; no names."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
        f"Python {platform.python_version()}{load}"
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def main(arguments: Sequence[str]) -> int:
    """The command line: see ``normlab bench --help``."""
    parser = argparse.ArgumentParser(prog="normlab bench", description="What a norm costs.")
    parser.add_argument("part", nargs="*", choices=["modules", "norms", "tuned", "training", "import", []], help="default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=25, help="default: 25")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu is steadier on a busy machine")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    parts = options.part or ["modules", "norms", "tuned", "training", "import"]
    print(_machine())
    if "modules" in parts and not show_modules(options.rounds, clock):
        print("some bars are not met; on a busy machine try again, with --clock cpu")
    if "norms" in parts:
        show_norms(options.tokens, options.width, options.rounds, clock)
    if "tuned" in parts and platform.libc_ver()[0] == "glibc":
        print("\nThe same with an allocator that keeps its memory (" + ", ".join(KEEP_MEMORY) + "):", flush=True)
        same = [f"--{name}={getattr(options, name)}" for name in ("threads", "tokens", "width", "rounds", "clock")]
        command = [sys.executable, "-m", "normlab", "bench", "norms", *same]
        subprocess.run(command, env=os.environ | KEEP_MEMORY, check=True)
    if "training" in parts:
        print()
        show_training(options.rounds, clock)
    if "import" in parts:
        print()
        _bar("seconds for import normlab.norms beyond torch", import_seconds(), at_most=0.1)
    print(_machine())
    return 0
