"""MyST Markdown -> the plain Markdown that Colab, GitHub and JupyterLab show.

Roles become text or links, directives quotations or folded details, labelled equations get a number. What is
not known here raises ``ValueError``: a copy never shows raw markup because somebody used a new role.
"""

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path

ADMONITIONS = {
    "attention", "caution", "danger", "error", "hint", "important", "note", "seealso", "tip", "warning",
}  # fmt: skip
TITLED = {"admonition", "dropdown", "margin", "sidebar", "topic"}

_NO_BLANK_LINE = r"(?:(?!\n[ \t]*\n).)"  # inline markup ends with its paragraph
_INLINE = re.compile(
    rf"""
    \$\$(?P<display>.+?)\$\$(?:[ ]*\((?P<label>[\w:.-]+)\))?
  | \{{(?P<role>[a-zA-Z][\w:.-]*)\}}(?P<quote>`+)(?P<content>{_NO_BLANK_LINE}+?)(?P=quote)(?!`)
  | (?P<code>(?P<ticks>`+)(?!`){_NO_BLANK_LINE}+?(?<!`)(?P=ticks)(?!`))
  | (?P<math>(?<![\\$])\$(?![\s$]){_NO_BLANK_LINE}*?(?<![\s\\])\$(?!\$))
  | (?P<image>!\[[^\]]*\]\((?P<source>[^()\s]*)[^()]*\))
  | \[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<href>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)
  | (?P<target>^\([\w:.-]+\)=[ ]*(?:\n|\Z))
  | (?P<comment>^%[^\n]*(?:\n|\Z))
  | (?P<unknown>\[\^[^\]\s]+\] | ^:[ ]\S | \]\{{[^}}\n]*\}} | \{{\{{[^{{}}\n]*\}}\}})
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_EXTERNAL = re.compile(r"(https?:|mailto:|attachment:|data:)")
_FENCE = re.compile(r"(?P<indent>[ ]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,}|:{3,})[ ]*(?P<info>.*)$")
_DIRECTIVE = re.compile(r"\{(?P<name>[\w:.-]+)\}[ ]*(?P<argument>.*)$")
_OPTION = re.compile(r":(?P<key>[\w-]+):[ ]*(?P<value>.*)$")


@dataclass
class References:
    """What a page can point at: filled by `collect` for all pages, then used by `convert`."""

    titles: dict[str, str] = field(default_factory=dict)  # page or label -> title
    equations: dict[str, str] = field(default_factory=dict)  # label -> "(2)", counted page by page
    bibliography: dict[str, "Entry"] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One work of the bibliography, as far as a citation shows it."""

    authors: str
    year: str
    url: str

    def textual(self) -> str:
        return self._linked(f"{self.authors} ({self.year})")

    def parenthetical(self) -> str:
        return self._linked(f"{self.authors}, {self.year}")

    def _linked(self, text: str) -> str:
        return f"[{text}]({self.url})" if self.url else text


def read_bibliography(path: Path) -> dict[str, Entry]:
    """The entries of a BibTeX file by key."""
    from pybtex.database import parse_file  # comes with the book's bibliography extension

    return {key: _entry(record) for key, record in parse_file(str(path)).entries.items()}


def _entry(record) -> Entry:
    names = [" ".join(map(_plain, person.prelast_names + person.last_names))
             for person in record.persons.get("author") or record.persons.get("editor", [])]  # fmt: skip
    if len(names) > 2 or names[-1:] == ["others"]:
        authors = f"{names[0]} et al."
    else:
        authors = " and ".join(names) or _plain(record.fields.get("title", record.key))
    fields = record.fields
    url = fields.get("url", "")
    if "doi" in fields:
        url = f"https://doi.org/{fields['doi']}"
    elif "eprint" in fields:
        url = f"https://arxiv.org/abs/{fields['eprint']}"
    return Entry(authors, fields.get("year", "undated"), url)


def _plain(latex: str) -> str:
    from pybtex.richtext import Text

    return str(Text.from_latex(latex))


def collect(page: str, text: str, references: References) -> None:
    """Enter the title, labels and equation numbers of ``page`` (its path without suffix) into ``references``."""
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    references.titles[page] = title[1].strip() if title else page
    for label, heading in re.findall(r"^\(([\w:.-]+)\)=[ ]*\n+(?:#+ +(.+))?", text, re.MULTILINE):
        references.titles[label] = heading.strip() or references.titles[page]
    labels = re.findall(r"\$\$ *\(([\w:.-]+)\)|^:label: *(\S+)", text, re.MULTILINE)
    for number, (dollar, option) in enumerate(labels, start=1):
        references.equations[dollar or option] = f"({number})"


def convert(text: str, page: str, references: References) -> str:
    """The plain Markdown of ``text``, a cell or a file of ``page``."""
    return _Converter(page, references).blocks(text)


class _Converter:
    def __init__(self, page: str, references: References):
        self.page = page
        self.references = references

    # --- blocks ---------------------------------------------------------------------------------

    def blocks(self, text: str) -> str:
        """Convert fences one by one and the text between them as a whole (inline markup may span lines)."""
        parts, plain, lines = [], [], text.split("\n")
        while lines:
            line = lines.pop(0)
            opening = _FENCE.match(line)
            if not opening:
                plain.append(line)
                continue
            body = self._take_body(lines, opening["fence"], line)
            parts += [self.inline("\n".join(plain))] if plain else []
            plain = []
            converted = self._fence(line, opening, body)
            parts.append("\n".join(opening["indent"] + row if row else row for row in converted.split("\n")))
        parts += [self.inline("\n".join(plain))] if plain else []
        return "\n".join(parts)

    @staticmethod
    def _take_body(lines: list[str], fence: str, opening: str) -> list[str]:
        """Remove and return the lines up to the closing fence, which is removed as well."""
        body = []
        while lines:
            line = lines.pop(0)
            if line.strip().startswith(fence) and set(line.strip()) == {fence[0]}:
                return body
            body.append(line)
        raise ValueError(f"no end of the block {opening.strip()!r}")

    def _fence(self, line: str, opening: re.Match, body: list[str]) -> str:
        indent, fence = opening["indent"], opening["fence"]
        body = [row.removeprefix(indent) for row in body]
        directive = _DIRECTIVE.match(opening["info"].strip())
        if directive:
            return self._directive(directive["name"], directive["argument"].strip(), body)
        if fence[0] == ":":
            raise ValueError(f"a colon block without a directive: {line.strip()!r}")
        return "\n".join([line.strip(), *body, fence])

    def _directive(self, name: str, argument: str, body: list[str]) -> str:
        options = {}
        while body and (option := _OPTION.match(body[0])):
            options[option["key"]] = option["value"]
            body = body[1:]
        if body and body[0].strip() == "---":
            raise ValueError(f"{{{name}}}: write options as :key: value, not between --- lines")
        text = "\n".join(body).strip("\n")
        if name == "math":
            body = f"{argument}\n{text}".strip()
            return self._display(f"\n{body}\n", options.get("label"))
        if name in ("code", "code-block", "sourcecode"):
            return f"```{argument}\n{text}\n```"
        if name == "table":
            return f"**{self.inline(argument)}**\n\n{self.blocks(text)}" if argument else self.blocks(text)
        if name == "epigraph":
            return _quoted(self.blocks(text))
        if name in ADMONITIONS or name in TITLED:
            return self._box(name, argument, options, text)
        raise ValueError(f"unknown directive {{{name}}}")

    def _box(self, name: str, argument: str, options: dict[str, str], text: str) -> str:
        """An admonition as a quotation, a drop-down as folded details."""
        if name in ADMONITIONS:  # its first line may stand beside the name
            title, text = name.capitalize().replace("Seealso", "See also"), f"{argument}\n{text}".strip("\n")
        else:
            title = self.inline(argument)
        body = self.blocks(text)
        if name == "dropdown" or "dropdown" in options.get("class", "").split():
            opening = "<details open>" if "open" in options else "<details>"
            return f"{opening}\n<summary>{_as_html(title) or 'Details'}</summary>\n\n{body}\n\n</details>"
        return _quoted(f"**{title}**\n\n{body}" if title else body)

    # --- inline ---------------------------------------------------------------------------------

    def inline(self, text: str) -> str:
        return _INLINE.sub(self._token, text)

    def _token(self, match: re.Match) -> str:
        if match["display"]:
            return self._display(match["display"], match["label"])
        if match["role"]:
            return self._role(match["role"], " ".join(match["content"].split()))
        if match["target"] or match["comment"]:
            return ""
        if match["image"]:
            if not _EXTERNAL.match(match["source"]):
                raise ValueError(f"a copy cannot carry the picture {match['source']!r}")
            return match[0]
        if match["href"] is not None:
            return self._link(match["text"], match["href"])
        if match["unknown"]:
            raise ValueError(f"not converted (footnote, definition list, attributes, substitution): {match[0]!r}")
        return match[0]  # code and inline mathematics

    def _display(self, body: str, label: str | None) -> str:
        """A display equation; what MyST writes after it as a label becomes its number."""
        if not label:
            return f"$${body}$$"
        tag = rf"\tag{{{self._equation(label)[1:-1]}}}"
        return f"$${body.rstrip()} {tag}$$" if "\n" not in body else f"$${body.rstrip()} {tag}\n$$"

    def _equation(self, label: str) -> str:
        try:
            return self.references.equations[label]
        except KeyError:
            raise ValueError(f"unknown equation {label!r}") from None

    def _title(self, target: str) -> str:
        try:
            return self.inline(self.references.titles[target])
        except KeyError:
            raise ValueError(f"unknown page or label {target!r}") from None

    def _link(self, text: str, href: str) -> str:
        """External links stay; one to another page of the book becomes its text, or the title it points at."""
        text = self.inline(text)
        if _EXTERNAL.match(href):
            return f"[{text}]({href})"
        if text:
            return text
        path, _, anchor = href.partition("#")
        if anchor:
            return f"*{self._title(anchor)}*"
        return f"*{self._title(self._page_of(path))}*"

    def _page_of(self, path: str) -> str:
        """The page that a link of this page means: ../book/intro.md -> book/intro."""
        page = posixpath.normpath(posixpath.join("/", posixpath.dirname(self.page), path))
        return re.sub(r"\.(md|ipynb)$", "", page.lstrip("/"))

    def _role(self, name: str, content: str) -> str:
        titled = re.fullmatch(r"(?P<text>.+?) *<(?P<target>[^<>]+)>", content)
        text, target = (titled["text"], titled["target"]) if titled else ("", content)
        if name.startswith("cite"):
            return self._citation(name, content)
        if name == "term":
            return text or content
        if name == "claim":
            return f"`{content}`"
        if name == "eq":
            return self._equation(content)
        if name == "math":
            return f"${content}$"
        if name in ("ref", "numref", "doc"):
            return text or f"*{self._title(self._page_of(target) if name == 'doc' else target)}*"
        if name == "abbr":
            return re.sub(r"^(.+?) *\(.+\)$", r"\1", content)
        if name in ("sub", "sup", "kbd"):
            return f"<{name}>{content}</{name}>"
        if name in ("code", "literal"):
            return f"`{content}`"
        raise ValueError(f"unknown role {{{name}}}")

    def _citation(self, role: str, keys: str) -> str:
        try:
            entries = [self.references.bibliography[key.strip()] for key in keys.split(",")]
        except KeyError as missing:
            raise ValueError(f"{missing} is not in the bibliography") from None
        if role in ("cite:t", "cite:ts", "cite:ct"):
            return ", ".join(entry.textual() for entry in entries)
        if role in ("cite", "cite:p", "cite:ps"):
            return f"({'; '.join(entry.parenthetical() for entry in entries)})"
        raise ValueError(f"unknown role {{{role}}}")


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _as_html(title: str) -> str:
    """A title inside <summary>, where Markdown is not read: code and emphasis as tags."""
    title = re.sub(r"`+(.+?)`+", r"<code>\1</code>", title)
    return re.sub(r"\*+(.+?)\*+", r"<em>\1</em>", title)
