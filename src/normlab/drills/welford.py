"""Drill: mean and variance of a stream in one pass."""

from normlab.drills.checking import Drill, Mistake, Probe


def welford(stream):
    count, mean, total = 0, 0.0, 0.0
    for value in stream:
        count += 1
        delta = value - mean
        mean += delta / count
        total += delta * (value - mean)
    return mean, total / count


DRILL = Drill(
    solution=welford,
    task="Return (mean, variance) of a stream of floats that can be read only once, without storing it. The variance "
    "divides by n. It must survive an offset: numbers around 1e8 whose variance is 22.5. The stream has at least one "
    "number.",
    minutes=6,
    why="Some fused norm kernels read a row once with it; the textbook shortcut E[x²] - E[x]² fails on large means.",
    hints=(
        "Keep three numbers: how many, their mean, the sum of squared deviations.",
        "A new value moves the mean by its distance divided by n.",
        "The sum grows by (distance to the old mean) times (distance to the new mean).",
    ),
    probes={
        "plain": Probe("the numbers 2, 4, 4, 5, 9", lambda: ((2.0, 4.0, 4.0, 5.0, 9.0),), 1e-9),
        "offset": Probe("1e8 + 4, 7, 13, 16", lambda: (tuple(1e8 + v for v in (4.0, 7.0, 13.0, 16.0)),), 1e-9),
        "one": Probe("a single number", lambda: ((3.0,),), 1e-9),
        "negative": Probe("numbers of both signs", lambda: ((-3.0, 1.5, 0.25, -8.0, 2.0, 7.5, -0.5),), 1e-9),
    },
    mistakes=(
        Mistake(
            "same_delta",
            "plain",
            {"delta * (value - mean)": "delta * delta"},
            "You square the distance to the old mean: the variance is too large.",
            "Multiply the distance to the old mean by that to the new mean.",
        ),
        Mistake(
            "new_delta",
            "plain",
            {"delta * (value - mean)": "(value - mean) ** 2"},
            "You square the distance to the new mean: the variance is too small.",
            "Multiply the distance to the old mean by that to the new mean.",
        ),
        Mistake(
            "naive",
            "offset",
            """
            def welford(stream):
                count, total, squares = 0, 0.0, 0.0
                for value in stream:
                    count += 1
                    total += value
                    squares += value * value
                mean = total / count
                return mean, squares / count - mean * mean
            """,
            "You compute E[x²] - E[x]², two numbers that agree in nearly all digits when the mean is large.",
            "Use Welford's update.",
            story="torch 1.7's LayerNorm did: an output for randn + 2000 had a variance of 48,426 instead of 1 "
            "(#51102, #40302).",
        ),
        Mistake(
            "two_passes",
            "plain",
            """
            def welford(stream):
                count, mean = 0, 0.0
                for value in stream:
                    count += 1
                    mean += (value - mean) / count
                total = 0.0
                for value in stream:
                    total += (value - mean) ** 2
                return mean, total / count
            """,
            "You read the stream a second time, when it is empty.",
            "Update mean and sum in the same loop.",
        ),
        Mistake(
            "unbiased",
            "plain",
            {"total / count": "total / (count - 1)"},
            "You divide by n - 1.",
            "The task, like the norms, divides by n; one number has the variance 0.",
        ),
        Mistake(
            "unbiased_guarded",
            "plain",
            {"total / count": "total / max(count - 1, 1)"},
            "You divide by n - 1 (1 for a single number).",
            "The task, like the norms, divides by n.",
        ),
        Mistake(
            "returns_sum",
            "plain",
            {"total / count": "total"},
            "You return the sum of squared deviations.",
            "Divide it by n.",
        ),
        Mistake(
            "running_alpha",
            "plain",
            {"delta / count": "delta * 0.1"},
            "That is an exponential average with a fixed weight.",
            "Divide delta by the count so far.",
        ),
        Mistake(
            "count_late",
            "plain",
            {
                "        count += 1\n": "",
                "        total += delta * (value - mean)\n": (
                    "        total += delta * (value - mean)\n        count += 1\n"
                ),
                "delta / count": "delta / max(count, 1)",
            },
            "You divide by the count before this value is counted.",
            "Count first, then update the mean.",
        ),
        Mistake(
            "returns_std",
            "plain",
            {"total / count": "(total / count) ** 0.5"},
            "You return the standard deviation.",
            "The variance is asked for.",
        ),
        Mistake(
            "swapped",
            "plain",
            {"return mean, total / count": "return total / count, mean"},
            "Mean and variance are swapped.",
            "Return (mean, variance).",
        ),
    ),
    run=lambda solution, numbers: solution(iter(numbers)),
)
