"""normlab: normalization in Transformers with two knobs, how to compute it and where to put it.

``import normlab`` is light: neither torch nor numpy is imported until a name that needs them is used, so that the book
builds without them.
"""

import importlib

__version__ = "0.2.0"

# What a learner uses, and the module that each name comes from.
_NAMES = {
    "layer_norm": "normlab.functional",
    "rms_norm": "normlab.functional",
    "LayerNorm": "normlab.norms",
    "RMSNorm": "normlab.norms",
    "make_norm": "normlab.norms",
    "Placement": "normlab.placement",
    "Residual": "normlab.placement",
    "Transformer": "normlab.transformer",
    "TransformerConfig": "normlab.config",
    "inspect": "normlab.inspection.report",
    "doctor": "normlab.inspection.diagnosis",
}

_MODULES = (
    "across_tokens",
    "arithmetic",
    "attention",
    "backward",
    "bench",
    "cli",
    "config",
    "conventions",
    "cost",
    "data",
    "device",
    "drills",
    "experiments",
    "families",
    "fast",
    "files",
    "functional",
    "inspection",
    "interview",
    "ledger",
    "norms",
    "numerics",
    "optimizers",
    "page",
    "placement",
    "probes",
    "record",
    "training",
    "transformer",
)

__all__ = [*_NAMES, *_MODULES]


def __getattr__(name):
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
