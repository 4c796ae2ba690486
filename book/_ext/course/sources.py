"""What a claim's sources are called on the pages.

In `book/claims.yml` a section of one of the two articles that the course mirrors is a short code such as ``000-A``;
readers see the name below. Everything else is a key of the bibliography, or ``course`` for a claim that we added.
"""

ARTICLES = {"000": "the long article", "003": "the interview article"}
SECTIONS = {
    "000-intro": "opening",
    "000-A": "the trunk",
    "000-B": "LayerNorm",
    "000-C": "RMSNorm",
    "000-D": "placement",
    "000-E": "closing",
    "000-R": "references",
    "003-简": "short answer",
    "003-详": "detailed answer",
    "003-一": "why normalize",
    "003-二": "why not BatchNorm",
    "003-三": "RMSNorm",
    "003-四": "placement",
    "003-五": "today's models",
    "003-六": "a worked example",
    "003-七": "mistakes and follow-ups",
    "003-八": "memory aids",
}

READ = {"paper": "read in the paper itself", "abstract": "read in the abstract only", "second hand": "read second hand"}


def is_work(source: str) -> bool:
    """Whether the source is a work of the bibliography."""
    return source != "course" and source not in SECTIONS


def cited(sources: list[str]) -> str:
    """The works among the sources, as citations in Markdown."""
    return ", ".join(f"{{cite:t}}`{source}`" for source in sources if is_work(source))


def reported_by(sources: list[str], read: str | dict[str, str]) -> str:
    """The works with how we read them: one word for all, or one for each."""
    if isinstance(read, str):
        works = [source for source in sources if is_work(source)]
        return f"{cited(works)}, {'each ' if len(works) > 1 else ''}{READ[read]}"
    return "; ".join(f"{cited([work])}, {READ[how]}" for work, how in read.items())


def named(sources: list[str]) -> str:
    """The rest: the articles with their sections, or that the claim is ours."""
    parts = []
    for article, name in ARTICLES.items():
        sections = [SECTIONS[source] for source in sources if source in SECTIONS and source.startswith(article)]
        if sections:
            parts.append(f"{name} ({', '.join(sections)})")
    if "course" in sources:
        parts.append("added by this course")
    return "; ".join(parts)
