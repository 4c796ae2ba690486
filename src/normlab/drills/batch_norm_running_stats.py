"""Drill: what BatchNorm remembers in training and uses in evaluation."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def batch_norm_running_stats(batches, x, momentum, eps):
    running_mean, running_var = torch.zeros_like(x[0]), torch.ones_like(x[0])
    outputs = []
    for batch in batches:
        mean, var = batch.mean(0), batch.var(0, correction=0)
        outputs.append((batch - mean) / torch.sqrt(var + eps))
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var = (1 - momentum) * running_var + momentum * batch.var(0, correction=1)
    y = (x - running_mean) / torch.sqrt(running_var + eps)
    return outputs, running_mean, running_var, y


def arguments(sizes: tuple[int, ...], width: int, momentum: float, eps: float, seed: int):
    batches = tuple(normal(n, width, seed=seed + i, mean=2 - i, std=1 + i) for i, n in enumerate(sizes))
    return batches, normal(3, width, seed=seed + 9, mean=1), momentum, eps


DRILL = Drill(
    solution=batch_norm_running_stats,
    task="Write torch's BatchNorm without gain and bias. batches is a tuple of tensors [n, d]: train on them in this "
    "order, with running statistics that start as a new layer's do; then normalize x [m, d] in evaluation mode. "
    "momentum means what it means in torch. Return (outputs, running_mean, running_var, y): the list of the normalized "
    "batches, the two running statistics [d] after training, and the evaluated x.",
    minutes=8,
    why="It has two variances, a momentum with two meanings, and two modes.",
    hints=(
        "Which variance normalizes a batch, and which one is remembered?",
        "torch's momentum is the weight of the new batch.",
        "The running mean starts at 0 and the running variance at 1.",
    ),
    probes={
        "three": Probe("three batches of 4 rows", lambda: arguments((4, 4, 4), 3, 0.1, 1e-5, seed=1)),
        "uneven": Probe(
            "batches of 6, 2 and 3 rows and momentum 0.3", lambda: arguments((6, 2, 3), 5, 0.3, 1e-3, seed=21)
        ),
        "none": Probe("no training batch at all", lambda: arguments((), 4, 0.1, 1e-5, seed=41)),
    },
    mistakes=(
        Mistake(
            "biased_running",
            "three",
            {"correction=1": "correction=0"},
            "running_var is updated with the biased variance.",
            "Remember the unbiased one (n - 1); the biased one normalizes.",
            story="mlx (#3817) and tt-metal (#55438) did this.",
        ),
        Mistake(
            "unbiased_norm",
            "three",
            {"correction=0": "correction=1"},
            "Batches are normalized with the unbiased variance.",
            "The biased one normalizes; n - 1 is for running_var only.",
        ),
        Mistake(
            "momentum_flipped",
            "three",
            {
                "(1 - momentum) * running_mean + momentum * mean": "momentum * running_mean + (1 - momentum) * mean",
                "(1 - momentum) * running_var + momentum * batch": "momentum * running_var + (1 - momentum) * batch",
            },
            "Your momentum is the weight of the old value.",
            "In torch it is the weight of the new batch: 0.9 old + 0.1 new.",
            "Keras and TensorFlow",
        ),
        Mistake(
            "init_zero_var",
            "three",
            {"torch.ones_like(x[0])": "torch.zeros_like(x[0])"},
            "running_var starts at 0.",
            "It starts at 1.",
        ),
        Mistake(
            "cumulative",
            "three",
            {
                "for batch in batches:": (
                    "for number, batch in enumerate(batches, start=1):\n        momentum = 1 / number"
                ),
            },
            "You keep a cumulative average, as torch does with momentum=None.",
            "With a number for momentum the average is exponential.",
        ),
        Mistake(
            "std_ema",
            "three",
            {
                "(1 - momentum) * running_var + momentum * batch.var(0, correction=1)": (
                    "((1 - momentum) * running_var.sqrt() + momentum * batch.std(0, correction=1)).square()"
                ),
            },
            "You average standard deviations.",
            "Average variances.",
        ),
        Mistake(
            "first_batch_init",
            "three",
            {
                "        running_mean = (1 -": "        if len(outputs) == 1:\n"
                "            running_mean, running_var = mean, batch.var(0, correction=1)\n            continue\n"
                "        running_mean = (1 -",
            },
            "The first batch overwrites the running statistics.",
            "Blend it with the initial 0 and 1 like any other.",
        ),
        Mistake(
            "eval_batch_stats",
            "three",
            {
                "y = (x - running_mean) / torch.sqrt(running_var + eps)": (
                    "y = (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + eps)"
                )
            },
            "In evaluation you still use the statistics of the batch.",
            "Use the running ones: a row's result must not depend on its neighbors.",
        ),
        Mistake(
            "eval_updates",
            "three",
            {
                "    y = (x": "    running_mean = running_mean + momentum * (x.mean(0) - running_mean)\n"
                "    running_var = running_var + momentum * (x.var(0, correction=1) - running_var)\n    y = (x",
            },
            "Evaluation changes the running statistics.",
            "Only training updates them.",
        ),
        Mistake(
            "never_updates",
            "three",
            {
                "running_mean = (1 - momentum) * running_mean + momentum * mean": "pass",
                "running_var = (1 - momentum) * running_var + momentum * batch.var(0, correction=1)": "pass",
            },
            "The running statistics never move from 0 and 1.",
            "Update both after each training batch.",
        ),
        Mistake(
            "train_uses_running",
            "three",
            {"(batch - mean) / torch.sqrt(var + eps)": "(batch - running_mean) / torch.sqrt(running_var + eps)"},
            "In training you normalize with the running statistics.",
            "Training uses the statistics of its own batch.",
        ),
        Mistake(
            "eps_outside",
            "uneven",
            {
                "torch.sqrt(var + eps)": "(torch.sqrt(var) + eps)",
                "torch.sqrt(running_var + eps)": "(torch.sqrt(running_var) + eps)",
            },
            "You add eps to the standard deviation.",
            "eps stands under the root.",
        ),
        Mistake(
            "eps_fixed",
            "uneven",
            {
                "torch.sqrt(var + eps)": "torch.sqrt(var + 1e-6)",
                "torch.sqrt(running_var + eps)": "torch.sqrt(running_var + 1e-6)",
            },
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "last_batch",
            "three",
            {
                "(1 - momentum) * running_mean + momentum * mean": "mean",
                "(1 - momentum) * running_var + momentum * batch": "batch",
            },
            "You remember the last batch alone.",
            "Blend each batch into what was remembered.",
        ),
        Mistake(
            "eps_remembered",
            "uneven",
            {"momentum * batch.var(0, correction=1)": "momentum * (batch.var(0, correction=1) + eps)"},
            "eps is in what you remember.",
            "Add eps when dividing, not when storing.",
        ),
    ),
)
