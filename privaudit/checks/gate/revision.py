"""The code's revision, where the working directory lies in a checkout of git."""

import subprocess

_SECONDS = 60.0


def _git(*words: str) -> bytes | None:
    """Return what git says here; None where there is no git, or it finds nothing."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def revision_of(name: str = "HEAD") -> str | None:
    """Return the commit that a name stands for; None where nobody knows."""
    if name.startswith("-"):  # an option, and no name
        return None
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return None if found is None else found.decode().strip()


def file_at(name: str, path: str) -> bytes | None:
    """Return a file as a revision has it, empty where that has none.

    None where there is no such revision. The path is relative to the working directory.
    """
    revision = revision_of(name)
    if revision is None:
        return None
    return _git("cat-file", "blob", f"{revision}:./{path}") or b""


def commits_since(revision: str) -> int | None:
    """Return how many commits HEAD has that a revision does not lead to.

    None where nobody knows: without git, or in a shallow checkout that lacks it.

    Raises:
        LookupError: HEAD does not come from that revision.
    """
    shallow = _git("rev-parse", "--is-shallow-repository")
    if shallow is None or revision_of() is None:
        return None
    if (
        revision_of(revision) is None
        or _git("merge-base", "--is-ancestor", revision, "HEAD") is None
    ):
        if shallow.strip() == b"true":
            return None
        raise LookupError(revision)
    return commits_lacking(revision, "HEAD")


def commits_lacking(revision: str, tip: str) -> int | None:
    """Return how many commits a branch has that a revision does not lead to.

    None where nobody knows: there is no such revision, or no such branch.
    """
    known, newest = revision_of(revision), revision_of(tip)
    if known is None or newest is None:
        return None
    return int(_git("rev-list", "--count", f"{known}..{newest}") or 0)
