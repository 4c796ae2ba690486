"""A published configuration made small: every kind of layer is kept, sizes and repetitions are not.

Widths, heads, experts and the vocabulary are cut by the names that ``transformers`` has for them, in proportion. The
depth is cut by structure: the model is built without memory (torch's meta device), its layers are compared, and the
shortest beginning that holds every kind of them stays.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Settings = dict[str, Any]

# What a cut model has of each. Four heads and a head size of 16 tell a norm per head from one over all heads.
HEADS, HEAD_DIM, WIDTH, EXPERTS, VOCABULARY = 4, 16, 32, 8, 256

_DEPTH = re.compile(r"num_hidden_layers|n_layers?|num_layers|(num_)?(encoder|decoder)_layers")
_HEADS = re.compile(
    r"(swa_)?num_attention_heads(_per_layer)?|(num_)?(encoder|decoder)_attention_heads|num_global_attention_heads"
    r"|(index_)?n_heads?|num_heads"
)
_KV_HEADS = re.compile(r"(swa_)?(num_key_value_heads|num_kv_heads|n_kv_heads|kv_n_heads|num_global_key_value_heads)")
_HEAD_DIMS = re.compile(
    r"((swa_|global_|qk_nope_|qk_rope_|v_|index_|attention_|linear_key_|linear_value_|linear_|mamba_)?head_dim"
    r"|d_kv|d_head|mamba_d_head|kv_channels|dim_head|attention_head_size|rotary_dim)"
)
_OTHER_HEADS = {  # heads that share the width of what they read, and their size
    "linear_num_key_heads": "linear_key_head_dim",
    "linear_num_value_heads": "linear_value_head_dim",
    "linear_num_heads": "linear_head_dim",
    "mamba_n_heads": "mamba_d_head",
    "mamba_num_heads": "mamba_head_dim",
}
_WIDTH = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim")
_SCALED = re.compile(
    r"(.*(hidden_size|intermediate|d_model|n_embd|embed_dim|emb_dim|embedding_size|embedding_dim|emb_size"
    r"|ffn_dim|ffn_hidden|proj_dim|_rank|bottleneck_size|mlp_dim).*|d_ff|dff|d_inner|n_inner|dim_ff|dim|hidden_dim"
    r"|feed_forward_size|lru_width|mamba_d_ssm)"
)
_EXPERTS = re.compile(r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|zero_expert_num")
_CHOSEN = re.compile(r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts|moe_num_active.*")
_EXPERT_GROUPS, _GROUPS_CHOSEN = ("n_group", "num_expert_group"), ("topk_group",)
_STATE_GROUPS = ("mamba_n_groups", "n_groups")
_TOKEN = re.compile(r".*token_(id|index)s?")


@dataclass(frozen=True)
class Cut:
    """A setting and its value before and behind the cut."""

    name: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


@dataclass(frozen=True)
class Layers:
    """A list of layers before the cut: where, how many, and for each kind the numbers, from 1, of its layers."""

    path: str
    many: int
    kinds: tuple[tuple[int, ...], ...]


# --- sizes ------------------------------------------------------------------------------------------------------------


def smaller(settings: Settings, widths: bool = True) -> Settings:
    """The settings with fewer experts and tokens and, if ``widths``, with narrow layers. Nested ones are cut too.

    Special tokens become the last of the vocabulary, so that the first ones are words like others.
    """
    cut = _narrow(settings) if widths else dict(settings)
    for name, value in cut.items():
        if _is_nested(name, value):
            alone = any(width in value for width in _WIDTH)  # else a part of this model's own sizes
            shared = {} if alone else {n: v for n, v in settings.items() if n in _WIDTH or _HEADS.fullmatch(n)}
            both = smaller(shared | value, widths)
            cut[name] = {n: both[n] for n in value}
        elif _is_size(value):
            if _is_vocabulary(name):
                cut[name] = min(value, VOCABULARY)
            elif _EXPERTS.fullmatch(name):
                cut[name] = min(value, EXPERTS)
            elif _CHOSEN.fullmatch(name) or name in _EXPERT_GROUPS:
                cut[name] = min(value, 2)
            elif name in _GROUPS_CHOSEN:
                cut[name] = 1
    return _with_last_tokens(cut, min(_vocabularies(cut), default=0), {})


def at_least(settings: Settings) -> int:
    """A number of parameters that the model exceeds, roughly: embedding and attention, as far as names are known."""
    width = next((settings[name] for name in _WIDTH if _is_size(settings.get(name))), 0)
    depth = max((v for n, v in settings.items() if _DEPTH.fullmatch(n) and _is_size(v)), default=0)
    vocabulary = max((v for n, v in settings.items() if _is_vocabulary(n) and _is_size(v)), default=0)
    nested = sum(at_least(value) for name, value in settings.items() if _is_nested(name, value))
    return width * vocabulary + 2 * depth * width**2 + nested


def _with_last_tokens(settings: Settings, vocabulary: int, known: dict[int, int]) -> Settings:
    """Token ids counted down from the end of the vocabulary; a small one keeps its own."""

    def moved(old: Any) -> Any:
        if isinstance(old, list):
            return [moved(item) for item in old]
        if type(old) is not int or old < 0 or vocabulary < VOCABULARY // 2:
            return old
        return known.setdefault(old, vocabulary - 1 - len(known))

    moving = {n: v for n, v in settings.items() if _TOKEN.fullmatch(n)}
    nested = {n: v for n, v in settings.items() if _is_nested(n, v)}
    return (
        settings
        | {name: moved(value) for name, value in moving.items()}
        | {name: _with_last_tokens(value, vocabulary, known) for name, value in nested.items()}
    )


def _is_vocabulary(name: str) -> bool:
    return "vocab_size" in name and "type" not in name


def _vocabularies(settings: Settings) -> Iterator[int]:
    for name, value in settings.items():
        if _is_nested(name, value):
            yield from _vocabularies(value)
        elif _is_vocabulary(name) and _is_size(value):
            yield value


def _is_nested(name: str, value: Any) -> bool:
    return isinstance(value, dict) and name.endswith("_config")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _narrow(settings: Settings) -> Settings:
    """Heads first, then the width that fits them, then everything else in proportion to that width."""
    cut = dict(settings)
    width = next((settings[name] for name in _WIDTH if _is_size(settings.get(name))), None)
    heads = [v for name, v in settings.items() if _HEADS.fullmatch(name) and _is_size(v)]
    if width is None or width <= WIDTH:
        return cut
    dims, shrink, new_width = {}, 1.0, 2 * WIDTH
    if heads:
        dims = {name: v for name, v in settings.items() if _HEAD_DIMS.fullmatch(name) and _is_size(v)}
        main = ("head_dim", "v_head_dim", "d_kv", "d_head", "kv_channels")
        head_dim = next((dims[name] for name in main if name in dims), width // heads[0])
        shrink = max(1.0, max([head_dim, *dims.values()]) / HEAD_DIM)
        dims = {name: _even(v / shrink) for name, v in dims.items()}
        ratio = width / (heads[0] * head_dim)  # of the width to that of all heads, which stays
        new_width = max(WIDTH, _rounded(ratio * min(heads[0], HEADS) * _even(head_dim / shrink)))
        cut |= dims
    factor = width / new_width
    for name, value in settings.items():
        many = value if isinstance(value, list) else [value]
        if not many or not all(map(_is_size, many)):
            continue
        if _KV_HEADS.fullmatch(name):
            new = [HEADS if v in heads and v >= HEADS else min(v, 2) for v in many]
        elif _HEADS.fullmatch(name):
            new = [min(v, HEADS) for v in many]
        elif name in _OTHER_HEADS and _is_size(settings.get(_OTHER_HEADS[name])):
            dim = _OTHER_HEADS[name]
            new = [max(1, round(v * settings[dim] / factor / cut[dim])) for v in many]
        elif name in _STATE_GROUPS:
            new = [min(v, 2) for v in many]
        elif _SCALED.fullmatch(name) and name not in dims:
            new = [new_width if v == width else max(HEAD_DIM, _rounded(v / factor)) for v in many]
        else:
            continue
        cut[name] = new if isinstance(value, list) else new[0]
    for name in cut:
        if name.startswith("rope"):
            cut[name] = _rotary(cut[name], shrink)
    return cut


def _rounded(size: float) -> int:
    return 8 * round(size / 8)


def _even(size: float) -> int:
    return max(4, 2 * round(size / 2))


def _rotary(rope: Any, shrink: float) -> Any:
    """Settings of a rotary embedding with lists per frequency or per section shortened with the heads."""
    if not isinstance(rope, dict):
        return rope
    cut = {name: _rotary(value, shrink) for name, value in rope.items()}
    for name in ("short_factor", "long_factor"):
        if isinstance(rope.get(name), list):
            cut[name] = rope[name][: max(1, round(len(rope[name]) / shrink))]
    section = rope.get("mrope_section")
    if isinstance(section, list):
        ends = [round(sum(section[: i + 1]) / shrink) for i in range(len(section))]
        cut["mrope_section"] = [end - start for start, end in zip([0, *ends], ends)]
    return cut


# --- depth ------------------------------------------------------------------------------------------------------------


def shorter(settings: Settings, make: Callable[[Settings], nn.Module]) -> tuple[Settings, list[Layers]]:
    """The settings with the shortest stacks that show every kind of layer, and what the layers were.

    Two layers are of one kind if they hold the same modules, parameters and settings. The depth is left as it is where
    the layers of the shortened model would not be those of the whole one, or no list of layers is found.
    """
    whole = on_meta(make, settings)
    cut, found = settings, list[Layers]()
    for depth in sorted({value for _, value in _depths(settings) if value > 2}):
        lists = _lists(whole, depth)
        kinds = {path: _kinds(layers) for path, layers in lists.items()}
        keep = max([2, *(kind[0] for stack in kinds.values() for kind in stack)])
        if lists and keep < depth:
            cut = _first(cut, depth, keep)
            found += [Layers(path, depth, tuple(map(tuple, stack))) for path, stack in kinds.items()]
    try:
        short = dict(on_meta(make, cut).named_modules())
    except Exception:  # a configuration may refuse a depth for reasons of its own
        return settings, []
    for layers in found:
        beginning = list(short[layers.path].children()) if layers.path in short else []
        if _signatures(beginning) != _signatures(list(whole.get_submodule(layers.path).children())[: len(beginning)]):
            return settings, []
    return cut, found


def on_meta(make: Callable[[Settings], nn.Module], settings: Settings) -> nn.Module:
    """The model without memory for its tensors."""
    with torch.device("meta"):
        return make(settings)


def _depths(settings: Settings) -> Iterator[tuple[str, int]]:
    for name, value in settings.items():
        if _is_nested(name, value):
            yield from _depths(value)
        elif _DEPTH.fullmatch(name) and _is_size(value):
            yield name, value


def _first(settings: Settings, depth: int, keep: int) -> Settings:
    """The settings for the first ``keep`` of ``depth`` layers, with what they say layer by layer."""
    if any(_DEPTH.fullmatch(name) and value == depth for name, value in settings.items()):
        settings = {name: _of_first(name, value, depth, keep) for name, value in settings.items()}
    return {n: _first(v, depth, keep) if _is_nested(n, v) else v for n, v in settings.items()}


def _of_first(name: str, value: Any, depth: int, keep: int) -> Any:
    if _DEPTH.fullmatch(name) and value == depth:
        return keep
    if isinstance(value, list | tuple | str) and len(value) == depth:  # an entry per layer
        return value[:keep]
    if isinstance(value, list) and re.search("layer|idx|ind(ex|ic)|ids", name) and all(type(v) is int for v in value):
        return [number for number in value if number < keep]  # numbers of layers
    return value


def _lists(model: nn.Module, length: int) -> dict[str, nn.ModuleList]:
    """The outermost lists of that many modules with parameters, by their paths."""
    found: dict[str, nn.ModuleList] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == length and not inside:
            if next(module.parameters(), None) is not None:
                found[path] = module
    return found


def _kinds(layers: nn.ModuleList) -> list[list[int]]:
    """The numbers, from 1, of the layers of each kind, in order."""
    found: dict[tuple, list[int]] = {}
    for number, signature in enumerate(_signatures(list(layers)), 1):
        found.setdefault(signature, []).append(number)
    return list(found.values())


def _signatures(layers: list[nn.Module]) -> list[tuple]:
    """What tells layers apart: modules, shapes of parameters, numbers and words among attributes.

    An integer that grows from layer to layer is the number of the layer and does not count.
    """
    seen: dict[tuple[str, str], list[Any]] = {}
    for layer in layers:
        for path, module in layer.named_modules():
            for name, value in _attributes(module):
                seen.setdefault((path, name), []).append(value)
    numbers = {
        key
        for key, values in seen.items()
        if all(type(v) is int for v in values) and all(a < b for a, b in zip(values, values[1:]))
    }
    return [
        tuple(
            (path, type(module).__qualname__)
            + tuple((name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False))
            + tuple((name, value) for name, value in _attributes(module) if (path, name) not in numbers)
            for path, module in layer.named_modules()
        )
        for layer in layers
    ]


def _attributes(module: nn.Module) -> list[tuple[str, Any]]:
    simple = (bool, int, float, str, type(None))
    return sorted(
        ((n, v) for n, v in vars(module).items() if isinstance(v, simple) and not n.startswith("_")), key=lambda x: x[0]
    )


def changes(before: Settings, after: Settings, prefix: str = "") -> list[Cut]:
    """The sizes in which two settings differ, depths first, without token ids and lists."""
    found = []
    for name, old in before.items():
        new = after.get(name)
        if _is_nested(name, old) and new is not None:
            found += changes(old, new, f"{prefix}{name}.")
        elif new is not None and _is_size(old) and old != new and not _TOKEN.fullmatch(name):
            found.append(Cut(prefix + name, old, new))
    return sorted(found, key=lambda cut: not _DEPTH.fullmatch(cut.name.rpartition(".")[2]))
