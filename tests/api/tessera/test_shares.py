"""The record of a share on the wire: the same in annotations and in claims, whatever the core calls its fields."""

import msgspec
import pytest

from builders.kubeobjects import amount, mig_share
from tessera.api.tessera.shares import ShareFields
from tessera.api.tessera.v1alpha1.gpunodes import claims_field
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.cluster.snapshot import Share
from tessera.core.workload.need import PodKey

INSTANCE = {
    "gpu": 1,
    "mode": "mig",
    "profile": "1g.5gb",
    "start": 2,
    "memoryMiB": 4864,
    "computePercent": 14,
    "isolation": "hardware",
    "resource": "nvidia.com/mig-1g.5gb",
    "container": "main",
}
WRITTEN = {
    "a MIG instance": (mig_share(1, "1g.5gb", 2), INSTANCE),
    "an amount, without what it does not have": (
        amount(0, container=""),
        {
            "gpu": 0,
            "mode": "memory-share",
            "memoryMiB": 4096,
            "computePercent": 0,
            "isolation": "none",
            "resource": "tessera.dev/gpu-memory",
        },
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_share_is_written_and_read_again(case: str) -> None:
    share, want = WRITTEN[case]
    fields = msgspec.convert(want, ShareFields)
    assert msgspec.to_builtins(msgspec.convert(share, ShareFields, from_attributes=True)) == want
    assert msgspec.convert(fields, Share, from_attributes=True) == share


def test_every_field_of_a_share_is_written() -> None:
    assert ShareFields.__struct_fields__ == Share.__struct_fields__


def test_claims_are_written_so() -> None:
    claim = Claim(uid="u", pod=PodKey("ns/p"), shares=(mig_share(1, "1g.5gb", 2),))
    assert claims_field([claim]) == [{"uid": "u", "pod": "ns/p", "shares": (INSTANCE,)}]


BEYOND = {"gpu": (-1,), "memoryMiB": (-1,), "computePercent": (-1, 101)}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BEYOND.items() for value in values])
def test_what_no_gpu_has_is_refused(field: str, value: int) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        msgspec.convert(INSTANCE | {field: value}, ShareFields)
