"""`tessera metrics` says at once what is wrong with its options."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli import EXIT_CODES, main
from tessera.errors import InvalidInput


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ([], "TLS: no whole certificate: give --tls-certificate and --tls-key, or --self-signed"),
        (["--tls-certificate", "a"], "TLS: no whole certificate"),
        (["--tls-certificate", "a", "--tls-key", "b", "--self-signed", "c"], "TLS: both ways"),
        (["--port", "65536"], "65536 is not in the range"),
        (["--prometheus", "prometheus:9090"], "--prometheus: 'prometheus:9090' is not http://HOST[:PORT], or https://"),
        (["--prometheus-token-file", __file__], "--prometheus"),
        (["--wake-query", "up"], "--prometheus"),
        (["--metrics-certificate", __file__], "TLS of the metrics: some of its options"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], want: str) -> None:
    """The message names what would be accepted."""
    result = CliRunner().invoke(main, ["metrics", *arguments])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert want in result.output


def test_a_kubeconfig_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Before anything is tried in the cluster."""
    broken = tmp_path / "config"
    broken.write_text("kind: [")
    words = ("--self-signed", str(tmp_path / "certificate"), "--kubeconfig", str(broken))
    result = CliRunner().invoke(main, ["metrics", *words])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert str(broken) in result.output
