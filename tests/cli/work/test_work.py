"""`tessera run`, before anything was submitted."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: mine
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: mine, context: {cluster: c, user: u}}
"""


def test_ctrl_c_before_anything_was_submitted_says_so(tmp_path: Path) -> None:
    """The API server takes the connection and never answers."""
    config = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as server:
        config.write_text(KUBECONFIG.replace("127.0.0.1:1", f"127.0.0.1:{server.getsockname()[1]}"))
        program = str(Path(sys.executable).with_name("tessera"))
        call = (program, "run", "--kubeconfig", str(config), "--image", "a", "--cancel-on-interrupt")
        with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process, server.accept()[0]:
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "nothing was submitted\n")
