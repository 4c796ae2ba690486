"""Throw-away books: a sound one builds, a planted fault fails the build with a message that names it."""

import http.server
import re
import shutil
import threading
from types import SimpleNamespace

import pytest
import yaml
from bs4 import BeautifulSoup
from course import buttons
from small_book import ROOT, build, claim_output, make_book
from sphinx.errors import ExtensionError

TEXT = r"""A formula $x_1$, a claim {claim}`first`, another {claim}`second`.

$$ x = y \\ y = z $$ (eq-a)

See {eq}`eq-a`."""
HUB = "https://github.com/someone/knobs"
COLAB = "https://colab.research.google.com/github/someone/knobs/blob/colab"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A book without faults and without a remote, built; in a folder with what addresses write differently."""
    third = claim_output("third", "holds only if", only_if="it isn't even")
    folder = tmp_path_factory.mktemp("sound") / "a b #1 100% ü"
    root = make_book(folder, TEXT, [claim_output("first"), third], chapter="Everything about zebras.")
    code, said = build(root)
    assert code == 0, said
    return root


def read(root, page: str) -> str:
    return (root / "_build" / "html" / f"{page}.html").read_text(encoding="utf-8")


def test_a_sound_book_builds(sound):
    intro = read(sound, "book/intro")
    assert 'href="../notebooks/01_small.html#claim-first"' in intro
    assert '<abbr class="claim-id" title="not yet checked">second</abbr>' in intro
    assert intro.count('class="katex"') == 2 and "katex.min.css" in intro
    assert "katex.min.css" not in read(sound, "notebooks/01_small")


def test_a_condition_goes_on_after_the_verdict(sound):
    for page, name in (("notebooks/01_small", "claim-third"), ("book/claims", "ledger-third")):
        box = BeautifulSoup(read(sound, page), "html.parser").find(id=name)
        head = " ".join(box.select_one(".claim-head").text.split())
        assert head.startswith("holds only if it isn’t even third")
    box = BeautifulSoup(read(sound, "notebooks/01_small"), "html.parser").find(id="claim-third")
    assert "Said of the number." in box.find("details").text
    assert not BeautifulSoup(read(sound, "notebooks/01_small"), "html.parser").find(id="claim-first").find("details")


def test_the_script_of_the_ledger_is_on_no_other_page(sound):
    assert "claim-reveal" in read(sound, "book/claims")
    assert "claim-reveal" not in read(sound, "book/intro") + read(sound, "notebooks/01_small")


def test_a_book_in_a_folder_with_any_name_opens_and_is_searched(browser, sound):
    page, troubles = browser.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    aborted = "net::ERR_ABORTED"  # by the front door, which leads on while its icon still loads
    page.on("requestfailed", lambda request: request.failure == aborted or troubles.append(request.url))
    page.goto((sound / "_build" / "html" / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    page.keyboard.press("Control+k")
    page.locator("dialog input[type=search]").fill("zebras")
    page.keyboard.press("Enter")
    page.locator("#search-results a[href*='01_small.html']").first.click()
    page.wait_for_url("**/notebooks/01_small.html*")
    assert "zebras" in page.locator("article").inner_text() and troubles == []
    page.close()


def test_buttons_appear_with_their_addresses(sound):
    """The second build is a warm one: pages must be written anew all the same."""
    plain, without = read(sound, "notebooks/01_small"), read(sound, "book/claims")
    assert plain.count('class="course-button"') == 1 and 'href="../standalone/01_small.ipynb"' in plain
    code, said = build(sound, BOOK_REPOSITORY_URL=HUB, BOOK_COLAB_URL=COLAB)
    full, ledger = read(sound, "notebooks/01_small"), read(sound, "book/claims")
    assert code == 0, said
    assert f'href="{COLAB}/01_small.ipynb"' in full and f'href="{HUB}"' in full
    for name in ("first", "second", "third"):
        assert ledger.count(f'href="{HUB}/issues/new?title=Claim+{name}%3A+"') == 1 and "Report a mistake" not in without
    assert f'href="{HUB}"' in read(sound, "book/intro") and COLAB not in read(sound, "book/intro")


def test_a_reproducible_build_keeps_the_copyright_year(sound):
    """Sphinx would put the year of SOURCE_DATE_EPOCH, 1980 in many packaging tools, in its place."""
    code, said = build(sound, SOURCE_DATE_EPOCH="315532800")
    assert code == 0, said
    year = yaml.safe_load((sound / "_config.yml").read_text(encoding="utf-8"))["copyright"]
    assert f"© Copyright {year}." in read(sound, "book/intro")


def test_faults_in_pages_fail_the_build(tmp_path):
    text = r"Bad $\frac{1}$, bad $\nosuchcommand$, {claim}`nobody`." + "\n\n```{claim-lines}\nsomebody\n```\n"
    make_book(tmp_path, text, [claim_output(n) for n in ("first", "first", "stranger")])
    code, said = build(tmp_path)
    assert code != 0
    assert "intro.md:3: WARNING: formula: KaTeX parse error" in said
    assert r"Undefined control sequence: \nosuchcommand" in said
    assert "WARNING: claim 'nobody' is not in book/claims.yml" in said
    assert "claim 'somebody' is not in book/claims.yml" in said
    assert "WARNING: claim 'stranger' is not in book/claims.yml" in said
    assert "WARNING: claim 'first' is already settled" in said


def test_imports_in_a_circle_fail_the_build(tmp_path):
    make_book(tmp_path, "```{house}\n```")
    package = tmp_path / "src" / "normlab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from normlab import b\n")
    (package / "b.py").write_text("def f():\n    from normlab.a import g\n")
    shutil.copy(ROOT / "tools" / "imports.py", tmp_path / "tools")
    shutil.copy(ROOT / "src" / "normlab" / "files.py", package)  # builds take its lock
    code, said = build(tmp_path)
    assert code != 0
    assert re.search("imports run in a circle: (a imports b imports a|b imports a imports b)", said)


GLUED = [
    "text $$x_1$$ text", "text $$x_2$$", "$$x_3$$ text", "$$x_4$$ (eq-x) text", "text\n$$\nx_5\n$$", "- item\n  $$x_6$$",
    "> text\n> $$x_7$$", ":::{note}\ntext $$x_8$$\n:::", "## Heading $$x_9$$", "**$$x_10$$**", "an open $x_11",
    "$5, say x_12", r"costs \$5, say x_13", "from $5 to $6, say x_14", "a loose $ x_15 $ formula",
]  # fmt: skip
SOUND = [
    "text\n\n$$\ny_1\n$$\n\ntext", "text\n\n$$\ny_2\n$$ (eq-y)\n\ntext", "$$y_3$$", "- item\n\n  $$y_4$$", "$y_5$, **$y_6$**",
    "`$y_7$`", "```\n$$y_8$$\n```", ":::{note}\n$$y_9$$\n:::", "text\n\\begin{align}y_10\\end{align}",
]  # fmt: skip


def test_formulas_that_are_none_fail_the_build(tmp_path):
    make_book(tmp_path, "\n\n".join(SOUND + GLUED), chapter=f"{SOUND[0]}\n\ntext $$x_16$$")
    code, said = build(tmp_path)
    assert code != 0
    told = [line for line in said.splitlines() if "WARNING: dollar sign in the text" in line]
    for number in range(1, 16):
        assert len([line for line in told if "intro.md:" in line and re.search(rf"x_{number}\b", line)]) == 1, number
    assert len([line for line in told if "01_small.ipynb:" in line and "x_16" in line]) == 1
    assert len(told) == 16 and "y_" not in "".join(told)


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if "gone" in self.path else 200)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


def test_a_dead_address_is_found(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    web = f"http://127.0.0.1:{server.server_port}"
    make_book(tmp_path, f"[here]({web}/here), [gone]({web}/gone), {{claim}}`first`", [claim_output("first")])
    words = re.search(r"jupyter-book build \. (--builder linkcheck .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))[1]
    code, said = build(tmp_path, *words.split(" -n ")[0].split(), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    server.shutdown()
    server.server_close()
    assert code != 0 and re.findall(r"\) (ok|broken) +(\S+)", said) == [("ok", f"{web}/here"), ("broken", f"{web}/gone")], said


def test_a_failing_copy_fails_the_build(tmp_path):
    make_book(tmp_path, copies="def write_copies(root, out):\n    raise ValueError('too large')\n")
    code, said = build(tmp_path)
    assert code != 0 and "too large" in said


def test_a_missing_copy_is_an_error(tmp_path):
    make_book(tmp_path, copies="def write_copies(root, out):\n    return []\n")
    page = "notebooks/01_small"
    env = SimpleNamespace(found_docs={page}, doc2path=lambda name: f"{name}.ipynb")
    app = SimpleNamespace(srcdir=tmp_path, outdir=tmp_path, doctreedir=tmp_path, env=env, builder=SimpleNamespace(format="html"))
    with pytest.raises(ExtensionError, match="no standalone copy was made of .*01_small.ipynb"):
        buttons._write_copies(app, None)
