"""`tessera run`: the Job that options make, and how it is followed, in a cluster of this process."""

import asyncio
import base64
import gzip
import io
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from builders.kubeobjects import gpu, gpunode, node, share
from builders.kubeobjects import pod as object_of_pod
from builders.usagereports import BUSY
from tessera.api.kubernetes.jobs import JobRequest, job_object, job_selection
from tessera.api.tessera.usage.usagereports import write_usage
from tessera.cli import main
from tessera.cli.work.following import follow_job, print_log, state_of
from tessera.cli.work.stop import stop_jobs
from tessera.cli.work.submitting import forecast_job
from tessera.clients.kube import EVENTS, GPU_NODES, JOBS, NODES, PODS, WORKLOADS, MemoryKube, name_of, uid_of
from tessera.core.gpu.sharing import Mode
from tessera.core.usage.usagereport import DeviceReport, GpuReport, UsageReport
from tessera.errors import Conflict, InvalidInput, Unavailable


def dry(*options: str) -> Result:
    call = ("run", "--dry-run", "--kubeconfig", "nowhere", *options)
    return CliRunner().invoke(main, call)


def container(*options: str) -> Any:
    found = dry("--image", "r.example/team/Py_Torch:2@sha256:1", *options)
    assert found.exit_code == 0, found.output
    job = yaml.safe_load(found.stdout)
    assert job["metadata"]["generateName"] == "py-torch-"
    assert "its node is unknown" in found.stderr
    return job["spec"]["template"]["spec"]["containers"][0]


ASKS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "an amount": (("--gpu-memory", "10"), {"tessera.dev/gpu-memory": "10"}),
    "more of it": (
        ("--gpu-memory", "10", "--gpu-compute", "30", "--gpus", "2"),
        {"tessera.dev/gpu-memory": "10", "tessera.dev/gpu-compute": "30", "tessera.dev/gpu-count": "2"},
    ),
    "whole GPUs": (("--gpus", "2"), {"nvidia.com/gpu": "2"}),
    "a slice": (("--slice", "1g.10gb+me"), {"nvidia.com/mig-1g.10gb.me": "1"}),
    "models": (("--model", "a", "--model", "b"), {"models.tessera.dev/a": "1", "models.tessera.dev/b": "1"}),
    "more than a GPU": (("--cpu", "4", "--memory", "16Gi"), {"cpu": "4", "memory": "16Gi"}),
}


@pytest.mark.parametrize("case", ASKS)
def test_options_are_limits(case: str) -> None:
    options, want = ASKS[case]
    assert container(*options)["resources"]["limits"] == want


def test_a_command_its_environment_and_secrets() -> None:
    found = container("--env", "A=b=c", "--env-secret", "TOKEN=hub/key", "--", "python", "-c", "print(1)", "--image")
    assert found["command"] == ["python", "-c", "print(1)", "--image"]
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "key"}}}
    assert found["env"] == [{"name": "A", "value": "b=c"}, secret]


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
    one = Cluster()
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


def pod(*options: str) -> Any:
    found = dry("--image", "a", *options)
    assert found.exit_code == 0, found.output
    return [*yaml.safe_load_all(found.stdout)][-1]["spec"]["template"]["spec"]


def test_secrets_are_variables_or_files() -> None:
    found = pod("--secret", "hub", "--secret", "ssh:/etc/ssh/")
    assert found["containers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert found["volumes"] == [{"name": "folder-0", "secret": {"secretName": "ssh"}}]
    mount = {"name": "folder-0", "mountPath": "/etc/ssh", "readOnly": True}
    assert found["containers"][0]["volumeMounts"] == [mount]


def test_data_is_a_model_cache_or_a_claim_that_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    found = pod("--data", "image-net", "--data", "pvc/team.a", "--model", "llama", "--code", str(tmp_path))
    main = found["containers"][0]
    assert main["resources"]["limits"] == {"models.tessera.dev/image-net": "1", "models.tessera.dev/llama": "1"}
    assert {each["name"]: each["value"] for each in main["env"]} == {
        "TESSERA_DATA_IMAGE_NET_PATH": "/models/image-net",
        "TESSERA_DATA_TEAM_A_PATH": "/data/team.a",
    }
    assert found["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "team.a", "readOnly": True}
    assert [(each["mountPath"], each.get("readOnly", False)) for each in main["volumeMounts"]] == [
        ("/code", False),
        ("/data/team.a", True),
    ]
    assert "env" not in found["initContainers"][0]


def test_what_follows_the_first_word_is_the_commands() -> None:
    found = container("python", "train.py", "--model", "llama", "-c", "--", "-n", "x")
    assert found["command"] == ["python", "train.py", "--model", "llama", "-c", "--", "-n", "x"]
    assert "resources" not in found


REFUSED = {
    "no image": ((), "--image and --environment: neither"),
    "two images": (("--image", "a", "-e", "b"), "--image and --environment: both"),
    "no variable": (("--image", "a", "--env", "A"), "NAME=VALUE"),
    "no key of a secret": (("--image", "a", "--env-secret", "A=b"), "NAME=SECRET/KEY"),
    "no name of an image": (("--image", "a b"), "the name of an image"),
    "no name": (("--image", "a", "--name", "Big One"), "--name: 'Big One' is not at most 63"),
    "no variable's name": (("--image", "a", "--env", "A B=1"), "--env: 'A B'"),
    "no Secret's name": (("--image", "a", "--env-secret", "A=../b/c"), "--env-secret: '..'"),
    "no model's name": (("--image", "a", "--model", "../x"), "--model: '../x'"),
    "no profile": (("--image", "a", "--slice", "1g"), "a MIG profile such as 1g.10gb"),
    "no amount": (("--image", "a", "--cpu", "lots"), "an amount such as 4"),
    "no namespace": (("--image", "a", "-n", "a/../b"), "--namespace: 'a/../b'"),
    "no claim": (("--image", "a", "--data", "pvc/"), "--data: ''"),
    "data twice": (("--image", "a", "--data", "x-y", "--data", "pvc/x.y"), "two would be one variable"),
    "no folder": (("--image", "a", "--secret", "hub:etc"), "a folder of the container"),
    "the root as folder": (("--image", "a", "--secret", "hub:/"), "a folder of the container"),
    "a folder above": (("--image", "a", "--secret", "hub:/a/../b"), "a folder of the container"),
    "a variable that is no text": (("--image", "a", "--env", "A=\udcff"), "is not UTF-8: bring bytes along in a file"),
    "a command that is no text": (("--image", "a", "--", "echo", "\udcff"), "the command: '\\udcff' is not UTF-8"),
    "a variable twice": (
        ("--image", "a", "--env", "A=1", "--env-secret", "A=hub/key"),
        "variable A: it is set twice",
    ),
    "two Secrets at one folder": (
        ("--image", "a", "--secret", "hub:/a", "--secret", "other://a/."),
        "--secret other:/a: '/a' is already the folder of --secret hub:/a",
    ),
    "a Secret where the code is": (
        ("--image", "a", "--secret", "hub://code/", "--code", "{here}"),
        "the folder of --code",
    ),
    "a Secret where a claim is": (("--image", "a", "--secret", "s:/data/x", "--data", "pvc/x"), "of --data pvc/x"),
    "a Secret where a model is": (("--image", "a", "--secret", "s:/models/x", "--model", "x"), "of ModelCache x"),
    "two ways": (("--image", "a", "--slice", "1g.5gb", "--gpus", "1"), "give one of the three"),
    "isolation of nothing": (("--image", "a", "--isolation", "driver"), "give --gpu-memory as well"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_make_no_sense_are_refused(case: str) -> None:
    options, words = REFUSED[case]
    found = dry(*(each.replace("{here}", str(Path(__file__).parent)) for each in options))
    assert (found.exit_code, words in found.stderr) == (2, True), found.stderr


def test_a_folder_of_code_is_a_secret_and_the_folder_where_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    found = dry("--image", "a", "--cpu", "2", "--gpu-memory", "10", "--code", str(tmp_path))
    secret, job = yaml.safe_load_all(found.stdout)
    content = gzip.decompress(base64.b64decode(secret["data"]["code.tar.gz"]))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["train.py"]
    pod = job["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == secret["metadata"]["name"]
    assert pod["initContainers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert pod["containers"][0]["workingDir"] == pod["containers"][0]["volumeMounts"][0]["mountPath"]
    assert pod["initContainers"][0]["command"][-1] == pod["containers"][0]["workingDir"]


def test_credentials_in_a_folder_of_code_are_said(tmp_path: Path) -> None:
    for name in ("train.py", ".env"):
        (tmp_path / name).write_text("TOKEN=1")
    found = dry("--image", "a", "--code", str(tmp_path))
    assert "left out, as they may contain credentials: '.env'" in found.stderr


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


class Cluster:
    """One Job, whose pod gets on as the test says."""

    def __init__(self, kube: MemoryKube | None = None) -> None:
        self.kube = kube or MemoryKube()

    async def submit(self, queue: str = "") -> str:
        job = job_object(JobRequest(name="j", namespace="ns", image="a", queue=queue))
        return uid_of(await self.kube.create(JOBS, job))

    async def pod(self, status: Mapping[str, Any], node: str = "") -> None:
        metadata = {"name": "j-1", "namespace": "ns", "labels": dict(job_selection("j"))}
        body = {"metadata": metadata, "spec": {"nodeName": node} if node else {}}
        if await self.kube.get(PODS, "j-1", "ns") is None:
            await self.kube.create(PODS, body)
        await self.kube.patch(PODS, "j-1", {"spec": body["spec"]}, namespace="ns")
        await self.kube.patch(PODS, "j-1", {"status": status}, namespace="ns", subresource="status")

    async def ends(self, code: int) -> None:
        state = {"terminated": {"exitCode": code}}
        await self.pod({"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}, "n")


RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
PENDING = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU has room"}]}


async def said(capture: pytest.CaptureFixture[str], words: str) -> str:
    """Return what was printed on both streams when `words` are on either."""
    found = ""
    async with asyncio.timeout(20):
        while words not in found:
            await asyncio.sleep(0.01)
            found += "".join(capture.readouterr())
    return found


@pytest.mark.anyio
async def test_a_job_is_followed_to_the_end_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    await one.submit()
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Pending")
    await one.pod(PENDING)
    await said(capsys, "j: Pending: no GPU has room")
    one.kube.written["ns", "j-1"] = [b"epoch 1\n"]
    await one.pod(RUNS, "n")
    await said(capsys, "epoch 1")
    one.kube.written["ns", "j-1"].append(b"epoch 2\n")
    await said(capsys, "epoch 2")
    await one.ends(3)
    assert await task == 3
    assert "j: Failed on n: its command ended with 3" in "".join(capsys.readouterr())
    await print_log(one.kube, await state_of(one.kube, "j", "ns"))
    assert capsys.readouterr().out == "epoch 1\nepoch 2\n"


@pytest.mark.anyio
@pytest.mark.parametrize("limits", [{"tessera.dev/gpu-memory": "8"}, {"models.tessera.dev/llama": "1"}, {}])
async def test_gpu_usage_is_followed_of_a_job_that_asks_for_gpus(
    limits: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = Cluster()
    await one.kube.create(JOBS, job_object(JobRequest(name="j", namespace="ns", image="a", limits=limits)))
    agent = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    metadata = {"name": "agent", "namespace": "tessera-system", "labels": agent}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await one.kube.create(PODS, {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})
    device = DeviceReport(containers=(msgspec.structs.replace(BUSY, namespace="ns", pod="j-1"),))
    report = UsageReport(node="n", gpus=(GpuReport(index=3, devices=(device,)),))
    one.kube.answers["tessera-system", "agent"] = {(9400, "usage"): msgspec.json.decode(write_usage(report))}
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    if "tessera.dev/gpu-memory" in limits:
        await said(capsys, "j: uses GPU 3: 7.9 GiB of 8 GiB, 90 % busy\n")
    await one.ends(0)
    assert await task == 0
    assert "uses" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_a_job_without_a_pod_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    await one.submit()
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Pending")
    job = await one.kube.get(JOBS, "j", "ns")
    assert job is not None
    for number, (kind, uid, message) in enumerate(
        (
            ("Warning", uid_of(job), "exceeded quota: gpus"),
            ("Warning", "former", "old"),
            ("Normal", uid_of(job), "fine"),
        )
    ):
        about = {"kind": "Job", "name": "j", "namespace": "ns", "uid": uid}
        body = {"metadata": {"name": f"e{number}", "namespace": "ns"}, "involvedObject": about}
        await one.kube.create(EVENTS, body | {"type": kind, "message": message, "lastTimestamp": f"2026-0{number + 1}"})
    await said(capsys, "j: Pending: exceeded quota: gpus\n")
    for number in (7, 8):  # the controller tries again and again, each time with another name
        message = f'Error creating: pods "j-{number}x2kp" is forbidden: exceeded quota: memory'
        patch = {"message": message, "lastTimestamp": f"2026-0{number}"}
        await one.kube.patch(EVENTS, "e0", patch, namespace="ns")
        if number == 7:
            await said(capsys, "j: Pending: its pod is forbidden: exceeded quota: memory\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "its pod is forbidden: exceeded quota: memory"
    await one.kube.patch(EVENTS, "e0", {"message": "exceeded quota: gpus"}, namespace="ns")
    assert "memory" not in await said(capsys, "j: Pending: exceeded quota: gpus\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "exceeded quota: gpus"
    await one.pod(RUNS, "n")
    await said(capsys, "j: Running on n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_a_job_in_a_queue_says_why_and_goes_on_when_it_is_admitted(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    uid = await one.submit(queue="team")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "j: Queued: pending in queue team\n")
    condition = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"}
    metadata = {"name": "job-j", "namespace": "ns", "labels": {"kueue.x-k8s.io/job-uid": uid}}
    await one.kube.create(WORKLOADS, {"metadata": metadata})
    status = {"status": {"conditions": [condition]}}
    await one.kube.patch(WORKLOADS, "job-j", status, namespace="ns", subresource="status")
    await said(capsys, "j: Queued: pending in queue team: insufficient unused quota\n")
    assert (await state_of(one.kube, "j", "ns")).reason == "pending in queue team: insufficient unused quota"
    await one.kube.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="ns")
    await one.pod(RUNS, "n")
    await said(capsys, "j: Running on n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
@pytest.mark.parametrize("lacks", ["Kueue", "rights"])
async def test_a_queue_that_cannot_be_read_holds_nothing_up(lacks: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    if lacks == "Kueue":
        one.kube.uninstall(WORKLOADS)
    else:
        one.kube.withhold("ns", WORKLOADS)
    await one.submit(queue="team")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    printed = await said(capsys, "install Kueue 0.15 or newer" if lacks == "Kueue" else "pending in queue team\n")
    assert ("waiting:" in printed) == (lacks == "Kueue")
    assert (await state_of(one.kube, "j", "ns")).reason == "pending in queue team"
    await one.kube.patch(JOBS, "j", {"spec": {"suspend": False}}, namespace="ns")
    await one.pod(RUNS, "n")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_who_may_not_read_events_follows_a_job_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    one.kube.withhold("ns", EVENTS)
    await one.submit()
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    assert "waiting" not in await said(capsys, "j: Running on n")
    await one.ends(4)
    assert await task == 4
    assert (await state_of(one.kube, "j", "ns")).exit_code == 4


@pytest.mark.anyio
async def test_what_others_wrote_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    await one.submit()
    waiting = {"reason": "ErrImagePull", "message": "no \x1b]0;owned\x07such\u202eimage"}
    state = {"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}
    await one.pod(state, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    assert "ErrImagePull: no \ufffd]0;owned\ufffdsuch\ufffdimage" in await said(capsys, "ErrImagePull")
    await one.ends(1)
    assert await task == 1


@pytest.mark.anyio
async def test_all_are_stopped_or_none_and_never_what_others_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster()
    await one.submit()
    foreign = job_object(JobRequest(name="backup", namespace="ns", image="a"))
    foreign["metadata"]["labels"] = {}
    await one.kube.create(JOBS, foreign)
    for name, words in (("backup", "something else submitted.*kubectl delete job backup -n ns"), ("x", "no such job")):
        with pytest.raises(InvalidInput, match=words):
            await stop_jobs(one.kube, ("j", name), "ns")
        assert await one.kube.get(JOBS, "j", "ns") is not None
    await stop_jobs(one.kube, ("j",), "ns")
    assert "deleted ns/j" in capsys.readouterr().out
    assert await one.kube.get(JOBS, "j", "ns") is None


@pytest.mark.anyio
async def test_a_job_that_ends_without_its_command_is_distinguished_from_one_that_was_deleted() -> None:
    one = Cluster()
    await one.submit()
    await one.pod({"phase": "Failed", "reason": "Evicted"}, "n")
    with pytest.raises(Conflict, match="Evicted"):
        await follow_job(one.kube, "j", "ns")
    await one.kube.delete(JOBS, "j", namespace="ns")
    with pytest.raises(Conflict, match="it was deleted"):
        await follow_job(one.kube, "j", "ns")
    with pytest.raises(InvalidInput, match="no such job"):
        await state_of(one.kube, "j", "ns")


class SilentLogs(MemoryKube):
    """An API that gives no logs."""

    async def logs(self, name: str, namespace: str, *, follow: bool = False) -> AsyncIterator[bytes]:
        async for piece in super().logs(name, namespace, follow=False):
            yield piece
        raise Unavailable(f"log of {namespace}/{name}", found="cut", expected=f"follow={follow}")


@pytest.mark.anyio
async def test_a_log_that_breaks_off_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    one = Cluster(SilentLogs())
    await one.submit()
    await one.pod(RUNS, "n")
    task = asyncio.create_task(follow_job(one.kube, "j", "ns"))
    await said(capsys, "tessera logs j -n ns prints it from its start")
    await one.ends(0)
    assert await task == 0
