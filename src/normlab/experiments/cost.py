"""What the chapter on cost runs: times that are recorded, shares of a model, the table of a paper, what others measured."""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlab import bench, cost, device, ledger, norms, record
from normlab.cost import times
from normlab.record import Recipe, grid

WIDTHS = (256, 1024, 4096, 8192)
CPU = times.CLOCKS["cpu"]

# --- times, recorded ----------------------------------------------------------------------------------------------

_MEASURE = """
import json, sys
from normlab.experiments import cost
print(json.dumps(cost.measure(**json.loads(sys.argv[1]))))
"""


def measure_apart(**setting: Any) -> dict:
    """:func:`measure` in a process of its own, whose allocator keeps its memory instead of handing it back."""
    command = [sys.executable, "-c", _MEASURE, json.dumps(setting)]
    done = subprocess.run(command, env=os.environ | times.KEEP_MEMORY, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(part: str, **setting: Any) -> dict:
    """One part of the record ``cost_times``, on one CPU thread: machine, forward, training, addition, step or decoding.

    Times are CPU times, which other programs disturb less than the wall clock's. They are given as quartiles over
    rounds, in microseconds, and as multiples of a copy of the same tensor (of the model without norms in "step" and
    "decoding").
    """
    with device.single_thread():
        match part:
            case "machine":
                return _machine(**setting)
            case "forward" | "training" | "addition":
                return _norms(part, **setting)
            case "step" | "decoding":
                return _model(part, **setting)
    raise ValueError(f"unknown part {part!r}")


def _machine(numbers: list[int], sizes: list[int]) -> dict:
    return {
        "machine": times.machine(),
        "copy": {n: _four_digits(times.bandwidth(n, clock=CPU)) for n in numbers},
        "peak": {n: _four_digits(times.peak(n, clock=CPU)) for n in sizes},
    }


def _norms(part: str, dtype: str, sizes: list[tuple[int, int]], seconds: float) -> dict:
    kind, found = getattr(torch, dtype), {}
    for tokens, width in sizes:
        if part == "addition":
            race = times.race_addition(tokens, width, kind, seconds=seconds, clock=CPU)
        else:
            race = times.race_norms(tokens, width, kind, part == "training", seconds=seconds, clock=CPU)
        found[f"{tokens} x {width}"] = _quartiles(race, "x.clone()")
    return found


def _quartiles(race: times.Race, base: str) -> dict:
    return {
        name: {
            "us": [_four_digits(1e6 * s) for s in race.quartiles(name)],
            "ratio": [_four_digits(r) for r in race.quartiles(name, base)],
        }
        for name in race.times
    }


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def compiled_addition(norm: str) -> dict:
    """How many kernels torch.compile makes on the CPU of a residual addition and a norm by hand. Needs a C++ compiler."""
    from torch._inductor.utils import run_and_get_code

    function, _ = cost.implementations(1024)[norm]
    x, update = torch.randn(2, 256, 1024, generator=torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    with torch.no_grad():
        _, sources = run_and_get_code(torch.compile(partial(cost.add_and_norm, function), dynamic=False), x, update)
    return {"kernels": sum(len(re.findall(r"^cpp_fused_\w+ = async_compile", s, re.MULTILINE)) for s in sources)}


def recorded(part: str, **setting: Any) -> dict:
    """A result of the record ``cost_times``."""
    return record.results(record.load("cost_times"), part=part, **setting)[0]


# --- shares of a model --------------------------------------------------------------------------------------------

NO_NORM = "no norm"


def with_norms(model: nn.Module, make: Callable[[Tensor], nn.Module]) -> nn.Module:
    """A copy of the model with ``make(gain)`` in the place of every RMSNorm of the transformers library."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                setattr(parent, name, make(child.weight))
    return model


def models_by_norm(model: nn.Module) -> dict[str, nn.Module]:
    """The same Llama with different norms, by name."""

    def ours(kind: str) -> Callable[[Tensor], nn.Module]:
        return lambda gain: norms.make_norm(kind, len(gain))

    return {
        "LlamaRMSNorm": copy.deepcopy(model),
        "nn.RMSNorm": with_norms(model, lambda gain: nn.RMSNorm(len(gain), eps=1e-6)),
        "nn.LayerNorm": with_norms(model, lambda gain: nn.LayerNorm(len(gain))),
        "normlab RMSNorm": with_norms(model, ours("rmsnorm")),
        "normlab LayerNorm": with_norms(model, ours("layernorm")),
        NO_NORM: with_norms(model, lambda gain: nn.Identity()),
    }


def _model(part: str, width: int, layers: int, tokens: int, seconds: float) -> dict:
    from transformers import LlamaConfig, LlamaForCausalLM

    options = bench.LLAMA | {
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": layers,
        "use_cache": part == "decoding",
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**options, max_position_embeddings=4096))
    ids = torch.randint(options["vocab_size"], (1, tokens + 1), generator=torch.Generator().manual_seed(5))
    step = training_step if part == "step" else decoding_step
    contenders = {name: step(m, ids[:, :-1], ids[:, 1:]) for name, m in models_by_norm(model).items()}
    return _quartiles(times.race_for(seconds, contenders, clock=CPU), NO_NORM)


def training_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> times.Call:
    """One step of AdamW on always the same batch."""
    return bench.training_step(model.train(), inputs, targets, path=True)


def decoding_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> times.Call:
    """One more token behind ``inputs``, with a cache that grows by one token a call."""
    model.eval()
    with torch.no_grad():
        kept = model(inputs).past_key_values

    def step() -> None:
        with torch.no_grad():
            model(targets[:, -1:], past_key_values=kept)

    return step


@dataclass(frozen=True)
class Share:
    """Norms beside matrix products in one pass of a model, as multiples of the products' time."""

    fused: float
    eager: float
    operations: float


def prefill_share(config: ledger.Config, tokens: int, balance: float, dtype: str = "bfloat16") -> Share:
    """How long all norms of a forward pass take, over the time of its matrix products, on an ideal machine.

    The machine does ``balance`` operations in the time in which it moves one byte; products run at its peak of
    operations, norms at its peak of bytes, nothing overlaps and starting a kernel is free.
    """
    products = ledger.flops(config, tokens, head="all").matrices
    found = ledger.norms(config, tokens, dtype=dtype)
    return Share(
        fused=found.fused.bytes * balance / products,
        eager=found.eager.bytes * balance / products,
        operations=ledger.flops(config, tokens, head="all").norm_share,
    )


# --- the paper's range, taken apart -------------------------------------------------------------------------------

PAPER_SECONDS = {  # without norm, LayerNorm, RMSNorm, pRMSNorm with 6.25 % of the features: arXiv:1910.07467
    "translation, Transformer (TensorFlow)": (210, 248, 231, 225),
    "translation, RNN (PyTorch)": (427, 857, 763, 754),
    "reading, RNN (Theano)": (315, 392, 333, 330),
    "images, convolutions": (21, 39, 31, 30),
    "translation, RNN (TensorFlow)": (399, 665, 501, 493),
    "translation, RNN (Theano)": (596, 988, 652, 658),
    "captions, order embedding, RNN (Theano)": (2.11, 12.02, 7.12, 4.34),
}


def taken_apart(without: float, with_layer_norm: float, with_other: float) -> tuple[float, float, float]:
    """(saved, LayerNorm's part of the time, the part of LayerNorm's time that is saved); the first is the product."""
    layer_norm = with_layer_norm - without
    saved = with_layer_norm - with_other
    return saved / with_layer_norm, layer_norm / with_layer_norm, saved / layer_norm


# --- what others measured on GPUs ---------------------------------------------------------------------------------

LIGER = {  # ms for [2048, width] bfloat16 on one A100 (SXM4, 80 GB): their LlamaRMSNorm, Liger Kernel 0.2.1's kernel
    "forward": {
        1024: (0.07821, 0.01360),
        2048: (0.1363, 0.02000),
        4096: (0.2799, 0.03107),
        8192: (0.5190, 0.05174),
        16384: (0.9856, 0.09526),
        32768: (1.919, 0.1822),
    },
    "backward": {
        1024: (0.1958, 0.09373),
        2048: (0.3619, 0.09030),
        4096: (0.7404, 0.09914),
        8192: (1.352, 0.1780),
        16384: (2.570, 0.3205),
        32768: (5.015, 1.056),
    },
}
"""Medians of benchmark/data/all_benchmark_data.csv in linkedin/Liger-Kernel, commit ead96b6, dated 2024-09-03."""


def llama_norm(width: int, gains: torch.dtype = torch.float32) -> cost.Norm:
    """The RMSNorm that the benchmark of Liger Kernel writes down, with its parameters."""
    weight = torch.ones(width, dtype=gains, requires_grad=True)

    def norm(x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + 1e-6)
        return weight * wide.to(x.dtype)

    return norm, [weight]


# --- records ------------------------------------------------------------------------------------------------------

_SIZES = [[tokens, width] for tokens in (1, 128, 8192) for width in WIDTHS]
_FEW = [[tokens, width] for tokens in (1, 8192) for width in (1024, 4096)]
_TRAINED = [[tokens, width] for tokens in (128, 2048) for width in (1024, 4096)]

RECORDS = (
    Recipe(
        "cost_times",
        "times of norms beside a copy, of a residual addition and norm, and of a small Llama with several norms; one CPU thread",
        [
            {"part": "machine", "numbers": [2**n for n in range(12, 27, 2)], "sizes": [256, 1024]},
            {"part": "forward", "dtype": "float32", "sizes": _SIZES, "seconds": 1.0},
            {"part": "forward", "dtype": "bfloat16", "sizes": _SIZES, "seconds": 1.0},
            {"part": "forward", "dtype": "float16", "sizes": _FEW, "seconds": 1.0},
            {"part": "training", "dtype": "float32", "sizes": _TRAINED, "seconds": 1.5},
            *({"part": "training", "dtype": d, "sizes": [[2048, 1024]], "seconds": 1.5} for d in ("bfloat16", "float16")),
            *({"part": "addition", "dtype": d, "sizes": [[2048, 1024]], "seconds": 1.0} for d in ("float32", "bfloat16")),
            *({"part": "step", "width": w, "layers": 4, "tokens": 128, "seconds": 3.0} for w in (128, 384)),
            *({"part": "decoding", "width": w, "layers": 4, "tokens": 128, "seconds": 1.0} for w in (128, 384)),
        ],
        measure_apart,
    ),
    Recipe(
        "compiled_addition",
        "kernels that torch.compile makes of a residual addition and a hand-written norm on a CPU, forward pass",
        grid(norm=["LayerNorm, by hand", "RMSNorm, by hand"]),
        compiled_addition,
    ),
)
