"""`tessera run` by a user of one namespace, who has Kubernetes' role `edit` there and nothing else."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from harness.jupyterlab import kernel
from kube.pods import ASSIGNMENT
from tessera.cli.work.submit.codefolder import LARGEST_ARCHIVE
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.images import BUSYBOX, PAUSE
from testbed.processes import until
from testbed.tesseraimage import JUPYTERLAB, jupyterlab_image

NAMESPACE = "run-here"
GPUS = ("A100-40GB",)
TESSERA = str(Path(sys.executable).with_name("tessera"))


class User:
    """One who may do in a namespace what `edit` lets them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        config = json.loads(cluster.kubectl("config", "view", "-o=json"))
        token = cluster.kubectl("create", "token", "user", f"--namespace={NAMESPACE}").strip()
        server = config["clusters"][0]["cluster"]["server"]
        self.variables = {**os.environ, "KUBECONFIG": str(cluster.pki.token_kubeconfig("run-user", token, server))}

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen((TESSERA, *words), env=self.variables, stdout=pipe, stderr=pipe, text=True)

    def call(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, error = process.communicate(timeout=180)
        return process.returncode, out, error

    def run(self, name: str, script: str, *options: str) -> tuple[str, ...]:
        command = ("--", "sh", "-c", script)
        return ("run", f"--name={name}", f"--namespace={NAMESPACE}", f"--image={BUSYBOX}", *options, *command)

    def stage(self, name: str) -> str:
        _, out, _ = self.call("jobs", f"--namespace={NAMESPACE}", "--output=json")
        return next((each["stage"] for each in json.loads(out) if each["name"] == name), "")


@contextmanager
def user_of(cluster: Cluster) -> Iterator[User]:
    """Give the user of a namespace, which is there meanwhile."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    where = f"--namespace={NAMESPACE}"
    cluster.kubectl("create", "serviceaccount", "user", where)
    account = f"--serviceaccount={NAMESPACE}:user"
    cluster.kubectl("create", "rolebinding", "user", "--clusterrole=edit", account, where)
    yield User(cluster)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")


@pytest.fixture(scope="module")
def user(node_cluster: Cluster) -> Iterator[User]:
    with user_of(node_cluster) as one:
        yield one


def test_a_command_runs_is_followed_and_ends_with_its_own_code(user: User) -> None:
    code, out, error = user.call(*user.run("short", "echo begun; sleep 1; echo done; exit 3"))
    assert (code, out) == (3, "begun\ndone\n"), error
    assert "ask for ClusterRole tessera-viewer" in error
    assert "short: Failed on node1: its command ended with 3" in error
    assert user.call("logs", "short", "-n", NAMESPACE)[1] == "begun\ndone\n"


ENVIRONMENT = {
    "apiVersion": "tessera.dev/v1alpha1",
    "kind": "Environment",
    "metadata": {"name": "busybox"},
    "spec": {"image": BUSYBOX, "description": "a shell", "tools": ["sh"]},
}


def test_an_image_is_known_by_the_name_of_its_environment(user: User) -> None:
    """Who may do nothing but in a namespace reads the catalog of the cluster."""
    for each in (*objects("crds/tessera.dev_environments.yaml"), *objects("rbac/people.yaml")):
        if each["metadata"]["name"] in {"environments.tessera.dev", "tessera-environments"}:
            user.cluster.apply(each)
    user.cluster.await_kinds("environments.tessera.dev")
    user.cluster.apply(ENVIRONMENT)
    warm = ("--subresource=status", "--type=merge", "-p", '{"status": {"nodes": 3, "ready": 2}}')
    user.cluster.kubectl("patch", "environment", "busybox", *warm)
    code, out, error = user.call("environments", "-o", "json")
    assert (code, [each["image"] for each in json.loads(out)]) == (0, [BUSYBOX]), error
    assert "2/3" in user.call("environments")[1].split()
    where = ("--environment=busybox", f"--namespace={NAMESPACE}", "--", "echo", "by name")
    code, out, error = user.call("run", *where)
    assert (code, out) == (0, "by name\n"), error
    assert "busybox-" in error
    code, _, error = user.call("notebook", "-e", "busybox", "-n", NAMESPACE)
    assert (code, "it has no JupyterLab" in error) == (2, True), error


def test_who_leaves_may_come_back_and_stop_it(user: User) -> None:
    process = user.start(*user.run("long", "echo here; trap 'exit 0' TERM; sleep 3600 & wait"))
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, "it is still running: tessera attach long -n run-here" in error) == (130, True), error
    assert user.stage("long") == "Running"
    again = user.start("attach", "long", "-n", NAMESPACE)
    assert again.stdout is not None
    assert again.stdout.readline() == "here\n"
    assert user.call("stop", "long", "-n", NAMESPACE)[:2] == (0, f"deleted {NAMESPACE}/long\n")
    _, error = again.communicate(timeout=60)
    assert (again.returncode, "it was deleted" in error) == (5, True), error
    own = ("-n", NAMESPACE, "-l", "batch.kubernetes.io/job-name=long")
    until("its pod is gone", lambda: not user.cluster.get("pods", *own)["items"], timeout_s=90)


def test_what_waits_says_why_and_is_deleted_by_ctrl_c_where_that_was_asked(user: User) -> None:
    process = user.start(*user.run("waits", "exit 0", "--gpus=1", "--cancel-on-interrupt"))
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert next((each for each in lines if "waits: Pending: " in each and "Insufficient nvidia.com/gpu" in each), "")
    assert user.stage("waits") == "Pending"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, "deleted waits -n run-here" in error) == (130, True), error
    assert user.stage("waits") == ""
    code, _, error = user.call("attach", "waits", "-n", NAMESPACE)
    assert (code, "no such job" in error) == (2, True), error


def test_a_namespace_of_pod_security_restricted_takes_work_of_a_user_that_is_not_root(user: User, folder: Path) -> None:
    level = "pod-security.kubernetes.io/enforce"
    user.cluster.kubectl("label", "namespace", NAMESPACE, f"{level}=restricted", f"{level}-version=latest")
    try:
        code, out, error = user.call(*user.run("plain", "id -u; touch /code/new && echo kept", "--user=1000",
                                               "--code", str(folder)))  # fmt: skip
        assert (code, out) == (0, "1000\nkept\n"), error
        process = user.start(*user.run("as-root", "exit 0", "--cancel-on-interrupt"))
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert next((each for each in lines if "its pod is forbidden: violates PodSecurity" in each), "")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert user.call("stop", "plain", "-n", NAMESPACE)[0] == 0
    finally:
        user.cluster.kubectl("label", "namespace", NAMESPACE, f"{level}-", f"{level}-version-")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with code, and with as much of it as a Secret takes."""
    code = tmp_path / "code"
    (code / "steps").mkdir(parents=True)
    (code / "main.sh").write_text('. "$PWD/steps/one"; wc -c < large; echo "$@"\n')
    (code / "main.sh").chmod(0o755)
    (code / "steps" / "one").write_text("echo one\n")
    (code / "large").write_bytes(os.urandom(LARGEST_ARCHIVE - 2_000))
    return code


def test_a_folder_of_code_comes_along_and_goes_with_its_job(user: User, folder: Path) -> None:
    where = f"--namespace={NAMESPACE}"
    call = ("run", "--name=coded", where, f"--image={BUSYBOX}", "--code", str(folder), "--", "sh", "main.sh", "a  b")
    code, out, error = user.call(*call)
    assert (code, out) == (0, f"one\n{LARGEST_ARCHIVE - 2_000}\na  b\n"), error

    def secrets() -> list[str]:
        names = (each["metadata"]["name"] for each in user.cluster.get("secrets", where)["items"])
        return [each for each in names if "-own-" in each]

    assert len(secrets()) == 1
    assert user.call("stop", "coded", where)[0] == 0
    until("its code is gone", lambda: not secrets(), timeout_s=90)


JUPYTER = """#!/bin/sh
echo "$@" > /code/www/command
echo "$JUPYTER_TOKEN" > /code/www/token
exec busybox httpd -f -p 127.0.0.1:8888 -h /code/www
"""
"""Stands for JupyterLab in the image: what it was called with, as pages."""


def page(address: str, name: str) -> bytes:
    with urllib.request.urlopen(address.replace("/lab?", f"/{name}?"), timeout=30) as answered:
        found = answered.read()
    assert isinstance(found, bytes)
    return found


def test_a_notebook_is_at_an_address_of_this_machine_and_is_opened_again(user: User, tmp_path: Path) -> None:
    www = tmp_path / "www"
    www.mkdir()
    (www / "large").write_bytes(os.urandom(200_000))
    (tmp_path / "python3").write_text(JUPYTER)
    (tmp_path / "python3").chmod(0o755)
    where = f"--namespace={NAMESPACE}"
    options = (where, f"--image={BUSYBOX}", "--code", str(tmp_path), "--env=PATH=/code:/bin")
    process = user.start("notebook", "--name=book", *options)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/lab\?token=[0-9a-f]{48}", address)
        assert page(address, "token").decode().strip() == address.rpartition("=")[2]
        assert b" --ip=127.0.0.1 --port=8888 " in page(address, "command").replace(b"\n", b" ")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: page(address, "large"), range(40)))
        assert set(found) == {(www / "large").read_bytes()}
    finally:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, "it is still running: tessera attach book" in error) == (130, True), error
    again = user.start("attach", "book", where, "--port=18888")
    assert again.stdout is not None
    opened = again.stdout.readline().strip()
    assert opened == re.sub(":[0-9]+/", ":18888/", address)
    assert page(opened, "token").decode().strip() == opened.rpartition("=")[2]
    assert user.call("stop", "book", where)[0] == 0
    _, error = again.communicate(timeout=60)
    assert (again.returncode, "it was deleted" in error) == (5, True), error


_SEEN = "import glob; print(6 * 7, *glob.glob('/dev/nvidia[0-9]'))"


@pytest.mark.long
def test_jupyterlab_itself_runs_code_on_half_a_gpu(whole_cluster: Cluster, tmp_path: Path) -> None:
    """In the image of `scripts/testbed up --notebooks`: who has the token runs code in a kernel, others do not.

    It has what `--code` needs, so that all that docs/get-started.md shows works in its one environment.
    """
    whole_cluster.nodes[0].import_image(jupyterlab_image(lambda _: None))
    with user_of(whole_cluster) as user:
        options = (f"--namespace={NAMESPACE}", f"--image={JUPYTERLAB}", "--gpu-memory=20")
        process = user.start("notebook", "--name=lab", *options)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert b"jupyter" in page(address, "lab").lower()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                page(address[:-1], "api/kernels")
            assert asyncio.run(_said_by(address)) == "42 /dev/nvidia0\n"
            (pod,) = whole_cluster.get("pods", f"--namespace={NAMESPACE}")["items"]
            (share,) = json.loads(pod["metadata"]["annotations"][ASSIGNMENT])["shares"]
            assert 18 * 1024 <= share["memoryMiB"] <= 20 * 1024, share
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert user.call("stop", "lab", f"--namespace={NAMESPACE}")[0] == 0
        (tmp_path / "main.py").write_text("print('sent')")
        sent = ("run", "--name=sent", *options, f"--code={tmp_path}", "--", "sh", "-c", "ls && python3 main.py")
        code, out, error = user.call(*sent)
        assert (code, out) == (0, "main.py\nsent\n"), error


async def _said_by(address: str) -> str:
    server, _, token = address.partition("/lab?token=")
    async with (
        aiohttp.ClientSession(server, headers={"Authorization": f"token {token}"}) as owner,
        kernel(owner) as printed,
    ):
        return await printed(_SEEN)


def test_the_context_says_the_namespace(user: User, tmp_path: Path) -> None:
    """As a namespace's user gets a kubeconfig: with the namespace in it, so that nothing has to be named."""
    config = tmp_path / "config"
    config.write_bytes(Path(user.variables["KUBECONFIG"]).read_bytes())
    user.cluster.kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}", f"--kubeconfig={config}")
    options = ("--kubeconfig", str(config))
    code, out, error = user.call("run", *options, "--name=unnamed", f"--image={BUSYBOX}", "echo", "-n", "here")
    assert (code, out) == (0, "here"), error
    assert user.call("logs", "unnamed", *options)[1] == "here"
    assert user.call("stop", "unnamed", *options)[:2] == (0, f"deleted {NAMESPACE}/unnamed\n")


def test_a_pod_that_a_quota_forbids_is_reported_with_its_cause(user: User) -> None:
    where = f"--namespace={NAMESPACE}"
    user.cluster.kubectl("create", "quota", "none", "--hard=requests.nvidia.com/gpu=0", where)
    process = user.start(*user.run("greedy", "exit 0", "--gpus=1", "--cancel-on-interrupt"))
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert next((each for each in lines if "greedy: Pending: " in each and "exceeded quota: none" in each), "")
    _, out, _ = user.call("jobs", where, "-o", "json")
    assert any("exceeded quota: none" in each["reason"] for each in json.loads(out) if each["name"] == "greedy")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    user.cluster.kubectl("delete", "quota", "none", where)


def test_a_secret_is_variables_and_files_and_a_claim_is_only_read(user: User, node_cluster: Cluster) -> None:
    where = f"--namespace={NAMESPACE}"
    data = node_cluster.nodes[0].folder / "shared-data"
    data.mkdir()
    (data / "one").write_text("data one\n")
    user.cluster.kubectl("create", "secret", "generic", "hub", "--from-literal=TOKEN=opens", where)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "shared-data"},
        "spec": {**spec, "hostPath": {"path": str(data)}},
    }
    ask = {**spec, "volumeName": "shared-data", "resources": {"requests": {"storage": "1Gi"}}}
    claim = {**volume, "kind": "PersistentVolumeClaim", "metadata": {"name": "set", "namespace": NAMESPACE}}
    claim["spec"] = {key: value for key, value in ask.items() if key != "capacity"}
    user.cluster.apply(volume)
    user.cluster.apply(claim)
    options = ("--secret=hub", "--secret=hub:/etc/hub", "--data=pvc/set")
    shows = "cd $TESSERA_DATA_SET_PATH; echo $TOKEN; cat /etc/hub/TOKEN; echo; cat one"
    script = f"{shows}; touch two 2>&1 | grep -q Read-only && echo kept"
    code, out, error = user.call(*user.run("reads", script, *options))
    assert (code, out.splitlines()[:3]) == (0, ["opens", "opens", "data one"]), error
    assert out.endswith("kept\n")
    assert sorted(each.name for each in data.iterdir()) == ["one"]
    code, out, error = user.call(*user.run("no-secret", "exit 0", "-d", "--secret=absent"))
    until("why it does not start", lambda: "absent" in user.call("jobs", where, "-o", "json")[1], timeout_s=60)
    assert user.call("stop", "reads", "no-secret", where)[0] == 0
    user.cluster.kubectl("delete", "pvc", "set", where, "--timeout=90s")
    user.cluster.kubectl("delete", "pv", "shared-data", "--timeout=90s")


def test_code_that_the_image_cannot_unpack_is_reported_with_its_cause(user: User, folder: Path) -> None:
    where = f"--namespace={NAMESPACE}"
    code, _, error = user.call(
        "run", "--name=tarless", where, f"--image={PAUSE}", "--code", str(folder), "--", "/pause"
    )
    assert (code, "needs tar and gzip in the image" in error) == (5, True), error
