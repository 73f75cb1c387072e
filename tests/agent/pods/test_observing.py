"""Pods as the last gate judges them: who is read anew, and what counts where the API server does not answer."""

import pytest

from builders.nodeviews import RecordedPods
from tessera.agent.pods.observing import PodObserver
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio


class View(RecordedPods):
    """A view that counts how often it is read anew, and may refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.down = False

    async def refresh(self) -> None:
        self.reads += 1
        if self.down:
            raise Unavailable("API server", found="no answer", hint="wait")


@pytest.fixture
def view() -> View:
    view = View()
    view.record("a", "nvidia.com/gpu", "GPU-0")
    view.record("b", "nvidia.com/gpu", "GPU-1")
    return view


async def test_recorded_pods_and_named_ones_are_observed(view: View) -> None:
    view.objects["c"] = {"metadata": {"namespace": "default", "name": "c", "uid": "uid-c"}}
    view.objects["d"] = {"metadata": {"namespace": "default", "name": "d", "uid": "uid-d"}}
    seen = await PodObserver(view, logger()).observe(["uid-c", "uid-gone"], frozenset({"uid-a"}))
    assert set(seen.pods) == {"uid-a", "uid-b", "uid-c"}
    assert (seen.running, seen.blind, len(seen.recorded)) == (frozenset({"uid-a"}), False, 2)


async def test_pods_are_read_anew_where_one_has_no_process(view: View) -> None:
    observer = PodObserver(view, logger())
    view.processes = {"uid-a"}
    assert await observer.running(frozenset({"uid-a"})) == {"uid-a"}
    assert view.reads == 0, "a container that is not started is tried again"
    assert await observer.running(frozenset({"uid-a", "uid-b"})) == {"uid-a"}
    assert view.reads == 1
    assert await observer.running(frozenset({"uid-a"}), admitting=True) == {"uid-a"}
    assert view.reads == 2, "its pod may be deleted by force"


async def test_the_last_observation_counts_where_the_api_server_does_not_answer(view: View) -> None:
    observer = PodObserver(view, logger())
    assert await observer.refresh()
    view.down = True
    assert not await observer.refresh()
    assert set(observer.pods({"uid-a"})) == {"uid-a"}
