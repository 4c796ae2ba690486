"""Several processes that train one model together, as torchrun starts them. One process is a world of size 1.

Each process holds the whole model (DDP) or, where the environment variable NORMLAB_SHARDED is 1, its part of every
weight, gradient and moment, and fetches a block's weights while it computes with them (FSDP2).
"""

import atexit
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """The processes of a run: this one's number ``rank``, how many there are, and where they exchange tensors."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    sharded: bool = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over the processes; all start from the weights of rank 0."""
        if self.size == 1:
            return model
        return self._shard(model) if self.sharded else nn.parallel.DistributedDataParallel(model)

    def _shard(self, model: nn.Module) -> nn.Module:
        """The model itself, its parameters split among the processes: block by block, then the rest."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if isinstance(model, FSDPModule):
            return model
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        for block in _blocks(model):
            fully_shard(block)
        fully_shard(model, reshard_after_forward=True)  # by default a pass without a backward leaves it gathered
        return model

    def value(self, number: Tensor) -> float:
        """A number that all processes have alike, also where it came out of their parts."""
        return (number.full_tensor() if hasattr(number, "full_tensor") else number).item()

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
        """The state of both, whole, whichever process holds its parts; all processes have to ask."""
        if not self.sharded:
            return model.state_dict(), optimizer.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, states: tuple[dict, dict]) -> None:
        """Give both what :meth:`state` returned."""
        if not self.sharded:
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        options = StateDictOptions(full_state_dict=True)
        set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)

    def share(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """This process's rows of a batch that all processes have drawn alike.

        Raises:
            ValueError: fewer rows than processes.
        """
        if len(batch[0]) < self.size:
            raise ValueError(f"a batch of {len(batch[0])} rows cannot be shared among {self.size} processes")
        return tuple(t.tensor_split(self.size)[self.rank] for t in batch)

    def sum(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over the processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true in some process."""
        return flag if self.size == 1 else self.sum(torch.tensor(float(flag), device=self.device)).item() > 0

    def gather(self, value: object) -> list:
        """The ``value`` of every process, by rank; returns once all processes have come here."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The entries of the outermost ModuleLists."""
    for child in model.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)


def join(device: torch.device) -> World:
    """The world that this process is in; under torchrun the first call joins it, with the backend for ``device``.

    Raises:
        ValueError: NORMLAB_SHARDED is neither 0 nor 1.
        RuntimeError: it is 1 on a CPU, and this torch (such as 2.6) has FSDP2 for GPUs only.
    """
    sharded = os.environ.get("NORMLAB_SHARDED", "0")
    if sharded not in ("0", "1"):
        raise ValueError(f"NORMLAB_SHARDED must be 0 or 1, got {sharded!r}")
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched():
            return World()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(leave)
    size = dist.get_world_size()
    if sharded == "1" and device.type == "cpu" and not shards_on_cpu():
        raise RuntimeError(
            f"torch {torch.__version__} cannot spread weights over processes on a CPU; take a newer one or GPUs, or run "
            "without NORMLAB_SHARDED"
        )
    return World(dist.get_rank(), size, device, sharded == "1" and size > 1)


def shards_on_cpu() -> bool:
    """Whether this torch's FSDP2 runs on a CPU: it records events on streams, which those of a CPU could not always do."""
    return hasattr(torch.cpu.Stream, "record_event")


def leave() -> None:
    """Leave the world that :func:`join` joined."""
    if dist.is_initialized():
        dist.destroy_process_group()
