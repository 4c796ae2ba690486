"""Random tensors for tests: the same seed means the same numbers on every machine. Helpers, no tests."""

import torch
from torch import Tensor, nn


def normal(
    *shape: int, seed: int = 0, mean: float = 0.0, std: float = 1.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Normal numbers; drawn in float64 and then rounded, because float32 draws differ between instruction sets."""
    generator = torch.Generator().manual_seed(seed)
    return (mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


@torch.no_grad()
def randomize(module: nn.Module, seed: int = 1, matrices: bool = False) -> nn.Module:
    """The module with noise on its gains and shifts (and ``matrices``): gains of 1 and shifts of 0 hide mistakes."""
    for i, p in enumerate(module.parameters()):
        if matrices or p.dim() < 2:
            p += 0.3 * normal(*p.shape, seed=1000 * seed + i, dtype=p.dtype)
    return module
