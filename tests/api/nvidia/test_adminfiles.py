"""A plan as files: what MIG manager, device plugin and kubectl get, and what comments say no file can."""

import msgspec
import pytest

from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.api.nvidia import adminfiles, migparted, sharingconfig
from tessera.api.tessera.cluster import fleets
from tessera.core.cluster.snapshot import Running, Snapshot
from tessera.core.packing.plan import plan
from tessera.errors import InvalidInput


def pods(kind: str, limits: str, count: int) -> str:
    container = f"{{name: main, resources: {{limits: {limits}}}}}"
    return (
        f"kind: Deployment\nmetadata: {{name: {kind}}}\n"
        f"spec: {{replicas: {count}, template: {{spec: {{containers: [{container}]}}}}}}\n---\n"
    )


def render(fleet: str, manifests: str) -> dict[str, str]:
    snapshot = fleets.read(documents.read("fleet.yaml", fleet))
    return files_of(msgspec.structs.replace(snapshot, pending=workloads.read(documents.read("a", manifests)).pods))


def files_of(snapshot: Snapshot) -> dict[str, str]:
    return dict(adminfiles.render(plan(snapshot), snapshot))


def labels(files: dict[str, str]) -> dict[str, documents.Plain]:
    found = {}
    for document in documents.read("labels", files["node-labels.yaml"]):
        assert isinstance(document.data, dict)
        metadata = document.data["metadata"]
        assert isinstance(metadata, dict)
        found[str(metadata["name"])] = metadata["labels"]
    return found


def test_a_named_configuration_keeps_its_name() -> None:
    files = render("nodes: [{name: a, gpus: 2xH100-80GB}]", pods("m", "{nvidia.com/mig-3g.40gb: 1}", 4))
    assert "all-3g.40gb" in migparted.read(documents.read("f", files["mig-parted/a.yaml"])[0])
    assert "# GPU 0, 1: planned 3g.40gb at 0, 3g.40gb at 4; mig-parted takes" in files["mig-parted/a.yaml"]
    config = sharingconfig.read(documents.read("f", files["device-plugin/a.yaml"])[0])
    assert (config.strategy, config.entries) == ("mixed", ())
    got = labels(files)["a"]
    assert isinstance(got, dict)
    assert got["nvidia.com/mig.config"] == "all-3g.40gb"
    assert f"{got['nvidia.com/device-plugin.config']}: |" in files["device-plugin-configmap.yaml"]


def test_gpus_that_differ_are_distinguished_and_named_after_their_content() -> None:
    fleet = "nodes: [{name: a, count: 2, gpus: 2xA100-40GB}]"
    manifests = pods("m", "{nvidia.com/mig-3g.20gb: 1}", 2) + pods("w", "{nvidia.com/gpu: 1}", 1)
    files = render(fleet, manifests)
    (name, groups), *_ = migparted.read(documents.read("f", files["mig-parted/a-0.yaml"])[0]).items()
    assert name.startswith("tessera-")
    assert sorted((group.enabled, group.instances) for group in groups) == [(False, ()), (True, (("3g.20gb", 2),))]
    assert "mig-parted/a-1.yaml" not in files
    assert list(labels(files)) == ["a-0"]


def test_a_configuration_without_a_name_gets_one_from_its_content() -> None:
    fleet = "nodes: [{name: a, gpus: 2xA100-40GB, sharing: {mig: {3g.20gb: 1}}}]"
    (name, groups), *_ = migparted.read(
        documents.read("f", render(fleet, pods("m", "{cpu: 1}", 1))["mig-parted/a.yaml"])[0]
    ).items()
    assert name.startswith("tessera-")
    assert groups == (migparted.Group(devices=(0, 1), enabled=True, instances=(("3g.20gb", 1),)),)


def test_one_name_for_two_configurations_becomes_two_names() -> None:
    fleet = "nodes: [{name: a, gpus: [{model: A100-40GB, sharing: {mig: all-balanced}}]}, \
                     {name: h, gpus: [{model: H100-80GB, sharing: {mig: all-balanced}}]}]"
    files = render(fleet, pods("m", "{nvidia.com/mig-3g.20gb: 1}", 1))
    names = [str(each) for each in labels(files).values()]
    assert len(set(names)) == 2
    assert "all-balanced" not in files["node-labels.yaml"]


def test_time_sliced_instances() -> None:
    sharing = "{mig: all-balanced, time-slicing: {1g.5gb: 4, 2g.10gb: 3, 3g.20gb: 4}, renamed: true}"
    files = render(f"nodes: [{{name: a, gpus: 1xA100-40GB, sharing: {sharing}}}]", pods("m", "{cpu: 1}", 1))
    config = sharingconfig.read(documents.read("f", files["device-plugin/a.yaml"])[0])
    assert [(each.resource, each.replicas, each.rename) for each in config.entries] == [
        ("nvidia.com/mig-1g.5gb", 4, "nvidia.com/mig-1g.5gb.shared"),
        ("nvidia.com/mig-2g.10gb", 3, "nvidia.com/mig-2g.10gb.shared"),
        ("nvidia.com/mig-3g.20gb", 4, "nvidia.com/mig-3g.20gb.shared"),
    ]
    assert config.strategy == "mixed"


def test_instances_advertised_as_gpus() -> None:
    sharing = "{mig: all-1g.5gb, mps: 2, strategy: single}"
    files = render(f"nodes: [{{name: a, gpus: 1xA100-40GB, sharing: {sharing}}}]", pods("m", "{cpu: 1}", 1))
    config = sharingconfig.read(documents.read("f", files["device-plugin/a.yaml"])[0])
    assert config.strategy == "single"
    assert [(each.resource, each.replicas) for each in config.entries] == [("nvidia.com/gpu", 2)]


def test_turning_mig_off() -> None:
    fleet = "nodes: [{name: a, gpus: [{model: A100-40GB, sharing: {mig: all-1g.5gb, allow-repartition: true}}]}]"
    files = render(fleet, pods("w", "{nvidia.com/gpu: 1}", 1))
    assert "all-disabled" in migparted.read(documents.read("f", files["mig-parted/a.yaml"])[0])


def test_amounts_are_comments() -> None:
    fleet = "nodes: [{name: a, gpus: 1xT4}, {name: b, gpus: 2xL4, sharing: whole}]"
    manifests = pods("s", "{aliyun.com/gpu-mem: 10}", 1)
    files = render(fleet, manifests + pods("n", "{aliyun.com/gpu-mem: 2}", 2))
    assert list(files) == ["node-labels.yaml"]
    assert labels(files) == {"a": {"gpushare": "true"}}
    assert "# GPU 0: planned memory shares of 14336 MiB in all for 3 pods; no file here" in files["node-labels.yaml"]


@pytest.mark.parametrize(
    ("gpus", "want"),
    [
        (
            "[{model: T4, sharing: {time-slicing: 4}}, {model: T4, sharing: {time-slicing: 2}}]",
            "nvidia.com/gpu: planned 2 and 4 clients; the device plugin takes one number for all nvidia.com/gpu",
        ),
        (
            "[{model: A100-40GB, sharing: {mig: all-1g.5gb, mps: 2}}, {model: A100-40GB, sharing: {time-slicing: 2}}]",
            "planned time-slicing and MPS; the device plugin does one of them on a node",
        ),
    ],
)
def test_what_the_device_plugin_cannot_express_is_a_comment(gpus: str, want: str) -> None:
    files = render(f"nodes: [{{name: a, gpus: {gpus}}}]", pods("m", "{nvidia.com/gpu: 1}", 1))
    assert not any(name.startswith("device-plugin") for name in files)
    assert any(f"# {want}" in text for text in files.values())


def test_gke_nodes_are_left_to_their_node_pool() -> None:
    node = (
        "kind: Node\nmetadata:\n  name: g\n  labels: {cloud.google.com/gke-accelerator: nvidia-l4}\n"
        "status: {allocatable: {nvidia.com/gpu: 1}}\n"
    )
    files = render(node, pods("w", "{nvidia.com/gpu: 1}", 1))
    assert list(files) == ["node-labels.yaml"]
    assert files["node-labels.yaml"].startswith("# g: partitions and sharing of a GKE node are set on its node pool")


def test_nothing_decided_is_nothing_to_apply() -> None:
    files = render("nodes: [{name: a, gpus: 8xH100-80GB}]", pods("m", "{cpu: 1}", 1))
    assert list(files) == ["node-labels.yaml"]
    assert labels(files) == {}


def test_a_node_whose_usage_is_guessed_is_not_partitioned() -> None:
    snapshot = fleets.read(documents.read("fleet.yaml", "nodes: [{name: a, gpus: 8xH100-80GB}]"))
    read = workloads.read(documents.read("a", pods("m", "{nvidia.com/mig-1g.10gb: 1}", 1))).pods
    ran = workloads.read(documents.read("b", pods("r", "{nvidia.com/gpu: 1}", 5))).pods
    first = plan(msgspec.structs.replace(snapshot, pending=ran))
    running = tuple(
        Running(pod=pod, assignment=held, unrecorded=True) for pod, held in zip(ran, first.assignments, strict=True)
    )
    before = msgspec.structs.replace(snapshot, pending=read, running=running)
    with pytest.raises(
        InvalidInput, match=r"GPU \d would be partitioned, .* default/r-0, default/r-1, default/r-2 and 2 more use: run"
    ):
        files_of(before)
    assert files_of(msgspec.structs.replace(before, pending=()))
