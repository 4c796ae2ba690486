"""Drill: how large a key-value cache is."""

from normlab.drills.checking import Drill, Mistake, Probe


def kv_cache_bytes(config, tokens, batch, bytes_per_number):
    per_token = 2 * config["layers"] * config["kv_heads"] * config["head_dim"]
    return per_token * tokens * batch * bytes_per_number


LLAMA_3_8B = {"layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128, "hidden": 4096}
GEMMA_2_2B = {"layers": 26, "heads": 8, "kv_heads": 4, "head_dim": 256, "hidden": 2304}

DRILL = Drill(
    solution=kv_cache_bytes,
    task="Return the bytes of a model's key-value cache, for batch sequences of the given number of tokens. config is "
    "a dictionary with layers, heads (of queries), kv_heads, head_dim and hidden (the width); each number takes "
    "bytes_per_number bytes. All layers attend to all tokens.",
    minutes=3,
    why="This arithmetic bounds how many users fit on a GPU.",
    hints=(
        "What is stored for each token in each layer?",
        "Grouped-query attention stores fewer heads than it asks with.",
        "The cache grows linearly with the tokens.",
    ),
    probes={
        "llama": Probe(
            "the sizes of Llama 3 8B, 8192 tokens, batch 3, 2 bytes", lambda: (dict(LLAMA_3_8B), 8192, 3, 2)
        ),
        "gemma": Probe("the sizes of Gemma 2 2B, 1000 tokens, batch 1, 1 byte", lambda: (dict(GEMMA_2_2B), 1000, 1, 1)),
        "one": Probe("one token", lambda: (dict(LLAMA_3_8B), 1, 1, 2)),
        "empty": Probe("no token yet", lambda: (dict(GEMMA_2_2B), 0, 5, 2)),
    },
    mistakes=(
        Mistake(
            "no_two",
            "llama",
            {"2 * config": "config"},
            "You count keys or values, not both.",
            "Keys and values are two tensors: a factor of 2.",
        ),
        Mistake(
            "all_heads",
            "llama",
            {'config["kv_heads"]': 'config["heads"]'},
            "You count the heads of the queries.",
            "The cache holds kv_heads heads: 8 of 32 in Llama 3 8B, four times less.",
        ),
        Mistake(
            "fixed_two_bytes",
            "gemma",
            {"bytes_per_number\n": "2\n"},
            "You assume two bytes per number.",
            "Multiply by bytes_per_number.",
        ),
        Mistake(
            "fixed_four_bytes",
            "gemma",
            {"bytes_per_number\n": "4\n"},
            "You assume four bytes per number.",
            "Multiply by bytes_per_number.",
        ),
        Mistake(
            "counts_numbers",
            "llama",
            {" * bytes_per_number\n": "\n"},
            "You return numbers, not bytes.",
            "Multiply by bytes_per_number.",
        ),
        Mistake(
            "tokens_squared",
            "llama",
            {"per_token * tokens": "per_token * tokens * tokens"},
            "Your cache is quadratic in the tokens.",
            "It is linear; scores are quadratic, and they are not cached.",
        ),
        Mistake(
            "no_layers", "llama", {'config["layers"] * ': ""}, "You count one layer.", "Each layer has its own cache."
        ),
        Mistake(
            "no_batch",
            "llama",
            {" * batch": ""},
            "You count one sequence.",
            "Each sequence of the batch has its own cache.",
        ),
        Mistake(
            "hidden_ratio",
            "gemma",
            {'config["head_dim"]': '(config["hidden"] // config["heads"])'},
            "You take hidden / heads for head_dim.",
            "Use head_dim: in Gemma 2 2B it is 256, and 2304 / 8 = 288.",
        ),
        Mistake(
            "hidden_width",
            "llama",
            {'config["kv_heads"] * config["head_dim"]': 'config["hidden"]'},
            "You store the whole width for each token.",
            "Keys and values have kv_heads * head_dim numbers.",
        ),
        Mistake("bits", "llama", {"2 * config": "8 * 2 * config"}, "You return bits.", "Bytes are asked for."),
        Mistake(
            "gigabytes",
            "llama",
            {"bytes_per_number\n": "bytes_per_number / 2**30\n"},
            "You return GiB.",
            "Bytes are asked for.",
        ),
        Mistake(
            "one_more_token",
            "one",
            {"per_token * tokens": "per_token * (tokens + 1)"},
            "You count one token too many.",
            "The cache holds exactly the given tokens.",
        ),
    ),
)
