"""Nothing tells anybody to install privaudit by a name that is nobody's on the index."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.places import ROOT

FILES = sorted(
    path
    for pattern in ("*.md", "docs/**/*", "ci/*", ".ci/*", ".github/**/*", "privaudit/**/*.py")
    for path in ROOT.glob(pattern)
    if path.suffix in (".md", ".yml", ".yaml", ".py", ".toml", ".sh", ".txt", "")
    and path.is_file()
)  # fmt: skip
INSTALLS = re.compile(
    r"(?:pip3?|pipx|uv pip|uv tool|poetry) (?:install|download|add|run)\b.*"
)
BARE = re.compile(
    r"(?<![\w./-])privaudit(?:\[[\w,-]+\])?(?=$|[\s\"'`)=<>~!,;.])(?! @ git\+https://)"
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = "privaudit @ git+https://github.com/privaudit/privaudit@"


def bare_names(text: str) -> list[str]:
    """Return the lines that install the package by its name alone."""
    found = (line[0] for line in INSTALLS.finditer(text))
    return [line for line in found if BARE.search(line.partition("#")[0])]


def test_no_page_job_or_error_installs_the_bare_name() -> None:
    assert len(FILES) > 500
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in FILES
        if (lines := bare_names(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "    pip install privaudit",
        "pip install privaudit==0.1.0",
        "`python -m pip install 'privaudit[serve]'`",
        'pip install torch "privaudit[ray,hf]"',
        "pip install --upgrade privaudit    # a comment",
        "pip install privaudit. Then",
    ],
)
def test_a_bare_name_is_found(line: str) -> None:
    assert bare_names(line)


def test_a_clone_a_commit_and_a_wheel_are_none() -> None:
    for what in (
        "./privaudit",
        "'./privaudit[serve]'",
        f'"{GIT}{COMMIT}"',
        "dist/privaudit-0.1.0-py3-none-any.whl",
        "'pyarrow>=17'  # as privaudit says",
    ):
        assert not bare_names(f"pip install {what}"), what


def guard_of(name: str) -> str:
    """Return the line of a CI file that looks at what is to be installed."""
    content = yaml.safe_load((ROOT / "ci" / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        return str(content[".privaudit"]["before_script"][0])
    return str(content["runs"]["steps"][1]["run"].splitlines()[0])


@pytest.mark.parametrize("name", ["action.yml", "gitlab.yml"])
def test_a_job_refuses_whatever_is_neither_a_wheel_nor_a_whole_commit(
    name: str, tmp_path: Path
) -> None:
    """The very line of the file, in a shell."""

    def passes(package: str) -> bool:
        given = {"PACKAGE": package, "PRIVAUDIT_PACKAGE": package}
        line = ["bash", "-c", guard_of(name)]
        done = subprocess.run(
            line, env=given, cwd=tmp_path, capture_output=True, check=False
        )
        return done.returncode == 0

    assert passes("dist/privaudit-0.1.0-py3-none-any.whl")
    assert passes(f"{GIT}{COMMIT}")
    bad = (
        "",
        "privaudit",
        "privaudit==0.1.0",
        GIT,
        f"{GIT}main",
        f"{GIT}{COMMIT[:12]}",
    )
    assert not any(map(passes, bad))
