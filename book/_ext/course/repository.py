"""Where the sources of this book live on the web.

Nothing is hard-coded, so that a fork's buttons point at the fork. Without a web address there is
none, and pages show no button rather than a dead one.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

COLAB = "https://colab.research.google.com/github"
COLAB_BRANCH = "colab"
TIMEOUT = 5  # seconds for the one question we ask over the network


@dataclass(frozen=True)
class Repository:
    """``url`` of the repository; ``colab``, the address under which Colab opens NAME.ipynb."""

    url: str | None
    colab: str | None


def web_address(remote: str) -> str | None:
    """The https address of a git remote without credentials, or None if it is not on the web.

    >>> web_address("git@example.org:group/book.git")
    'https://example.org/group/book'
    """
    patterns = (
        r"(?:https?|git|ssh)://(?:[^@/]*@)?(?P<host>[\w.-]+)(?::\d+)?/(?P<path>.+)",
        r"[\w.-]+@(?P<host>[\w.-]+):(?P<path>[^/].*)",  # git@host:path
    )
    for pattern in patterns:
        match = re.fullmatch(pattern, remote.strip())
        if match:
            path = match["path"].split("?")[0].rstrip("/").removesuffix(".git")
            return f"https://{match['host']}/{path}"
    return None


def _git(root: Path, *arguments: str) -> str:
    """The output of a git command in ``root``, or "" if it fails, hangs or there is no git."""
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=environment, capture_output=True, text=True,
            timeout=TIMEOUT, stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _remote(root: Path) -> str:
    """The address of origin as it is written in the repository's own configuration."""
    if not (root / ".git").exists():  # an unpacked archive may lie inside another repository
        return ""
    return _git(root, "config", "--get", "remote.origin.url")


def _has_colab_branch(root: Path, url: str) -> bool:
    """Whether the branch that holds the standalone copies is at the origin."""
    if _git(root, "rev-parse", "--verify", "--quiet", f"refs/remotes/origin/{COLAB_BRANCH}"):
        return True
    where = "origin" if _remote(root) else url
    return bool(_git(root, "ls-remote", "--heads", where, f"refs/heads/{COLAB_BRANCH}"))


def find(root: Path) -> Repository:
    """The repository from the environment, else from git.

    ``BOOK_REPOSITORY_URL`` comes first, then what GitHub's runners set, then the remote origin.
    ``BOOK_COLAB_URL`` says where Colab finds the standalone copies, branch or not.
    """
    env = os.environ
    stated = env.get("BOOK_REPOSITORY_URL")
    if not stated and env.get("GITHUB_REPOSITORY"):
        stated = f"{env.get('GITHUB_SERVER_URL', 'https://github.com')}/{env['GITHUB_REPOSITORY']}"
    url = web_address(stated or _remote(root))

    colab = env.get("BOOK_COLAB_URL", "").rstrip("/") or None
    github = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", url or "")
    if colab is None and github and _has_colab_branch(root, url):
        colab = f"{COLAB}/{github[1]}/blob/{COLAB_BRANCH}"
    return Repository(url, colab)
