"""A model and a batch to examine: runs in evaluation mode that leave the model as it was."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.trace import tensors, undone
from normlab.inspection.wiring import Wiring, wiring_of

_NAMES_OF_IDS = ("decoder_input_ids", "input_ids", "ids", "idx", "tokens")
_MASK = "attention_mask"


class Subject:
    """A model with a batch.

    Attributes:
        model: left as it was by every method.
        arguments: of the model's call; that of a batch without names is called "".
        ids: int [B, T], whose places are those of the model's answer; None for a batch without token ids.
        mask: bool [B, T], True at real tokens; None if all are real.
    """

    def __init__(self, model: nn.Module, batch: Tensor | Mapping[str, Any]):
        _check_model(model)
        self.model = model
        self.arguments = _arguments(batch)
        self.name_of_ids = _name_of_ids(self.arguments)
        self.ids: Tensor | None = None if self.name_of_ids is None else self.arguments[self.name_of_ids]
        mask = self.arguments.get("decoder_" + _MASK if self.name_of_ids == "decoder_input_ids" else _MASK)
        two_axes = isinstance(mask, Tensor) and self.ids is not None and mask.shape == self.ids.shape
        self.mask = mask.bool() if two_axes and isinstance(mask, Tensor) else None
        self._check_devices()

    def _check_devices(self) -> None:
        device = next(self.model.parameters()).device
        for name, value in self.arguments.items():
            if isinstance(value, Tensor) and value.device != device:
                what = f"the batch's {name}" if name else "the batch"
                raise ValueError(f"{what} is on {value.device}, the model on {device}; move one of them")

    @property
    def described(self) -> str:
        """Class of the model."""
        return type(self.model).__name__

    def takes(self, name: str) -> bool:
        """Whether the model's call has an argument of that name; what goes into ``**kwargs`` may be ignored."""
        return name in signature(self.model.forward).parameters

    def _takes_options(self) -> bool:
        taken = signature(self.model.forward).parameters.values()
        return any(p.name == "use_cache" or p.kind is Parameter.VAR_KEYWORD for p in taken)

    @contextmanager
    def at_rest(self, training: Collection[nn.Module] = ()) -> Iterator[None]:
        """Within the block: evaluation mode but for the modules of ``training``; buffers, modes and the state of the
        random numbers are put back afterwards."""
        modes = {module: module.training for module in self.model.modules()}
        with torch.random.fork_rng(), undone(self.model):
            try:
                for module in modes:
                    module.training = module in training
                yield
            finally:
                for module, mode in modes.items():
                    module.training = mode

    def call(self, **changes: Any) -> Any:
        """Call the model with some arguments changed; the batch's ids are named "ids" here whatever their name is."""
        given = dict(self.arguments)
        for name, value in changes.items():
            given[self.name_of_ids if name == "ids" and self.name_of_ids is not None else name] = value
        positional = [given.pop("")] if "" in given else []
        if hasattr(getattr(self.model, "config", None), "use_cache") and self._takes_options():
            given.setdefault("use_cache", False)
        return self.model(*positional, **given)

    def wiring(self) -> Wiring:
        """The traced run of the batch.

        Raises ValueError if the model fails on it.
        """
        given = dict(self.arguments)
        positional = [given.pop("")] if "" in given else []
        try:
            with self.at_rest():
                return wiring_of(self.model, *positional, **given)
        except Exception as error:
            what = ", ".join(f"{name} {_described(value)}".strip() for name, value in self.arguments.items())
            raise ValueError(
                f"{self.described} failed on the batch ({what}), with {type(error).__name__}: {error}"
            ) from error

    def answer(self, changes: Mapping[str, Any], training: Collection[nn.Module] = ()) -> Tensor:
        """Logits (or what the model returns of that shape) [B, T, V] in float64.

        Args:
            changes: of the arguments, as in :meth:`call`.
            training: modules that run in training mode.
        """
        with self.at_rest(training), torch.no_grad():
            answer = self.find_answer(self.call(**changes))
        if answer is None:
            raise ValueError("the model returned nothing of shape [B, T, features]")
        return answer.double()

    def find_answer(self, output: Any) -> Tensor | None:
        """The logits among what the model returned, else the first tensor [B, T, features]."""
        if self.ids is None:
            return None
        named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        fitting = [t for t in tensors([named, output]) if t.dim() == 3 and t.shape[:2] == self.ids.shape]
        return fitting[0] if fitting else None


def padding_ids(model: nn.Module) -> set[int | None]:
    """The ids that stand for padding, by the model's embeddings and its configuration; None among them."""
    tables = {module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding)}
    return tables | {getattr(getattr(model, "config", None), "pad_token_id", None)}


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise ValueError(f"{type(model).__name__} has no parameters; there is nothing to measure")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ValueError(f"{name} of {type(model).__name__} is on the meta device and holds no numbers")
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise ValueError(
                f"{name} of {type(model).__name__} was made in torch.inference_mode(), so that autograd cannot record "
                "the run; build the model outside of it"
            )


def _arguments(batch: Tensor | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(batch, Tensor):
        vectors = batch.is_floating_point()
        if batch.dim() < 2 or (not vectors and batch.dim() != 2):
            shape = "vectors [..., T, d]" if vectors else "ids [B, T]"
            raise ValueError(f"batch must be {shape}, got a tensor of shape {tuple(batch.shape)}")
        if batch.dtype == torch.bool or batch.is_complex():
            raise TypeError(f"batch must hold token ids (integers) or vectors, got {batch.dtype}")
        given: dict[str, Any] = {"": batch}
    elif isinstance(batch, Mapping):
        given = dict(batch)
        wrong = [name for name in given if not isinstance(name, str)]
        if wrong:
            raise TypeError(f"a batch as a dictionary needs names of arguments as keys, got {wrong[0]!r}")
        if not any(isinstance(value, Tensor) for value in given.values()):
            raise ValueError(f"the batch's arguments {sorted(given)} hold no tensor")
    else:
        raise TypeError(
            f"batch must be a tensor of ids [B, T] or a dictionary of arguments, got {type(batch).__name__}"
        )
    for name, value in given.items():
        if isinstance(value, Tensor) and not value.numel():
            raise ValueError(f"the batch is empty: {name} has shape {tuple(value.shape)}")
    return given


def _name_of_ids(arguments: dict[str, Any]) -> str | None:
    """The argument that holds token ids: by a usual name, else the only integers [B, T]."""
    tensors_2d = {name: value for name, value in arguments.items() if isinstance(value, Tensor) and value.dim() == 2}
    integers = [n for n, value in tensors_2d.items() if not value.is_floating_point() and value.dtype != torch.bool]
    usual = [name for name in _NAMES_OF_IDS if name in integers]
    if usual:
        return usual[0]
    return integers[0] if len(integers) == 1 else None


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = "" if value.is_floating_point() else f" from {value.min().item()} to {value.max().item()}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{numbers}"


LossFunction = Callable[[Any, Mapping[str, Any]], Tensor]


def default_loss(subject: Subject, output: Any) -> tuple[Tensor | None, str]:
    """The loss that the model returned, else next-token cross-entropy; and what it is, or why there is none."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1:
        return own.reshape(()), "the model's own"
    logits = subject.find_answer(output)
    if logits is None or subject.ids is None:
        return None, "the model returned nothing of shape [B, T, features] for token ids; pass a loss"
    rows = {m.num_embeddings for m in subject.model.modules() if isinstance(m, nn.Embedding)}
    if logits.shape[-1] <= int(subject.ids.max()) or (rows and logits.shape[-1] not in rows):
        return None, f"the model returned {logits.shape[-1]} features a token, no number per token id; pass a loss"
    if subject.ids.shape[1] < 2:
        return None, "the batch has one token a row, so that none has a successor"
    targets = subject.ids[:, 1:]
    if subject.mask is not None:
        targets = targets.masked_fill(~(subject.mask[:, 1:] & subject.mask[:, :-1]), -100)
    if not (targets != -100).any():
        return None, "no real token has a successor"
    wide = logits[:, :-1].float() if logits.dtype in (torch.float16, torch.bfloat16) else logits[:, :-1]
    loss = nn.functional.cross_entropy(wide.flatten(0, 1), targets.flatten().long())
    return loss, "next token"
