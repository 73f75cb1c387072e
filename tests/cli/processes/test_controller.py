"""`tessera controller` says at once what is wrong with its options."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli import EXIT_CODES, main
from tessera.errors import InvalidInput


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (["--interval-s", "0"], "0.0 is not in the range x>=0.1"),
        (["--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], want: str) -> None:
    """The message names what would be accepted."""
    result = CliRunner().invoke(main, ["controller", *arguments])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert want in result.output


def test_a_kubeconfig_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Before anything is tried in the cluster."""
    broken = tmp_path / "config"
    broken.write_text("kind: [")
    result = CliRunner().invoke(main, ["controller", "--kubeconfig", str(broken)])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert str(broken) in result.output
