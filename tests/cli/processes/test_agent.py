"""`tessera agent` says at once what is wrong with its options."""

import pytest
from click.testing import CliRunner

from tessera.cli import main


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
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
    ],
)
def test_wrong_options_are_refused(arguments: list[str], want: str) -> None:
    result = CliRunner(env={"NODE_NAME": None, "TESSERA_AGENT_NODE": None}).invoke(main, ["agent", *arguments])
    assert result.exit_code == 2
    assert want in result.output
