"""What the documentation points at is there, and the commands it shows on the examples work."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")))
LINK = re.compile(r"\[[^]]*\]\(([^)#]*)(?:#([^)]*))?\)")

COMMAND = re.compile(
    r"^[ #$]*(?:\.venv/bin/)?tessera (.*\bexamples/.*?|simulate synthetic.*?)(?: +#.*)?$", re.MULTILINE
)
SHOWN = sorted(
    {
        command
        for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("examples", "**/*.*"), ("src/tessera/cli", "*.py"))
        for path in (ROOT / folder).glob(pattern)
        for command in COMMAND.findall(path.read_text())
    }
)


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be reached."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for target, anchor in LINK.findall((ROOT / page).read_text()):
        if "://" in target:
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []


def test_pages_that_the_source_names_are_there() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("bench/*.py"), *ROOT.glob("scripts/*"), ROOT / "pyproject.toml"]
    named = {
        page
        for path in sources
        for page in re.findall(r"(?<![\w/])docs/(?:decisions/)?[a-z0-9-]+\.md", path.read_text())
    }
    assert sorted(page for page in named if not (ROOT / page).exists()) == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in records if f"]({name})" not in index] == []
    # A number may be missing while the change that took it has not landed yet.
    assert len({name[:4] for name in records}) == len(records), "each number once"


def test_commands_are_found() -> None:
    assert len(SHOWN) >= 8


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_shown_on_an_example_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0, result.stderr
