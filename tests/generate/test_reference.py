"""The pages of docs/reference say all that there is; that they are as committed is checked by `scripts/check`."""

import re
from pathlib import Path

import click
import pytest

from generate import reference
from generate.reference.names import names
from tessera.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
KEY = re.compile(r"(?<![\w./-])((?:serving\.|models\.)?tessera\.dev/(?:[a-z]+(?:-[a-z]+)*)?)(?![\w/.])")
NO_NAMES = {
    "tessera.dev/",  # a prefix
    "tessera.dev/gpu",  # kinds of CDI devices
    "tessera.dev/share",
    "tessera.dev/local",  # a provisioner's name
    "tessera.dev/mig",  # of foreign resources, in a comment
}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_every_name_of_ours_in_the_program_and_the_chart_is_in_the_reference() -> None:
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("deploy/chart/templates/**/*.*")]
    used = {name for path in files for name in KEY.findall(path.read_text())}
    listed = {name for name, _ in names()}
    assert len(used) > 20
    assert sorted(used - listed - NO_NAMES) == []


def test_each_kind_of_name_is_described_once_for_each_owner() -> None:
    found = [(name, said["kind"]) for name, said in names()]
    assert len(found) == len(set(found))


def test_every_command_has_its_heading_and_usage(pages: dict[str, str]) -> None:
    text = pages["docs/reference/cli.md"]
    context = click.Context(main, info_name="tessera")
    for name in COMMANDS:
        command = main.get_command(context, name)
        below = command.commands if isinstance(command, click.Group) else {}
        for each in (name, *(f"{name} {inner}" for inner in below)):
            assert re.search(rf"^##+ tessera {each}\n\n`tessera {each}\b", text, re.MULTILINE), each


@pytest.mark.parametrize("field", ["gpus[].sharing.mode", "replicas", "source", "gpus[].unhealthy[].place.profile"])
def test_fields_of_kinds_are_listed_with_their_path(pages: dict[str, str], field: str) -> None:
    assert f"| `{field}` |" in pages["docs/reference/kinds.md"]


def test_no_row_of_a_table_breaks_it(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            bars = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
            assert len(bars) == 1, f"{name}: {block[:200]}"
