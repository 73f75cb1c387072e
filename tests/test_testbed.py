"""The parts of the testbed that need neither root nor the built programs; tests/kube has the rest."""

import ctypes
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tessera.errors import InvalidInput, Unavailable
from testbed.addresses import node_address, pod_network
from testbed.cgroups import make_cgroup, remove_cgroup
from testbed.cluster import Cluster, Desired
from testbed.cudanames import make_libraries
from testbed.gpus import capability_minors
from testbed.images import BUSYBOX, Image, write_archive, write_images, write_layer
from testbed.lookups import Lookups
from testbed.pki import Pki
from testbed.processes import Processes, find_process, until
from testbed.programs import HELM, MODULES, go_version, programs
from testbed.recordedvllm import Handler
from testbed.tesseraimage import CONFIG, SCRIPT

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_a_process_is_found_again_by_its_pid_file_and_stopped(processes: Processes, tmp_path: Path) -> None:
    started = processes.start("sleeper", ["sleep", "60"])
    assert Processes(tmp_path).get("sleeper") == started
    assert processes.names() == ("sleeper",)
    processes.stop("sleeper")
    assert not started.alive
    assert processes.get("sleeper") is None
    assert processes.names() == ()


def test_a_process_that_runs_is_not_started_twice(processes: Processes) -> None:
    first = processes.start("sleeper", ["sleep", "60"])
    assert processes.start("sleeper", ["sleep", "60"]) == first
    processes.stop("sleeper")


def test_a_process_that_does_not_listen_is_killed(processes: Processes) -> None:
    deaf = processes.start("deaf", ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    until("trap", lambda: "deaf" in processes.last_words("deaf"), timeout_s=10)
    processes.stop("deaf", timeout_s=0.2)
    assert not deaf.alive


def test_a_parent_that_stands_still_buries_its_child_when_parents_are_resumed(
    processes: Processes, tmp_path: Path
) -> None:
    """As nsenter, which stops with what it started: the namespaces of a child that is not buried do not end."""
    parent = processes.start("parent", ["sh", "-c", "sleep 60 & echo $!; wait"])
    until("child", lambda: processes.log("parent").read_text().strip().isdecimal(), timeout_s=10)
    child = find_process(int(processes.log("parent").read_text()))
    assert child is not None
    (tmp_path / "pids" / "child.pid").write_text(f"{child.pid} {child.started}\n")
    parent.signal(signal.SIGSTOP)
    child.signal(signal.SIGKILL)
    until("end", lambda: not child.alive, timeout_s=10)
    assert find_process(child.pid) == child, "not buried"
    processes.resume_parents()
    until("burial", lambda: find_process(child.pid) is None, timeout_s=10)
    processes.stop("parent")


@pytest.mark.parametrize("end", ["stop", "kill", "start again"])
def test_a_paused_process_that_ends_is_buried_by_its_parent(processes: Processes, end: str) -> None:
    """Its parent stops with it, as nsenter does, and nobody knows of the two once the pid file names another."""
    command = ["sh", "-c", "trap 'echo heard; exit' TERM; echo ready; while :; do sleep 0.1; done"]
    child = processes.start("it", command, inside=["sh", "-c", '"$@" & wait', "sh"])
    until("trap", lambda: "ready" in processes.last_words("it"), timeout_s=10)
    parent = child.parent
    assert parent is not None
    processes.pause("it")
    parent.signal(signal.SIGSTOP)
    if end == "start again":
        child.signal(signal.SIGKILL)
        until("end", lambda: not child.alive, timeout_s=10)
        assert find_process(child.pid) == child, "not buried"
        assert processes.start("it", ["sleep", "60"]) != child
    processes.stop("it", number=signal.SIGKILL if end == "kill" else signal.SIGTERM)
    until("burial", lambda: find_process(child.pid) is None, timeout_s=10)
    assert ("heard" in processes.log("it").read_text()) == (end == "stop")


def test_the_child_counts_where_a_program_runs_another(processes: Processes) -> None:
    child = processes.start("child", ["sleep", "60"], inside=["sh", "-c", '"$@" & wait', "sh"])
    until("sleep", lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", timeout_s=10)
    assert processes.get("child") == child
    processes.stop("child")
    assert not child.alive


def test_a_start_that_fails_tells_what_was_said(processes: Processes) -> None:
    with pytest.raises(Unavailable, match="no such luck"):
        processes.start("loser", ["true"], inside=["sh", "-c", "echo no such luck; exit 1", "sh"])


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "1 -5", "99999999 5"])
def test_a_pid_file_that_names_no_process_of_ours_is_no_process(text: str, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "pids" / "it.pid").write_text(text)
    assert Processes(tmp_path).get("it") is None


def test_a_later_process_with_the_same_number_is_another() -> None:
    mine = find_process(os.getpid())
    assert mine is not None
    assert mine.alive
    assert not type(mine)(mine.pid, mine.started - 1).alive
    type(mine)(mine.pid, mine.started - 1).signal(signal.SIGKILL)


def test_waiting_ends_at_its_deadline() -> None:
    with pytest.raises(Unavailable, match=r"the moon: not ready within 0\.1 s: not yet"):
        until("the moon", lambda: False, timeout_s=0.1)


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_certificates_are_signed_by_their_authority_and_made_once(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    pki.prepare()
    certificate = pki.issue("server", "/O=us/CN=server", names=("DNS:localhost", "IP:127.0.0.1"))
    content = certificate.read_bytes()
    pki.prepare()
    assert pki.issue("server", "/O=us/CN=server").read_bytes() == content
    said = subprocess.run(
        ["openssl", "verify", "-CAfile", pki.certificate("ca"), "-verify_ip", "127.0.0.1", certificate],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.endswith("OK\n")
    assert (tmp_path / "pki").stat().st_mode & 0o77 == 0


def test_a_kubeconfig_names_its_files(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    content = json.loads(pki.kubeconfig("admin", "someone", "https://127.0.0.1:1").read_text())
    assert content["users"][0]["user"]["client-key"] == str(tmp_path / "someone.key")
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
@pytest.mark.parametrize("refusals", [0, 9, 10])
def test_a_server_that_says_try_again_is_asked_ten_times(tmp_path: Path, refusals: int) -> None:
    """As the API server says of a kind that it has just begun to serve, and as kubectl asks."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(429 if len(asked) <= refusals else 200)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()

    pki = Pki(tmp_path)
    pki.prepare()
    certificate = pki.issue("server", "/CN=server", names=("IP:127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, pki.key("server"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = pki.kubeconfig("admin", "server", f"https://127.0.0.1:{server.server_port}")
        assert Lookups(config).answers("/readyz") is (refusals < 10)
        server.shutdown()
    assert asked == ["/readyz"] * min(refusals + 1, 10)


def test_an_image_is_an_archive_with_one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = tmp_path / "pause"
    waiter.write_bytes(b"program")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(waiter))
    paths = write_images(tmp_path / "images", waiter, "x86_64")
    assert [path.name for path in paths] == ["pause.tar", "busybox.tar", "python.tar"]
    with tarfile.open(paths[1]) as archive:
        manifest = archive.extractfile("manifest.json")
        layer = archive.extractfile("layer.tar")
        assert manifest is not None
        assert layer is not None
        assert json.load(manifest)[0]["RepoTags"] == [BUSYBOX]
        with tarfile.open(fileobj=layer) as files:
            assert files.getmember("bin/sh").linkname == "busybox"
    assert write_images(tmp_path / "images", waiter, "x86_64") == paths


def test_an_image_of_layers_is_the_same_whoever_makes_it_and_when(tmp_path: Path) -> None:
    made: list[bytes] = []
    for name in ("first", "second"):
        root = tmp_path / name
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "hosts").write_text("here\n")
        (root / "hosts").symlink_to("etc/hosts")
        os.utime(root / "etc" / "hosts", (1, len(made)))
        write_layer(tmp_path / f"{name}.tar", root)
        made.append((tmp_path / f"{name}.tar").read_bytes())
    assert made[0] == made[1]
    layers = (tmp_path / "first.tar", tmp_path / "second.tar")
    write_archive(tmp_path / "image.tar", Image("a/b:1", {"User": "1"}), layers, "aarch64")
    with tarfile.open(tmp_path / "image.tar") as archive:
        read = {name: archive.extractfile(name) for name in ("manifest.json", "config.json")}
        manifest, config = (json.load(file) for file in read.values() if file)
    assert manifest == [{"Config": "config.json", "RepoTags": ["a/b:1"], "Layers": ["0.tar", "1.tar"]}]
    assert (config["architecture"], config["config"]) == ("arm64", {"User": "1"})
    assert config["rootfs"]["diff_ids"] == 2 * [f"sha256:{hashlib.sha256(made[0]).hexdigest()}"]


def test_the_dockerfile_makes_the_testbeds_image() -> None:
    """Both run the same script; what they say beside it is the same."""
    lines = [line.partition(" ") for line in (CHECKOUT / "Dockerfile").read_text().splitlines()]
    said = {word: rest for word, _, rest in lines if word in {"ENV", "USER", "WORKDIR", "ENTRYPOINT"}}
    assert {
        "Entrypoint": json.loads(said["ENTRYPOINT"]),
        "User": said["USER"],
        "WorkingDir": said["WORKDIR"],
        "Env": said["ENV"].split(),
    } == CONFIG
    steps = [rest.split() for word, _, rest in lines if word == "RUN" and SCRIPT in rest]
    assert [step[:2] for step in steps] == [[SCRIPT, "base"], [SCRIPT, "tessera"]]


def test_an_image_needs_a_node(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give --nodes, or --from source"):
        Cluster(tmp_path / "x", Path("/opt/programs")).up(Desired(nodes=0, source="image"))


def test_it_goes_down_beside_a_mount_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a mount for this test alone needs a user namespace")
    name = str(tmp_path / os.fsdecode(b"\xff"))
    Path(name).mkdir()
    run = "from testbed.cluster import Cluster; Cluster(*map(Path, sys.argv[1:])).down()"
    down = f"import sys; from pathlib import Path; {run}"
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    command = [*apart, "sh", "-c", script, name, sys.executable, "-c", down, str(tmp_path / "x"), "/opt/programs"]
    done = subprocess.run(command, check=False, cwd=CHECKOUT, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr


def test_control_groups_are_made_and_removed_in_every_hierarchy(tmp_path: Path) -> None:
    """Files stand in for what the kernel makes; a folder that holds one is a group that is still in use."""
    for hierarchy in ("memory", "cpuset"):
        (tmp_path / hierarchy).mkdir()
    make_cgroup("ours/node1", tmp_path)
    make_cgroup("ours/node1", tmp_path)
    assert (tmp_path / "memory" / "ours" / "node1").is_dir()
    busy = tmp_path / "cpuset" / "ours" / "node1" / "tasks"
    busy.touch()
    assert remove_cgroup("ours", tmp_path) == (tmp_path / "cpuset" / "ours",)
    assert not (tmp_path / "memory" / "ours").exists()
    busy.unlink()
    assert remove_cgroup("ours", tmp_path) == ()


def test_nodes_have_addresses_and_networks_of_their_own() -> None:
    numbers = range(1, 100)
    assert len({node_address(number) for number in numbers}) == len(numbers)
    assert len({pod_network(number) for number in numbers}) == len(numbers)
    assert (node_address(1), pod_network(1)) == ("192.168.77.101", "192.168.101.0/24")


def test_the_image_is_built_from_a_base_that_is_named_by_its_digest() -> None:
    (base,) = re.findall(r"^ARG DEBIAN=(.*)$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/debian@sha256:[0-9a-f]{64}", base)


def test_who_waits_for_programs_that_another_process_builds_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    folder = tmp_path / "programs"
    folder.mkdir()
    name = f"helm_{HELM[0].version.removeprefix('v')}"
    with (folder / f".lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = {"cache": tmp_path, "modules": HELM}
        waiting = threading.Thread(target=programs, args=(fail,), kwargs=options, daemon=True)
        waiting.start()
        printed = ""
        while "waiting" not in printed:
            assert waiting.is_alive()
            printed += capsys.readouterr().err
            time.sleep(0.01)
        assert printed == f"another process builds {name} in {folder}: waiting ...\n"
        (folder / name).mkdir()
    waiting.join(20)
    assert not waiting.is_alive()


def test_programs_that_are_there_are_not_built(tmp_path: Path) -> None:
    def fail(*said: object) -> None:
        raise AssertionError(said)

    names = [f"{module.name}_{module.version[1:]}" for module in MODULES]
    folder = tmp_path / "programs" / "-".join(names)
    folder.mkdir(parents=True)
    assert programs(fail, cache=tmp_path) == folder


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/amd64", (1, 27, 0)),
        ("go version go1.27rc1 linux/amd64", (1, 27, 0)),
        ("what?", ()),
    ],
)
def test_versions_of_go(said: str, want: tuple[int, ...], tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    assert go_version(str(program)) == want


def test_there_is_no_version_where_there_is_no_go(tmp_path: Path) -> None:
    assert go_version(str(tmp_path / "go")) == ()


@pytest.mark.parametrize(
    ("folder", "nodes", "want"),
    [
        ("/var/tmp/x", -1, "nodes: -1"),
        ("/var/tmp/x", 100, "0 to 99"),
        ("/var/tmp/" + "x" * 60, 1, "at most 48 characters"),
        ("/run/x", 1, "outside of /run"),
    ],
)
def test_what_cannot_be_brought_up_is_refused_before_anything_is_made(folder: str, nodes: int, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        Cluster(Path(folder), Path("/opt/programs")).up(Desired(nodes=nodes))
    assert not Path(folder).exists()


def test_each_capability_of_an_instance_has_a_number() -> None:
    minors = capability_minors(2)
    assert minors["config"] == 1
    assert minors["gpu0/gi0/access"] == 3
    assert minors["gpu1/gi0/access"] - minors["gpu0/gi0/access"] == 135
    assert sorted(minors.values()) == list(range(1, len(minors) + 1))


def test_a_library_loads_with_cudas_names_alone(tmp_path: Path) -> None:
    """With the version that it was linked against, and what it calls as it is loaded."""
    real, folder = tmp_path / "real", tmp_path / "lib"
    real.mkdir()
    folder.mkdir()
    versions = real / "versions.map"
    versions.write_text("libcudart.so.13 { cudaGetDeviceCount; __cudaRegister; };\n")
    cudart = "int cudaGetDeviceCount(void) { return 0; } int __cudaRegister(void) { return 1; }"
    user = """
    int cudaGetDeviceCount(void); int __cudaRegister(void);
    static int registered = -1;
    __attribute__((constructor)) static void load(void) { registered = __cudaRegister(); }
    int devices(void) { return cudaGetDeviceCount(); }
    int loaded(void) { return registered; }
    """
    gcc = ("gcc", "-shared", "-fPIC", "-x", "c", "-")
    link = (f"-Wl,--version-script={versions}", "-Wl,-soname,libcudart.so.13", "-o", real / "libcudart.so.13")
    subprocess.run([*gcc, *link], input=cudart, text=True, check=True)
    found = ("-x", "none", real / "libcudart.so.13", "-Wl,-rpath,$ORIGIN", "-o", folder / "libtorch_cuda.so")
    subprocess.run([*gcc, *found], input=user, text=True, check=True)
    make_libraries(folder)
    assert {each.name for each in folder.iterdir()} == {"libtorch_cuda.so", "libcudart.so.13"}
    library = ctypes.CDLL(str(folder / "libtorch_cuda.so"))
    assert (library.loaded(), library.devices()) == (0, 100)


def test_recorded_answers_say_that_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.recordedvllm.RECORDED", tmp_path)
    (tmp_path / "health").touch()
    (tmp_path / "v1-completions").write_text('{"choices": []}')
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        for method, path, want in (
            ("GET", "/health", (200, b"")),
            ("POST", "/v1/completions", (200, b'{"choices": []}')),
            ("GET", "/v1/../health", (404, b"")),
        ):
            connection.request(method, path, b"{}" if method == "POST" else None)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == want
            assert answer.headers["X-Recorded"] == "1"
        connection.close()
        server.shutdown()
