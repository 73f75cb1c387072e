"""What pages show of the program, made by `scripts/generate`: `python -m testbed.pages FOLDER`."""

import re
import sys
from pathlib import Path

from click.testing import CliRunner

from tessera.api.tessera import installation
from tessera.cli import main

__all__ = ["refreshed"]

ROOT = Path(__file__).parents[1]
_PAGES = ("README.md", "docs/inspect.md", "docs/install.md")
_VALUES = re.compile(r"(<!-- values: [^\n]*-->\n).*?(?=<!-- end of values -->)", re.DOTALL)
_SHOWN = re.compile(r"^(```\n\$ tessera ([^\n]*\bexamples/[^\n]*)\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def refreshed(page: str) -> str:
    """Return a page with the present output, in 100 columns, of each command on an example, and the chart's values."""

    def output(shown: re.Match[str]) -> str:
        result = CliRunner().invoke(main, shown[2].split(), env={"COLUMNS": "100"}, catch_exceptions=False)
        return shown[1] + "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())

    said = {installation.MODULE: Path(installation.__file__).read_text()}
    text = _SHOWN.sub(output, (ROOT / page).read_text())
    return _VALUES.sub(lambda found: found[1] + installation.table_of_values(said), text)


if __name__ == "__main__":
    for name in _PAGES:
        (Path(sys.argv[1]) / name).write_text(refreshed(name))
