"""`tessera server`: options that are refused, and help."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli import main

WRONG = {
    "a certificate without key": (["--tls-certificate", "x"], "--tls-key"),
    "an authority alone": (["--tls-client-authority", "x"], "--tls-certificate"),
    "another address without TLS": (["--host", "0.0.0.0", "--kubeconfig", "{config}"], "plain HTTP"),
    "another address without client certificates": (
        ["--host", "0.0.0.0", "--tls-certificate", "x", "--tls-key", "x", "--kubeconfig", "{config}"],
        "--tls-client-authority",
    ),
    "an admission port without certificate": (["--admission-port", "0"], "--admission-certificate"),
    "a Prometheus without a page": (["--page-prometheus", "http://x"], "--page-port"),
    "its token without it": (["--page-port", "0", "--page-prometheus-token-file", __file__], "--page-prometheus"),
    "no address of one": (["--page-port", "0", "--page-prometheus", "x:9090"], "http://HOST"),
    "a token that others could read": (
        ["--page-port", "0", "--page-prometheus", "http://x", "--page-prometheus-token-file", __file__],
        "a loopback address",
    ),
    "a policy that is none": (["--policy", "best"], "fgd"),
    "random, which replicas would not agree on": (["--policy", "random"], "fgd"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_refused(case: str, tmp_path: Path) -> None:
    words, want = WRONG[case]
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    result = CliRunner().invoke(main, ["server", *(word.format(config=config) for word in words)])
    assert result.exit_code == 2
    assert want in result.output


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(main, ["server", "--help"])
    assert result.exit_code == 0
    assert "tessera server --kubeconfig" in result.output
