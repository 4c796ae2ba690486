"""The content security policy of the built pages: the book's own scripts run and no other."""

import re

import pytest
from course import policy
from pages import KINDS
from some import third

PLACE = re.compile(r"<head>\s*<meta charset=[^>]*>\s*<meta http-equiv=\"Content-Security-Policy\" content=\"([^\"]*)\">")


def test_every_page_begins_with_its_policy(html):
    pages = [path for path in html.rglob("*.html") if "_static" not in path.parts]  # the theme's templates
    assert len(pages) > len(KINDS)
    for path in pages:
        page = path.read_text(encoding="utf-8")
        found = PLACE.search(page)
        assert found and found[1] == policy.policy(page), path
        assert "unsafe-eval" not in found[1] and "http:" not in found[1] and "https:" not in found[1], path
        assert not re.search(r"<[a-z][^>]*\son[a-z]+=", page), f"{path}: a handler in a tag, which the policy refuses"


ATTEMPTS = {
    "inline": "<script>window.injected = true</script>",
    "handler": "<img src='data:,' alt='' onerror='window.injected = true'>",
    "foreign": "<script src='http://127.0.0.1:9/a.js'></script>",
    "address": "<script src='data:text/javascript,window.injected = true'></script>",
}


@pytest.mark.parametrize("name", ["book/intro", "search"])
@pytest.mark.parametrize("attempt", third(ATTEMPTS))
def test_what_is_injected_is_refused(browser, html, tmp_path, name, attempt):
    """Each would run without the policy, but for the foreign address, which nobody serves: it is not even asked."""
    page = (html / f"{name}.html").read_text(encoding="utf-8").replace("</main>", f"{ATTEMPTS[attempt]}</main>")
    assert ATTEMPTS[attempt] in page
    ran, refused = [], []
    for text in (page, policy.OLD.sub("", page)):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        tab, said = browser.new_page(), []
        tab.on("console", lambda message: said.append(message.text))
        tab.goto((tmp_path / "page.html").as_uri(), wait_until="load")
        ran.append(tab.evaluate("window.injected === true"))
        refused.append(any("Content Security Policy" in line for line in said))
        tab.close()
    assert ran == [False, attempt != "foreign"] and refused[1] is False
    assert refused[0] is True


def test_a_script_is_what_a_browser_runs():
    page = """<head><meta charset="utf-8"><script>a</script><script type="application/json">{}</script>
        <script data-x="1" type="module">b</script><script src="c.js"></script></head>"""
    assert policy.hashes(page) == policy.hashes("<script>a</script><script>b</script>") and len(policy.hashes(page)) == 2
    once = policy.secured(page)
    assert policy.secured(once) == once
    assert policy.secured(once.replace("<script>a", "<script>A")) != once
    with pytest.raises(ValueError, match="character set"):
        policy.secured("<html></html>")
