"""The annotation `tessera.dev/assignment`: what is written, and what former versions wrote on running pods."""

import json

import pytest

from builders.kubeobjects import amount, mig_share, place, pod
from builders.shares import share
from builders.signed import SERVER, keys
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.tessera.pods.assignments import read_shares, serves, write_shares
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.core.gpu.sharing import Mode
from tessera.errors import InvalidInput

SHARES = (amount(0), mig_share(1, "1g.5gb", 2))


def test_the_text_has_a_version_and_the_names_of_a_gpunode() -> None:
    first, second = json.loads(write_shares(SHARES))["shares"]
    assert write_shares(()) == '{"version":1,"shares":[]}'
    assert list(first) == ["gpu", "mode", "memoryMiB", "computePercent", "isolation", "resource", "container"]
    assert (second["profile"], second["start"]) == ("1g.5gb", 2)


def test_what_is_written_is_read_again() -> None:
    field = object_field("Pod", pod("p", {}, *SHARES))
    assert read_shares(field, None) == SHARES


def test_an_assignment_of_another_version_is_not_taken_for_this_one() -> None:
    text = write_shares(SHARES).replace('"version":1', '"version":2')
    field = object_field("Pod", pod("p", annotations={"tessera.dev/assignment": text}))
    with pytest.raises(InvalidInput, match="version: 2 is not a value that is accepted there"):
        read_shares(field, None)


FORMER = (
    '[{"gpu":0,"mode":"memory-share","profile":null,"start":null,"memory_mib":4096,"compute_percent":0,'
    '"isolation":"none","resource":"tessera.dev/gpu-memory","container":"main"},{"gpu":1,"mode":"mig",'
    '"profile":"1g.5gb","start":2,"memory_mib":4864,"compute_percent":14,"isolation":"hardware",'
    '"resource":"nvidia.com/mig-1g.5gb","container":"main"}]'
)
"""As versions before the annotation had one wrote it."""
SIGNED = {
    "tessera.dev/assignment": '[{"gpu":0,"mode":"mig","profile":"1g.5gb","start":2,"memory_mib":4096,'
    '"compute_percent":0,"isolation":"hardware","resource":"tessera.dev/gpu-memory","container":"main"}]',
    "tessera.dev/assignment-signature": "v1.56475aa75463474c.np0yu/0iKEXAUj8SQlFVCaU9IuMy3qfxXo4XobpOcY2/"
    "iaJz9Z38z9fAud8GE2UZm4lVGVmDcyPhZ7bPSqi+BQ==",
}
"""The same with the signature that the key `SERVER` made of it for pod `ns/p` on node `a`."""


def test_an_annotation_without_version_is_read() -> None:
    field = object_field("Pod", pod("p", annotations={"tessera.dev/assignment": FORMER}))
    assert read_shares(field, None) == SHARES


def test_an_annotation_without_version_keeps_its_signature() -> None:
    field = object_field("Pod", pod("p", {"tessera.dev/gpu-memory": 4}, annotations=SIGNED))
    shares = read_shares(field, read_need(field, share_unit_mib=1024), keys=keys(SERVER))
    assert shares == (amount(0, place("A100-40GB", "1g.5gb", 2)),)


# Keyed by a sentence: the resource that a pod requests, that of the recorded device, and whether it serves.
DEVICES: dict[str, tuple[str, str, bool]] = {
    "the same": ("nvidia.com/mig-3g.40gb", "nvidia.com/mig-3g.40gb", True),
    "as another driver prints it": ("nvidia.com/mig-3g.39gb", "nvidia.com/mig-3g.40gb", True),
    "replicas, as another driver prints them": ("nvidia.com/mig-3g.39gb.shared", "nvidia.com/mig-3g.40gb.shared", True),
    "a replica for an instance": ("nvidia.com/mig-3g.39gb", "nvidia.com/mig-3g.40gb.shared", False),
    "twice the memory": ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.20gb", False),
    "the whole GPU": ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu", False),
}


@pytest.mark.parametrize(("requested", "recorded", "want"), DEVICES.values(), ids=DEVICES)
def test_a_device_serves_under_every_name_of_its_profile(requested: str, recorded: str, want: bool) -> None:
    field = object_field("Pod", pod("p", {requested: 1}))
    assert serves(field, read_need(field), (share(0, 1, Mode.MIG, "3g.40gb@0", resource=recorded),)) is want


@pytest.mark.parametrize(
    ("allocation", "found"),
    [
        ('{"0": {"255": 16384}}', ""),
        ('{"0": {"256": 1}}', "1024 MiB of GPU 256"),
        ('{"0": {"0": 16384}, "1": {"0": 1}}', "16778240 MiB of GPU 0"),
    ],
)
def test_what_gpushare_records_has_the_bounds_of_an_assignment(allocation: str, found: str) -> None:
    field = object_field("Pod", pod("p", annotations={"scheduler.framework.gpushare.allocation": allocation}))
    if not found:
        shares = read_shares(field, None)
        assert shares is not None
        assert read_shares(object_field("Pod", pod("p", {}, *shares)), None) == shares
        return
    with pytest.raises(InvalidInput, match=f"{found} are more than any node has"):
        read_shares(field, None)
