"""`tessera images analyze`: from names, manifests and a saved cluster to a table and JSON."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance.registrysuite import described
from harness.registryserver import RegistryServer, serving_registry
from tessera.cli import main
from tessera.clients.registry import MemoryRegistry

OLD = [("RUN install os", b"os" * 2**20), ("RUN pip install torch", b"torch-1" * 2**18)]
NEW = [*OLD[:1], ("RUN pip install torch", b"torch-2" * 2**18), ("COPY . /app", b"application")]


@pytest.fixture(scope="module")
def served() -> Iterator[RegistryServer]:
    """Give a registry that answers from a thread of its own, because commands have a loop of their own."""
    memory = MemoryRegistry()
    memory.push("team/old", "1", described(OLD))
    memory.push("team/new", "1", described(NEW))
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), list[RegistryServer]()
    ended = asyncio.Event()

    async def serve() -> None:
        async with serving_registry(memory) as registry:
            found.append(registry)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("images", "analyze", *arguments))


def test_names_are_analyzed(served: RegistryServer) -> None:
    got = run(f"{served.host}/team/old:1", f"{served.host}/team/new:1", "-o", "json")
    assert (got.exit_code, got.stderr) == (0, "")
    found = json.loads(got.stdout)["analysis"]
    assert found["bytes"] == 2 * 2**20 + 2 * 7 * 2**18 + len("application")
    assert [each["shared_bytes"] for each in found["images"]] == [2 * 2**20] * 2
    assert (found["base"]["layers"], found["base"]["saved_bytes"]) == (2, 7 * 2**18)
    table = run(f"{served.host}/team/old:1", f"{served.host}/team/new:1").stdout
    for want in (
        "\n\nShared layers: 1\n",
        "pulls 5.5 MiB; 7.5 MiB if",
        f"Build {served.host}/team/new:1 on the lowest 2 layers",
    ):
        assert want in table


def saved_cluster(host: str, names: list[str]) -> dict[str, Any]:
    info = {"operatingSystem": "linux", "architecture": "amd64"}
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"nodeInfo": info, "images": [{"names": names}]}}
    arm = {"kind": "Node", "metadata": {"name": "arm"}, "status": {"nodeInfo": {**info, "architecture": "arm64"}}}
    images = (f"{host}/team/old:1", f"{host}/team/new:1", f"{host}/team/gone:1")
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"image": image} for image in images]}}
    return {"kind": "List", "items": [node, arm, pod]}


def test_a_cluster_reports_what_its_nodes_lack_and_what_could_not_be_read(
    served: RegistryServer, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.json"
    digest = served.memory.contents["team/old", "1"].digest
    path.write_text(json.dumps(saved_cluster(served.host, [f"{served.host}/team/old@{digest}"])))
    got = run("--cluster", str(path), "-o", "json")
    found = json.loads(got.stdout)
    assert got.exit_code == 0
    (node,) = found["analysis"]["nodes"]
    assert (node["node"], node["missing"]) == ("n1", [f"{served.host}/team/new:1"])
    assert node["bytes"] == 7 * 2**18 + len("application")
    assert [each["image"] for each in found["unread"]] == [f"{served.host}/team/gone:1"]
    assert "team/gone:1 is left out" in got.stderr
    assert "1 of 2" in run("--cluster", str(path)).stdout


def test_manifests_name_images(served: RegistryServer, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(f"kind: Pod\nspec: {{containers: [{{image: '{served.host}/team/old:1'}}]}}\n")
    got = run("-f", str(path), "-o", "wide")
    assert got.exit_code == 0
    assert served.memory.contents["team/old", "1"].digest in got.stdout
    assert "No base would save anything" in got.stdout


def test_what_cannot_be_done_reports_why(served: RegistryServer, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("kind: ConfigMap\n")
    cases = {
        (): (2, "images: none is named"),
        ("-f", str(empty)): (2, f"{empty}: no image is named there: name another file, or IMAGE"),
        ("A B",): (2, "the name of an image"),
        (f"{served.host}/team/gone:1",): (2, "no such image"),
        (f"{served.host}/team/old:1", "--platform", "linux"): (2, "OS/ARCHITECTURE"),
        (f"{served.host}/team/old:1", "--platform", "linux/arm64"): (3, "image for linux/arm64"),
        ("127.0.0.1:1/a:1",): (4, "http://127.0.0.1:1: "),
    }
    for arguments, (code, want) in cases.items():
        got = run(*arguments)
        assert (got.exit_code, got.stderr.count("\n")) == (code, 1), got.stderr
        assert want in got.stderr
