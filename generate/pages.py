"""What pages show of the program, made by `scripts/generate`: `python -m generate.pages FOLDER`."""

import re
import sys
from pathlib import Path

from click.testing import CliRunner

from generate import reference
from tessera.cli import main

__all__ = ["refreshed"]

ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "docs/inspect.md", "docs/model-server.md", "docs/walkthroughs/triton-on-mig.md")
_SHOWN = re.compile(r"^(```\n\$ tessera ([^\n]*\bexamples/[^\n]*)\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def refreshed(page: str) -> str:
    """Return a page with the present output, in 100 columns, of each command on an example."""

    def output(shown: re.Match[str]) -> str:
        result = CliRunner().invoke(main, shown[2].split(), env={"COLUMNS": "100"}, catch_exceptions=False)
        return shown[1] + "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())

    return _SHOWN.sub(output, (ROOT / page).read_text())


if __name__ == "__main__":
    for name, text in {**{name: refreshed(name) for name in _PAGES}, **reference.pages()}.items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
