"""Drill: DeepNorm's two constants and its wiring."""

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.pre_norm_block import rms


def deepnorm(x, sublayer, norm, layers):
    alpha = (2 * layers) ** 0.25
    beta = (8 * layers) ** -0.25
    return alpha, beta, norm(alpha * x + sublayer(x))


def arguments(*shape: int, seed: int, layers: int, eps: float = 1e-6):
    matrix = normal(shape[-1], shape[-1], seed=seed + 1)
    x = normal(*shape, seed=seed, mean=0.5)
    norm = rms(normal(shape[-1], seed=seed + 2, mean=1, std=0.4), eps)
    return x, lambda h: (h @ matrix.to(h.dtype)).tanh() * 3, norm, layers


DRILL = Drill(
    solution=deepnorm,
    task="Write one sublayer of a decoder-only DeepNorm model with the given number of layers (blocks of two "
    "sublayers). Return (alpha, beta, y): the factor of the skip, the factor of the initial weights of value, output "
    "and mlp projections, and the new stream y for the stream x [..., d]. sublayer and norm are functions of a tensor.",
    minutes=5,
    why="A thousand layers train with two constants; where the first one stands decides whether it does anything at "
    "all.",
    hints=(
        "DeepNorm is a Post-Norm scheme.",
        "alpha turns up the stream, beta turns down the initial branch.",
        "Decoder-only with M blocks: alpha = (2M)^(1/4), beta = (8M)^(-1/4).",
    ),
    probes={
        "eighteen": Probe("18 layers", lambda: arguments(3, 5, 6, seed=1, layers=18)),
        "eight": Probe("8 layers and a norm with eps = 0.5", lambda: arguments(2, 4, seed=11, layers=8, eps=0.5)),
        "hundred": Probe("100 layers", lambda: arguments(3, 7, seed=21, layers=100)),
    },
    mistakes=(
        Mistake(
            "sqrt",
            "eighteen",
            {"** 0.25": "** 0.5"},
            "alpha is a square root.",
            "alpha = (2M)^(1/4).",
        ),
        Mistake(
            "both_sqrt",
            "eighteen",
            {"** 0.25": "** 0.5", "** -0.25": "** -0.5"},
            "Both constants are square roots.",
            "alpha = (2M)^(1/4), beta = (8M)^(-1/4).",
        ),
        Mistake(
            "no_two",
            "eighteen",
            {"(2 * layers)": "layers"},
            "alpha counts M, not 2M.",
            "alpha = (2M)^(1/4): M blocks have 2M sublayers.",
        ),
        Mistake(
            "beta_two",
            "eighteen",
            {"(8 * layers)": "(2 * layers)"},
            "beta is 1/alpha.",
            "beta = (8M)^(-1/4).",
        ),
        Mistake(
            "beta_positive",
            "eighteen",
            {"** -0.25": "** 0.25"},
            "The exponent of beta is positive.",
            "beta shrinks the initial weights: (8M)^(-1/4).",
        ),
        Mistake(
            "decoder_of_pair",
            "eighteen",
            {"(2 * layers)": "(3 * layers)", "(8 * layers)": "(12 * layers)"},
            "Your constants are those of the decoder of an encoder-decoder model, with three sublayers a block.",
            "Decoder-only: (2M)^(1/4) and (8M)^(-1/4).",
        ),
        Mistake(
            "scales_branch",
            "eighteen",
            {"alpha * x + sublayer(x)": "x + alpha * sublayer(x)"},
            "alpha multiplies the branch.",
            "alpha multiplies the skip.",
        ),
        Mistake(
            "scales_sum",
            "eight",
            {"alpha * x + sublayer(x)": "alpha * (x + sublayer(x))"},
            "alpha multiplies the sum, and the norm cancels it (eps aside).",
            "alpha multiplies the skip alone.",
        ),
        Mistake(
            "scales_input",
            "eighteen",
            {"sublayer(x)": "sublayer(alpha * x)"},
            "The sublayer reads alpha * x.",
            "It reads x; only the skip is scaled.",
        ),
        Mistake(
            "pre_placement",
            "eighteen",
            {"norm(alpha * x + sublayer(x))": "alpha * x + sublayer(norm(x))"},
            "You normalize what the sublayer reads.",
            "DeepNorm is Post-Norm: the norm goes around the sum.",
        ),
        Mistake(
            "no_norm",
            "eighteen",
            {"norm(alpha * x + sublayer(x))": "alpha * x + sublayer(x)"},
            "There is no norm.",
            "Normalize the sum.",
        ),
        Mistake(
            "inverse_alpha",
            "eighteen",
            {"alpha * x": "x / alpha"},
            "You divide the skip by alpha.",
            "Multiply it.",
        ),
        Mistake(
            "beta_in_forward",
            "eighteen",
            {"+ sublayer(x)": "+ beta * sublayer(x)"},
            "beta scales the branch in the forward pass.",
            "beta scales the weights once, when they are drawn.",
        ),
        Mistake(
            "no_alpha",
            "eighteen",
            {"alpha * x": "x"},
            "alpha is computed and not used.",
            "Multiply the skip by it.",
        ),
    ),
    dtypes="eighteen",
    gradients="eighteen",
)
