"""CDI specifications, and the numbers of MIG device nodes."""

import json

import pytest

from tessera.api import documents
from tessera.api.nvidia import cdi
from tessera.core.deviceplugin.containerresponse import ContainerMount
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.errors import InvalidInput

EDITS = ShareEdits(
    env=(("A", "1"), ("B", "x=y")),
    mounts=(
        ContainerMount(host_path="/h", container_path="/c"),
        ContainerMount(host_path="/r", container_path="/r", read_only=True),
    ),
    device_nodes=("/dev/nvidia0",),
)
DRIVER = """
cdiVersion: 0.7.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}]
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  mounts:
  - hostPath: /usr/lib/libcuda.so.1
    containerPath: /usr/lib/libcuda.so.1
    options: [ro, nosuid, nodev, rbind, rprivate]
"""


def test_what_a_specification_says() -> None:
    assert json.loads(cdi.write("tessera.dev/share", {"a0": EDITS})) == {
        "cdiVersion": "0.3.0",
        "kind": "tessera.dev/share",
        "devices": [
            {
                "name": "a0",
                "containerEdits": {
                    "env": ["A=1", "B=x=y"],
                    "deviceNodes": [{"path": "/dev/nvidia0"}],
                    "mounts": [
                        {"hostPath": "/h", "containerPath": "/c", "options": ["rw", "rbind", "nosuid", "nodev"]},
                        {"hostPath": "/r", "containerPath": "/r", "options": ["ro", "rbind", "nosuid", "nodev"]},
                    ],
                },
            }
        ],
    }


def test_the_lowest_version_that_is_enough() -> None:
    (document,) = documents.read("nvidia.yaml", DRIVER)
    driver = cdi.read_driver_edits(document)
    bare = ShareEdits(device_nodes=("/dev/nvidia0",))
    for name, edits, base, root, want in (
        ("a", EDITS, cdi.NOTHING, "/", "0.3.0"),
        ("0a", EDITS, cdi.NOTHING, "/", "0.5.0"),
        ("a", bare, cdi.NOTHING, "/run/nvidia/driver", "0.5.0"),
        ("0a", EDITS, driver, "/", "0.7.0"),
    ):
        assert json.loads(cdi.write("tessera.dev/gpu", {name: edits}, base, dev_root=root))["cdiVersion"] == want
    moved = json.loads(cdi.write("tessera.dev/gpu", {"a": bare}, dev_root="/run/nvidia/driver"))
    node = {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia0"}
    assert moved["devices"][0]["containerEdits"] == {"deviceNodes": [node]}


def test_the_driver_s_libraries_come_from_its_own_specification() -> None:
    (document,) = documents.read("nvidia.yaml", DRIVER)
    written = json.loads(cdi.write("tessera.dev/gpu", {"a": EDITS}, cdi.read_driver_edits(document)))
    assert written["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert written["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib/libcuda.so.1"
    assert [device["name"] for device in written["devices"]] == ["a"]


def test_the_driver_s_folder_where_there_is_no_specification_of_it() -> None:
    mount = ContainerMount(host_path="/opt/driver", container_path="/usr/local/nvidia", read_only=True)
    written = json.loads(cdi.write("tessera.dev/gpu", {"a": EDITS}, cdi.mounted_driver(mount)))
    options = ["ro", "rbind", "nosuid", "nodev"]
    want = {"hostPath": "/opt/driver", "containerPath": "/usr/local/nvidia", "options": options}
    assert written["containerEdits"] == {"mounts": [want]}


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "-a", "a b", "a\n", "é"])
def test_names_that_cdi_does_not_allow(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"CDI device of tessera\.dev/gpu"):
        cdi.write("tessera.dev/gpu", {name: EDITS})


@pytest.mark.parametrize("text", ["cdiVersion: new", "kind: a/b", "[]", "cdiVersion: 0.5.0\ncontainerEdits: []"])
def test_what_is_no_specification(text: str) -> None:
    with pytest.raises(InvalidInput):
        cdi.read_driver_edits(documents.read("nvidia.yaml", text)[0])
