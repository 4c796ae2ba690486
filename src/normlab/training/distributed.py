"""Several processes that train one model together, as torchrun starts them. One process is a world of size 1."""

import atexit
from collections.abc import Sequence
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

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over the processes; all start from the weights of rank 0."""
        return model if self.size == 1 else nn.parallel.DistributedDataParallel(model)

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


def join(device: torch.device) -> World:
    """The world that this process is in; under torchrun the first call joins it, with the backend for ``device``."""
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if not dist.is_torchelastic_launched():
            return World()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(leave)
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """Leave the world that :func:`join` joined."""
    if dist.is_initialized():
        dist.destroy_process_group()
