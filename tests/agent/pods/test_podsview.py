"""What an agent sees of its node's pods: lists that overtake each other, and static pods."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builders.kubeobjects import pod
from builders.nodepods import ListedPods
from tessera.agent.pods.podsview import PodsView, by_uid
from tessera.clients.kube import Listing, Object
from tessera.clients.kubelet import DeviceCheckpoint, PodResources

pytestmark = pytest.mark.anyio

MIRROR = "kubernetes.io/config.mirror"
UID = "0f6e8f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6"


def versioned(name: str, version: int = 1) -> Object:
    return pod(name, metadata={"resourceVersion": str(version)})


def view(
    folder: Path,
    watched: Sequence[Object] = (),
    lists: Callable[[], Listing] | None = None,
    node: Object | None = None,
) -> PodsView:
    async def relist() -> Listing:
        return lists() if lists else Listing(objects=(), resource_version="1")

    resources = PodResources(folder / "pod-resources.sock")
    bound = ListedPods(lambda: watched, relist, lambda: node or {})
    return PodsView(bound, DeviceCheckpoint(folder), resources, proc=folder / "proc")


def names(seen: PodsView) -> list[str]:
    return sorted(each["metadata"]["name"] for each in seen.pods())


async def test_a_list_is_newer_than_the_watch_and_older_than_what_comes_after_it(tmp_path: Path) -> None:
    watched = (versioned("gone", 5), versioned("changed", 5), versioned("new", 9))
    listed = (versioned("changed", 7), versioned("unseen", 8))
    seen = view(tmp_path, watched, lambda: Listing(objects=listed, resource_version="8"))
    assert names(seen) == ["changed", "gone", "new"]
    await seen.refresh()
    assert names(seen) == ["changed", "new", "unseen"]
    assert seen.find("uid-changed") == listed[0]


async def test_a_list_that_was_overtaken_counts_for_nothing(tmp_path: Path) -> None:
    lists = iter([Listing(objects=(), resource_version="8"), Listing(objects=(versioned("p"),), resource_version="9")])
    overtaken = asyncio.Event()

    async def relist() -> Listing:
        found = next(lists)
        if found.resource_version == "8":
            await overtaken.wait()
        return found

    resources = PodResources(tmp_path / "pod-resources.sock")
    seen = PodsView(ListedPods(lambda: (), relist), DeviceCheckpoint(tmp_path), resources, proc=tmp_path)
    slow = asyncio.create_task(seen.refresh())
    await asyncio.sleep(0)
    await seen.refresh()
    overtaken.set()
    await slow
    assert names(seen) == ["p"]


async def test_a_list_of_a_restored_etcd_counts_though_it_is_older(tmp_path: Path) -> None:
    lists = iter([Listing(objects=(), resource_version="9"), Listing(objects=(versioned("p"),), resource_version="8")])
    seen = view(tmp_path, lists=lambda: next(lists))
    await seen.refresh()
    await seen.refresh()
    assert names(seen) == ["p"]


async def test_a_pod_that_was_made_anew_since_the_list_is_the_one_of_its_name(tmp_path: Path) -> None:
    old = versioned("p", 5)
    new = {"metadata": {**old["metadata"], "uid": "uid-new", "resourceVersion": "9"}}
    watched = [old]
    seen = view(tmp_path, watched, lambda: Listing(objects=(old,), resource_version="6"))
    await seen.refresh()
    watched[:] = [new]
    assert seen.pods() == (new,)
    assert seen.find("uid-p") is None


async def test_a_list_shows_the_new_pod_of_a_name_before_the_watch_does(tmp_path: Path) -> None:
    old = versioned("p", 5)
    new = {"metadata": {**old["metadata"], "uid": "uid-new", "resourceVersion": "9"}}
    seen = view(tmp_path, (old,), lambda: Listing(objects=(new,), resource_version="9"))
    await seen.refresh()
    assert seen.pods() == (new,)


async def test_each_change_of_watch_and_list_is_observed_at_once(tmp_path: Path) -> None:
    """Between two changes the view answers with what it read."""
    watched, now_s = [versioned("p", 5)], [0.0]
    lists = iter(
        [Listing(objects=(), resource_version="6"), Listing(objects=(versioned("p", 7),), resource_version="7")]
    )

    async def relist() -> Listing:
        return next(lists)

    pods = ListedPods(lambda: watched, relist)
    resources = PodResources(tmp_path / "pod-resources.sock")
    seen = PodsView(pods, DeviceCheckpoint(tmp_path), resources, proc=tmp_path, clock_s=lambda: now_s[0])
    assert seen.pods() == (watched[0],)
    assert seen.by_uid() is seen.by_uid()
    watched[0] = versioned("p", 6)
    assert seen.find("uid-p") is watched[0], "replaced by the watch"
    watched.append(versioned("q", 6))
    assert names(seen) == ["p", "q"], "added by the watch"
    await seen.refresh()
    assert (names(seen), dict(seen.by_uid())) == ([], {}), "deleted by the list"
    await seen.refresh()
    assert names(seen) == ["p"], "created by the next list"
    now_s[0] = 60.0
    assert seen.find("uid-p") is watched[0], "the list is old"
    assert names(seen) == ["p", "q"]


def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_gives_it() -> None:
    mirror = versioned("static")
    mirror["metadata"]["annotations"] = {MIRROR: "abc"}
    assert by_uid([mirror]) == {"abc": mirror, "uid-static": mirror}


def claiming(name: str, uid: str, **status: str) -> Object:
    """Return a pod that says that it is the static pod of a UID."""
    made = versioned(name)
    return {**made, "metadata": {**made["metadata"], "annotations": {MIRROR: uid}}, "status": status}


def test_nobody_claims_to_be_a_pod_of_the_api_server() -> None:
    """A tenant's pod with the UID of one that has just gone would keep its device from others."""
    forged = claiming("forged", UID)
    assert by_uid([forged]) == {"uid-forged": forged}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_does_not_end_the_static_pod_that_it_claims_to_be(phase: str) -> None:
    real, forged = claiming("static", "abc", phase="Running"), claiming("forged", "abc", phase=phase)
    assert by_uid([real, forged])["abc"] is by_uid([forged, real])["abc"] is real
