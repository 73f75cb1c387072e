"""Evictions are asked for less and less often while they are refused; time is virtual."""

import asyncio
from collections.abc import Mapping

from harness import virtualtime
from tessera.agent.pods.evictions import Evictions
from tessera.errors import Unavailable

POD, PROCESS = "ns/p", ""


class Api:
    """Evicts where a budget allows it, and notes when it was asked."""

    def __init__(self, *, allows: bool = False) -> None:
        self.allows = allows
        self.asked: list[tuple[float, str, str]] = []

    async def evict(self, name: str, namespace: str) -> None:
        self.asked.append((asyncio.get_running_loop().time(), name, namespace))
        if not self.allows:
            raise Unavailable(f"pod {namespace}/{name}", found="a budget keeps it", hint="wait")


async def request_for(evictions: Evictions, seconds: int, *pods: str) -> None:
    for _ in range(seconds):
        await evictions.request(pods)
        await asyncio.sleep(1.0)


def test_a_refused_eviction_is_asked_for_less_and_less_often_up_to_once_a_minute() -> None:
    api = Api()
    virtualtime.run(request_for(Evictions(api.evict, 1.0), 260, POD))
    assert [round(at_s) for at_s, *_ in api.asked] == [0, 5, 15, 35, 75, 135, 195, 255]


def test_why_a_pod_stays_is_said_until_it_goes() -> None:
    async def story() -> None:
        evictions = Evictions(api.evict, 1.0)
        await request_for(evictions, 1, POD)
        assert evictions.refusals([POD]) == {POD: "pod ns/p is not evicted: a budget keeps it"}
        assert evictions.refusals(["ns/other"]) == {}
        api.allows = True
        evictions.begin_anew()
        await request_for(evictions, 1, POD)
        assert evictions.refusals([POD]) == {}

    api = Api()
    virtualtime.run(story())


def test_the_next_pod_of_a_name_is_asked_at_once_and_a_process_never() -> None:
    async def story() -> None:
        evictions = Evictions(api.evict, 1.0)
        await request_for(evictions, 1, POD, PROCESS)
        await request_for(evictions, 1)
        await request_for(evictions, 1, POD)

    api = Api()
    virtualtime.run(story())
    assert api.asked == [(0.0, "p", "ns"), (2.0, "p", "ns")]


def test_an_api_that_does_not_answer_is_waited_for_no_longer_than_the_deadline() -> None:
    async def silent(_name: str, _namespace: str) -> None:
        await asyncio.sleep(3600.0)

    async def story() -> Mapping[str, str]:
        evictions = Evictions(silent, 1.0)
        await evictions.request([POD])
        assert asyncio.get_running_loop().time() == 1.0
        return evictions.refusals([POD])

    assert virtualtime.run(story()) == {POD: "pod ns/p is not evicted: no answer in time"}


def test_many_that_are_not_answered_take_no_longer_than_one() -> None:
    """As by an admission webhook that does not answer; what is answered counts meanwhile."""
    evicted = []

    async def evict(name: str, namespace: str) -> None:
        if name != "p59":
            await asyncio.sleep(3600.0)
        evicted.append((namespace, name))

    async def story() -> float:
        pods = [f"ns/p{number}" for number in range(60)]
        evictions, loop = Evictions(evict, 10.0), asyncio.get_running_loop()
        began_s = loop.time()
        await evictions.request(pods)
        assert len(evictions.refusals(pods)) == 59
        return loop.time() - began_s

    assert virtualtime.run(story()) == 10.0
    assert evicted == [("ns", "p59")]


def test_where_nobody_is_to_be_evicted_nobody_is_asked() -> None:
    evictions = Evictions(None, 1.0)
    virtualtime.run(request_for(evictions, 3, POD))
    assert evictions.refusals([POD]) == {}
