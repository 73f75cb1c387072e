"""The long-running commands say at once what is wrong with their options, before anything is tried in a cluster."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.cli import EXIT_CODES, main
from tessera.errors import InvalidInput

KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: c,
 clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],
 users: [{name: u, user: {token: t}}],
 contexts: [{name: c, context: {cluster: c, user: u}}]}
"""
AGENT = [
    ([], "--node: the agent's node has no name"),
    (
        ["--node=n1", "--reboot-command=/nowhere/reboot now"],
        "--reboot-command: there is no program '/nowhere/reboot': give a program of this machine and its arguments",
    ),
    (
        ["--node=n1", "--reboot-command=sh -c 'reboot"],
        '--reboot-command: "sh -c \'reboot", No closing quotation',
    ),
    (["--node=n1", "--model-source=models"], "--model-source: 'models' is not an absolute path without `..`"),
    (["--node=n1", "--model-source=/mnt/../etc"], "--model-source: '/mnt/../etc' is not an absolute path"),
    (["--node=n1", "--peer-address=10.0.0.1"], "peers: one of their options is missing: give --peer-address"),
    (["--node=n1", "--peer-address=node1", "--peer-tls=/"], "--peer-address: 'node1' is not an IP address"),
    (["--node=n1", "--peer-address=10.0.0.1", "--peer-tls=/proc"], "TLS files: "),
    (["--node=n1", "--model-dir=models"], "--model-dir: 'models' is not an absolute path without `..`"),
]
CONTROLLER = [
    (["--interval-s", "0"], "--interval-s: 0.0 is not at least 0.1"),
    (["--log-level", "loud"], "'loud' is not one of"),
]
METRICS = [
    ([], "TLS: no whole certificate: give --tls-certificate and --tls-key, or --self-signed"),
    (["--tls-certificate", "a"], "TLS: no whole certificate"),
    (["--tls-certificate", "a", "--tls-key", "b", "--self-signed", "c"], "TLS: both ways"),
    (["--port", "65536"], "--port: 65536 is not at least 0 and at most 65535: try"),
    (["--prometheus", "prometheus:9090"], "--prometheus: 'prometheus:9090' is not http://HOST[:PORT], or https://"),
    (["--prometheus-token-file", __file__], "--prometheus"),
    (["--wake-query", "up"], "--prometheus"),
    (["--adapter-rules", __file__], "--prometheus"),
    (["--adapter-rules", "/nowhere", "--prometheus", "http://x"], "File '/nowhere' does not exist"),
    (
        ["--self-signed", "x", "--adapter-rules", __file__, "--prometheus", "http://x"],
        "test_processes.py, document 1, line ",
    ),
    (["--metrics-certificate", __file__], "TLS of the metrics: some of its options"),
]
SERVER = [
    (["--tls-certificate", "x"], "--tls-key"),
    (["--tls-client-authority", "x"], "--tls-certificate"),
    (["--host", "0.0.0.0", "--kubeconfig", "{config}"], "plain HTTP"),
    (
        ["--host", "0.0.0.0", "--tls-certificate", "x", "--tls-key", "x", "--kubeconfig", "{config}"],
        "--tls-client-authority",
    ),
    (["--admission-port", "0"], "--admission-certificate"),
    (["--page-prometheus", "http://x"], "--page-port"),
    (["--page-port", "0", "--page-prometheus-token-file", __file__], "--page-prometheus"),
    (["--page-port", "0", "--page-prometheus", "x:9090"], "http://HOST"),
    (
        ["--page-port", "0", "--page-prometheus", "http://x", "--page-prometheus-token-file", __file__],
        "a loopback address",
    ),
    (["--policy", "best"], "fgd"),
    (["--policy", "random"], "fgd"),
]
DISK_AGENT = [
    ([], "--node: the agent's node has no name: give --node or NODE_NAME"),
    (["--node=n1", "--filesystem=btrfs"], "'btrfs' is not one of 'ext4', 'xfs'"),
    (["--node=n1", "--mount=data"], "an absolute path"),
    (["--node=n1", "--name=my disks"], "my disks"),
    (["--node=n1", "--interval-s=0"], "--interval-s: 0.0 is not at least 0.1"),
]
WRONG = {"agent": AGENT, "controller": CONTROLLER, "metrics": METRICS, "server": SERVER, "disk-agent": DISK_AGENT}


@pytest.mark.parametrize(
    ("command", "words", "want"), [(command, *case) for command, cases in WRONG.items() for case in cases]
)
def test_wrong_options_are_refused_with_what_would_be_accepted(
    command: str, words: list[str], want: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    runner = CliRunner(env=dict.fromkeys(("NODE_NAME", "TESSERA_AGENT_NODE", "TESSERA_DISK_AGENT_NODE")))
    result = runner.invoke(main, [command, *(word.format(config=config) for word in words)])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert want in result.output


@pytest.mark.parametrize("words", [("controller",), ("metrics", "--self-signed", "{certificate}")])
def test_a_kubeconfig_that_cannot_be_read_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("kind: [")
    given = [word.format(certificate=tmp_path / "certificate") for word in words]
    result = CliRunner().invoke(main, [*given, "--kubeconfig", str(broken)])
    assert result.exit_code == EXIT_CODES[InvalidInput]
    assert str(broken) in result.output
