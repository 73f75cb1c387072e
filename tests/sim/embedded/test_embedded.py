"""The embedded cluster: real server, controller and agents bring its pods onto partitioned and shared GPUs."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from tessera.errors import Unavailable
from tessera.server.settings import Page
from tessera.sim.embedded import Embedded

WANT = {
    "embed": {"mig"},
    "vllm": {"mig"},
    "triton": {"mig"},
    "notebook": {"time-slicing"},
    "workshop": {"time-slicing"},
    "ranker": {"memory-share"},
    "tagger": {"memory-share"},
    "finetune": {"whole"},
}
"""How the GPUs of each workload are shared: as the policy of their node says, for each pod from the first on."""


async def until(url: str, holds: Callable[[Any], bool]) -> Any:
    """Return the fleet as soon as it is so; each answer waits for the next look at it."""
    found: Any = None
    try:
        async with httpx2.AsyncClient(timeout=20) as client, asyncio.timeout(300):
            while found is None or not holds(found):
                found = (await client.get(f"{url}/api/fleet")).json()
    except TimeoutError:
        pytest.fail(f"the fleet is not so: {sorted(running(found))} run, pending {found.get('pending')}")
    return found


def running(fleet: Any) -> dict[str, set[str]]:
    """Return the workloads with a pod that runs on a device that is there, with the modes of these GPUs."""
    found: dict[str, set[str]] = {}
    for workload, mode in (
        (holder["pod"].partition("-")[0], gpu["mode"])
        for node in fleet["nodes"]
        for gpu in node.get("gpus", ())
        for part in gpu["parts"]
        if part.get("exists", True)
        for holder in part.get("pods", ())
        if holder["phase"] == "running"
    ):
        found.setdefault(workload, set()).add(mode)
    return found


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_said_before_anything_runs() -> None:
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port}: .* give another --port"):
            await Embedded(Page(port=port, sign_in=False)).run(lambda _: pytest.fail("it has no port"))
    assert asyncio.all_tasks() == before


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    """Give the address of the page of an embedded cluster, which the tests below observe one after the other."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(Embedded(Page(port=0, sign_in=False)).run(port.set_result))
    try:
        yield f"http://127.0.0.1:{await asyncio.wait_for(port, 30)}"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.anyio
async def test_every_workload_gets_what_it_asks_for_shared_as_declared(url: str) -> None:
    # The first to observe the cluster: `WANT` is also of the first pods.
    ran: dict[str, set[str]] = {}

    def all_ran(fleet: Any) -> bool:
        for workload, modes in running(fleet).items():
            ran.setdefault(workload, set()).update(modes)
        return ran.keys() == WANT.keys()

    found = await until(url, all_ran)
    assert ran == WANT
    gpus = [gpu for node in found["nodes"] for gpu in node["gpus"]]
    assert {each["name"] for each in found["modelServers"]} == {"vllm", "triton"}
    for gpu in gpus:
        assert gpu.get("allocatedMib", 0) <= gpu["memoryMib"]
        assert gpu.get("problems", []) == []


def measured(fleet: Any) -> set[str]:
    """Return the workloads with a pod whose activity is known."""
    return {pod.partition("/")[2].partition("-")[0] for pod in fleet.get("activity", {})}


@pytest.mark.anyio
async def test_the_page_shows_what_agents_measure(url: str) -> None:
    everywhere = WANT.keys() - {"triton"}
    found: set[str] = set()

    def all_measured(fleet: Any) -> bool:
        found.update(measured(fleet))
        return found >= everywhere

    await until(url, all_measured)
    assert found == everywhere, "an A100 measures the activity of no MIG instance"


def contradictions(fleet: Any) -> set[tuple[str, int]]:
    """Return the GPUs with more memory in use than allocated, or with none in use by pods that compute."""
    found = set()
    for name, gpu in ((node["name"], gpu) for node in fleet["nodes"] for gpu in node.get("gpus", ())):
        used, pods = gpu.get("usedMib", 0), [pod for part in gpu["parts"] for pod in part.get("pods", ())]
        computing = any(fleet["activity"].get(f"{each['namespace']}/{each['pod']}", 0) > 0 for each in pods)
        if used > gpu.get("allocatedMib", 0) + gpu["memoryMib"] / 20 or (computing and used == 0):
            found.add((name, gpu["index"]))
    return found


@pytest.mark.anyio
async def test_memory_in_use_fits_what_is_allocated_while_pods_come_and_go(url: str) -> None:
    await until(url, lambda fleet: running(fleet).keys() == WANT.keys() and measured(fleet) >= {"embed", "finetune"})
    looks = []
    async with httpx2.AsyncClient(timeout=20) as client:
        for _ in range(12):
            await asyncio.sleep(2.5)
            looks.append(contradictions((await client.get(f"{url}/api/fleet")).json()))
    lasting = [first & second & third for first, second, third in zip(looks, looks[1:], looks[2:], strict=False)]
    assert not any(lasting), "longer than agents take to measure again"


@pytest.mark.anyio
async def test_a_pod_larger_than_every_gpu_is_pending_now_and_then_with_the_reason(url: str) -> None:
    def pending(fleet: Any) -> list[str]:
        return [each.get("reason", "") for each in fleet.get("pending", ()) if each["pod"].startswith("pretrain-")]

    (reason,) = pending(await until(url, lambda fleet: any(pending(fleet))))  # a new pod has none yet
    assert "90 GiB" in reason
    await until(url, lambda fleet: not pending(fleet))
