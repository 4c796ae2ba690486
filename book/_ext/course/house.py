"""The directive ``{house}``: a picture of the package, drawn from what its modules import.

A room is a module, or a folder of modules. It stands above every room that it imports, so a circle of imports cannot
be drawn: it fails the build. A line leads down from a room to one that it imports; an import that a longer way down
implies is not drawn. The picture is inline SVG in the colors of the page. Under it stand its counts and, folded, the
same as a list.
"""

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from . import depends, tools

SHELF = ("functional", "norms", "placement", "attention", "transformer")  # what a learner reads
NO_ROOMS = ("__init__", "__main__")
LATE = {("record", "experiments/")}  # no import: record.recipes walks that folder when it is called

# Sizes in the picture's units, each about a pixel on a phone that is 375 wide.
WIDTH = 340
ROW, HEIGHT = 42, 25  # from row to row, of a room
LETTER, MARGIN = 7, 14  # of a name, and beside it
LANE, GAP = 10, 8  # a line that passes a row, between neighbors
LANES = 6  # so many lines can pass a row

Rooms = dict[str, set[str]]


@dataclass(frozen=True)
class Lane:
    """Where a line from ``importer`` to ``imported`` passes a row."""

    importer: str
    imported: str
    row: int


Place = str | Lane


def read_rooms(root: Path) -> Rooms:
    """Each room of the package in the repository at ``root``, and the rooms that it imports."""
    package = root / "src" / "normlab"
    rooms: Rooms = {}
    for path, imported in tools.load(root, "imports").imports(package).items():
        room = _room(package, path)
        if room not in NO_ROOMS:
            others = {_room(package, other) for other in imported} - {room, *NO_ROOMS}
            rooms.setdefault(room, set()).update(other for other in others if (room, other) not in LATE)
    return rooms


def _room(package: Path, path: Path) -> str:
    first, *rest = path.relative_to(package).parts
    return f"{first}/" if rest else first.removesuffix(".py")


# --- layout ---------------------------------------------------------------------------------------


def levels(rooms: Rooms) -> dict[str, int]:
    """The row of each room, from 0 at the top: right under the lowest room that imports it. Raises CycleError.

    What does not fit side by side stands in two rows.
    """
    depth: dict[str, int] = {}
    for room in reversed(list(TopologicalSorter(rooms).static_order())):
        depth[room] = max((depth[other] + 1 for other in rooms if room in rooms[other]), default=0)
    alone = {room for room in rooms if not rooms[room]} - set().union(*rooms.values())
    depth |= dict.fromkeys(alone, max(depth.values()))
    level, row, taken, before = {}, 0, 0.0, 0
    for room in sorted(rooms, key=lambda room: (depth[room], room)):
        taken += _width(room) + GAP
        if depth[room] > before or taken > WIDTH - LANES * LANE:
            row, taken, before = row + 1, _width(room) + GAP, depth[room]
        level[room] = row
    return level


def drawn(rooms: Rooms) -> list[tuple[str, str]]:
    """Importer and imported of all imports that no longer way down implies."""
    below: Rooms = {}
    for room in TopologicalSorter(rooms).static_order():
        below[room] = rooms[room].union(*(below[other] for other in rooms[room]))
    return sorted((a, b) for a in rooms for b in rooms[a] if not any(b in below[c] for c in rooms[a]))


def arrange(rooms: Rooms) -> tuple[dict[Place, tuple[float, int]], list[list[Place]]]:
    """The middle and the row of every place, and the lines as the places that each passes.

    Every place moves towards what it is joined to, row by row, upwards and downwards; of many tries the one with the
    fewest crossings is taken, of these the one with the shortest lines.
    """
    level = levels(rooms)
    lines = [[a, *(Lane(a, b, row) for row in range(level[a] + 1, level[b])), b] for a, b in drawn(rooms)]
    row_of = {place: place.row if isinstance(place, Lane) else level[place] for line in lines for place in line} | level
    rows = [[p for p in sorted(row_of, key=str) if row_of[p] == row] for row in range(max(level.values()) + 1)]
    steps = [step for line in lines for step in pairwise(line)]
    joined = {place: [a if b == place else b for a, b in steps if place in (a, b)] or [place] for place in row_of}
    x = {place: WIDTH / 2 for place in row_of}
    best = (float("inf"), float("inf"), x)
    for turn in range(60):
        for row in rows[:: -1 if turn % 2 else 1]:
            wanted = {place: fmean(x[other] for other in joined[place]) for place in row}
            row.sort(key=wanted.__getitem__)
            x |= _side_by_side(row, wanted)
        crossings = sum(
            row_of[a] == row_of[c] and (x[a] - x[c]) * (x[b] - x[d]) < 0 for (a, b), (c, d) in combinations(steps, 2)
        )
        best = min(best, (crossings, sum(abs(x[a] - x[b]) for a, b in steps), dict(x)), key=lambda found: found[:2])
    return {place: (best[2][place], row_of[place]) for place in row_of}, lines


def _side_by_side(row: list[Place], wanted: dict[Place, float]) -> dict[Place, float]:
    """The places of a row in their order, as near to where they are wanted as the others and the edges allow."""
    right = _pushed(row, _pushed(row[::-1], _pushed(row, wanted), -1))
    left = _pushed(row[::-1], _pushed(row, _pushed(row[::-1], wanted, -1)), -1)
    return {place: (right[place] + left[place]) / 2 for place in row}


def _pushed(row: list[Place], wanted: dict[Place, float], way: int = 1) -> dict[Place, float]:
    """Each place of the row pushed on (``way`` -1: to the left) until it is clear of the edge and of the one before."""
    x, edge = {}, 0.0 if way > 0 else float(WIDTH)
    for place in row:
        half = way * _width(place) / 2
        x[place] = max(wanted[place], edge + half) if way > 0 else min(wanted[place], edge + half)
        edge = x[place] + half + way * GAP
    return x


def _width(place: Place) -> float:
    return LANE if isinstance(place, Lane) else LETTER * len(place) + MARGIN


# --- drawing --------------------------------------------------------------------------------------


def picture(rooms: Rooms) -> str:
    """The rooms and the lines between them as inline SVG. Resting on a room shows all that it imports."""
    places, lines = arrange(rooms)
    height = _ceiling(max(row for _, row in places.values())) + HEIGHT + 1
    parts = [f'<path d="{_path([places[place] for place in line])}"/>' for line in lines]
    for room in rooms:
        (x, row), width = places[room], _width(room)
        group = '<g class="shelf">' if room in SHELF else "<g>"
        parts.append(
            f"{group}<title>{_sentence(room, rooms[room])}</title>"
            f'<rect x="{x - width / 2:.1f}" y="{_ceiling(row)}" width="{width:.1f}" height="{HEIGHT}" rx="4"/>'
            f'<text x="{x:.1f}" y="{_ceiling(row) + 17}">{room}</text></g>'
        )
    title = f"The package normlab: {_counts(rooms)}. The list below says the same."
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{title}</title>{"".join(parts)}</svg>'


def _ceiling(row: int) -> int:
    return row * ROW + 1


def _path(points: list[tuple[float, int]]) -> str:
    """A line from the floor of the first place to the ceiling of the last, straight down through those between."""
    path = f"M{points[0][0]:.1f} {_ceiling(points[0][1]) + HEIGHT}"
    for (x, row), (next_x, next_row) in pairwise(points):
        floor, ceiling = _ceiling(row) + HEIGHT, _ceiling(next_row)
        middle = (floor + ceiling) / 2
        path += f"V{floor}C{x:.1f} {middle} {next_x:.1f} {middle} {next_x:.1f} {ceiling}"
    return path


def _counts(rooms: Rooms) -> str:
    imports = sum(map(len, rooms.values()))
    return f"{len(rooms)} rooms in {max(levels(rooms).values()) + 1} rows, {imports} imports, all of them downwards"


def _sentence(room: str, imported: set[str]) -> str:
    return f"{room} imports {', '.join(sorted(imported)) or 'no other room'}"


class House(SphinxDirective):
    """``{house}``: the picture, its counts, and the same as a list."""

    def run(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        depends.uses(self.env, "files src/normlab/**/*.py")
        rooms = read_rooms(root)
        try:
            level = levels(rooms)
        except CycleError as problem:
            raise self.error(f"imports run in a circle: {' imports '.join(reversed(problem.args[1]))}") from None
        items = "".join(f"<li>{_sentence(room, rooms[room])}</li>" for room in sorted(rooms, key=level.__getitem__))
        caption = (
            f"{_counts(rooms)}. A room imports only rooms that stand below it; lines that follow from a longer way "
            "down are left out. In color: the learner’s shelf."
        )
        html = (
            f'<figure class="house">{picture(rooms)}<figcaption>{caption}</figcaption>'
            f"<details><summary>The same as a list</summary><ul>{items}</ul></details></figure>"
        )
        return [nodes.raw("", html, format="html")]


def setup(app):
    app.add_directive("house", House)
