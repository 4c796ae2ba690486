"""Run a model once and keep every tensor with the operation that made it: what depends on what, seen, not read.

Names of modules and attributes play no part. The trace sees each tensor operation below autograd, so that it also
follows custom autograd functions, code without modules and writes in place.
"""

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import wraps
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(eq=False, repr=False)
class Node:
    """A tensor as one operation left it. ``op`` is the operation's name, empty for what was there before.

    ``args`` are the operation's arguments in order, tensors as nodes; ``parents`` are the nodes among them. ``index``
    is its place in the order of operations, -1 for what was there before. Where a write in place has overwritten the
    tensor, ``value`` is a copy. ``function`` runs the operation again; ``number`` is the tensor's place among its
    results. It is None where a write in place changed the tensor through a view.
    """

    op: str
    value: Tensor
    args: tuple = ()
    options: dict[str, Any] = field(default_factory=dict)
    index: int = -1
    function: Callable[..., Any] | None = None
    number: int = 0
    parents: list["Node"] = field(init=False)

    def __post_init__(self) -> None:
        self.parents = [*_flat(self.args, Node), *_flat(self.options, Node)]


@dataclass(eq=False, repr=False)
class Call:
    """One call of a module: its floating-point tensors in and out, and the operations [start, end) it made."""

    module: nn.Module
    start: int
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    end: int = -1
    children: list["Call"] = field(default_factory=list)


class FunctionalNorm(nn.Module):
    """A call of torch's functional ``layer_norm`` or ``rms_norm``, as the module that it could have been.

    ``stored_gain`` tells whether the gain is a parameter of the model or was computed from something else.
    """

    def __init__(self, function: Callable[..., Tensor], options: dict[str, Any]):
        super().__init__()
        self.function = function
        given = {name: options[name] for name in ("weight", "bias") if options.get(name) is not None}
        self.options = {name: value for name, value in options.items() if name not in given}
        for name, tensor in given.items():
            self.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
        self.stored_gain = isinstance(given.get("weight", nn.Parameter()), nn.Parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.options, **dict(self.named_parameters()))


@dataclass(repr=False)
class Trace:
    """What :func:`trace` saw: the model's call with all calls below it, the model's output, and all nodes in order."""

    model: nn.Module
    root: Call
    output: Any
    nodes: dict[int, Node]
    made: list[Node]

    def node(self, tensor: Tensor) -> Node | None:
        """The last node of a tensor that the run has seen, None for another."""
        return self.nodes.get(id(tensor))


def trace(model: nn.Module, *args: Any, **kwargs: Any) -> Trace:
    """Call the model with ``args`` and ``kwargs`` and keep all tensors of the run; the model is left as it was.

    What it writes during the run is undone: parameters, buffers, tensors in its attributes, in lists and dictionaries
    of them, and in objects of other classes that it holds, such as a cache of its own. Objects with __slots__ are not
    followed, nor is what the model reaches in other ways than by its attributes.
    Attention by torch's scaled_dot_product_attention runs as separate operations, so that its logits can be seen.
    Autograd records the run too. Memory: everything that the run computes, as in training.
    """
    recorder = _Recorder()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(undone(model))
        stack.enter_context(recorder.parameters_undone(model))
        stack.enter_context(_without_checkpoints())
        for module in model.modules():
            for end in recorder.watch(module):
                stack.callback(end)
        stack.enter_context(_without_fused_encoder())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(recorder)
        stack.enter_context(_Functions(recorder))
        output = model(*map(_tracked, args), **{name: _tracked(value) for name, value in kwargs.items()})
    (root,) = recorder.top.children
    return Trace(model, root, output, recorder.nodes, recorder.made)


@contextmanager
def with_random_weights(model: nn.Module) -> Iterator[None]:
    """Within the block, parameters that are all zero or not all finite hold random numbers."""
    generator = torch.Generator().manual_seed(0)
    before: dict[nn.Parameter, Tensor] = {}
    try:
        for parameter in model.parameters():
            if type(parameter) is nn.Parameter and parameter.is_floating_point() and _is_mute(parameter.data):
                before[parameter] = parameter.data
                draw = torch.randn(parameter.shape, generator=generator) / max(1, parameter.shape[-1:].numel()) ** 0.5
                parameter.data = draw.to(parameter.data)
        yield
    finally:
        for parameter, data in before.items():
            parameter.data = data


def _is_mute(weights: Tensor) -> bool:
    return not weights.any() or not weights.isfinite().all()


def _tracked(value: Any) -> Any:
    """A floating-point tensor that autograd would not track (an input, rows of a frozen table), as one that it does."""
    if isinstance(value, Tensor) and value.is_inference():
        value = value.clone()
    if isinstance(value, Tensor) and value.is_floating_point() and torch.is_grad_enabled() and not value.requires_grad:
        return value.detach().requires_grad_().clone()
    return value


def tensors(structure: Any) -> list[Tensor]:
    """All floating-point tensors in a nest of tuples, lists, mappings and dataclasses, in order."""
    return [t for t in _flat(structure, Tensor) if t.is_floating_point()]


def users(made: list[Node]) -> dict[Node, list[Node]]:
    """For every node: those that were made from it."""
    found: dict[Node, list[Node]] = {}
    for node in made:
        for parent in dict.fromkeys(node.parents):
            found.setdefault(parent, []).append(node)
    return found


def parts(output: Any) -> list[Any]:
    """What a model returns, taken apart once: the values of a mapping or dataclass, the items of a tuple or list."""
    if isinstance(output, dict):
        return list(output.values())
    if isinstance(output, list | tuple):
        return list(output)
    return list(vars(output).values()) if is_dataclass(output) else [output]


def _flat(structure: Any, kind: type) -> Iterator:
    if isinstance(structure, kind):
        yield structure
    elif isinstance(structure, list | tuple):
        for item in structure:
            yield from _flat(item, kind)
    elif isinstance(structure, dict):
        for item in structure.values():
            yield from _flat(item, kind)
    elif is_dataclass(structure):
        yield from _flat(vars(structure), kind)


class _Recorder(TorchDispatchMode):
    """Keeps a node per operation and a call per module call. Tensors are told apart by identity and kept alive."""

    def __init__(self):
        super().__init__()
        self.nodes: dict[int, Node] = {}
        self.made: list[Node] = []
        self.count = 0
        self.overwritten: list[Tensor] = []
        self.stored: dict[int, list[nn.Parameter]] = {}  # parameters by the place of their numbers
        self.written: dict[nn.Parameter, Tensor] = {}  # what stood in those that the run has written
        self.top = Call(nn.Module(), 0)
        self.open_calls = [self.top]

    def node(self, tensor: Tensor) -> Node:
        """The current node of a tensor; a leaf for one that was there before."""
        node = self.nodes.get(id(tensor))
        if node is None:
            node = self.nodes[id(tensor)] = Node("", tensor)
        return node

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        taken = self._as_nodes(args), self._as_nodes(kwargs)
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _flat(value, Tensor):
                    self._keep_parameters(tensor)
        output = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        for number, tensor in enumerate(_flat(output, Tensor)):
            self._add(name, tensor, *taken, func, number)
        for argument, value in zip(func._schema.arguments, args):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _flat(value, Tensor):
                    self._write(name, tensor, *taken, func)
        self.count += 1
        return output

    def _as_nodes(self, structure):
        if isinstance(structure, Tensor):
            return self.node(structure)
        if isinstance(structure, list | tuple):
            return tuple(self._as_nodes(item) for item in structure)
        if isinstance(structure, dict):
            return {key: self._as_nodes(item) for key, item in structure.items()}
        return structure

    def _add(self, op, tensor, args, options, function=None, number=0):
        node = self.nodes[id(tensor)] = Node(op, tensor, args, options, self.count, function, number)
        self.made.append(node)

    def _write(self, op, tensor, args, options, function):
        """A write in place: the tensor gets a new node, and so does the one whose view it is."""
        self._add(op, tensor, args, options, function)
        base = tensor._base
        if base is not None:
            self.count += 1
            self._add(op, base, (self.node(base), self.nodes[id(tensor)]), {})

    def _keep_parameters(self, tensor: Tensor) -> None:
        """Save the parameters that share their numbers with a tensor about to be written."""
        for parameter in self.stored.get(_place(tensor), ()):
            if parameter not in self.written:
                self.written[parameter] = parameter.detach().clone()

    @contextmanager
    def parameters_undone(self, model: nn.Module) -> Iterator[None]:
        """Within the block, writes into parameters are noticed, and undone at its end."""
        before = {parameter: parameter.data for parameter in model.parameters()}
        for parameter in before:
            self.stored.setdefault(_place(parameter), []).append(parameter)
        try:
            yield
        finally:
            for parameter, data in before.items():
                if parameter.data_ptr() != data.data_ptr():
                    parameter.data = data  # it was given other numbers
            for parameter, value in self.written.items():
                parameter.data.copy_(value)  # not a write that autograd sees, which would end its backward pass

    def keep_before_write(self, tensor: Tensor) -> None:
        """Save the value that a node has before a write in place overwrites it."""
        node = self.nodes.get(id(tensor))
        if node is not None:
            node.value = tensor.clone()
            self.overwritten.append(tensor)

    def watch(self, module: nn.Module) -> Iterator[Callable[[], None]]:
        """Keep the module's calls, from now on; what must be called at the end is yielded."""

        def before(_, args, kwargs):
            self.open(module, tensors((args, kwargs)))

        def after(_, args, kwargs, output):
            self.close(tensors(output))
            return _tracked(output) if isinstance(module, nn.Embedding) else output

        yield module.register_forward_pre_hook(before, with_kwargs=True).remove
        yield module.register_forward_hook(after, with_kwargs=True).remove
        if not isinstance(module, torch.jit.ScriptModule):
            yield self._watch_forward(module)

    def _watch_forward(self, module: nn.Module) -> Callable[[], None]:
        """Some models run a module by its ``forward`` itself, which passes by the hooks."""
        forward, attributes = module.forward, vars(module)

        @wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.open_calls[-1].module is module:  # by way of the hooks
                return forward(*args, **kwargs)
            self.open(module, tensors((args, kwargs)))
            output = forward(*args, **kwargs)
            self.close(tensors(output))
            return output

        def end() -> None:
            if own:
                attributes["forward"] = forward
            else:
                del attributes["forward"]

        own = "forward" in attributes
        attributes["forward"] = watched
        return end

    def open(self, module: nn.Module, inputs: list[Tensor]) -> None:
        call = Call(module, self.count, [self.node(t) for t in inputs])
        self.open_calls[-1].children.append(call)
        self.open_calls.append(call)

    def close(self, outputs: list[Tensor]) -> None:
        call = self.open_calls.pop()
        call.outputs, call.end = [self.node(t) for t in outputs], self.count


_IN_PLACE = {"__iadd__", "__isub__", "__imul__", "__itruediv__"}  # and all whose name ends in one underscore
_NORM_FUNCTIONS = {F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm}


class _Functions(TorchFunctionMode):
    """What only shows above autograd: functional norms as calls, and tensors about to be overwritten."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _NORM_FUNCTIONS:
            return self._norm(func, args, kwargs)
        name = getattr(func, "__name__", "")
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
        if in_place and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            self.recorder.keep_before_write(args[0])
        return func(*args, **kwargs)

    def _norm(self, func, args, kwargs):
        names = ["input", "normalized_shape", "weight", "bias", "eps"]
        if "rms" in func.__name__:
            names.remove("bias")
        given = dict(zip(names, args)) | kwargs
        x = given.pop("input")
        self.recorder.open(FunctionalNorm(func, given), [x])
        output = func(*args, **kwargs)
        self.recorder.close([output])
        return output


# What every module has, save what holds its tensors and submodules.
_OWN = set(vars(nn.Module())) - {"_buffers", "_parameters", "_modules"}


def _place(tensor: Tensor) -> int:
    """Where the tensor's numbers are; views of one another have it in common."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Within the block the modules work on copies of their buffers and of tensors in their attributes."""
    before = {module: dict(vars(module)) for module in model.modules()}
    copies: dict[int, Any] = {}
    try:
        for module, attributes in before.items():
            for name in attributes.keys() - _OWN:
                vars(module)[name] = _copied(attributes[name], copies)
        yield
    finally:
        for module, attributes in before.items():
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            for name in attributes.keys() - _OWN:
                vars(module)[name] = attributes[name]


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Copies of tensors and of what holds them; everything else, parameters too, as it is."""
    if id(value) in copies:
        return copies[id(value)]
    copied: Any
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        copied = value.detach().clone()
    elif type(value) is tuple:
        copied = tuple(_copied(item, copies) for item in value)
    elif type(value) in (list, deque, dict, OrderedDict, defaultdict):
        copied = copies[id(value)] = copy.copy(value)  # known before its items, which may hold it
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, item in items:
            copied[key] = _copied(item, copies)
    elif _is_holder(value) and _holds_tensors(value):
        copied = copies[id(value)] = object.__new__(type(value))
        vars(copied).update({name: _copied(item, copies) for name, item in vars(value).items()})
    else:
        copied = value
    copies[id(value)] = copied
    return copied


def _is_holder(value: Any) -> bool:
    """True for an object of a class written in Python with attributes and nothing else, no module and no tensor."""
    kept = (nn.Module, Tensor, type, ModuleType, torch.Generator)
    return not isinstance(value, kept) and hasattr(value, "__dict__") and type(value).__new__ is object.__new__


def _holds_tensors(value: Any, depth: int = 5) -> bool:
    """True if a tensor is among the attributes of an object, or their items and attributes, so many steps down."""
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter)
    if isinstance(value, list | tuple | deque):
        items = list(value)
    elif isinstance(value, dict):
        items = list(value.values())
    else:
        items = list(vars(value).values()) if _is_holder(value) else []
    return depth > 0 and any(_holds_tensors(item, depth - 1) for item in items)


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Activation checkpointing drops tensors and computes them again; within the block functions are just called."""

    class Called:
        @staticmethod
        def apply(function, preserve, *args):
            return function(*args)

    def called(*_, **__):
        yield

    own_names = {  # torch's, of which each release has some
        "CheckpointFunction": Called,
        "_checkpoint_without_reentrant_generator": called,
        "_checkpoint_without_reentrant_generator_impl": called,
    }
    with ExitStack() as stack:
        for name, simple in own_names.items():
            if hasattr(checkpoint, name):
                stack.enter_context(mock.patch.object(checkpoint, name, simple))
        yield


@contextmanager
def _without_fused_encoder():
    """torch.nn.TransformerEncoderLayer can run as one fused operation; within the block it does not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
