"""Options of local disks: what they default to, and what cannot be carried out."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tessera.cli.storage.diskoptions import disk_options, spec_of
from tessera.core.storage.disks.plan import DiskSpec
from tessera.errors import InvalidInput


def asked(*words: str, env: dict[str, str] | None = None) -> tuple[DiskSpec, Path]:
    found: list[tuple[DiskSpec, Path]] = []

    @click.command
    @disk_options
    def command(**given: object) -> None:
        found.append((spec_of(given), given["state_dir"]))  # type: ignore[arg-type]  # as click passes them

    result = CliRunner().invoke(command, words, env=env)
    if result.exception:
        raise result.exception
    return found[0]


def test_without_options_the_local_disks_of_clouds_are_meant() -> None:
    assert asked() == (DiskSpec(), Path("/var/lib/tessera"))


def test_options_say_which_disks_and_what_they_shall_be() -> None:
    words = ("--select", "/dev/sd?", "--select", "scsi-*", "--filesystem", "xfs", "--mount", "/data", "--name", "fast")
    spec, _ = asked(*words)
    assert spec == DiskSpec(select=("/dev/sd?", "scsi-*"), filesystem="xfs", mount="/data", name="fast")


def test_the_agents_state_folder_counts_for_disks_too() -> None:
    assert asked(env={"TESSERA_AGENT_STATE_DIR": "/state"})[1] == Path("/state")


def test_an_invalid_spec_is_refused() -> None:
    with pytest.raises(InvalidInput, match="data"):
        asked("--mount", "data")
