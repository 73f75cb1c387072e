"""Leases are read as they are and written so that every renewal changes something."""

import datetime as dt

import pytest

from tessera.api.kubernetes.leases import read_lease, renewed_s, write_lease
from tessera.core.cluster.protocols.leadership import Lease
from tessera.errors import InvalidInput

NOW = dt.datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))

READ = {
    "no object is a lease that nobody made": (None, Lease()),
    "one without a spec is free": ({"metadata": {"resourceVersion": "3"}}, Lease(version="3")),
    "one that is held": (
        {
            "metadata": {"resourceVersion": "3", "name": "n"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "leaseTransitions": 2,
                "renewTime": "yesterday",
            },
        },
        Lease(holder="a", lease_s=15, transitions=2, version="3"),
    ),
    "a senseless duration is none": (
        {"metadata": {}, "spec": {"holderIdentity": None, "leaseDurationSeconds": -4}},
        Lease(),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_a_lease_is_read(case: str) -> None:
    found, want = READ[case]
    assert read_lease(found) == want


def test_what_is_no_lease_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Lease: "):
        read_lease({"spec": {"leaseDurationSeconds": "long"}})


def test_a_written_lease_names_the_version_it_replaces() -> None:
    lease = Lease(holder="a", lease_s=15, transitions=2, version="3")
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 2,
        "renewTime": "2026-11-21T11:00:00.000005Z",
    }
    assert write_lease(lease, NOW, acquired=False) == {"metadata": {"resourceVersion": "3"}, "spec": spec}
    acquired = spec | {"acquireTime": "2026-11-21T11:00:00.000005Z"}
    assert write_lease(Lease(holder="a", lease_s=15, transitions=2), NOW, acquired=True) == {"spec": acquired}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"holderIdentity": "a", "renewTime": "2026-11-21T12:00:00.000000Z"}, 1795262400.0),
        ({"holderIdentity": "", "renewTime": "2026-11-21T12:00:00.000000Z"}, None),
        ({"holderIdentity": "a", "renewTime": "yesterday"}, None),
        ({"holderIdentity": "a"}, None),
        (None, None),
    ],
)
def test_when_a_leader_renewed_its_lease(spec: object, want: float | None) -> None:
    assert renewed_s({"spec": spec}) == want
