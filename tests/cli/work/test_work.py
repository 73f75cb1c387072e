"""`tessera run`: the Job that options make, and how it is followed, in a cluster of this process."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from builders.kubeobjects import gpu, gpunode, node, share
from builders.kubeobjects import pod as object_of_pod
from harness.submittedjob import SubmittedJob
from tessera.api.kubernetes.jobs import JobRequest, job_object
from tessera.cli import main
from tessera.cli.work.submitting import forecast_job
from tessera.clients.kube import GPU_NODES, NODES, PODS, name_of
from tessera.core.gpu.sharing import Mode

FORECASTS: dict[str, tuple[dict[str, str], str]] = {
    "room": ({"tessera.dev/gpu-memory": "10"}, "it fits on n1 now, best on n1: 10 GiB of GPU 0 (MPS)"),
    "no room": (
        {"tessera.dev/gpu-memory": "37"},
        "it would be pending: too little free GPU memory: 37 GiB requested, at most 32 GiB free on one GPU",
    ),
    "no such GPU": (
        {"nvidia.com/gpu": "2"},
        "it would be pending: too few devices: 2 x nvidia.com/gpu requested, the node can provide 1 (n1); no node",
    ),
    "nothing asked": ({}, "it fits on n1 now, best on n1: no GPU"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", FORECASTS)
async def test_where_it_would_run_or_why_not_is_known_before_it_is_submitted(case: str) -> None:
    limits, want = FORECASTS[case]
    job = job_object(JobRequest(namespace="ns", image="a", limits=limits, scheduler="tessera-scheduler"))
    one = SubmittedJob()
    for kind, body in (
        (NODES, node("n1", {"tessera.dev/gpu-memory": "40"})),
        (PODS, object_of_pod("other", {"tessera.dev/gpu-memory": 8}, share(0, 8192, Mode.MPS), node="n1")),
        (GPU_NODES, gpunode("n1", gpu(0, node="n1"))),
    ):
        await one.kube.create(kind, body)
        if "status" in body:
            patch, (namespace, name) = {"status": body["status"]}, name_of(body)
            await one.kube.patch(kind, name, patch, namespace=namespace, subresource="status")
    assert (await forecast_job(one.kube, job)).startswith(want)
    one.kube.withhold("", NODES)
    assert "ClusterRole tessera-viewer" in await forecast_job(one.kube, job)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: mine
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: mine, context: {cluster: c, user: u, namespace: team-a}}
- {name: plain, context: {cluster: c, user: u}}
"""


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    for more, want in (((), "team-a"), (("--context", "plain"), "default"), (("-n", "team-b"), "team-b")):
        found = CliRunner().invoke(main, ("run", "--dry-run", "--kubeconfig", str(config), "--image", "a", *more))
        assert yaml.safe_load(found.stdout)["metadata"]["namespace"] == want


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
