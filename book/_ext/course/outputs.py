"""Notebook outputs next to the nodes that myst-nb made of them.

myst-nb drops what it does not know: the alt text and the panels in a figure's output metadata, and the claims'
own data type. The notebook file still has them, and outputs and nodes come in the same order.

Printed sentences are marked: their lines wrap on a narrow page, those of code and of aligned columns do not.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx.errors import ExtensionError

from . import claims, tools


class picture(nodes.General, nodes.Element):
    """An image of which a phone is shown another version: its panels under one another."""


ALIGNED = re.compile(r"\S {2,}\S|^(?:def|class) ", re.MULTILINE)


def _mark_prose(doctree):
    for text in doctree.findall(nodes.literal_block):
        if "output" in text["classes"] and not ALIGNED.search(text.astext()):
            text["classes"].append("is-prose")


def _bundles(node: nodes.Node) -> list[nodes.container]:
    return [n for n in node.findall(nodes.container) if n.get("nb_element") == "mime_bundle"]


def _paired(doctree, notebook: dict) -> Iterator[tuple[dict, nodes.container]]:
    """Each display output of the notebook with the node that shows it."""
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        outputs = notebook["cells"][cell["cell_index"]]["outputs"]
        shown = [o for o in outputs if o["output_type"] in ("display_data", "execute_result")]
        bundles = _bundles(cell)
        if bundles and len(bundles) != len(shown):
            raise ExtensionError(f"cell {cell['cell_index']}: {len(shown)} outputs, {len(bundles)} nodes")
        yield from zip(shown, bundles)


def _use_outputs(app, doctree):
    """Copy alt texts to images and turn claims into boxes with sentence and verdict."""
    path = app.env.doc2path(app.env.docname)
    if not path.endswith(".ipynb"):
        return
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    _mark_prose(doctree)
    for output, bundle in list(_paired(doctree, notebook)):
        if claims.MIME in output["data"]:
            bundle.replace_self(claims.claim_box(app, output["data"][claims.MIME]))
        about = output.get("metadata", {}).get("normlab", {})
        for image in list(bundle.findall(nodes.image)) if about else ():
            image["alt"] = about["alt"]
            if "panels" in about:
                both = picture(panels=about["panels"])
                image.replace_self(both)
                both += image


def _open_picture(translator, node):
    """Write the other version beside the image."""
    builder, image = translator.builder, node[0]
    panels = tools.package(Path(builder.srcdir), "page.panels")
    name = f"{Path(builder.images[image['uri']]).stem}-narrow.svg"
    svg = Path(builder.srcdir, image["uri"]).read_text(encoding="utf-8")
    file = Path(builder.outdir, builder.imagedir, name)
    file.parent.mkdir(exist_ok=True)
    file.write_text(panels.stacked(svg, node["panels"]), encoding="utf-8")
    address = posixpath.join(builder.imgpath, quote(name))
    translator.body.append(f'<picture><source media="{panels.NARROW}" srcset="{address}">')


def _close_picture(translator, node):
    translator.body.append("</picture>")


def setup(app):
    app.add_node(picture, html=(_open_picture, _close_picture))
    app.connect("doctree-read", _use_outputs)
