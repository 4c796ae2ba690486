"""Drill: RMSNorm as a module, with everything that a module has to get right."""

import torch
from torch import nn

from normlab.drills.checking import Drill, Mistake, Probe, normal


class rms_norm_module(nn.Module):  # named like its slug
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * rate).to(x.dtype) * self.weight


FACTS = (
    "parameter shapes",
    "starts at",
    "trainable",
    "saved tensors",
    "result at the start",
    "result in evaluation",
    "result with gains 1, 2, 3, …",
    "tokens alone",
    "float16, entries of size 300",
)


def facts(solution, width, eps, x):
    # What can be read off a module without knowing the names in it.
    module = solution(width) if eps is None else solution(width, eps)
    if not isinstance(module, nn.Module):
        return dict.fromkeys(FACTS, "no torch.nn.Module")
    parameters = list(module.parameters())
    start = {value for p in parameters for value in p.detach().flatten().tolist()}
    found = {
        "parameter shapes": tuple(tuple(p.shape) for p in parameters),
        "starts at": start.pop() if len(start) == 1 else "several values" if start else "nothing",
        "trainable": all(p.requires_grad for p in parameters),
        "saved tensors": len(module.state_dict()),
        "result at the start": module(x),
        "result in evaluation": module.eval()(x),
    }
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.arange(1, p.numel() + 1).view(p.shape))
    found["result with gains 1, 2, 3, …"] = module(x)
    found["tokens alone"] = module(x[:, :1])
    half = module.half()(300 * x.sign().half())
    dtype = half.dtype if parameters else "a dtype"  # whatever it is, a gain that is no parameter is the fault
    found["float16, entries of size 300"] = f"{dtype}, {'ones and more' if half.abs().min() > 0.5 else 'zeros'}"
    return found


def arguments(*shape: int, seed: int, eps: float | None = None, mean: float = 0.5):
    return shape[-1], eps, normal(*shape, seed=seed, mean=mean, dtype=torch.float32)


DRILL = Drill(
    solution=rms_norm_module,
    task="Write RMSNorm as a class rms_norm_module(width, eps=1e-6) that derives from torch.nn.Module. Its only "
    "parameter is the gain, a vector of the given width that starts at 1, is trained and saved. Tokens x [..., width] "
    "are normalized over the last axis, in training and in evaluation alike. Statistics of half types are computed in "
    "a wider one, and the result has the dtype of x.",
    minutes=6,
    why="The formula is half of a layer; the other half is what the optimizer, the checkpoint and .to(device) see.",
    hints=(
        "What makes a tensor a parameter?",
        "At which gain does a new layer only normalize?",
        "A norm of tokens keeps no running statistics.",
    ),
    probes={
        "three_axes": Probe("shape (2, 5, 6)", lambda: arguments(2, 5, 6, seed=1)),
        "square": Probe("batch, tokens and features all of size 4", lambda: arguments(4, 4, 4, seed=2)),
        "big_eps": Probe("eps = 0.3", lambda: arguments(2, 3, 4, seed=3, eps=0.3)),
        "offset": Probe("a mean of 3", lambda: arguments(2, 3, 5, seed=4, mean=3.0)),
    },
    mistakes=(
        Mistake(
            "buffer_gain",
            "three_axes",
            {"self.weight = nn.Parameter(torch.ones(width))": 'self.register_buffer("weight", torch.ones(width))'},
            "The gain is a buffer: it is saved, but gets no gradient.",
            "Use nn.Parameter.",
        ),
        Mistake(
            "not_registered",
            "three_axes",
            {"nn.Parameter(torch.ones(width))": "torch.ones(width)"},
            "The gain is a plain attribute: it is neither trained nor saved, and .to(device) leaves it behind.",
            "Use nn.Parameter.",
        ),
        Mistake(
            "frozen",
            "three_axes",
            {"nn.Parameter(torch.ones(width))": "nn.Parameter(torch.ones(width), requires_grad=False)"},
            "The gain does not require a gradient.",
            "Leave requires_grad at its default.",
        ),
        Mistake(
            "zero_gain",
            "three_axes",
            {"torch.ones(width)": "torch.zeros(width)"},
            "The gain starts at 0: the layer returns zeros, and what feeds it gets no gradient.",
            "Start at 1.",
        ),
        Mistake(
            "random_gain",
            "three_axes",
            {"torch.ones(width)": "torch.randn(width, generator=torch.Generator().manual_seed(0))"},
            "The gain is drawn at random.",
            "Start at 1.",
        ),
        Mistake(
            "running_statistics",
            "three_axes",
            {
                "        self.eps = eps\n": "        self.eps = eps\n        self.running = 1.0\n",
                "        rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)\n": (
                    "        now = wide.square().mean(-1, keepdim=True)\n        self.running = 0.9 * self.running + "
                    "0.1 * float(now.mean()) if self.training else self.running\n        rate = torch.rsqrt((now if "
                    "self.training else now * 0 + self.running) + self.eps)\n"
                ),
            },
            "Evaluation uses running statistics.",
            "A norm of tokens has none; only BatchNorm and its relatives do.",
        ),
        Mistake(
            "scalar_gain",
            "three_axes",
            {"torch.ones(width)": "torch.ones(1)"},
            "The gain is one number.",
            "It is a vector of the given width.",
        ),
        Mistake(
            "has_bias",
            "three_axes",
            {
                "        self.weight =": "        self.bias = nn.Parameter(torch.zeros(width))\n        self.weight =",
                "* self.weight": "* self.weight + self.bias",
            },
            "There is a bias.",
            "RMSNorm has the gain only.",
        ),
        Mistake(
            "unused_gain",
            "three_axes",
            {" * self.weight": ""},
            "The gain is not used.",
            "Multiply the normalized token by it.",
        ),
        Mistake(
            "token_mixing",
            "three_axes",
            {".mean(-1, keepdim=True)": ".mean((-2, -1), keepdim=True)"},
            "Tokens share one root mean square: changing one changes the others.",
            "Reduce over the last axis only.",
        ),
        Mistake(
            "batch_axis",
            "three_axes",
            {".mean(-1, keepdim=True)": ".mean(0, keepdim=True)"},
            "You reduce over the batch.",
            "Reduce over the last axis.",
        ),
        Mistake(
            "no_keepdim",
            "square",
            {"(-1, keepdim=True)": "(-1)"},
            "Without keepdim=True the mean square meets the wrong axis of x.",
            "Use mean(-1, keepdim=True).",
        ),
        Mistake(
            "centered",
            "offset",
            {"        rate =": "        wide = wide - wide.mean(-1, keepdim=True)\n        rate ="},
            "You subtract the mean: that is LayerNorm without a bias.",
            "RMSNorm keeps it.",
        ),
        Mistake(
            "eps_ignored",
            "big_eps",
            {"self.eps = eps": "self.eps = 1e-6"},
            "You ignore the eps that is given.",
            "Keep it as self.eps.",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {
                "torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)": (
                    "1 / (wide.square().mean(-1, keepdim=True).sqrt() + self.eps)"
                )
            },
            "You add eps to the root mean square.",
            "eps stands inside the root.",
        ),
        Mistake(
            "sum_not_mean",
            "three_axes",
            {".mean(-1": ".sum(-1"},
            "You divide by the Euclidean length.",
            "Take the mean of the squares.",
        ),
        Mistake(
            "divide_by_rsqrt",
            "three_axes",
            {"wide * rate": "wide / rate"},
            "You divide by rsqrt(...), which multiplies by the root mean square.",
            "Multiply by it.",
        ),
        Mistake(
            "half_stats",
            "three_axes",
            {"x.float() if x.dtype in (torch.float16, torch.bfloat16) else x": "x"},
            "You square in float16: entries from 256 on become infinite, and their token becomes zeros.",
            "Widen half-precision inputs before the square.",
        ),
        Mistake(
            "returns_fp32",
            "three_axes",
            {").to(x.dtype)": ")"},
            "You return float32 for a float16 input.",
            "Cast back to x.dtype.",
        ),
        Mistake(
            "no_super",
            "three_axes",
            {"        super().__init__()\n": ""},
            "super().__init__() is missing: torch cannot register the gain.",
            "Call it first.",
        ),
        Mistake(
            "no_module",
            "three_axes",
            {
                "(nn.Module):  # named like its slug": ":",
                "        super().__init__()\n": "",
                "def forward(": "def __call__(",
            },
            "The class is no torch.nn.Module.",
            "Derive from nn.Module and write forward.",
        ),
    ),
    run=facts,
)
