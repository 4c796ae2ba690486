"""The built book as one file to hand on: a zip that unpacks to a folder whose index.html opens from the disk.

    python tools/offline.py _build/two-knobs-offline.zip

The same pages give the same bytes. Needs the built book, and only Python itself.
"""

import io
import sys
import zipfile
from pathlib import Path

import whole

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "two-knobs"
OWN_NOTES = {".buildinfo", "objects.inv"}  # for Sphinx, not for readers


def write(site: Path, target: Path) -> None:
    """Pack the pages below ``site``. Raises FileNotFoundError if there are none."""
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"there is no built book in {site}: run `make book`")
    whole.check_writable(target)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for path in sorted(path for path in site.rglob("*") if path.is_file() and path.name not in OWN_NOTES):
            entry = zipfile.ZipInfo(f"{FOLDER}/{path.relative_to(site).as_posix()}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    whole.write(target, content.getvalue())


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "_build" / "two-knobs-offline.zip")
    with whole.told():
        write(ROOT / "_build" / "html", target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
