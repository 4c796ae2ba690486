"""Tables of what a norm costs: counts (:mod:`normlab.cost`) and times (:mod:`normlab.cost.times`). ``make bench`` prints
them, as text and with ``--json`` also to a file.

Absolute times are those of one machine on one day; ratios carry further, but not everywhere.
"""

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlab import cost, device, fast, files, functional, norms
from normlab.cost import times
from normlab.cost.times import CLOCKS, KEEP_MEMORY, Call, Clock, Race, machine, race
from normlab.page.tables import table
from normlab.training.losses import next_token_loss

# --- norms --------------------------------------------------------------------------------------------------------

Norm = cost.Norm

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


# --- what a norm costs --------------------------------------------------------------------------------------------


def show_counts(width: int = 4096) -> None:
    """Kernels, reductions, bytes moved and kept of every implementation, in float32 and a half type."""
    for dtype in (torch.float32, torch.bfloat16):
        x = cost.one_block(width, dtype)
        rows = []
        for name, norm in cost.implementations(width, dtype).items():
            bill = cost.bill(norm, x)
            numbers = (bill.kernels, bill.reductions, bill.moved, bill.backward_kernels, bill.backward_moved, bill.kept)
            rows.append([name, *(f"{number:.0f}" for number in numbers)])
        header = ["", "kernels", "reductions", "bytes moved", "backward: kernels", "bytes moved", "bytes kept"]
        print()
        _table(header, rows, f"Counts, width {width}, {_name(dtype)}; bytes per number in x")


COST_SIZES = ((1, 4096), (128, 4096), (8192, 1024), (8192, 4096))


def show_times(
    on: torch.device, sizes: Sequence[tuple[int, int]] = COST_SIZES, seconds: float = 2.0, clock: Clock = CLOCKS["wall"]
) -> None:
    """Times of every implementation on a device, beside its own copy, and what the device can do at most."""
    roof = times.bandwidth(sizes[-1][0] * sizes[-1][1], on)
    print(f"\n{device_name(on)}: a copy moves {1e-9 * roof:.3g} GB/s; a product of matrices, {1e-9 * times.peak(device=on):.3g} GFLOP/s")
    for training in (False, True):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for tokens, width in sizes:
                result = times.race_norms(tokens, width, dtype, training, on, seconds, clock)
                what = "Forward and backward" if training else "Forward"
                _show_beside_copy(result, f"{what}, [{tokens}, {width}] {_name(dtype)}, {device_name(on)}")
    for dtype in (torch.float32, torch.bfloat16):
        tokens, width = sizes[-1]
        result = times.race_addition(tokens, width, dtype, on, seconds, clock)
        _show_beside_copy(result, f"Residual addition and norm, [{tokens}, {width}] {_name(dtype)}, {device_name(on)}")


def _show_beside_copy(result: Race, caption: str) -> None:
    rows = []
    for name in result.times:
        low, middle, high = result.quartiles(name, "x.clone()")
        rows.append([name, f"{1e6 * result.median(name):.1f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    print()
    _table(["", "µs", "× x.clone()", "quartiles"], rows, caption)


def show_times_of_gpu() -> None:
    """The times on this machine's GPU, in a minute or two; a sentence where there is none."""
    if torch.cuda.is_available():
        show_times(torch.device("cuda"), ((1, 4096), (8192, 4096)), seconds=0.5)
    else:
        print("No CUDA device here: the times on this page are those of CPUs. On a machine with one this cell measures it.")


def device_name(on: torch.device) -> str:
    """What a device calls itself."""
    return torch.cuda.get_device_name(on) if on.type == "cuda" else on.type


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        _table(["", "size", *RATIOS], rows, "Default modules, forward and backward" if training else "Default modules, forward")
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
    _table(["", "tokens/s", "× transformers"], rows, caption)
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
    _table(["", "ms", *bases], rows, caption)


_shown: list[dict[str, Any]] = []  # what :func:`main` writes as JSON


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    _shown.append({"caption": caption, "headers": list(headers), "rows": [list(row) for row in rows]})
    table(headers, rows, caption)


def _bar(what: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> None:
    met = value <= at_most if at_most is not None else at_least is not None and value >= at_least
    bar = f"at most {at_most}" if at_most is not None else f"at least {at_least}"
    print(f"{what}: {value:.3f} ({bar}: {'met' if met else 'NOT MET'})")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


PARTS = ("modules", "norms", "tuned", "counts", "times", "training", "import")


def main(arguments: Sequence[str]) -> int:
    """The command line: see ``normlab bench --help``."""
    parser = argparse.ArgumentParser(prog="normlab bench", description="What a norm costs.")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=25, help="default: 25")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each table of the part times (2)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu is steadier on a busy machine")
    parser.add_argument("--device", help="for the part times: cpu, cuda, mps; default: the fastest that is there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables to a file as well")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    parts = options.part or PARTS
    if options.json:
        files.check_writable(options.json)
    _shown.clear()
    before = machine()
    print(before)
    if "modules" in parts and not show_modules(options.rounds, clock):
        print("some bars are not met; on a busy machine try again, with --clock cpu")
    if "norms" in parts:
        show_norms(options.tokens, options.width, options.rounds, clock)
    if "tuned" in parts and platform.libc_ver()[0] == "glibc":
        _show_tuned([f"--{name}={getattr(options, name)}" for name in ("threads", "tokens", "width", "rounds", "clock")])
    if "counts" in parts:
        show_counts(options.width)
    if "times" in parts:
        show_times(torch.device(options.device) if options.device else device.fastest(), COST_SIZES, options.seconds, clock)
    if "training" in parts:
        print()
        show_training(options.rounds, clock)
    if "import" in parts:
        print()
        _bar("seconds for import normlab.norms beyond torch", import_seconds(), at_most=0.1)
    print(machine())
    if options.json:
        files.write(options.json, json.dumps({"machine": before, "tables": _shown}, indent=1, ensure_ascii=False).encode())
    return 0


def _show_tuned(options: list[str]) -> None:
    """The part norms in a process of its own, whose allocator keeps its memory."""
    print("\nThe same with an allocator that keeps its memory (" + ", ".join(KEEP_MEMORY) + "):", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "tables.json")
        command = [sys.executable, "-m", "normlab", "bench", "norms", *options, f"--json={found}"]
        subprocess.run(command, env=os.environ | KEEP_MEMORY, check=True)
        for shown in json.loads(found.read_text("utf-8"))["tables"]:
            _shown.append(shown | {"caption": shown["caption"] + ", allocator that keeps its memory"})
