"""Drill: fold a norm's gain and bias into the linear layer that follows."""

from normlab.drills.checking import Drill, Mistake, Probe, normal


def fold_norm(gain, shift, W, b):
    return W * gain, b + W @ shift


def arguments(outputs: int, inputs: int, seed: int):
    gain, shift = normal(inputs, seed=seed, mean=0.5, std=2.0), normal(inputs, seed=seed + 1, mean=0.5)
    return gain, shift, normal(outputs, inputs, seed=seed + 2), normal(outputs, seed=seed + 3)


DRILL = Drill(
    solution=fold_norm,
    task="A norm y = gain * scores + shift (gain and shift [in]) is followed by a linear layer W y + b, with W [out, "
    "in] and b [out] as in torch.nn.Linear. Return (W2, b2) such that W2 scores + b2 is the same for all scores. The "
    "inputs stay as they are.",
    minutes=4,
    why="It is done when models are loaded for inference or dissection, and a square W hides the wrong axis.",
    hints=(
        "Write W (gain * scores + shift) + b and collect what multiplies scores.",
        "The gain scales inputs of W, which are its columns.",
        "The shift passes through the original W.",
    ),
    probes={
        "rectangle": Probe("a W of shape (3, 4)", lambda: arguments(3, 4, seed=1)),
        "square": Probe("a W of shape (4, 4)", lambda: arguments(4, 4, seed=11)),
        "tall": Probe("a W of shape (7, 2)", lambda: arguments(7, 2, seed=21)),
    },
    mistakes=(
        Mistake(
            "rows",
            "square",
            {"W * gain": "W * gain[:, None]"},
            "You scale the rows of W, its outputs.",
            "The gain belongs to the columns, its inputs: W * gain.",
        ),
        Mistake(
            "matrix_product",
            "rectangle",
            {"W * gain": "W @ gain"},
            "You take a matrix product of W and the gain.",
            "Each column is scaled by its own gain: W * gain, which is W diag(gain).",
        ),
        Mistake(
            "gain_forgotten",
            "rectangle",
            {"W * gain": "W"},
            "The gain is not folded in.",
            "Scale the columns of W.",
        ),
        Mistake(
            "bias_dropped",
            "rectangle",
            {"b + W @ shift": "b"},
            "The norm's shift is lost.",
            "Add W @ shift to b.",
        ),
        Mistake(
            "linear_bias_dropped",
            "rectangle",
            {"b + W @ shift": "W @ shift"},
            "The linear layer's own bias is lost.",
            "Add W @ shift to b.",
        ),
        Mistake(
            "bias_uses_folded",
            "rectangle",
            {"W @ shift": "(W * gain) @ shift"},
            "The shift passes through the folded W.",
            "It passes through the original one: the norm adds it after its gain.",
        ),
        Mistake(
            "divided",
            "rectangle",
            {"W * gain": "W / gain"},
            "You divide by the gain.",
            "Multiply.",
        ),
        Mistake(
            "one_plus_gain",
            "rectangle",
            {"W * gain": "W * (1 + gain)"},
            "You scale by 1 + gain.",
            "Here gain is the gain itself.",
            "Gemma up to version 3, which stores the gain minus 1",
        ),
        Mistake(
            "bias_added_raw",
            "square",
            {"W @ shift": "shift"},
            "You add the shift to b as it is.",
            "It has the inputs' size and must pass through W.",
        ),
        Mistake(
            "bias_scaled",
            "square",
            {"b + W @ shift": "b * gain + W @ shift"},
            "You scale the linear layer's own bias by the gain.",
            "The gain acts before W; b stays.",
        ),
        Mistake(
            "transposed",
            "square",
            {"W @ shift": "W.T @ shift"},
            "The shift passes through the transposed W.",
            "torch.nn.Linear computes x W^T + b, so the shift gives W @ shift.",
        ),
        Mistake(
            "bias_subtracted",
            "rectangle",
            {"b + W": "b - W"},
            "You subtract what the shift contributes.",
            "Add it.",
        ),
    ),
    dtypes="rectangle",
    gradients="rectangle",
)
