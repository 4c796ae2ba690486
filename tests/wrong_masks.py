"""What must not be taken for a mask [2, 5] in which 1 or True marks a real token. Helpers for tests, no tests."""

import math

import torch

_PADDING = torch.tensor([[0] * 5, [0, 0, 0, 1, 1]], dtype=torch.bool)


def _added(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A mask to be added to the scores: 0 at real tokens, ``value`` at padding."""
    return torch.zeros(2, 5, dtype=dtype).masked_fill(_PADDING, value)


# name: (mask, error, words of its message)
WRONG_MASKS = {
    "to be added": (_added(-10000.0), ValueError, "values in -10000.0, 0.0$"),
    "to be added, infinite": (_added(-math.inf), ValueError, "values in -inf, 0.0$"),
    "to be added, integer": (_added(-10000, torch.long), ValueError, "values in -10000, 0$"),
    "to be added, lowest of bfloat16": (
        _added(torch.finfo(torch.bfloat16).min, torch.bfloat16),
        ValueError,
        "values in -3.38",
    ),
    "to be added, no padding": (torch.zeros(2, 5), ValueError, "got 0.0 everywhere, which hides every token"),
    "to be added, integer, no padding": (
        torch.zeros(2, 5, dtype=torch.long),
        ValueError,
        "got 0 everywhere, which hides every token",
    ),
    "True at padding, no padding": (
        torch.zeros(2, 5, dtype=torch.bool),
        ValueError,
        "got False everywhere, which hides every token",
    ),
    "counts": (torch.arange(10).view(2, 5), ValueError, r"values in 0, 1, 2, \.\.\., 8, 9$"),
    "fractions": (torch.full((2, 5), 0.5), ValueError, "values in 0.5$"),
    "NaN": (torch.full((2, 5), math.nan), ValueError, "values in nan"),
    "complex": (torch.ones(2, 5, dtype=torch.complex64), TypeError, "complex64"),
    "float8": (torch.ones(2, 5).to(torch.float8_e4m3fn), TypeError, "float8_e4m3fn"),
    "a list": ([[1] * 5, [1] * 5], TypeError, "got list"),
    "a number": (1, TypeError, "got int"),
    "too short": (torch.ones(2, 4), ValueError, r"\(2, 4\)$"),
    "one for all sequences": (torch.ones(1, 5), ValueError, r"\(1, 5\)$"),
    "of queries and keys": (torch.ones(2, 1, 5, 5), ValueError, r"\(2, 1, 5, 5\)$"),
}
