"""The recorded census: its rows, near copies in groups, counts, and what a new measurement finds changed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normlab import record
from normlab.experiments.census.measure import COLUMNS

Row = Mapping[str, Any]
_SAME = tuple(name for name in COLUMNS if name != "eps")  # what near copies share


@dataclass(frozen=True)
class Census:
    """The record, taken apart: ``rows`` by model type, and the types that have none, with the reason."""

    rows: dict[str, Row]
    composite: tuple[str, ...]
    not_built: dict[str, str]
    version: str
    dates: tuple[str, ...]


def recorded() -> Census:
    """The census as it stands in the record."""
    runs = record.load("census")["runs"]
    results = {run["setting"]["model_type"]: run["result"] for run in runs}
    rows = {name: result for name, result in results.items() if "class" in result}
    composite = tuple(name for name, result in results.items() if "composite" in result)
    not_built = {name: result["not_built"] for name, result in results.items() if "not_built" in result}
    (version,) = {run["setting"]["transformers"] for run in runs}
    return Census(rows, composite, not_built, version, tuple(sorted({run["provenance"]["date"] for run in runs})))


@dataclass(frozen=True)
class Design:
    """Model types that agree in role and in every column of ``COLUMNS`` but ε. ``name``: the oldest, then the shortest."""

    name: str
    members: tuple[str, ...]
    row: Row
    eps: str

    @property
    def copies(self) -> tuple[str, ...]:
        return tuple(name for name in self.members if name != self.name)


def designs(rows: Mapping[str, Row]) -> list[Design]:
    """The rows without near copies, by name."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        groups.setdefault((row["role"], *(row[column] for column in _SAME)), []).append(name)
    found = []
    for names in groups.values():
        first = min(names, key=lambda name: (rows[name]["year"] or 9999, len(name), name))
        values = Counter(rows[name]["eps"] for name in names).most_common()
        eps = values[0][0] if len(values) == 1 else ", ".join(f"{value} ({count})" for value, count in values)
        found.append(Design(first, tuple(names), rows[first], eps))
    return sorted(found, key=lambda design: design.name)


def is_standard(row: Row) -> bool:
    """RMSNorm in front of every sublayer, no other norm between blocks, and a final RMSNorm. Embeddings may be normed too."""
    return (row["norm"], row["placement"], row["final"]) == ("RMSNorm", "pre", "RMSNorm")


def exceptions(row: Row) -> list[str]:
    """Where a row leaves the standard, in words; [] where it does not, or where too much of it is unknown."""
    if is_untold(row):
        return ["wiring not told"]
    names = {"unnamed": "a formula without a name", "pre": ""}
    place = "mixed placement" if ":" in row["placement"] else names.get(row["placement"], row["placement"])
    found = ["" if row["norm"] == "RMSNorm" else row["norm"], place, "no final norm" if row["final"] == "–" else ""]
    return [word for word in found if word]


def is_untold(row: Row) -> bool:
    """Whether too much of the wiring is unknown to say whether it is the standard one."""
    return "unknown" in (row["norm"], row["placement"]) or (row["placement"] == "unnamed" and bool(row["unknown"]))


def count(rows: Iterable[Row], value: Callable[[Row], str]) -> Counter[str]:
    """How many rows have each value, the most frequent first."""
    return Counter(dict(Counter(value(row) for row in rows).most_common()))


def table_rows(found: Sequence[Design]) -> list[list[str]]:
    """A line of text for every design, under ``HEADINGS``."""
    lines = []
    for design in found:
        row = design.row
        values = [design.eps if column == "eps" else row[column] for column in COLUMNS]
        about = [row["role"], str(row["year"] or "–"), "; ".join(row["unknown"]) or "–", str(len(design.members))]
        lines.append([design.name, *values, *about, ", ".join(design.copies) or "–"])
    return lines


HEADINGS = ["model type", *COLUMNS.values(), "role", "year", "not told", "types", "near copies"]
FILTERS = ("role", COLUMNS["norm"], COLUMNS["placement"], COLUMNS["final"], COLUMNS["gain"])


def changes(before: Mapping[str, Row], after: Mapping[str, Row]) -> list[str]:
    """Every difference between two censuses, one line each: type, column, old value, new value."""
    lines = [f"{name}: a row of its own is gone" for name in before if name not in after]
    lines += [f"{name}: a new row" for name in after if name not in before]
    for name, row in before.items():
        for column in ("class", "role", *COLUMNS, "unknown"):
            if name in after and after[name][column] != row[column]:
                lines.append(f"{name}, {column}: was {row[column]!r}, is {after[name][column]!r}")
    return lines
