"""What a norm does to memory, counted: kernels, reductions, bytes moved, bytes kept for the backward pass.

Counts are the same on every machine. Times are taken in :mod:`normlab.cost.times`; what a whole model costs, by formula, is
:mod:`normlab.ledger`'s.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from normlab import fast

Norm = tuple[Callable[[Tensor], Tensor], list[Tensor]]  # a function of x, and its parameters


# --- ways to compute a norm ---------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm as one writes it down from the formula, one kernel for each step; half types in float32.

    weight · (x − μ) / √(σ² + ε) + bias over the last axis; x [..., d], weight and bias [d].
    """
    wide = x.float()  # of float32 this is x itself
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).square().mean(-1, keepdim=True)
    return (weight * (wide - mean) / (variance + eps).sqrt() + bias).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm as one writes it down: weight · x / √(mean(x²) + ε); shapes and half types as in :func:`layer_norm`."""
    wide = x.float()
    return (weight * wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()).to(x.dtype)


def implementations(
    width: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> dict[str, Norm]:
    """Ways to compute LayerNorm and RMSNorm over ``width`` features, by name, with random gains and biases.

    LlamaRMSNorm, of the transformers library, is missing where the library is.
    """
    weight, bias = (
        torch.randn(width, generator=torch.Generator().manual_seed(s)).to(device, dtype).requires_grad_() for s in (1, 2)
    )
    found: dict[str, Norm] = {
        "LayerNorm, by hand": (lambda x: layer_norm(x, weight, bias), [weight, bias]),
        "RMSNorm, by hand": (lambda x: rms_norm(x, weight), [weight]),
        "F.layer_norm": (lambda x: F.layer_norm(x, (width,), weight, bias), [weight, bias]),
        "F.rms_norm": (lambda x: F.rms_norm(x, (width,), weight, 1e-6), [weight]),
    }
    try:
        with warnings.catch_warnings(action="ignore"):  # tqdm misses widgets that nobody asked for
            from transformers.models.llama.modeling_llama import LlamaRMSNorm
    except ImportError:
        pass
    else:
        layer = LlamaRMSNorm(width, eps=1e-6)
        layer.weight = nn.Parameter(weight.detach())
        found["LlamaRMSNorm"] = (layer, [layer.weight])
    return found | {
        "normlab.fast LayerNorm": (lambda x: fast.layer_norm(x, weight, bias), [weight, bias]),
        "normlab.fast RMSNorm": (lambda x: fast.rms_norm(x, weight), [weight]),
    }


def add_and_norm(norm: Callable[[Tensor], Tensor], x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """A residual addition and the norm behind it: x + update, which goes on as the stream, and its norm."""
    total = x + update
    return total, norm(total)


# --- counting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One operation that PyTorch has dispatched: its name, the bytes of each operand and of each result."""

    name: str
    read: tuple[int, ...]
    written: tuple[int, ...]
    reduces: bool  #: every result has fewer numbers than the largest operand

    @property
    def bytes(self) -> int:
        """Read and written."""
        return sum(self.read) + sum(self.written)


class Count(TorchDispatchMode):
    """Collects, inside ``with Count() as count:``, the kernels that PyTorch dispatches.

    Operands and results count as the kernel is called: what a cache or the inside of a kernel does is not seen. A
    tensor counts with the memory behind it, so that one number expanded to a row is one number. Views and what only
    allocates move nothing and are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        name = operation.__name__.partition(".")[0]
        if not (operation.is_view or name in _MOVE_NOTHING):
            operands = args[1:] if name in ("copy_", "fill_", "zero_") else args  # these overwrite their first
            named = {key: value for key, value in (kwargs or {}).items() if key != "out"}  # so do these
            read, written = _tensors((operands, named)), _tensors(results)
            if read or written:
                largest = [max((t.numel() for t in tensors), default=0) for tensors in (read, written)]
                sizes = [tuple(map(_bytes, tensors)) for tensors in (read, written)]
                self.kernels.append(Kernel(name, sizes[0], sizes[1], largest[1] < largest[0]))
        return results

    @property
    def bytes(self) -> int:
        """Read and written by all kernels."""
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def reductions(self) -> int:
        """Kernels that return fewer numbers than they were given. A fused norm reduces inside and is none."""
        return sum(kernel.reduces for kernel in self.kernels)


_MOVE_NOTHING = ("detach", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "_local_scalar_dense")


def _tensors(tree) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _bytes(t: Tensor) -> int:
    return min(t.nbytes, t.untyped_storage().nbytes())


def count_forward(norm: Callable[[Tensor], Tensor], x: Tensor) -> Count:
    """What one forward pass starts and moves, without gradients.

    Counted with two threads: the fast path works in blocks of 2^18 numbers a thread, and up to twice as many numbers
    then are one block.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad(), Count() as count:
            norm(x)
    finally:
        torch.set_num_threads(threads)
    return count


def count_backward(norm: Callable[[Tensor], Tensor], x: Tensor, parameters: Sequence[Tensor] = ()) -> Count:
    """What the backward pass starts and moves, to the gradients of x and of the parameters."""
    x = x.detach().clone().requires_grad_()
    y, grad = norm(x), torch.ones_like(x)
    with Count() as count:
        torch.autograd.grad(y, [x, *parameters], grad)
    return count


def kept_bytes(norm: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes that autograd keeps from the forward pass until the backward pass; x counts, parameters do not."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.dim() > 1:  # gains and biases are vectors, and there for good
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = norm(x.detach().clone().requires_grad_())
    del y
    return sum(kept.values())


def one_block(width: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """Random tokens [tokens, width] that the fast path takes in one block: 3 · 2^17 numbers or, of few tokens, less."""
    tokens = max(1, 3 * 2**17 // width)
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(3)).to(device, dtype)


@dataclass(frozen=True)
class Bill:
    """What one norm costs on x, by count; bytes are per number in x."""

    kernels: int
    reductions: int
    moved: float
    backward_kernels: int
    backward_moved: float
    kept: float

    @property
    def both_moved(self) -> float:
        """Bytes that both passes move, per number in x."""
        return self.moved + self.backward_moved


def bill(norm: Norm, x: Tensor) -> Bill:
    """The counts of a norm and its parameters on x [tokens, width], forward and backward."""
    function, parameters = norm
    forward, backward = count_forward(function, x), count_backward(function, x, parameters)
    return Bill(
        kernels=len(forward.kernels),
        reductions=forward.reductions,
        moved=forward.bytes / x.numel(),
        backward_kernels=len(backward.kernels),
        backward_moved=backward.bytes / x.numel(),
        kept=kept_bytes(function, x) / x.numel(),
    )
