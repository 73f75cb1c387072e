"""What the documentation points at is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")))
LINK = re.compile(r"\[[^]]*\]\(([^)#]*)(?:#([^)]*))?\)")


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


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in records if f"]({name})" not in index] == []
    assert [name[:4] for name in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
