"""The site: what its pages link to is in it."""

from pathlib import Path

import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
PAGE = """
[a file](../../examples/11-prometheus/prometheus.yaml), [its line](../../examples/11-prometheus/prometheus.yaml#L3),
[a folder](../../examples), [a page outside](../../CHANGELOG.md), [a page](../index.md#top)
"""


def test_a_link_to_a_file_of_the_repository_leads_to_its_copy_and_other_links_there_are_words(tmp_path: Path) -> None:
    (tmp_path / "docs" / "walkthroughs").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text("# Top\n")
    (tmp_path / "docs" / "walkthroughs" / "a.md").write_text(PAGE)
    hook = str(ROOT / "generate" / "site.py")
    written = {"site_name": "S", "use_directory_urls": False, "plugins": [], "hooks": [hook], "theme": "mkdocs"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(written))
    build(load_config(str(tmp_path / "mkdocs.yml"), strict=True))
    shown = (tmp_path / "site" / "walkthroughs" / "a.html").read_text()
    copy = "repository/examples/11-prometheus/prometheus.yaml"
    assert shown.count(f'href="../{copy}"') == 2
    assert (tmp_path / "site" / copy).read_text() == (ROOT / copy.removeprefix("repository/")).read_text()
    assert "a folder, a page outside, <a " in " ".join(shown.split())
    assert 'href="../index.html#top"' in shown
