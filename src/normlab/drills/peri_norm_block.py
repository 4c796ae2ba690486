"""Drill: the wiring of a block with norms on both sides of each sublayer."""

from normlab.drills.checking import Drill, Mistake
from normlab.drills.pre_norm_block import block_probes
from normlab.drills.properties import block_properties


def peri_norm_block(x, attention, mlp, norm1, norm2, out1, out2):
    h = x + out1(attention(norm1(x)))
    return h + out2(mlp(norm2(h)))


DRILL = Drill(
    solution=peri_norm_block,
    task="Wire a Peri-Norm block (Gemma 2): attention first, then the mlp; a norm on what each sublayer reads and "
    "another on what it returns. norm1 and out1 belong to attention, norm2 and out2 to the mlp. All six are functions "
    "of a tensor [..., d] that return one of the same shape. Return the new residual stream [..., d].",
    minutes=4,
    why="It asks whether one can place a norm by what it should bound, not by a remembered picture.",
    hints=(
        "What is added to the stream: the sublayer's output, or its normalized output?",
        "With an attention 100 times as large, the block's output must hardly change.",
        "No norm ever touches the stream itself.",
    ),
    probes=block_probes(4),
    mistakes=(
        Mistake(
            "pre_only",
            "random",
            {"out1(attention(norm1(x)))": "attention(norm1(x))", "out2(mlp(norm2(h)))": "mlp(norm2(h))"},
            "The output norms are missing: that is Pre-Norm.",
            "Normalize what each sublayer returns before it is added.",
            "GPT-2 and Llama",
        ),
        Mistake(
            "norm_on_sum",
            "zero_sub",
            {
                "x + out1(attention(norm1(x)))": "out1(x + attention(norm1(x)))",
                "h + out2(mlp(norm2(h)))": "out2(h + mlp(norm2(h)))",
            },
            "Your output norms cover the sum, as in Post-Norm.",
            "Normalize the increment and leave the stream alone.",
        ),
        Mistake(
            "out_only",
            "random",
            {"attention(norm1(x))": "attention(x)", "mlp(norm2(h))": "mlp(h)"},
            "The input norms are missing.",
            "Normalize what each sublayer reads as well.",
            "OLMo 2",
        ),
        Mistake(
            "attention_only",
            "random",
            {"out2(mlp(norm2(h)))": "mlp(norm2(h))"},
            "The mlp has no output norm.",
            "Both sublayers have one.",
        ),
        Mistake(
            "mlp_only",
            "random",
            {"out1(attention(norm1(x)))": "attention(norm1(x))"},
            "Attention has no output norm.",
            "Both sublayers have one.",
        ),
        Mistake(
            "gains_swapped",
            "random",
            {"out1(attention(norm1(x)))": "norm1(attention(out1(x)))", "out2(mlp(norm2(h)))": "norm2(mlp(out2(h)))"},
            "Input and output norms are swapped.",
            "norm1 and norm2 stand before, out1 and out2 behind the sublayers.",
        ),
        Mistake(
            "out_swapped",
            "random",
            {"out1(": "out2(", "h + out2(": "h + out1("},
            "out1 and out2 are swapped.",
            "out1 belongs to attention.",
        ),
        Mistake(
            "norms_swapped",
            "random",
            {"norm1(x)": "norm2(x)", "norm2(h)": "norm1(h)"},
            "norm1 and norm2 are swapped.",
            "norm1 belongs to attention.",
        ),
        Mistake(
            "double_in",
            "random",
            {"out1(attention(norm1(x)))": "attention(out1(norm1(x)))", "out2(mlp(norm2(h)))": "mlp(out2(norm2(h)))"},
            "You normalize the input twice and the output never.",
            "The second norm stands behind the sublayer.",
        ),
        Mistake(
            "skip_normed",
            "zero_sub",
            {"x + out1(": "norm1(x) + out1(", "h + out2(": "norm2(h) + out2("},
            "The skips carry the normalized stream.",
            "Add to the stream itself.",
        ),
        Mistake(
            "parallel",
            "random",
            {"norm2(h)": "norm2(x)"},
            "The mlp reads the block's input.",
            "It reads the stream after attention was added.",
        ),
        Mistake(
            "second_skip_from_x",
            "random",
            {"h + out2": "x + out2"},
            "The second skip starts from the block's input.",
            "Add to the stream after attention.",
        ),
        Mistake(
            "no_skip",
            "random",
            {"x + out1": "out1", "h + out2": "out2"},
            "There is no skip.",
            "Add the increments to the stream.",
        ),
    ),
    properties=block_properties(norms=4),
    dtypes="random",
    gradients="random",
)
