"""normlab: normalization in Transformers with two knobs, how to compute it and where to put it.

``import normlab`` is light: neither torch nor numpy is imported until a submodule that needs them is used,
so that the book builds without them.
"""

import importlib

__version__ = "0.1.0"

__all__ = [
    "attention",
    "backward",
    "bench",
    "checkpoint",
    "claims",
    "config",
    "data",
    "device",
    "distributed",
    "experiments",
    "families",
    "fast",
    "figures",
    "functional",
    "inspect",
    "interrupt",
    "losses",
    "nonfinite",
    "norms",
    "numerics",
    "observe",
    "optimizers",
    "placement",
    "probes",
    "record",
    "tables",
    "training",
    "training_run",
    "transformer",
]


def __getattr__(name):
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
