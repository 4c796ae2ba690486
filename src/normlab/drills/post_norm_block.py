"""Drill: the wiring of a Post-Norm block."""

from normlab.drills.checking import Drill, Mistake
from normlab.drills.pre_norm_block import block_probes
from normlab.drills.properties import block_properties


def post_norm_block(x, attention, mlp, norm1, norm2):
    h = norm1(x + attention(x))
    return norm2(h + mlp(h))


DRILL = Drill(
    solution=post_norm_block,
    task="Wire the Post-Norm block of the 2017 Transformer: attention first, then the mlp, each with its own skip and "
    "its own norm. attention, mlp, norm1 and norm2 are functions of a tensor [..., d] that return one of the same "
    "shape; norm1 belongs to attention. Return the new residual stream [..., d].",
    minutes=4,
    why="It is the block of the 2017 paper and of BERT, and the one that warm-up is discussed with.",
    hints=(
        "What does the norm cover: the sublayer's output, or the sum?",
        "There is a norm after each of the two additions.",
        "The second skip starts from what the first norm returned.",
    ),
    probes=block_probes(2),
    mistakes=(
        Mistake(
            "pre",
            "random",
            {"norm1(x + attention(x))": "x + attention(norm1(x))", "norm2(h + mlp(h))": "h + mlp(norm2(h))"},
            "You normalize what the sublayers read: that is Pre-Norm.",
            "The norm covers the sum of stream and sublayer.",
            "GPT-2 and Llama",
        ),
        Mistake(
            "norm_then_add",
            "random",
            {"norm1(x + attention(x))": "x + norm1(attention(x))", "norm2(h + mlp(h))": "h + norm2(mlp(h))"},
            "You normalize what the sublayers return and add then.",
            "The norm must cover the sum.",
            "OLMo 2",
        ),
        Mistake(
            "both",
            "random",
            {
                "norm1(x + attention(x))": "norm1(x + attention(norm1(x)))",
                "norm2(h + mlp(h))": "norm2(h + mlp(norm2(h)))",
            },
            "You normalize both what the sublayer reads and the sum.",
            "Only the sum is normalized.",
        ),
        Mistake(
            "no_skip",
            "random",
            {"x + attention(x)": "attention(x)", "h + mlp(h)": "mlp(h)"},
            "No sublayer has a skip.",
            "Normalize the sum of stream and sublayer.",
        ),
        Mistake(
            "no_skip_attention",
            "random",
            {"x + attention(x)": "attention(x)"},
            "Attention has no skip.",
            "Normalize x + attention(x).",
        ),
        Mistake(
            "no_skip_mlp",
            "random",
            {"h + mlp(h)": "mlp(h)"},
            "The mlp has no skip.",
            "Normalize h + mlp(h).",
        ),
        Mistake(
            "single_norm",
            "random",
            {"norm1(x + attention(x))": "x + attention(x)"},
            "There is no norm after attention.",
            "Post-Norm has one after each sublayer.",
        ),
        Mistake(
            "no_second_norm",
            "random",
            {"norm2(h + mlp(h))": "h + mlp(h)"},
            "There is no norm after the mlp.",
            "Post-Norm has one after each sublayer.",
        ),
        Mistake(
            "second_skip_from_x",
            "random",
            {"h + mlp(h)": "x + mlp(h)"},
            "The second skip starts from the block's input.",
            "It starts from what norm1 returned.",
        ),
        Mistake(
            "mlp_reads_x",
            "random",
            {"h + mlp(h)": "h + mlp(x)"},
            "The mlp reads the block's input.",
            "It reads what norm1 returned.",
        ),
        Mistake(
            "shared_norm",
            "random",
            {"norm2(": "norm1("},
            "Both additions use the first norm.",
            "Each has its own gain: use norm2 after the mlp.",
        ),
        Mistake(
            "norms_swapped",
            "random",
            {"norm1(": "norm2(", "return norm2(": "return norm1("},
            "The two norms are swapped.",
            "norm1 follows attention, norm2 the mlp.",
        ),
        Mistake(
            "order_swapped",
            "random",
            {"attention(x)": "mlp(x)", "mlp(h)": "attention(h)"},
            "The mlp comes first.",
            "Attention first, then the mlp.",
        ),
    ),
    properties=block_properties(norms=2),
    dtypes="random",
    gradients="random",
)
