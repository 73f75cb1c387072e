"""What `mkdocs.yml` calls for each page of the site."""

import posixpath
import re
from typing import Any

__all__ = ["on_page_markdown"]

_LINK = re.compile(r"\[([^]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page in which links to files of the repository outside of docs/ are their words alone."""

    def inside(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[2]))
        return match[1] if target.startswith("..") else match[0]

    return _LINK.sub(inside, markdown)
