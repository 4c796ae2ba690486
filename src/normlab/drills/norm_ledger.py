"""Drill: what all norms of a model cost."""

from normlab.drills.checking import Drill, Mistake, Probe


def norm_ledger(kind, width, layers, norms_per_layer, final, tokens, bytes_per_number):
    norms = layers * norms_per_layer + final
    vectors = 2 if kind == "layernorm" else 1
    parameters = norms * vectors * width
    moved = norms * 2 * tokens * width * bytes_per_number
    return norms, parameters, moved


DRILL = Drill(
    solution=norm_ledger,
    task="Count the norms of a model: return (norms, parameters, moved). kind is 'layernorm' (gain and bias) or "
    "'rmsnorm'; each layer has norms_per_layer of them, and final says whether one more follows the last layer. moved "
    "is how many bytes of activations the norms read and write in one forward pass over the tokens, if each fused norm "
    "reads its input once and writes its output once.",
    minutes=4,
    why="Norms hold less than a ten-thousandth of Llama 2 7B's parameters and read and write the whole stream "
    "before every sublayer.",
    hints=(
        "A gain is a vector as wide as the stream.",
        "How often does a norm touch the activations?",
        "Parameters do not depend on the number of tokens.",
    ),
    probes={
        "layernorm": Probe(
            "32 layers with two LayerNorms of width 4096 and a final one",
            lambda: ("layernorm", 4096, 32, 2, True, 3, 2),
        ),
        "rmsnorm": Probe(
            "26 layers with four RMSNorms of width 2304, none at the end", lambda: ("rmsnorm", 2304, 26, 4, False, 5, 1)
        ),
        "final": Probe("one RMSNorm a layer and a final one", lambda: ("rmsnorm", 10, 3, 1, True, 7, 4)),
        "no_tokens": Probe("no tokens", lambda: ("layernorm", 8, 2, 2, False, 0, 4)),
    },
    mistakes=(
        Mistake(
            "no_final", "layernorm", {" + final": ""}, "The final norm is not counted.", "Add one where final is true."
        ),
        Mistake(
            "always_final",
            "rmsnorm",
            {" + final": " + 1"},
            "You count a final norm that is not there.",
            "Add one only where final is true.",
        ),
        Mistake(
            "final_per_layer",
            "layernorm",
            {"layers * norms_per_layer + final": "layers * (norms_per_layer + final)"},
            "You count a final norm in each layer.",
            "There is one, after the last layer.",
        ),
        Mistake(
            "one_per_layer",
            "layernorm",
            {"layers * norms_per_layer": "layers"},
            "You count one norm per layer.",
            "Multiply by norms_per_layer.",
        ),
        Mistake(
            "fixed_two",
            "rmsnorm",
            {"layers * norms_per_layer": "layers * 2"},
            "You count two norms per layer.",
            "Multiply by norms_per_layer: Gemma 2 has four.",
        ),
        Mistake(
            "rms_has_bias",
            "rmsnorm",
            {'2 if kind == "layernorm" else 1': "2"},
            "Your RMSNorm has a bias.",
            "It has one vector, the gain.",
        ),
        Mistake(
            "layer_norm_no_bias",
            "layernorm",
            {'2 if kind == "layernorm" else 1': "1"},
            "Your LayerNorm has no bias.",
            "It has two vectors, gain and bias.",
        ),
        Mistake(
            "scalar_gain",
            "rmsnorm",
            {"norms * vectors * width": "norms * vectors"},
            "Your gain is one number.",
            "It is a vector of the stream's width.",
        ),
        Mistake(
            "read_only",
            "rmsnorm",
            {"norms * 2 * tokens": "norms * tokens"},
            "You count what is read or what is written, not both.",
            "A norm reads its input and writes its output.",
        ),
        Mistake(
            "per_token_parameters",
            "layernorm",
            {"vectors * width\n": "vectors * width * tokens\n"},
            "Your parameters grow with the tokens.",
            "All tokens share them.",
        ),
        Mistake(
            "layer_norm_reads_twice",
            "layernorm",
            {"norms * 2 * tokens": "norms * (vectors + 1) * tokens"},
            "Your LayerNorm reads its input twice.",
            "A fused one reads it once, like RMSNorm; a second pass is a property of a kernel, not of the formula.",
        ),
        Mistake(
            "counts_numbers",
            "layernorm",
            {" * bytes_per_number\n": "\n"},
            "You return numbers, not bytes.",
            "Multiply by bytes_per_number.",
        ),
        Mistake(
            "parameters_in_bytes",
            "layernorm",
            {"vectors * width\n": "vectors * width * bytes_per_number\n"},
            "Your parameters are in bytes.",
            "The second result is a count.",
        ),
    ),
)
