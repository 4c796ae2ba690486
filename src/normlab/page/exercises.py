"""What an exercise answers: not answered yet, right, or by how much it is off. Plain Python at import, no torch."""

import math

NOT_YET = "not answered yet"
HALF_TYPES = ("torch.float16", "torch.bfloat16")


def check(answer, expected, rtol: float = 1e-6, atol: float = 1e-9) -> None:
    """Print whether ``answer`` is ``expected``: right, not answered yet, or how far off, without giving it away.

    Args:
        answer: a number, a text, a tensor, or a list, tuple or dictionary of them. ``...`` or None, as a blank starter
            cell leaves them, is "not answered yet".
        expected: the right one.
        rtol, atol: numbers and entries of tensors may be off by ``atol + rtol · |expected|``.

    Raises:
        ValueError: a negative tolerance, or nothing is expected.
    """
    if rtol < 0 or atol < 0:
        raise ValueError(f"tolerances must not be negative, got rtol={rtol}, atol={atol}")
    if _blank(expected):
        raise ValueError(f"expected must be an answer, got {expected!r}")
    fault = NOT_YET if _blank(answer) else _fault(answer, expected, rtol, atol)
    print("right" if fault is None else fault)


def _blank(answer) -> bool:
    if isinstance(answer, dict):
        answer = list(answer.values())
    return answer is None or answer is ... or (isinstance(answer, (list, tuple)) and any(map(_blank, answer)))


def _fault(answer, expected, rtol: float, atol: float) -> str | None:
    """What is wrong, in one line; None for a right answer."""
    if isinstance(expected, (str, bool)):
        if type(answer) is not type(expected):
            return f"not yet: a {type(expected).__name__} is asked for, got {answer!r}"
        return None if answer == expected else "not yet"
    if isinstance(expected, (list, tuple, dict)):
        return _fault_of_several(answer, expected, rtol, atol)
    if isinstance(expected, (int, float)):
        answer = answer.item() if getattr(answer, "shape", None) == () else answer
        if isinstance(answer, bool) or not isinstance(answer, (int, float)):
            return f"not yet: a number is asked for, got {type(answer).__name__}"
        if math.isclose(answer, expected, rel_tol=rtol, abs_tol=atol):
            return None
        if not math.isfinite(answer) or not math.isfinite(expected) or expected == 0:
            return "not yet"
        if answer == 0:
            return "not yet: 0 is too small"
        off = abs(answer / expected - 1)
        return f"not yet: off by {off:.0%}" if off >= 0.005 else "not yet: off by less than 1%"
    if not hasattr(answer, "shape"):
        return f"not yet: a tensor is asked for, got {type(answer).__name__}"
    if answer.shape != expected.shape:
        return f"not yet: shape {list(expected.shape)} is asked for, got {list(answer.shape)}"
    if str(expected.dtype) in HALF_TYPES and answer.dtype != expected.dtype:  # the last rounding is part of the answer
        return f"not yet: dtype {expected.dtype} is asked for, got {answer.dtype}"
    off = (answer.to(expected.dtype) - expected).abs()
    if not bool(off.isfinite().all()):
        return "not yet: NaN or infinite entries"
    wrong = off > atol + rtol * expected.abs()
    if not bool(wrong.any()):
        return None
    return f"not yet: {int(wrong.sum())} of {wrong.numel()} entries are off, the worst by {off.max().item():.1g}"


def _fault_of_several(answer, expected, rtol: float, atol: float) -> str | None:
    """The first fault of a list, a tuple or a dictionary of answers."""
    if not isinstance(answer, dict if isinstance(expected, dict) else (list, tuple)) or len(answer) != len(expected):
        return f"not yet: {len(expected)} answers are asked for, got {answer!r}"
    if isinstance(expected, dict) and expected.keys() - answer:
        return f"not yet: answers are asked for {', '.join(map(str, expected))}; got {', '.join(map(str, answer))}"
    for place, name in enumerate(expected if isinstance(expected, dict) else range(len(expected)), start=1):
        fault = _fault(answer[name], expected[name], rtol, atol)
        if fault is not None:
            return f"{name if isinstance(expected, dict) else f'answer {place}'}: {fault}"
    return None
