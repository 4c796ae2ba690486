"""Claims: assert, print one stable line, leave a machine-readable trace. Plain Python, no torch.

``book/claims.yml`` lists the sentences that the course checks. A notebook cell settles one by calling
:func:`claim`; the ledger page is generated from what those cells left behind.
"""

import math
import os
import sys

MIME_TYPE = "application/vnd.normlab.claim+json"
VERDICTS = ("holds", "holds only if", "refuted here")
STRICT_VARIABLE = "NORMLAB_STRICT_SHOW"


def claim(id: str, ok: bool, line: str, verdict: str = "holds", only_if: str = "") -> None:
    """Settle the claim ``id``: raise unless ``ok``, else print ``id: line`` and leave a trace for the ledger.

    A condition is printed after the line, as ``id: line; only if CONDITION``.

    Args:
        id: an id of book/claims.yml; at most one call per id in the whole book (a test counts).
        ok: whether the measurement came out as ``line`` says.
        line: what was measured, in one line. Numbers in it go through :func:`show`.
        verdict: "holds", "holds only if" or "refuted here".
        only_if: the condition of "holds only if", in words that go on after it ("the increments are uncorrelated").
            Forbidden with the other verdicts.

    Raises:
        AssertionError: not ok.
        ValueError: unknown verdict, a line that is empty or longer than one line, or a condition that is missing,
            not one line, begins with "only if", or stands with another verdict.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"unknown verdict {verdict!r}; known verdicts: {', '.join(VERDICTS)}")
    if not line.strip() or "\n" in line:
        raise ValueError(f"the line of claim {id!r} must be one non-empty line, got {line!r}")
    if (verdict == "holds only if") != (only_if != ""):
        raise ValueError(f'only_if goes with the verdict "holds only if", got {verdict!r} and {only_if!r} ({id!r})')
    if only_if and (not only_if.strip() or "\n" in only_if or only_if.lower().startswith(("only if", "if "))):
        raise ValueError(f'only_if of claim {id!r} must go on after "holds only if", in one line, got {only_if!r}')
    if not ok:
        raise AssertionError(f"claim {id!r} did not come out as stated: {line}")
    text = f"{id}: {line}; only if {only_if}" if only_if else f"{id}: {line}"
    trace = {"id": id, "line": line, "verdict": verdict} | ({"only_if": only_if} if only_if else {})
    if not publish({"text/plain": text, MIME_TYPE: trace}):
        print(text)


def show(value: float, digits: int, spread: float) -> str:
    """``value`` with ``digits`` decimals and a typographic minus, for a compared output.

    While notebooks are re-executed (environment variable NORMLAB_STRICT_SHOW=1) a value that lies within three
    spreads of a rounding border is refused: on another machine it could print differently. Print fewer digits then.

    Args:
        value: the measured number.
        digits: decimals after the point, 0 or more.
        spread: how far the value moves between CPUs and thread counts, absolute, in the unit of ``value``.

    Raises:
        ValueError: negative digits or spread, or (only while re-executing) a value too close to a border.
    """
    value = float(value)
    if digits < 0 or spread < 0:
        raise ValueError(f"digits and spread must not be negative, got digits={digits}, spread={spread}")
    text = f"{value:.{digits}f}"
    if os.environ.get(STRICT_VARIABLE) == "1" and math.isfinite(value):
        scaled = value * 10**digits
        to_border = abs(scaled - math.floor(scaled) - 0.5) / 10**digits
        if to_border < 3 * spread:
            raise ValueError(
                f"{value!r} lies {to_border:.1e} from a rounding border at {digits} digits, "
                f"less than three spreads of {spread:.1e}: print fewer digits"
            )
    if not text.strip("-0."):
        text = text.lstrip("-")  # no negative zero
    return text.replace("-", "−")


def publish(data: dict, metadata: dict | None = None) -> bool:
    """Show a bundle of representations in a notebook; False where there is no notebook to show it in."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython
    from IPython.display import publish_display_data

    if get_ipython() is None:
        return False
    publish_display_data(data, metadata)
    return True
