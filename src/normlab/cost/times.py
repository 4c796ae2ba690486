"""Times of norms beside a copy of the same tensor, interleaved, and what the machine can do at most.

Contenders take turns in random order, so that a change of the machine's speed meets all of them alike. A ratio is the
median over rounds of (time of one) / (time of the base) in the same round. A call is timed together with the release
of its result. ``normlab bench`` shows the times.
"""

import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from normlab import cost

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

    def quartiles(self, name: str, base: str | None = None) -> tuple[float, float, float]:
        """First quartile, median and third quartile over rounds: of the seconds, or of the ratios to ``base``."""
        bases = self.times[base] if base else [1.0] * len(self.times[name])
        values = [a / b for a, b in zip(self.times[name], bases)]
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return low, middle, high


def race(
    contenders: dict[str, Call],
    rounds: int,
    warmup: int = 3,
    clock: Clock = time.perf_counter,
    calls: int = 1,
    wait: Call = lambda: None,
) -> Race:
    """Time the contenders in turns, their order drawn anew in every round.

    Args:
        contenders: what to call, by name.
        rounds: how often each is timed.
        warmup: rounds before those that count.
        calls: how often a contender is called in its turn; the time is that of one call.
        clock: returns seconds. Where other programs run, ``time.process_time`` is steadier (with one thread only).
        wait: called before the clock is read. An accelerator is only told what to do by a call;
            ``torch.cuda.synchronize`` waits until it is done.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    for turn in range(warmup + rounds):
        for name in order.sample(list(contenders), len(contenders)):
            call = contenders[name]
            wait()
            start = clock()
            for _ in range(calls):
                call()
            wait()
            seconds = (clock() - start) / calls
            if turn >= warmup:
                times[name].append(seconds)
    return Race(times)



def machine() -> str:
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


def waiter(device: torch.device | str) -> Call:
    """What :func:`race` calls before it reads the clock: on a GPU, wait until it has done what it was told."""
    kind = torch.device(device).type
    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(kind, lambda: None)


# --- one norm -----------------------------------------------------------------------------------------------------


def compiled(width: int, dtype: torch.dtype, device: torch.device | str) -> dict[str, cost.Norm]:
    """The norms written by hand, through ``torch.compile``; {} where that does not work (no C++ compiler)."""
    made = {}
    torch._dynamo.reset()  # beyond eight shapes it would give up and run them uncompiled
    for name, (function, parameters) in cost.implementations(width, dtype, device).items():
        if "by hand" in name:
            fused = torch.compile(function, dynamic=False)
            try:
                fused(torch.ones(2, width, dtype=dtype, device=device))
            except Exception:  # what is raised without a compiler has changed between releases of torch
                return {}
            made[name.replace("by hand", "compiled")] = fused, parameters
    return made


def race_norms(
    tokens: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    training: bool = False,
    device: torch.device | str = "cpu",
    seconds: float = 2.0,
    clock: Clock = time.perf_counter,
    with_compiled: bool = True,
) -> Race:
    """All of :func:`normlab.cost.implementations` and "x.clone()" on [tokens, width].

    Forward passes without autograd, or forward and backward passes to the gradients of x and of all parameters.

    Args:
        seconds: about how long to go on, with at least 5 rounds and at most 101.
        clock: see :func:`race`.
        with_compiled: also those that ``torch.compile`` makes.
    """
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(3)).to(device, dtype)
    norms = cost.implementations(width, dtype, device) | (compiled(width, dtype, device) if with_compiled else {})
    calls: dict[str, Call] = {"x.clone()": x.clone}
    if training:
        leaf, grad = x.clone().requires_grad_(), torch.randn_like(x)
        calls |= {
            name: lambda f=f, p=p: torch.autograd.grad(f(leaf), [leaf, *p], grad)  # type: ignore[misc]
            for name, (f, p) in norms.items()
        }
    else:
        calls |= {name: partial(f, x) for name, (f, _) in norms.items()}
    with torch.set_grad_enabled(training):
        return race_for(seconds, calls, _calls(x), waiter(device), clock)


def _calls(x: Tensor) -> int:
    """How often a norm of x is called in its turn, so that a turn is long against the clock's own time."""
    return max(1, min(100, 2**19 // max(1, x.numel())))


def race_for(
    seconds: float, contenders: dict[str, Call], calls: int = 1, wait: Call = lambda: None, clock: Clock = time.perf_counter
) -> Race:
    """:func:`race` for about so many seconds, with 5 to 101 rounds after two to warm up."""
    for call in contenders.values():  # the first call may compile
        call()
    first = race(contenders, 1, warmup=1, calls=calls, wait=wait, clock=clock)
    once = calls * sum(taken[0] for taken in first.times.values())
    rounds = int(min(101, max(5, seconds / max(once, 1e-9))))
    return race(contenders, rounds, warmup=1, calls=calls, wait=wait, clock=clock)


def race_addition(
    tokens: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seconds: float = 2.0,
    clock: Clock = time.perf_counter,
) -> Race:
    """A residual addition and the norm behind it, h = x + update and N(h): one after the other, and compiled in one.

    Both results are kept, as a Pre-Norm block needs them.
    """
    x, update = (torch.randn(tokens, width, generator=torch.Generator().manual_seed(s)).to(device, dtype) for s in (3, 4))
    norms = cost.implementations(width, dtype, device)
    calls: dict[str, Call] = {"x.clone()": x.clone}
    torch._dynamo.reset()
    for name, (norm, _) in norms.items():
        step = partial(cost.add_and_norm, norm)
        calls[f"+, {name}"] = partial(step, x, update)
        if "by hand" in name:
            fused = torch.compile(step, dynamic=False)
            try:
                with torch.no_grad():
                    fused(x, update)
            except Exception:
                continue
            calls[f"+, {name.replace('by hand', 'compiled')}"] = partial(fused, x, update)
    with torch.no_grad():
        return race_for(seconds, calls, _calls(x), waiter(device), clock)


# --- the machine --------------------------------------------------------------------------------------------------


def bandwidth(
    numbers: int, device: torch.device | str = "cpu", rounds: int = 15, clock: Clock = time.perf_counter
) -> float:
    """Bytes a second that a copy from one float32 tensor to another reads and writes, the best of some rounds.

    Both tensors are there before, so that no memory is asked for.
    """
    x = torch.ones(numbers, device=device)
    y = torch.zeros_like(x)
    calls = max(1, min(100, 2**21 // numbers))
    found = race({"copy": lambda: y.copy_(x)}, rounds, calls=calls, wait=waiter(device), clock=clock)
    return 2 * x.nbytes / found.best("copy")


def peak(
    size: int = 1024,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    rounds: int = 5,
    clock: Clock = time.perf_counter,
) -> float:
    """Operations a second of a product of two square matrices, the best of some rounds."""
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / race({"product": lambda: a @ b}, rounds, wait=waiter(device), clock=clock).best("product")

