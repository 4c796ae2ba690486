"""A page as a reader opens it, and everything that goes wrong on it."""

import re

DESKTOP = {"width": 1280, "height": 900}
VISIBLE = "parts => parts.filter(part => part.checkVisibility()).map(part => part.id)"


class Visit:
    """A page opened with an empty cache, and everything that went wrong."""

    def __init__(self, browser, context=None, **options):
        self.context = context or browser.new_context(**{"viewport": DESKTOP, "color_scheme": "light"} | options)
        self.page = self.context.new_page()
        self.troubles, self.responses = [], []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("requestfailed", lambda request: self.troubles.append(f"failed: {request.url}"))
        self.page.on("request", self._request)
        self.page.on("response", lambda response: self.responses.append(response))

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.text}")

    def _request(self, request):
        if not re.match(r"(file:///|data:|blob:|http://127\.0\.0\.1[:/])", request.url):
            self.troubles.append(f"foreign: {request.url}")

    def open(self, address: str):
        self.page.goto(address, wait_until="load")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


def visible_text(page) -> str:
    """The text of the article without code and without KaTeX's hidden copy of the source."""
    return page.evaluate("""() => {
        const copy = document.querySelector("article").cloneNode(true);
        copy.querySelectorAll("pre, code, .katex-mathml, script").forEach(part => part.remove());
        return copy.textContent;
    }""")


def background(page) -> list[int]:
    return page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
