"""Search that finds numbers and symbols: 65504, 0.02, 1e-5, √ℓ, ε.

Sphinx cuts 0.02 into 0 and 02 and drops every whole number from what a reader asks for; a formula is indexed by its
LaTeX commands. Here a number is one word, so is a root with what it is taken of, and a command is its symbol. Index
and query are cut by the same rules, once in Python and once in `search.js`.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.search.en import SearchEnglish
from sphinx.util.index_entries import split_index_msg

WORD = re.compile(
    r"""\d{1,3}(?:,\d{3})+(?!\d|,\d)      # 65,504, which is 65504
      | \d+(?:\.\d+)+(?:e[-+−]?\d+)?      # 0.02, 3.11.2, 1.5e-8
      | \d+e[-+−]\d+                      # 1e-5
      | √\ ?[({]?\w+                      # √ℓ, √(2L), and \sqrt{2L}
      | \w+
      | [∀-∑∓-⋿±×÷→←]                     # symbols other than the minus sign
    """,
    re.VERBOSE | re.IGNORECASE,
)
COMMAND = re.compile(r"\\([A-Za-z]+)")
SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "epsilon": "ε", "eta": "η", "theta": "θ",
    "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ",
    "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ",
    "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω", "ell": "ℓ", "sqrt": "√", "partial": "∂", "nabla": "∇",
    "sum": "∑", "prod": "∏", "infty": "∞", "approx": "≈", "neq": "≠", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥",
    "pm": "±", "times": "×", "odot": "⊙", "propto": "∝", "in": "∈", "to": "→",
}  # fmt: skip
BETWEEN_BOXES = re.compile(r"(</(?:td|th|tr|p|li|div|caption|summary)>)(?=<)")


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    return [re.sub("[,({]| ", "", word) for word in WORD.findall(text)]


class SearchCourse(SearchEnglish):
    """English, with numbers and symbols."""

    js_splitter_code = Path(__file__).with_name("search.js").read_text(encoding="utf-8")

    def word_filter(self, word: str) -> bool:
        """What is stored. The stem of "one" is a word that Sphinx leaves out, and a query with "one" would find nothing."""
        return word == "on" or super().word_filter(word)

    def split(self, text: str) -> list[str]:
        """The words of a text of the book. A symbol that stands in a longer word is a word as well."""
        commands = [name for name in COMMAND.findall(text) if name in SYMBOLS]
        text = COMMAND.sub(lambda match: SYMBOLS.get(match[1], " "), text)
        found = words(text)
        inside = [part for word in found if len(word) > 1 and word[0] == "√" for part in ("√", word[1:])]
        return found + inside + commands + [SYMBOLS[name] for name in commands]


def _part_boxes(app, doctree):
    """A line break between the cells of a table, for Sphinx drops the tags: 0.98 and 1.02 would be 0.981.02."""
    for raw in doctree.findall(nodes.raw):
        if raw.get("format") == "html":
            raw[:] = [nodes.Text(BETWEEN_BOXES.sub(r"\1\n", raw.astext()))]


def _complete(app):
    """Of pages that this build did not write Sphinx forgets the index entries, and it keeps words of pages that are gone."""
    indexer, entries = app.builder.indexer, app.env.get_domain("index").entries
    for page in app.env.found_docs - set(indexer._index_entries):
        found = {
            (text, target or "", main)
            for kind, value, target, main, _ in entries.get(page, ())
            for text in split_index_msg(kind, value)
        }
        indexer._index_entries[page] = sorted(found)
    indexer._index_entries = {page: indexer._index_entries[page] for page in sorted(app.env.found_docs)}
    for words in (indexer._mapping, indexer._title_mapping):
        for word in [word for word, pages in words.items() if not pages]:
            del words[word]
    return ()


def setup(app):
    app.connect("html-collect-pages", _complete)  # the last event before the index is written
    app.add_search_language(SearchCourse)
    app.connect("doctree-read", _part_boxes)
