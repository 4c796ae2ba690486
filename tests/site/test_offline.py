"""The book as one file: what is unpacked is the site, and it opens from the disk."""

import zipfile

import offline
import pytest


@pytest.fixture(scope="module")
def packed(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "book.zip"
    offline.write(html, path)
    return path


def test_the_zip_holds_the_site_and_is_made_alike(html, packed, tmp_path):
    site = {p.relative_to(html).as_posix(): p.stat().st_size for p in html.rglob("*") if p.is_file()}
    with zipfile.ZipFile(packed) as found:
        sizes = {entry.filename: entry.file_size for entry in found.infolist()}
        assert found.testzip() is None
    assert sizes == {f"{offline.FOLDER}/{name}": size for name, size in site.items() if name not in offline.OWN_NOTES}
    offline.write(html, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "again.zip"]


def test_what_is_unpacked_opens_from_the_disk(packed, browser, tmp_path):
    with zipfile.ZipFile(packed) as found:
        found.extractall(tmp_path)
    page, troubles = browser.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto((tmp_path / offline.FOLDER / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    page.goto((tmp_path / offline.FOLDER / "notebooks" / "03_layernorm.html").as_uri())
    assert page.locator("article .katex").count() > 10 and page.locator("article img").count() > 2 and troubles == []
    page.close()


def test_without_a_book_there_is_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no built book in .*: run `make book`"):
        offline.write(tmp_path, tmp_path / "book.zip")
