"""Drill: a gradient by finite differences."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def gradient_check(f, x, h):
    x = x.double()
    gradient = torch.zeros_like(x)
    for place in range(x.numel()):
        step = torch.zeros_like(x)
        step.view(-1)[place] = h
        gradient.view(-1)[place] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient


def smooth(x):
    # A function whose third derivatives are large, so that a one-sided or coarse difference shows.
    weights = torch.linspace(0.5, 2.0, x.numel(), dtype=x.dtype).view(x.shape)
    return (weights * x.sin() * x.flip(-1).exp()).sum() + (x**3).mean()


DRILL = Drill(
    solution=gradient_check,
    task="Return the gradient of f at x by central differences with step h, one coordinate after the other: a float64 "
    "tensor of the shape of x, whatever the dtype of x, computed in float64. f takes a tensor of any shape and returns "
    "a tensor without axes. x stays as it is.",
    minutes=5,
    why="Whoever writes a backward pass by hand needs the check that finds the missing term.",
    hints=(
        "One coordinate at a time; the others stay.",
        "A difference on both sides has an error of order h², on one side of order h.",
        "In float32 a small step drowns in rounding.",
    ),
    probes={
        "fine": Probe("h = 1e-3", lambda: (smooth, normal(2, 3, seed=1), 1e-3)),
        "coarse": Probe("h = 0.1", lambda: (smooth, normal(2, 4, seed=2), 0.1), 1e-7),
        "vector": Probe("one axis and large entries", lambda: (smooth, normal(5, seed=3, std=2), 1e-2)),
        "float32": Probe("a float32 x", lambda: (smooth, normal(3, 2, seed=4, dtype=torch.float32), 1e-3)),
    },
    mistakes=(
        Mistake(
            "forward",
            "coarse",
            {"f(x - step)) / (2 * h)": "f(x)) / h"},
            "Your difference is one-sided: its error is of order h.",
            "Use f(x + step) - f(x - step) over 2h: the error is of order h².",
        ),
        Mistake(
            "backward",
            "coarse",
            {"(f(x + step) - f(x - step)) / (2 * h)": "(f(x) - f(x - step)) / h"},
            "Your difference is one-sided, to the left.",
            "Use f(x + step) - f(x - step) over 2h.",
        ),
        Mistake("no_two", "fine", {"/ (2 * h)": "/ h"}, "You divide by h.", "The two points are 2h apart."),
        Mistake(
            "forward_over_two",
            "fine",
            {"f(x - step)) / (2 * h)": "f(x)) / (2 * h)"},
            "Your difference is one-sided and divided by 2h.",
            "Take both sides, f(x + step) - f(x - step).",
        ),
        Mistake(
            "times_h",
            "fine",
            {"f(x - step)) / (2 * h)": "f(x - step)) / 2 * h"},
            "You divide by 2 and multiply by h.",
            "Put 2 * h into parentheses.",
        ),
        Mistake(
            "accumulates",
            "coarse",
            {"(f(x + step) - f(x - step)) / (2 * h)": "(f(x + step) - f(x - step)) / (2 * h)\n        x = x + step"},
            "The steps accumulate: each coordinate starts from a point that has moved.",
            "Restore x after each coordinate.",
        ),
        Mistake(
            "accumulates_down",
            "coarse",
            {"(f(x + step) - f(x - step)) / (2 * h)": "(f(x + step) - f(x - step)) / (2 * h)\n        x = x - step"},
            "After the second evaluation x is not restored: each coordinate starts from a point that has moved.",
            "Add the step back.",
        ),
        Mistake(
            "all_at_once",
            "fine",
            {"step.view(-1)[place] = h": "step.view(-1)[:] = h"},
            "You move all coordinates together: that is one directional derivative.",
            "Move one coordinate at a time.",
        ),
        Mistake(
            "relative_step",
            "fine",
            {"[place] = h": "[place] = h * x.view(-1)[place].abs()"},
            "You scale the step by |x|, and divide by the unscaled one.",
            "Divide by the step that was made.",
        ),
        Mistake(
            "sign",
            "fine",
            {"(f(x + step) - f(x - step))": "(f(x - step) - f(x + step))"},
            "The sign is wrong.",
            "f(x + step) comes first.",
        ),
        Mistake(
            "flat",
            "fine",
            {"return gradient": "return gradient.view(-1)"},
            "The gradient is flat.",
            "Return it in the shape of x.",
        ),
        Mistake(
            "float32",
            "float32",
            {"x = x.double()": "x = x.clone()"},
            "You stay in float32, which leaves a few digits of the difference.",
            "Convert x to float64 first.",
        ),
        Mistake(
            "exact",
            "coarse",
            """
            def gradient_check(f, x, h):
                x = x.double().requires_grad_()
                return torch.autograd.grad(f(x), x)[0]
            """,
            "You return the exact gradient of autograd.",
            "The check needs an answer that does not come from autograd.",
        ),
    ),
)
