"""Launch and repository buttons: from git and the environment, and none rather than a dead one."""

import subprocess

import pytest
from course.claims import errata_address
from course.repository import find, web_address
from small_book import git

HUB = "https://github.com/someone/knobs"
COLAB = "https://colab.research.google.com/github/someone/knobs/blob/colab"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("BOOK_REPOSITORY_URL", "BOOK_COLAB_URL", "GITHUB_REPOSITORY", "GITHUB_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clone(tmp_path):
    """A repository whose origin has a web address that git looks up in a folder beside it."""
    origin, work = tmp_path / "origin.git", tmp_path / "work"
    work.mkdir()
    git(tmp_path, "init", "--bare", str(origin))
    git(work, "init")
    git(work, "commit", "--allow-empty", "-m", "first")
    git(work, "config", f"url.{origin.as_uri()}.insteadOf", f"{HUB}.git")
    git(work, "remote", "add", "origin", f"{HUB}.git")
    git(work, "push", "origin", "HEAD:refs/heads/main")
    return work


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@github.com:someone/knobs.git", HUB),
        ("https://github.com/someone/knobs", HUB),
        ("https://github.com/someone/knobs.git/", HUB),
        ("https://x-access-token:SECRET@github.com/someone/knobs.git", HUB),
        ("ssh://git@gitlab.example.org:2222/group/sub/knobs.git", "https://gitlab.example.org/group/sub/knobs"),
        ("http://user@example.org/knobs?token=SECRET", "https://example.org/knobs"),
        ("/srv/git/knobs.git", None),
        ("file:///srv/git/knobs.git", None),
        ("../knobs", None),
        ("C:\\books\\knobs", None),
        ("", None),
    ],
)
def test_web_address_drops_credentials_and_refuses_folders(remote, address):
    assert web_address(remote) == address


@pytest.mark.parametrize(
    ("repository", "address"),
    [
        (HUB, f"{HUB}/issues/new?title=Claim+a-1.5%3A+"),
        ("https://codeberg.org/a/b", "https://codeberg.org/a/b/issues/new?title=Claim+a-1.5%3A+"),
        ("https://gitlab.example.org/a/b", "https://gitlab.example.org/a/b/-/issues/new?issue%5Btitle%5D=Claim+a-1.5%3A+"),
    ],
)
def test_a_mistake_is_reported_where_the_forge_takes_it(repository, address):
    assert errata_address(repository, "a-1.5") == address


def test_nothing_without_git(tmp_path):
    assert find(tmp_path) == find(tmp_path / ".") and find(tmp_path).url is None and find(tmp_path).colab is None


def test_nothing_with_git_but_no_remote(tmp_path):
    git(tmp_path, "init")
    assert find(tmp_path).url is None and find(tmp_path).colab is None


def test_an_archive_inside_another_repository_does_not_use_its_remote(clone):
    (clone / "unpacked").mkdir()
    assert find(clone / "unpacked").url is None


def test_no_colab_button_without_the_branch(clone):
    assert find(clone).url == HUB and find(clone).colab is None


def test_colab_button_once_the_branch_is_at_the_origin(clone):
    git(clone, "push", "origin", "HEAD:refs/heads/colab")
    git(clone, "update-ref", "-d", "refs/remotes/origin/colab")  # only the origin knows
    assert find(clone).colab == COLAB


def test_colab_button_from_a_tracking_branch_needs_no_network(clone):
    git(clone, "config", "--remove-section", f"url.{(clone.parent / 'origin.git').as_uri()}")
    git(clone, "update-ref", "refs/remotes/origin/colab", "HEAD")
    assert find(clone).colab == COLAB


def test_the_environment_comes_first(clone, monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", "other/fork")
    assert find(clone).url == "https://github.com/other/fork"
    monkeypatch.setenv("BOOK_REPOSITORY_URL", "https://user:SECRET@git.example.org/book.git")
    monkeypatch.setenv("BOOK_COLAB_URL", COLAB + "/")
    assert find(clone).url == "https://git.example.org/book" and find(clone).colab == COLAB


def test_a_hanging_or_missing_git_is_no_error(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()

    def hang(*arguments, **options):
        raise subprocess.TimeoutExpired("git", 5)

    monkeypatch.setattr(subprocess, "run", hang)
    assert find(tmp_path).url is None
