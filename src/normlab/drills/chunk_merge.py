"""Drill: merge the statistics of two chunks."""

from normlab.drills.checking import Drill, Mistake, Probe


def chunk_merge(a, b):
    (na, mean_a, m2_a), (nb, mean_b, m2_b) = a, b
    n = na + nb
    if n == 0:
        return 0, 0.0, 0.0
    delta = mean_b - mean_a
    mean = mean_a + delta * nb / n
    m2 = m2_a + m2_b + delta * delta * na * nb / n
    return n, mean, m2


DRILL = Drill(
    solution=chunk_merge,
    task="Merge the statistics of two chunks of numbers. Each is a triple (n, mean, m2): how many, their mean, and the "
    "sum of squared deviations from that mean (not yet divided). An empty chunk is (0, 0.0, 0.0). Return the triple of "
    "all numbers together.",
    minutes=5,
    why="It is the step by which thread blocks of a kernel, and ranks of a synchronized BatchNorm, join their halves.",
    hints=(
        "The mean is weighted by the counts.",
        "Two constant chunks at 0 and 10 have no deviations inside; together they do.",
        "The term between the chunks is delta² * na * nb / n.",
    ),
    probes={
        "uneven": Probe("3 and 7 numbers", lambda: ((3, 2.0, 1.5), (7, 11.0, 20.0))),
        "other": Probe("5 and 2 numbers, the second mean below the first", lambda: ((5, 4.0, 6.0), (2, -1.0, 0.5))),
        "constant": Probe("two constant chunks", lambda: ((4, 0.0, 0.0), (4, 10.0, 0.0))),
        "empty": Probe("an empty second chunk", lambda: ((4, 3.0, 2.0), (0, 0.0, 0.0))),
        "empty_first": Probe("an empty first chunk", lambda: ((0, 0.0, 0.0), (4, 3.0, 2.0))),
        "both_empty": Probe("two empty chunks", lambda: ((0, 0.0, 0.0), (0, 0.0, 0.0))),
    },
    mistakes=(
        Mistake(
            "mean_of_means",
            "uneven",
            {"mean_a + delta * nb / n": "(mean_a + mean_b) / 2"},
            "You average the two means.",
            "Weight them by the counts.",
        ),
        Mistake(
            "no_between",
            "uneven",
            {" + delta * delta * na * nb / n": ""},
            "The term between the chunks is missing: two constant chunks at 0 and 10 would have no variance.",
            "Add delta² * na * nb / n.",
        ),
        Mistake(
            "wrong_weight",
            "uneven",
            {"mean_a + delta * nb / n": "mean_a + delta * na / n"},
            "The mean moves from a towards b by na / n.",
            "It moves by nb / n.",
        ),
        Mistake(
            "between_undivided",
            "uneven",
            {"na * nb / n": "na * nb"},
            "delta² * na * nb is not divided by n.",
            "Divide it by n = na + nb.",
        ),
        Mistake(
            "between_by_count",
            "uneven",
            {"delta * delta * na * nb / n": "delta * delta * n"},
            "The term between the chunks is delta² * n.",
            "Its weight is na * nb / n.",
        ),
        Mistake(
            "between_one_count",
            "uneven",
            {"na * nb / n": "na / n"},
            "The term between the chunks has one count only: delta² * na / n.",
            "Its weight is na * nb / n.",
        ),
        Mistake(
            "between_half",
            "uneven",
            {"delta * delta * na * nb / n": "delta * delta * n / 4"},
            "The term between the chunks holds for equal counts only.",
            "Its weight is na * nb / n.",
        ),
        Mistake(
            "linear_delta",
            "uneven",
            {"delta * delta": "abs(delta)"},
            "delta enters the sum of squares unsquared.",
            "Square it.",
        ),
        Mistake(
            "averaged",
            "uneven",
            {"m2_a + m2_b + delta * delta * na * nb / n": "(na * m2_a + nb * m2_b) / n"},
            "You average the sums of squared deviations.",
            "They add, plus the term between the chunks.",
        ),
        Mistake(
            "returns_variance",
            "uneven",
            {"return n, mean, m2": "return n, mean, m2 / n"},
            "You return the variance.",
            "m2 is the sum, not yet divided.",
        ),
        Mistake(
            "empty_raises",
            "both_empty",
            {"    if n == 0:\n        return 0, 0.0, 0.0\n": ""},
            "Two empty chunks divide by zero.",
            "Return (0, 0.0, 0.0) where nothing was counted.",
        ),
        Mistake(
            "empty_moves",
            "empty",
            {"return n, mean, m2": "return n, mean if na and nb else (mean_a + mean_b) / 2, m2"},
            "An empty chunk moves the mean.",
            "Merging with an empty chunk changes nothing.",
        ),
        Mistake(
            "empty_nan",
            "empty",
            {"if n == 0:": "if na == 0 or nb == 0:", "return 0, 0.0, 0.0": 'return n, float("nan"), float("nan")'},
            "An empty chunk turns the statistics into NaN.",
            "Merging with an empty chunk changes nothing; a tile that is masked out has n = 0.",
        ),
    ),
)
