"""Drill: RMSNorm over a width that is split among ranks."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def sharded_rms_norm(shards, weights, eps):
    width = sum(shard.shape[-1] for shard in shards)
    squares = [shard.square().sum(-1, keepdim=True) for shard in shards]
    mean_square = sum(squares) / width  # the sum is the all-reduce
    rate = torch.rsqrt(mean_square + eps)
    return [shard * rate * weight for shard, weight in zip(shards, weights)]


def arguments(*widths: int, seed: int, eps: float, factor: float = 1.0):
    shards = tuple(normal(3, 2, w, seed=seed + i, std=factor if i else 1.0) for i, w in enumerate(widths))
    return shards, tuple(normal(w, seed=seed + 10 + i, mean=0.5, std=1.5) for i, w in enumerate(widths)), eps


DRILL = Drill(
    solution=sharded_rms_norm,
    task="Each rank of a tensor-parallel model holds a shard [..., d_r] of the features of all tokens, and its part "
    "[d_r] of the gain. Return the list of normalized shards: those of RMSNorm over the whole width. shards and "
    "weights are tuples, one entry per rank; widths may differ. Python's sum over ranks stands for the all-reduce.",
    minutes=5,
    why="It shows whether one knows which number must travel between GPUs, and which may not be averaged.",
    hints=(
        "One number per token has to be reduced over the ranks.",
        "Squares add; roots do not.",
        "eps is added once, after the reduction.",
    ),
    probes={
        "two": Probe(
            "two shards of width 4, the second five times as large",
            lambda: arguments(4, 4, seed=1, eps=1e-6, factor=5.0),
        ),
        "uneven": Probe(
            "shards of widths 2 and 6, and eps = 0.3", lambda: arguments(2, 6, seed=21, eps=0.3, factor=2.0)
        ),
        "three": Probe("three shards", lambda: arguments(3, 1, 4, seed=41, eps=1e-3)),
        "one": Probe("a single rank", lambda: arguments(5, seed=61, eps=1e-6)),
    },
    mistakes=(
        Mistake(
            "local_rms",
            "two",
            {
                "    rate = torch.rsqrt(mean_square + eps)\n": "",
                "[shard * rate * weight for": (
                    "[shard * torch.rsqrt(shard.square().mean(-1, keepdim=True) + eps) * weight for"
                ),
            },
            "Each rank normalizes its own shard: that is RMSNorm by groups.",
            "Reduce the squares over the ranks.",
        ),
        Mistake(
            "mean_of_rms",
            "two",
            {
                "sum(squares) / width": (
                    "(sum((s / shard.shape[-1]).sqrt() for s, shard in zip(squares, shards)) / len(shards)) ** 2"
                )
            },
            "You average the ranks' root mean squares.",
            "Sum the squares, divide once, and take the root last.",
        ),
        Mistake(
            "mean_of_rates",
            "two",
            {
                "torch.rsqrt(mean_square + eps)": (
                    "sum(torch.rsqrt(s / shard.shape[-1] + eps) for s, shard in zip(squares, shards)) / len(shards)"
                )
            },
            "You average the ranks' reciprocal root mean squares.",
            "Reduce the squares; take the root last.",
        ),
        Mistake(
            "sum_of_means",
            "two",
            {"sum(squares) / width": "sum(s / shard.shape[-1] for s, shard in zip(squares, shards))"},
            "You sum the ranks' mean squares.",
            "Sum the squares and divide by the whole width.",
        ),
        Mistake(
            "mean_of_means",
            "uneven",
            {"sum(squares) / width": "sum(s / shard.shape[-1] for s, shard in zip(squares, shards)) / len(shards)"},
            "You average the ranks' mean squares, which is right for equal shards only.",
            "Sum the squares and divide by the whole width.",
        ),
        Mistake(
            "local_width",
            "two",
            {
                "sum(squares) / width": "sum(squares)",
                "mean_square + eps)": "mean_square / shards[0].shape[-1] + eps)",
            },
            "You divide the global sum by the width of the first shard.",
            "Divide by the whole width.",
        ),
        Mistake(
            "own_width",
            "uneven",
            {
                "sum(squares) / width": "sum(squares)",
                "    rate = torch.rsqrt(mean_square + eps)\n": "",
                "shard * rate": "shard * torch.rsqrt(mean_square / shard.shape[-1] + eps)",
            },
            "Each rank divides the global sum by its own width.",
            "Divide by the whole width.",
        ),
        Mistake(
            "no_width",
            "two",
            {" / width": ""},
            "You divide by the Euclidean length.",
            "Divide the sum of squares by the width.",
        ),
        Mistake(
            "eps_per_rank",
            "uneven",
            {"mean_square + eps": "mean_square + len(shards) * eps"},
            "eps counts once for every rank.",
            "Add it after the reduction.",
        ),
        Mistake(
            "eps_in_sum",
            "uneven",
            {"mean_square + eps": "mean_square + eps / width"},
            "You add eps to the sum of squares.",
            "Add it to the mean square.",
        ),
        Mistake(
            "eps_outside",
            "uneven",
            {"torch.rsqrt(mean_square + eps)": "1 / (mean_square.sqrt() + eps)"},
            "You add eps to the root mean square.",
            "eps stands inside the root.",
        ),
        Mistake("no_eps", "uneven", {" + eps": ""}, "The eps that is given is not used.", "Add it inside the root."),
        Mistake(
            "rank0_gain",
            "two",
            {"rate * weight for": "rate * weights[0] for"},
            "All ranks use the first rank's gain.",
            "Each rank has its own part.",
        ),
        Mistake(
            "no_gain",
            "two",
            {" * weight for": " for"},
            "The gain is not applied.",
            "Multiply each shard by its part of the gain.",
        ),
        Mistake(
            "gathered",
            "two",
            {
                "return [shard * rate * weight for shard, weight in zip(shards, weights)]": (
                    "return torch.cat([shard * rate * weight for shard, weight in zip(shards, weights)], -1)"
                )
            },
            "You gather the result.",
            "Each rank keeps its shard: return a list.",
        ),
    ),
)
