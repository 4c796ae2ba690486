"""Drill: from the residual stream to the logits of the next token."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def final_norm_head(hidden, weight, embedding, eps):
    last = hidden[:, -1]
    normed = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + eps) * weight
    return normed @ embedding.T


def arguments(batch: int, tokens: int, width: int, vocab: int, seed: int, eps: float = 1e-6, size: float = 3.0):
    hidden = normal(batch, tokens, width, seed=seed, mean=2, std=size)
    return hidden, normal(width, seed=seed + 1, mean=0.5, std=1.0), normal(vocab, width, seed=seed + 2), eps


DRILL = Drill(
    solution=final_norm_head,
    task="Turn the residual stream of a Pre-Norm model into next-token logits: final RMSNorm with gain weight [d], "
    "then the tied head. hidden is [B, T, d], embedding is the matrix [vocab, d] of the input embeddings. Return the "
    "logits [B, vocab] of the token that follows the last one.",
    minutes=4,
    why="A Pre-Norm stack leaves its stream un-normalized; forgetting the final norm or transposing a square matrix "
    "runs without an error.",
    hints=(
        "Which position predicts the next token?",
        "The stream must be normalized before the head.",
        "Each logit is the product of the normalized vector with one row of the embedding.",
    ),
    probes={
        "random": Probe("a stream of size 3", lambda: arguments(3, 5, 6, 7, seed=1)),
        "square": Probe("batch, tokens, width and vocabulary all of size 5", lambda: arguments(5, 5, 5, 5, seed=11)),
        "big_eps": Probe("eps = 4", lambda: arguments(2, 4, 6, 9, seed=21, eps=4.0)),
        "zeros": Probe("a stream of zeros", lambda: (lambda a: (0 * a[0], *a[1:]))(arguments(2, 3, 4, 6, seed=31))),
    },
    mistakes=(
        Mistake(
            "no_final_norm",
            "random",
            {"last * torch.rsqrt(last.square().mean(-1, keepdim=True) + eps) * weight": "last"},
            "The final norm is missing.",
            "Normalize before the head; a stream ten times as large must give the same logits.",
        ),
        Mistake(
            "gain_without_norm",
            "random",
            {" * torch.rsqrt(last.square().mean(-1, keepdim=True) + eps)": ""},
            "You apply the gain, but do not normalize.",
            "Divide by the root mean square as well.",
        ),
        Mistake(
            "norm_on_logits",
            "random",
            {
                "last * torch.rsqrt(last.square().mean(-1, keepdim=True) + eps) * weight": "last * weight",
                "return normed @ embedding.T": "logits = normed @ embedding.T\n"
                "    return logits * torch.rsqrt(logits.square().mean(-1, keepdim=True) + eps)",
            },
            "You normalize the logits.",
            "Normalize the stream.",
        ),
        Mistake(
            "no_gain",
            "random",
            {" + eps) * weight": " + eps)"},
            "The final gain is not applied.",
            "Multiply by weight.",
        ),
        Mistake(
            "gemma_gain",
            "random",
            {"* weight": "* (1 + weight)"},
            "You scale by 1 + weight.",
            "Here weight is the gain itself.",
            "Gemma up to version 3, which stores the gain minus 1",
        ),
        Mistake(
            "not_transposed",
            "square",
            {"embedding.T": "embedding"},
            "The embedding is not transposed; with a square one nothing fails.",
            "Logits are normed @ embedding.T.",
        ),
        Mistake(
            "first_token",
            "random",
            {"hidden[:, -1]": "hidden[:, 0]"},
            "You read the first position.",
            "The last position predicts the next token.",
        ),
        Mistake(
            "last_but_one",
            "random",
            {"hidden[:, -1]": "hidden[:, -2]"},
            "You read the last position but one.",
            "The last position predicts the next token.",
        ),
        Mistake(
            "mean_pool",
            "random",
            {"hidden[:, -1]": "hidden.mean(1)"},
            "You average over the positions.",
            "Only the last position counts.",
        ),
        Mistake(
            "batch_axis",
            "square",
            {"hidden[:, -1]": "hidden[-1]"},
            "You take the last sequence and not the last position.",
            "Index the second axis: hidden[:, -1].",
        ),
        Mistake(
            "all_positions",
            "random",
            {"hidden[:, -1]": "hidden"},
            "You return the logits of all positions.",
            "Only those after the last token are asked for.",
        ),
        Mistake(
            "norm_across_sequence",
            "random",
            {"last.square().mean(-1, keepdim=True)": "hidden.square().mean((-2, -1))[:, None]"},
            "The statistics run over tokens and features together.",
            "Each token has its own.",
        ),
        Mistake(
            "layer_norm",
            "random",
            {"    normed =": "    last = last - last.mean(-1, keepdim=True)\n    normed ="},
            "You subtract the mean: that is LayerNorm.",
            "RMSNorm keeps it.",
            "GPT-2",
        ),
        Mistake(
            "sum_not_mean",
            "random",
            {".mean(-1": ".sum(-1"},
            "You divide by the Euclidean length.",
            "Divide by the root mean square.",
        ),
        Mistake(
            "softmaxed",
            "random",
            {"normed @ embedding.T": "(normed @ embedding.T).softmax(-1)"},
            "You return probabilities.",
            "Logits are asked for.",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {
                "torch.rsqrt(last.square().mean(-1, keepdim=True) + eps)": (
                    "1 / (last.square().mean(-1, keepdim=True).sqrt() + eps)"
                )
            },
            "You add eps to the root mean square.",
            "eps stands inside the root.",
        ),
        Mistake(
            "eps_fixed",
            "big_eps",
            {" + eps": " + 1e-6"},
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "no_eps",
            "zeros",
            {" + eps": ""},
            "You never use eps: a stream of zeros gives NaN.",
            "Add eps inside the root.",
        ),
    ),
    dtypes="random",
    gradients="random",
)
