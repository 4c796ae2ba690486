"""Store what the drills' checker sees, names and tells apart, for the table in the book.

    python tools/drill_score.py        (a minute or two; tests/test_drills.py says whether it is current)
"""

import json
from pathlib import Path

import whole

from normlab.drills import drill, ladder
from normlab.drills.scoring import HEAD, row, score

PATH = Path(__file__).resolve().parent.parent / "book" / "drills" / "score.json"


def main() -> None:
    rows = [row(score(drill(slug))) for slugs in ladder().values() for slug in slugs]
    lines = ",\n".join(json.dumps(line) for line in [list(HEAD), *rows])
    with whole.told():
        whole.write_text(PATH, f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
