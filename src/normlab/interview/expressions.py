"""Numbers in texts: ``{{ expression }}``, evaluated from :mod:`normlab.ledger` and from what cells recorded.

>>> evaluate("It has {{ n(parameters(P('Llama-2-7B')).norms) }} gains.", {})
'It has 266,240 gains.'
>>> evaluate("{{ line('a', r'falls by (\\\\S+) %') }} percent", {"a": "loss falls by 3.5 % in all"})
'3.5 percent'

In an expression stand the ledger's functions, P(name) for a preset, the functions of `math`, and for the result

==================  ========================================================================
n(x)                a whole number with commas: 266,240
f(x, places)        a fixed number of decimal places: 12.29
g(x, figures)       significant digits, never an exponent: 0.0076
pct(x, places)      a share in percent: 39.88%
sci(x, figures)     a power of ten: 1.2 × 10⁻⁵
size(x)             bytes in both units: 8.000 GiB (8.590 GB)
line(id, pattern)   the one group of a regular expression in the line that a cell recorded
said(id, pattern)   the same in the claim's sentence, for what is only reported
changed(config, …)  a config with other fields, for example norm="layernorm"
==================  ========================================================================
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from normlab import ledger

EXPRESSION = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

# What is no number typed by hand: expressions, roles, names (they begin with a letter: GPT-2, bfloat16), the names of
# models that are written apart.
_NAMES = r"(?:OLMo|Gemma|Qwen|Llama|GPT|T) \d\b|(?<![\w.])[A-Za-z_][\w.-]*|\{[\w:]+\}`[^`]+`"
_FORMULAS = r"\$\$[^$]+\$\$|\$[^$]+\$|`[^`]+`"


def n(x: float) -> str:
    """A whole number with commas between thousands. Raises ValueError if it is not whole."""
    if x != int(x):
        raise ValueError(f"n() is for whole numbers, got {x}")
    return f"{int(x):,}"


def f(x: float, places: int) -> str:
    """Rounded to decimal places."""
    return f"{x:,.{places}f}"


def g(x: float, figures: int) -> str:
    """Rounded to significant digits, without an exponent."""
    return f"{x:,.{max(0, figures - 1 - math.floor(math.log10(abs(x))))}f}"


def pct(x: float, places: int = 0) -> str:
    """A share in percent."""
    return f"{100 * x:.{places}f}%"


def sci(x: float, figures: int = 2) -> str:
    """A power of ten times a number with so many digits."""
    digits, exponent = f"{x:.{figures - 1}e}".split("e")
    return f"{digits} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def evaluate(text: str, lines: Mapping[str, str], sentences: Mapping[str, str] | None = None) -> str:
    """The text with its expressions replaced by what they give.

    ``lines`` are the claims' recorded lines by id, ``sentences`` their sentences.

    Expressions are Python and run as such: this is for our own texts, not for a stranger's.

    Raises:
        ValueError: an expression that fails, or gives something else than a text or a whole number; it is named.
    """
    names = _names(lines, sentences or {})

    def value(match: re.Match) -> str:
        expression = match[1].strip()
        try:
            result = eval(expression, {"__builtins__": {}}, names)  # noqa: S307
        except Exception as problem:
            raise ValueError(f"{{{{ {expression} }}}}: {type(problem).__name__}: {problem}") from None
        if isinstance(result, bool) or not isinstance(result, int | str):
            raise ValueError(f"{{{{ {expression} }}}} must give a text or a whole number, got {result!r}")
        return str(result)

    return EXPRESSION.sub(value, text)


def _one(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    if len(found) != 1 or not isinstance(found[0], str):
        raise ValueError(f"{pattern!r} must have one group and match once, got {found} in {text!r}")
    return found[0]


def _names(lines: Mapping[str, str], sentences: Mapping[str, str]) -> dict[str, Any]:
    def line(name: str, pattern: str) -> str:
        if name not in lines:
            raise ValueError(f"no cell recorded a line for the claim {name!r}")
        return _one(pattern, lines[name])

    def said(name: str, pattern: str) -> str:
        if name not in sentences:
            raise ValueError(f"there is no claim {name!r}")
        return _one(pattern, sentences[name])

    def changed(config: ledger.Config, **fields: Any) -> ledger.Config:
        return dataclasses.replace(config, **fields)

    functions: tuple[Callable, ...] = (
        *(ledger.parameters, ledger.flops, ledger.scores, ledger.kv_cache, ledger.norms, ledger.norm_flops),
        *(ledger.size, ledger.gib, ledger.gb, n, f, g, pct, sci, line, said, changed, min, max, sum, round, abs, float),
    )
    plain = {name: getattr(math, name) for name in ("sqrt", "log", "log10", "exp", "pi", "floor", "ceil")}
    return {**plain, **{function.__name__: function for function in functions}, "P": ledger.PRESETS.__getitem__}


def typed_numbers(text: str) -> list[str]:
    """Numbers that were typed by hand: any digits in running text, three or more significant ones in formulas and code.

    Numbers that belong to a name (bfloat16, Llama-2-7B, Gemma 2) are not meant.
    """
    text = EXPRESSION.sub(" ", text)
    found = []
    for formula in re.findall(_FORMULAS, text):
        numbers = re.findall(r"\d[\d,{}.]*", re.sub(_NAMES, " ", formula.replace("\\", " ")))
        found += [number for number in numbers if len(re.sub(r"\D", "", number).strip("0")) >= 3]
    rest = re.sub(_FORMULAS, " ", re.sub(r"\{[\w:]+\}`[^`]+`", " ", text))
    return found + re.findall(r"\d[\d,.]*\d|\d", re.sub(_NAMES, " ", rest))
