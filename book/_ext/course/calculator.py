"""The directive ``{calculator}``: what a Transformer costs, from ``normlab.ledger``.

Without a script the page has two tables. With it, `calculator.js` adds the form with the sliders and lets the first
table follow; its formulas stand in `ledger.js`, which a test compares with the package.
"""

import dataclasses
import json
import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from . import tools

PAGE = "book/interview/calculator"
MODEL, SHORT, LONG = "Llama-2-7B", 2048, 16384
SCRIPTS = ("ledger.js", "calculator.js")
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def flop(count: float) -> str:
    """Operations with a prefix and four digits, for example "352.9 TFLOP"."""
    scale, prefix = next(((scale, p) for scale, p in PREFIXES if count >= scale), (1, ""))
    return f"{digits(count / scale)} {prefix}FLOP"


def digits(value: float) -> str:
    """Four significant digits, without an exponent."""
    decimals = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"


def size(count: float) -> str:
    """Bytes in both units; small ones in KiB and kB, or as they are."""
    for unit, binary, decimal in (("G", 2**30, 1e9), ("M", 2**20, 1e6), ("K", 2**10, 1e3)):
        if count >= binary:
            return f"{digits(count / binary)} {unit}iB ({digits(count / decimal)} {unit.replace('K', 'k')}B)"
    return f"{count} B"


def rows(ledger, config, tokens: int, batch: int, dtype: str) -> list[tuple[str, float | None, str]]:
    """What the first table says at one context: a name, the number whose growth is shown, the text."""
    full, causal = (ledger.flops(config, tokens, causal=c, batch=batch) for c in (False, True))
    step = ledger.flops(config, tokens, "decode", batch=batch)
    scores = ledger.scores(config, tokens, batch, dtype)
    cache = ledger.kv_cache(config, tokens, batch, dtype)
    norms = ledger.norms(config, tokens, batch, dtype)
    count = ledger.parameters(config).total
    weights = count * ledger.DTYPES[dtype]
    separate = norms.fused.bytes + norms.adds.bytes
    return [
        ("Parameters", count, f"{count:,}"),
        ("– in norms", norms.parameters, f"{norms.parameters:,}"),
        ("Weights", weights, size(weights)),
        ("KV cache", cache.total, size(cache.total)),
        ("Scores of one layer, if stored", scores.layer_bytes, size(scores.layer_bytes)),
        ("Prefill, all pairs", full.matrices, flop(full.matrices)),
        ("– attention’s share", None, f"{full.attention_share:.2%}"),
        ("Prefill, causal pairs only", causal.matrices, flop(causal.matrices)),
        ("– attention’s share", None, f"{causal.attention_share:.2%}"),
        ("Operations of all norms", full.norms, flop(full.norms)),
        ("– over those of the prefill", None, f"{full.norm_share:.4%}"),
        ("Decoding one more token", step.matrices, flop(step.matrices)),
        ("Bytes of norms, step by step", norms.eager.bytes, size(norms.eager.bytes)),
        ("Bytes of norms, fused", norms.fused.bytes, size(norms.fused.bytes)),
        ("– with residual additions apart", separate, size(separate)),
        ("– with residual additions inside", norms.fused_add.bytes, size(norms.fused_add.bytes)),
        ("Kernels of norms, step by step", norms.eager.launches, f"{norms.eager.launches:,}"),
        ("Kernels of norms, fused", norms.fused.launches, f"{norms.fused.launches:,}"),
        ("Inputs kept for training", norms.kept_inputs, size(norms.kept_inputs)),
    ]


def factor(short: float | None, long: float | None) -> str:
    """The growth of a number, or nothing for a share."""
    return "" if short is None else "× " + re.sub(r"\.?0+$", "", f"{long / short:.3f}")


def growth_table(ledger, name: str, short: int, long: int, batch: int = 1, dtype: str = "bfloat16") -> list[list[str]]:
    """The cells of the first table for a preset."""
    config = ledger.PRESETS[name]
    pairs = zip(rows(ledger, config, short, batch, dtype), rows(ledger, config, long, batch, dtype))
    return [[title, one, other, factor(a, b)] for (title, a, one), (_, b, other) in pairs]


def models_table(ledger) -> list[list[str]]:
    """One row for each preset."""
    cells = []
    for name, config in ledger.PRESETS.items():
        norms, cache = ledger.norms(config, 1), ledger.kv_cache(config, LONG)
        count = str(norms.count) + (f" + {norms.qk_count}" if norms.qk_count else "")
        total = ledger.parameters(config).total
        cells.append([name, f"{total:,}", f"{norms.parameters:,}", count, size(cache.per_token), size(cache.total)])
    return cells


def _table(headers: list[str], body: list[list[str]], caption: str, name: str) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headers)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'
        for first, *rest in body
    )
    return (
        f'<div class="pst-scrollable-table-container" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="table normlab-table {name}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def html(ledger) -> str:
    """The page's tables, and what the script needs."""
    presets = {name: dataclasses.asdict(config) for name, config in ledger.PRESETS.items()}
    data = {"presets": presets, "model": MODEL, "short": SHORT, "long": LONG}
    growth = _table(
        ["", f"{SHORT:,} tokens", f"{LONG:,} tokens", "factor"],
        growth_table(ledger, MODEL, SHORT, LONG),
        f"{MODEL}, bfloat16, one sequence",
        "calculator-growth",
    )
    models = _table(
        ["model", "parameters", "in norms", "norms", "KV cache per token", f"after {LONG:,} tokens"],
        models_table(ledger),
        "Eight published models in bfloat16; norms on queries and keys behind the +",
        "calculator-models",
    )
    island = json.dumps(data).replace("<", "\\u003c")
    return f'<div class="calculator"><script type="application/json">{island}</script>{growth}</div>{models}'


class Calculator(SphinxDirective):
    """The two tables, and the form where scripts run. Only on its own page, which loads the scripts."""

    def run(self):
        return [nodes.raw("", html(tools.package(Path(self.env.app.srcdir), "ledger")), format="html")]


def _load_scripts(app, pagename, templatename, context, doctree):
    if pagename == PAGE:
        for name in SCRIPTS:
            app.add_js_file(name, loading_method="defer")


def setup(app):
    app.add_directive("calculator", Calculator)
    app.connect("html-page-context", _load_scripts)
