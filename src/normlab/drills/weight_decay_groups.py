"""Drill: which parameters decay."""

import torch
from torch import nn

from normlab.drills.checking import Drill, Mistake, Probe


def weight_decay_groups(model):
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    of_norms = {id(p) for module in norms for p in module.parameters(recurse=False)}
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    no_decay = [name for name, p in trained if p.dim() < 2 or id(p) in of_norms]
    decay = [name for name, _ in trained if name not in no_decay]
    return decay, no_decay


class ChannelNorm(nn.Module):  # of images: its gain has four axes
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, width, 1, 1))


class PreNorm(nn.Module):  # a wrapper: what it wraps is no norm
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)


class Model(nn.Module):  # something of everything
    def __init__(self, tied: bool, frozen: bool):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm1 = nn.LayerNorm(4)
        self.ln_1 = nn.LayerNorm(4)
        self.ln_f = nn.RMSNorm(4)
        self.channels = ChannelNorm(4)
        self.block = PreNorm(4)
        self.up = nn.Linear(4, 8)
        self.biases = nn.Linear(8, 4, bias=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.up.bias.requires_grad_(False)
            self.biases.weight.requires_grad_(False)


def groups(found):  # sets of names: their order is free
    if not isinstance(found, tuple | list):
        return found
    lists = [list(map(str, names)) for names in found]
    return tuple({*names, *(f"{name} again" for name in names if names.count(name) > 1)} for names in lists)


DRILL = Drill(
    solution=weight_decay_groups,
    task="Split the trainable parameters of a model into those that decay and those that do not: return two lists of "
    "names, (decay, no_decay), with the names of model.named_parameters(). Matrices decay, embeddings too; biases, "
    "scalars and what a norm itself holds (a norm is a module with 'norm' in the name of its class) do not; what other "
    "modules inside it hold goes by its own kind. Frozen parameters are in neither list, and a tied one is named once.",
    minutes=6,
    why="Set-ups that go by names miss norms with other names, and nothing fails: gains just shrink.",
    hints=(
        "Names differ from model to model; what do the types of the modules say?",
        "How many axes have gains, biases and scalars, and is there a norm whose gain has more?",
        "named_parameters() names a shared tensor once.",
    ),
    probes={
        "all": Probe("a tied head, frozen parameters and a gain with four axes", lambda: (Model(True, True),)),
        "untied": Probe("an untied head and nothing frozen", lambda: (Model(False, False),)),
        "layer": Probe("an encoder layer of torch", lambda: (nn.TransformerEncoderLayer(4, 2, 8),)),
    },
    mistakes=(
        Mistake(
            "all_decay",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": "False"},
            "Every tensor decays, gains of norms included.",
            "Leave out what has fewer than two axes and what belongs to a norm.",
        ),
        Mistake(
            "only_bias_name",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": '"bias" in name'},
            "You exclude only names with 'bias': gains are called weight and still decay.",
            "Go by the number of axes and the type of the module.",
        ),
        Mistake(
            "ends_with_bias",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": 'name.endswith("bias")'},
            "You exclude only names that end with 'bias': gains still decay.",
            "Go by the number of axes and the type of the module.",
        ),
        Mistake(
            "bias_and_norm_names",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": '"bias" in name or "norm" in name.lower()'},
            "You go by names: a norm that is called ln_f decays.",
            "Go by the type of the module.",
            story="minGPT left out LayerNorm.weight, but its gains were called ln1, ln2 and ln_f, and decayed "
            "(#16, #23).",
        ),
        Mistake(
            "bias_ends_and_norm_names",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": 'name.endswith("bias") or "norm" in name.lower()'},
            "You go by names: a norm that is called ln_f decays.",
            "Go by the type of the module.",
        ),
        Mistake(
            "norm_subtree",
            "all",
            {"(recurse=False)": "()"},
            "All that stands inside of a norm's module is left out: a wrapper like PreNorm takes its matrices along.",
            "Take what the norm itself holds: parameters(recurse=False).",
        ),
        Mistake(
            "ndim_only",
            "all",
            {" or id(p) in of_norms": ""},
            "You go by the number of axes alone: a gain with four axes decays.",
            "Match the type of the module too.",
        ),
        Mistake(
            "norms_only",
            "all",
            {"p.dim() < 2 or id(p)": "id(p)"},
            "Only norms are left out: biases and scalars decay.",
            "Leave out what has fewer than two axes as well.",
        ),
        Mistake(
            "layer_norm_only",
            "all",
            {
                "p.dim() < 2 or id(p)": '"bias" in name or id(p)',
                '"norm" in type(module).__name__.lower()': "isinstance(module, nn.LayerNorm)",
            },
            "You know LayerNorm only: other norms decay, and scalars too.",
            "Match every type of norm, or what has fewer than two axes.",
        ),
        Mistake(
            "weight_decays",
            "all",
            {"p.dim() < 2 or id(p) in of_norms": '"weight" not in name'},
            "Whatever is called weight decays, gains of norms too.",
            "Go by the number of axes and the type of the module.",
        ),
        Mistake(
            "embeddings_kept",
            "untied",
            {"if p.dim()": 'if name.startswith("embed") or p.dim()'},
            "Embeddings do not decay in your split.",
            "The task lets them decay.",
        ),
        Mistake(
            "swapped",
            "all",
            {"return decay, no_decay": "return no_decay, decay"},
            "The two groups are swapped.",
            "The order is (decay, no_decay).",
        ),
        Mistake(
            "includes_frozen",
            "all",
            {" if p.requires_grad": ""},
            "Frozen parameters are in your groups.",
            "Leave out what does not require a gradient.",
        ),
        Mistake(
            "tied_twice",
            "all",
            {"model.named_parameters()": "model.named_parameters(remove_duplicate=False)"},
            "A tied matrix is named twice: its decay would count twice.",
            "Name each tensor once.",
        ),
        Mistake(
            "drops_0d",
            "all",
            {"if p.requires_grad": "if p.requires_grad and p.dim()"},
            "A parameter without axes is in no group: it would never be trained.",
            "Every trainable parameter belongs to one group.",
        ),
        Mistake(
            "one_axis_only",
            "all",
            {"p.dim() < 2": "p.dim() == 1"},
            "A parameter without axes decays.",
            "Leave out what has fewer than two axes, scalars too.",
        ),
    ),
    run=lambda solution, model: groups(solution(model)),
)
