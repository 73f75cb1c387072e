"""What `mkdocs.yml` calls for each page of the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

__all__ = ["on_files", "on_page_markdown"]

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")
_FOLDER = "repository"
"""The folder of the site with files of the repository."""


def on_files(files: Any, *, config: Any) -> Any:
    """Add the files of the repository outside of docs/ that pages link to."""
    for page in files.documentation_pages():
        text = Path(page.abs_src_path).read_text()
        for linked in {_outside(page.src_uri, each[2]) for each in _LINK.finditer(text)} - {""}:
            uri = f"{_FOLDER}/{linked}"
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(_ROOT / linked)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page whose links to files outside of docs/ lead to the site's copies; other links there are words."""
    source = page.file.src_uri

    def inside(match: re.Match[str]) -> str:
        if not posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2])).startswith(".."):
            return match[0]
        linked = _outside(source, match[2])
        return (
            f"[{match[1]}]({posixpath.relpath(f'{_FOLDER}/{linked}', posixpath.dirname(source))})"
            if linked
            else match[1]
        )

    return _LINK.sub(inside, markdown)


def _outside(source: str, link: str) -> str:
    """Return the path in the repository of a file outside of docs/; empty for folders, pages, and what is in docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), link))
    return "" if path.startswith("docs/") or path.endswith(".md") or not (_ROOT / path).is_file() else path
