"""The page in headless Chromium: content, filters, live updates, keys, 1,000 GPUs, and a silent console."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest

from builders.kubeobjects import gpu, gpunode, mig_share, node, place, pod, share
from harness.browser import Tab, browser, find_browser
from harness.servers import hold, make_node, make_pod
from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.api.tessera.page.fleetjson import write_change, write_fleet
from tessera.clients.kube import GPU_NODES, NODE_IMAGES, NODE_MODELS, NODES, PODS, MemoryKube
from tessera.core.cluster.gpunodestate import DesiredDevices, UnhealthyDevice
from tessera.core.explain.fleetview import FleetView, ModelServerHistory, NodeView, ScalePoint, changes
from tessera.core.explain.observedfleet import MeasuredUsage
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode
from tessera.core.usage.contention import Contention
from tessera.core.usage.rightsizing import Recommendation, Sizing
from tessera.core.workload.need import PodKey
from tessera.core.workload.units import gib
from tessera.server.page import NO_METRICS, PageMetrics
from tessera.server.run import Server
from tessera.server.settings import Page, ServerSettings

A100 = "A100-40GB"
MIG, WHOLE = {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/gpu": 1}
MODULE = "import(new URL('%s', document.querySelector('script[type=module]').src))"
DRAWN = "!document.getElementById('page').hidden && document.querySelector('.gpu')"


async def fleet(gpus: int) -> MemoryKube:
    """Return a cluster of nodes with eight GPUs each: partitioned ones, whole ones and free ones."""
    kube = MemoryKube()
    slices = tuple(place(A100, "1g.5gb", start) for start in range(6))
    for number in range(-(-gpus // 8)):
        name = f"n{number:03d}"
        drawn = tuple(gpu(i, layout=slices if i < 4 else None, node=name) for i in range(min(8, gpus)))
        desired = (DesiredDevices(gpu=f"GPU-{name}-0", instances=(*slices, place(A100, "1g.5gb", 6))),)
        unhealthy = (UnhealthyDevice(device=DeviceId(f"GPU-{name}-7"), reason="Xid 79"),) if number == 0 else ()
        body = gpunode(name, *drawn, desired=desired, unhealthy=unhealthy)
        await kube.create(NODES, node(name))
        await kube.create(GPU_NODES, {key: part for key, part in body.items() if key != "status"})
        await kube.patch(GPU_NODES, name, {"status": body["status"]}, subresource="status")
        for i in range(4):
            for start in range(5):
                title = {"namespace": ("ml", "vision", "batch")[start % 3]}
                await kube.create(
                    PODS, pod(f"p{number}-{i}-{start}", MIG, mig_share(i, "1g.5gb", start), node=name, metadata=title)
                )
        whole = share(4, 40960, Mode.WHOLE)
        await kube.create(PODS, pod(f"w{number}", WHOLE, whole, node=name, metadata={"namespace": "research"}))
    return kube


@asynccontextmanager
async def opened(
    kube: MemoryKube, *, sign_in: bool = False, metrics: PageMetrics = NO_METRICS
) -> AsyncIterator[tuple[Tab, str]]:
    """Give a browser and the page's address."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    server = Server(ServerSettings(port=0, page=Page(port=0, sign_in=sign_in)), kube, metrics=metrics)
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(30):
        await server.listening.wait()
        await server.synced()
    try:
        async with browser(program) as tab:
            yield tab, f"http://127.0.0.1:{server.page_port}/"
    finally:
        server.stop()
        await running


async def choose(tab: Tab, name: str, value: str) -> None:
    """Set a filter, and return once it is drawn."""
    await tab.run(
        f"document.querySelector('[name={name}]').value = '{value}';"
        f"document.querySelector('[name={name}]').dispatchEvent(new Event('input', {{bubbles: true}}));"
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


@pytest.mark.anyio
async def test_it_shows_the_fleet_and_what_changes_in_it() -> None:
    kube = await fleet(8)
    async with opened(kube) as (tab, url):
        await tab.open(url)
        await tab.until(DRAWN)
        text = await tab.run("document.body.innerText")
        assert "5 of 8" in text
        assert "n000" in text
        label = await tab.run("document.querySelector('.gpu').ariaLabel")
        assert label.startswith("n000, GPU 0, A100-40GB, 23.7 GiB of 40 GiB allocated: 1g.5gb ml/p0-0-0; ")
        assert label.endswith("1g.5gb unused; 1g.5gb to be created; free")
        assert await tab.run("document.querySelectorAll('.gpu.bad').length") == 1

        message = {"type": "PodScheduled", "status": "False", "message": "<img src=x onerror=alert(1)>"}
        await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30}, status={"conditions": [message]})
        await tab.until("document.getElementById('pending').innerText.includes('ns/large')")
        assert "<img src=x" in await tab.run("document.getElementById('pending').innerText")
        await kube.delete(PODS, "w0", namespace="research")
        await tab.until("document.getElementById('totals').innerText.includes('4 of 8')")
        assert tab.console == []


@pytest.mark.anyio
@pytest.mark.parametrize("dark", [False, True])
async def test_axe_finds_nothing_wrong_with_it(dark: bool) -> None:
    kube = await fleet(8)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30})
    async with opened(kube) as (tab, url):
        await tab.open(f"{url}?gpu=n000/4", dark=dark)
        await tab.until(f"{DRAWN} && document.getElementById('pending').innerText.includes('large')")
        assert await tab.violations() == []
    async with opened(kube, sign_in=True) as (tab, url):
        await tab.open(url, dark=dark)
        await tab.until("!document.getElementById('sign-in').hidden")
        assert await tab.violations() == []


@pytest.mark.anyio
async def test_filters_and_the_chosen_gpu_are_in_the_address() -> None:
    async with opened(await fleet(16)) as (tab, url):
        await tab.open(f"{url}?namespace=research&gpu=n001/4")
        await tab.until(DRAWN)
        assert await tab.run("document.getElementById('shown').textContent") == "2 of 16 GPUs"
        assert "research/w1" in await tab.run("document.getElementById('details').innerText")
        await tab.run("document.querySelector('[type=reset]').click()")
        await tab.until("location.search === '?gpu=n001%2F4'")
        await tab.run(
            "document.querySelector('[name=node]').value = 'n000';"
            "document.querySelector('[name=node]').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await tab.until("document.getElementById('shown').textContent === '8 of 16 GPUs'")
        await tab.press("Escape")
        await tab.until("location.search === '?node=n000'")
        assert tab.console == []


@pytest.mark.anyio
@pytest.mark.parametrize("state", ["__proto__", "constructor", "toString", "none"])
async def test_an_unknown_state_in_the_address_filters_nothing(state: str) -> None:
    async with opened(await fleet(8)) as (tab, url):
        await tab.open(f"{url}?state={state}")
        await tab.until(DRAWN)
        assert await tab.run("document.querySelector('[name=state]').value") == ""
        assert await tab.run("document.querySelectorAll('.gpu').length") == 8
        assert tab.console == []


@pytest.mark.anyio
async def test_arrows_and_enter_lead_through_the_gpus() -> None:
    async with opened(await fleet(8)) as (tab, url):
        await tab.open(url)
        await tab.until(DRAWN)
        await tab.run("document.querySelector('.gpu').focus()")
        for key in ("ArrowDown", "End", "ArrowUp", "Enter"):
            await tab.press(key)
        await tab.until("location.search === '?gpu=n000%2F6'")
        assert await tab.run("document.querySelectorAll('.gpu[tabindex=\"0\"]').length") == 1


@pytest.mark.anyio
async def test_a_token_with_characters_that_no_header_has_is_refused_and_not_kept() -> None:
    """As a document or a chat puts them in: fetch would fail as it does without a connection."""
    async with opened(await fleet(8), sign_in=True) as (tab, url):
        await tab.open(url)
        for token in ("eyJ\u2014abc", "eyJhbGci\u00e9", "a b"):
            await tab.until("!document.getElementById('sign-in').hidden")
            await tab.run(
                f"document.getElementById('token').value = '{token}';"
                "document.getElementById('refusal').textContent = '';"
                "document.querySelector('#sign-in [type=submit]').click()"
            )
            await tab.until("document.getElementById('refusal').textContent.includes('copy it again')")
            assert await tab.run("sessionStorage.getItem('tessera-token')") is None


async def test_a_viewer_signs_in_and_sees_what_they_may_list() -> None:
    kube = await fleet(8)
    kube.accounts.add("token-of-ann", ReviewedUser(username="ann"))
    kube.accounts.allow("ann", "list", "pods", ["ml"])
    async with opened(kube, sign_in=True) as (tab, url):
        await tab.open(url)
        for token in ("wrong", "token-of-ann"):
            await tab.until("!document.getElementById('sign-in').hidden")
            tab.console.clear()  # the browser itself reports an answer of 401
            await tab.run(
                f"document.getElementById('token').value = '{token}';"
                "document.querySelector('#sign-in [type=submit]').click()"
            )
        await tab.until(DRAWN)
        await tab.until("document.getElementById('connection').textContent === 'live · ann'")
        page = await tab.run("document.documentElement.outerHTML")
        assert "ml/p0-0-0" in page
        assert not [each for each in ("vision", "batch", "research", "w0") if f"{each}/" in page or f">{each}<" in page]
        assert "other namespaces" in page
        assert tab.console == []
        await tab.run("document.getElementById('sign-out').click()")
        await tab.until("document.getElementById('sign-in') && !document.getElementById('sign-in').hidden")
        assert await tab.run("sessionStorage.getItem('tessera-token')") is None, "whoever sits here next has no token"
        assert await tab.run("document.getElementById('page').hidden")


HOSTILE = (
    "<img src=x onerror='window.ran=1'> \u202etxet desrever \u05e2\u05d1\u05e8\u05d9\u05ea \U0001f680 " + "x" * 2000
)
LONG_NODE = f"ip-10-0-132-201.{'n' * 60}.{'o' * 60}.{'p' * 60}"
OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.mark.anyio
@pytest.mark.parametrize("width", [1280, 390])
async def test_hostile_and_very_long_texts_are_texts_and_stay_in_their_place(width: int) -> None:
    kube = MemoryKube()
    await kube.create(NODES, node(LONG_NODE))
    a_gpu = msgspec.structs.replace(gpu(0, node=LONG_NODE), uuid="GPU-0")
    body = gpunode(LONG_NODE, a_gpu, unhealthy=(UnhealthyDevice(device=DeviceId(a_gpu.uuid), reason=HOSTILE[:1024]),))
    await kube.create(GPU_NODES, {key: part for key, part in body.items() if key != "status"})
    await kube.patch(GPU_NODES, LONG_NODE, {"status": body["status"]}, subresource="status")
    whole = share(0, 40960, Mode.WHOLE)
    await kube.create(PODS, pod("q" * 253, WHOLE, whole, node=LONG_NODE, metadata={"namespace": "n" * 63}))
    await kube.create(NODE_IMAGES, {"metadata": {"name": LONG_NODE}, "spec": {}})
    images = {"images": [{"image": HOSTILE[:512], "state": "Present"}]}
    await kube.patch(NODE_IMAGES, LONG_NODE, {"status": images}, subresource="status")
    message = {"type": "PodScheduled", "status": "False", "message": HOSTILE}
    await make_pod(kube, "z" * 253, {"tessera.dev/gpu-memory": 30}, status={"conditions": [message]})
    async with opened(kube) as (tab, url):
        await tab.open(f"{url}?gpu={LONG_NODE}/0", width=width)
        await tab.until(f"{DRAWN} && document.querySelector('#pending li') && document.querySelector('#details bdi')")
        shown = await tab.run(
            "[...document.querySelectorAll('#pending p, #details dd, #details bdi')].map(e => e.textContent)"
        )
        assert [each for each in shown if HOSTILE.startswith(each)] == [HOSTILE[:1024], HOSTILE[:512], HOSTILE]
        assert await tab.run("[window.ran ?? 0, document.querySelectorAll('img').length]") == [0, 1]
        assert not await tab.run(OVERFLOWS)
        assert tab.console == []


@pytest.mark.anyio
async def test_an_empty_cluster_and_filters_that_nothing_passes_say_so() -> None:
    async with opened(MemoryKube()) as (tab, url):
        await tab.open(url)
        await tab.until("document.getElementById('nothing').innerText.includes('No node has a GPU yet')")
        assert await tab.run("document.querySelector('[name=namespace]').selectedOptions[0].text") == "all"
        assert await tab.violations() == []
    async with opened(await fleet(8)) as (tab, url):
        await tab.open(f"{url}?node=nowhere")
        await tab.until("document.getElementById('nothing').innerText.includes('No GPU matches these filters')")
        await tab.run("document.querySelector('[type=reset]').click()")
        await tab.until("document.getElementById('nothing').hidden")


@pytest.mark.anyio
async def test_a_long_list_shows_its_first_and_all_on_demand() -> None:
    kube = await fleet(8)
    for number in range(9):
        await make_pod(kube, f"w{number}-x", {"tessera.dev/gpu-memory": 30})
    async with opened(kube) as (tab, url):
        await tab.open(url)
        count = "document.querySelectorAll('#pending li').length"
        await tab.until(f"{count} === 4")
        await tab.run("document.querySelector('#pending button').click()")
        assert await tab.run(f"[{count}, document.activeElement.textContent]") == [9, "Show fewer"]
        await make_pod(kube, "w9-x", {"tessera.dev/gpu-memory": 30})
        await tab.until(f"{count} === 10")
        assert await tab.run("document.activeElement.textContent") == "Show fewer", "an update keeps the focus"
        await tab.run("document.activeElement.click()")
        assert await tab.run(f"[{count}, document.activeElement.textContent]") == [4, "Show all 10"]
        await make_pod(kube, "wa-x", {"tessera.dev/gpu-memory": 30})
        await tab.until("document.activeElement.textContent === 'Show all 11'")
        assert await tab.violations() == []


@pytest.mark.anyio
async def test_an_update_keeps_the_focus_of_the_details_and_the_totals() -> None:
    kube = await fleet(8)
    await make_pod(kube, "w0-x", {"tessera.dev/gpu-memory": 30})
    focused = "document.activeElement"
    async with opened(kube) as (tab, url):
        await tab.open(f"{url}?gpu=n000/0")
        await tab.until(f"{DRAWN} && document.querySelector('#details .close')")
        await tab.run("document.querySelector('#details .close').focus()")
        await kube.delete(PODS, "p0-0-0", namespace="ml")
        await tab.until("!document.getElementById('details').innerText.includes('p0-0-0')")
        assert await tab.run(f"{focused}.textContent") == "Close"
        await tab.run("document.querySelector('#totals [href=\"#pending\"]').focus()")
        await make_pod(kube, "w1-x", {"tessera.dev/gpu-memory": 30})
        await tab.until("document.querySelector('#totals [href=\"#pending\"]').textContent === '2'")
        assert await tab.run(f"{focused}.textContent") == "2"
        for name in ("w0-x", "w1-x"):
            await kube.delete(PODS, name, namespace="ns")
        await tab.until("!document.querySelector('#totals [href=\"#pending\"]')")
        assert await tab.run(f"{focused}.id") == "gpus", "what had it is gone"
        assert tab.console == []


@pytest.mark.anyio
async def test_the_focus_stays_on_a_gpu_when_nodes_join_and_leave_and_the_fleet_is_sent_again() -> None:
    kube = await fleet(16)
    focused = "document.activeElement.dataset.gpu"
    async with opened(kube) as (tab, url):
        await tab.open(url)
        await tab.until(DRAWN)
        await tab.run("document.querySelector('[data-gpu=\"n000/2\"]').focus()")
        await make_node(kube, "m000", gpu(0, node="m000"))
        await tab.until("document.querySelector('[data-gpu=\"m000/0\"]')")
        assert await tab.run(focused) == "n000/2", "a node before it joined"
        await make_node(kube, "n000a", gpu(0, node="n000a"))
        await tab.until("document.querySelector('[data-gpu=\"n000a/0\"]')")
        assert await tab.run(focused) == "n000/2", "a node behind it joined"
        names = "[...document.querySelectorAll('#fleet h2')].map((each) => each.textContent).slice(0, 4)"
        assert await tab.run(names) == ["m000", "n000", "n000a", "n001"]
        for name in ("m000", "n000a"):
            await kube.delete(GPU_NODES, name)
            await kube.delete(NODES, name)
        await tab.until('!document.querySelector(\'[data-gpu="m000/0"], [data-gpu="n000a/0"]\')')
        assert await tab.run(focused) == "n000/2", "both left"
        await tab.run("document.querySelector('[name=namespace]').dispatchEvent(new Event('input', { bubbles: true }))")
        await tab.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert await tab.run(focused) == "n000/2", "all nodes were drawn anew"
        assert tab.console == []


@pytest.mark.anyio
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_chosen_gpu_is_shown_wherever_the_page_is_scrolled_to(width: int) -> None:
    async with opened(await fleet(400)) as (tab, url):
        await tab.open(url, width=width)
        await tab.until("document.querySelectorAll('.gpu').length === 400")
        await tab.run("document.querySelector('[data-gpu=\"n049/4\"]').scrollIntoView()")
        await tab.run("document.querySelector('[data-gpu=\"n049/4\"]').click()")
        place = "document.getElementById('details').getBoundingClientRect()"
        shown = f"{place}.top >= 0 && {place}.bottom <= innerHeight && {place}.height > 100 && scrollY > 0"
        assert await tab.run(shown)
        await tab.size(width, 400)
        await choose(tab, "node", "n04")  # 80 GPUs, drawn as small as all: axe takes a minute for 400
        assert await tab.run("document.getElementById('shown').textContent") == "80 of 400 GPUs"
        await tab.run("document.querySelector('[data-gpu=\"n049/4\"]').scrollIntoView()")
        assert await tab.run(shown)
        assert await tab.run("document.getElementById('fleet').dataset.density") == "small"
        assert await tab.violations() == []


STOPS = "[...document.querySelectorAll('.gpu[tabindex=\"0\"]')].map((each) => each.dataset.gpu)"


@pytest.mark.anyio
async def test_the_tab_key_reaches_a_gpu_that_is_shown_after_each_filter() -> None:
    async with opened(await fleet(16)) as (tab, url):
        await tab.open(url)
        await tab.until(DRAWN)
        for name, value, first in (
            ("node", "n001", "n001/0"), ("node", "", "n001/0"), ("state", "problem", "n000/7"),
            ("state", "", "n000/7"), ("namespace", "research", "n000/4"), ("model", "none", None),
        ):  # fmt: skip
            if name == "model":
                await tab.run("document.querySelector('[name=model]').append(new Option('none'))")
            await choose(tab, name, value)
            assert await tab.run(STOPS) == ([first] if first else [])
            await tab.run("document.querySelector('[type=reset]').focus()")
            pressed = list[str]()
            while not pressed or pressed[-1] not in {"BODY", first}:
                await tab.press("Tab")
                pressed.append(await tab.run("document.activeElement.dataset.gpu || document.activeElement.tagName"))
            assert pressed[-1] == (first or "BODY")
        assert tab.console == []


MOSAIC_LAW = """(async () => {
  const { Mosaic, Palette } = await MOSAIC;
  const { Fleet, owner } = await FLEET;
  let seed = 5;
  const draw = (below) => { seed = (seed * 1103515245 + 12345) & 0x7fffffff; return (seed >> 8) % below; };
  const pick = (...values) => values[draw(values.length)];
  const many = (below, make) => Array.from({ length: draw(below) }, (_, place) => make(place));
  const pod = () => ({ namespace: `ns${draw(3)}`, pod: `p${draw(4)}`, workload: `w${draw(2)}` });
  const part = (start) => ({
    start, size: 1 + draw(3), label: pick("", "1g.5gb"), state: pick("allocated", "free", "unused", "desired"),
    exists: draw(3) > 0, idle: draw(3) === 0, pods: many(3, pod),
  });
  const gpu = (index) => ({
    index, uuid: `u${index}`, model: pick("A", "B"), memoryMib: 40000, width: 7, mode: "", health: "",
    allocatedMib: draw(3) * 1000, parts: [part(0), ...many(3, part)],
    problems: draw(4) ? [] : ["bad"], contention: draw(4) ? [] : [{ cause: "thermal" }],
  });
  const node = (name) => ({
    name, ready: draw(5) > 0, problem: draw(4) ? "" : "bad", policy: pick("", "mixed"), gpus: many(4, gpu),
  });
  const changed = (old) => {
    const next = structuredClone(old);
    const place = draw(Math.max(1, next.gpus.length));
    if (draw(2)) next.gpus.splice(place, 1);
    else if (next.gpus.length) next.gpus[place] = gpu(next.gpus[place].index);
    return next;
  };
  const names = ["n1", "n2", "n10", "n3"];
  const values = {
    namespace: ["", "ns0", "ns1"], model: ["", "A"], state: ["", "idle", "slow", "problem"],
    node: ["", "n1", "n3"], color: ["", "workload"],
  };
  const filters = { namespace: "", model: "", state: "", node: "", color: "" };
  const palette = new Palette();
  const fleet = new Fleet();
  const root = document.createElement("div");
  document.body.append(root);
  const mosaic = new Mosaic(root, palette, () => {});
  const present = () => [...fleet.nodes.values()];
  const owners = () => present().flatMap((each) => each.gpus).flatMap((each) => each.parts)
    .flatMap((each) => each.pods).map((each) => owner(each, filters.color));
  const looks = (drawn) => {
    const copy = drawn.cloneNode(true);
    for (const each of copy.querySelectorAll("[tabindex]")) each.removeAttribute("tabindex");
    return copy.innerHTML;
  };
  const named = (gpu) => root.querySelector(`.node:not([hidden]) .gpu:not([hidden])[data-gpu="${gpu}"]`);
  const found = { draws: 0, hidden: 0, different: [], stops: [], kept: 0, lost: [] };
  fleet.replace({ nodes: names.map(node) });
  for (let step = 0; step < 600; step += 1) {
    let news;
    if (step && draw(3)) {
      const change = { nodes: [], gone: [] };
      for (const name of names) {
        const old = fleet.nodes.get(name);
        const kind = draw(5);
        if (kind === 0) change.nodes.push(node(name));
        if (kind === 1 && old) change.gone.push(name);
        if (kind === 2 && old) change.nodes.push(changed(old));
      }
      news = fleet.apply(change);
    } else if (step) {
      const name = pick(...Object.keys(values));
      filters[name] = pick(...values[name]);
    }
    if (palette.assign(owners())) news = undefined;
    const focus = root.contains(document.activeElement) ? document.activeElement.dataset.gpu : "";
    const shown = mosaic.draw(fleet, filters, "", news);
    if (focus && named(focus)) found.kept += 1;
    if (focus && named(focus) && named(focus) !== document.activeElement) found.lost.push([step, focus]);
    const other = document.createElement("div");
    const anew = new Mosaic(other, palette, () => {}).draw(fleet, filters, "");
    found.draws += 1;
    found.hidden += root.querySelectorAll("[hidden]").length > 0;
    if (shown !== anew || looks(root) !== looks(other)) found.different.push(step);
    const stops = root.querySelectorAll('.gpu[tabindex="0"]');
    const visible = [...stops].filter((each) => !each.hidden && !each.closest(".node").hidden);
    if (stops.length !== visible.length || visible.length !== Math.min(1, shown)) found.stops.push(step);
    if (visible.length && draw(2)) pick(...root.querySelectorAll(".node:not([hidden]) .gpu:not([hidden])")).focus();
  }
  root.remove();
  return found;
})()"""


@pytest.mark.anyio
async def test_law_a_mosaic_after_changes_and_filters_is_that_of_the_same_fleet_drawn_anew() -> None:
    """And the Tab key has one stop in it, at a GPU that is shown, if one is; the focus stays on a GPU that does."""
    async with opened(MemoryKube()) as (tab, url):
        await tab.open(url)
        found = await tab.run(MOSAIC_LAW.replace("MOSAIC", MODULE % "mosaic.js").replace("FLEET", MODULE % "fleet.js"))
        assert (found["different"], found["stops"], found["lost"]) == ([], [], [])
        assert found["kept"] > 50
        assert (found["draws"], found["hidden"] > 100) == (600, True)


@pytest.mark.anyio
async def test_pods_of_one_workload_are_one_entry_by_their_owner() -> None:
    """An Indexed Job calls its pods `train-INDEX-SUFFIX`; a bare pod has the same form of name."""
    kube = await fleet(8)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "train", "controller": True}
    for number in range(6):
        metadata = {"namespace": "ml", "ownerReferences": [owner]}
        await make_pod(kube, f"train-{number}-x2x4b", {"tessera.dev/gpu-memory": 30}, metadata=metadata)
    await make_pod(kube, "train-6-x2x4b", {"tessera.dev/gpu-memory": 30}, metadata={"namespace": "ml"})
    async with opened(kube) as (tab, url):
        await tab.open(url)
        await tab.until("document.querySelectorAll('#pending li').length === 2")
        names = await tab.run("[...document.querySelectorAll('#pending li b')].map((each) => each.textContent)")
        assert names == ["ml/train \u00d7 6", "ml/train-6-x2x4b"]


@pytest.mark.anyio
async def test_owners_have_colors_that_differ_and_stay_while_others_come_and_go() -> None:
    async with opened(MemoryKube()) as (tab, url):
        await tab.open(url)

        async def colors(*assigned: list[str]) -> dict[str, int]:
            """Return the colors of the last owners, after others were shown."""
            found = await tab.run(
                f"{MODULE % 'mosaic.js'}.then(all => {{ const palette = new all.Palette();"
                f" for (const each of {json.dumps(assigned)}) palette.assign(each);"
                f" return {json.dumps(assigned[-1])}.map(name => palette.number(name)); }})"
            )
            return dict(zip(assigned[-1], found, strict=True))

        names = [f"team-{number}" for number in range(14)]
        few, some, all_of_them = await colors(names[:7]), await colors(names[:12]), await colors(names)
        assert sorted(few.values()) == list(range(7)), "those that differ most"
        assert sorted(some.values()) == list(range(12))
        assert set(all_of_them.values()) == set(range(12))
        assert await colors(names[:7][::-1]) == few, "whatever came first"
        for shown in (names[:3], names[:6], names[:11], names):
            first = await colors(shown)
            assert await colors(shown, [*shown, "batch"], shown) == first
            assert await colors(shown, ["batch", *shown[1:]], shown) == first
            with_newcomer = await colors(shown, [*shown, "batch"])
            assert await colors(shown, [*shown, "batch"], shown, [*shown, "batch"]) == with_newcomer
            assert len({*with_newcomer.values()}) == min(len(shown) + 1, 12)
        many = [[f"job-{number}", *names[:3]] for number in range(20)]
        assert len({*(await colors(*many)).values()}) == 4, "colors of those that are gone are given again"


def slow(cause: str, **facts: Any) -> Contention:
    return Contention(cause=cause, **facts)


class Varied:
    """What is measured of the first nodes of `fleet`: each state, each verdict and each cause once."""

    def refresh(self, changed: Callable[[], None]) -> None:
        pass

    @property
    def measured(self) -> MeasuredUsage:
        facts: dict[str, Any] = {"gpu": 4, "device": "whole", "allocated_mib": 40960, "observed_s": 90000.0}
        verdicts: tuple[tuple[str, str, Sizing, dict[str, Any]], ...] = (
            ("research", "w0", Sizing.TOO_LITTLE, {"peak_mib": 40900}),
            ("research", "w1", Sizing.UNUSED, {"peak_mib": 0, "saved_mib": 40960}),
            ("ml", "p0-0-0", Sizing.UNUSED, {"peak_mib": 0}),
            ("ml", "p0-0-3", Sizing.TOO_LITTLE, {"peak_mib": 4800, "fits": "2g.10gb"}),
            ("vision", "p0-0-1", Sizing.IDLE, {"peak_mib": 3000}),
            ("batch", "p0-0-2", Sizing.TOO_MUCH, {"peak_mib": 900, "fits": "2 GiB", "saved_mib": 3000}),
        )
        return MeasuredUsage(
            activity={("n000", PodKey("ml/p0-0-0")): 0.0, ("n000", PodKey("vision/p0-0-1")): 90.0},
            contention={
                ("n000", "GPU-n000-4"): (slow("thermal", scope="node", nobody=True),),
                ("n001", "GPU-n001-0"): (slow("hardware-thermal", affected=("ml/p1-0-0/main",)),),
                ("n001", "GPU-n001-4"): (slow("saturated", caused_by=("research/w1/main",), ended=True),),
            },
            throttled={("n001", "GPU-n001-1"): ("power-cap",)},
            recommendations=tuple(
                Recommendation(
                    node=f"n00{pod[1]}", namespace=namespace, pod=pod, container="main", verdict=verdict, **facts | more
                )
                for namespace, pod, verdict, more in verdicts
            ),
        )


STATES = {"": 16, "allocated": 10, "idle": 1, "free": 14, "planned": 2, "slow": 3, "problem": 1}
"""GPUs that each choice of the filter leaves."""
TOTALS = {
    "GPUs in use": "10 of 16",
    "Memory allocated": "42 % of 640 GiB",
    "Allocated but idle": "4.7 GiB",
    "Pods pending": "2",
    "Slow GPUs": "3",
    "Problems": "1",
}
ADVICE = {
    "research/w0": "Uses over 95 % of its memory; no larger profile of this GPU is known.",
    "research/w1": "Unused. Deleting the pod frees 40 GiB.",
    "ml/p0-0-0": "Unused. Deleting the pod frees a replica.",
    "ml/p0-0-3": "Allocated too little: 2g.10gb fits.",
    "vision/p0-0-1": "Idle: less than 5 % of its compute used.",
    "batch/p0-0-2": "2 GiB is enough; frees 2.9 GiB.",
}
CAUSES = {
    "n000, GPU 4": "No busy pod on this node: check cooling and power supply.",
    "n001, GPU 0": "Cause unknown: not all load can be attributed to pods.",
    "n001, GPU 4": "Caused by research/w1. "
    "Part of the load came from processes that exited and cannot be attributed to a pod.",
}
ENTRIES = (
    "Object.fromEntries([...document.querySelectorAll('#%s li')].map(e => [e.querySelector('b').innerText, e.%s]))"
)
LEGEND = "[...document.querySelectorAll('#legend li')].map((each) => each.innerText)"
LAST = "querySelector('p:last-of-type').innerText"


@pytest.mark.anyio
async def test_each_filter_total_verdict_and_cause_shows_what_it_says() -> None:
    kube = await fleet(16)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30}, metadata={"namespace": "ml"})
    await make_pod(kube, "other", {"tessera.dev/gpu-memory": 30}, metadata={"namespace": "vision"})
    async with opened(kube, metrics=Varied()) as (tab, url):
        await tab.open(url, height=1600)
        await tab.until(f"{DRAWN} && document.querySelectorAll('#pending li').length === 2")
        await tab.run("document.querySelectorAll('button.all').forEach((each) => each.click())")
        totals = "Object.fromEntries([...document.querySelectorAll('#totals div')].map(e => e.innerText.split('\\n')))"
        assert await tab.run(totals) == TOTALS
        assert await tab.run(ENTRIES % ("sizes", LAST)) == ADVICE
        assert await tab.run(ENTRIES % ("slow", LAST)) == CAUSES

        shown = "[...document.querySelectorAll('.node:not([hidden]) .gpu:not([hidden])')].length"
        found = {}
        for state in STATES:
            await choose(tab, "state", state)
            found[state] = await tab.run(shown)
        assert found == STATES
        await choose(tab, "state", "")
        await choose(tab, "namespace", "ml")
        assert await tab.run(ENTRIES % ("pending", "querySelector('b').innerText")) == {"ml/large": "ml/large"}
        assert set(await tab.run(ENTRIES % ("sizes", LAST))) == {"ml/p0-0-0", "ml/p0-0-3"}
        assert set(await tab.run(ENTRIES % ("slow", LAST))) == {"n001, GPU 0"}
        await choose(tab, "namespace", "")
        await choose(tab, "node", "n000")
        await choose(tab, "state", "slow")
        assert set(await tab.run(ENTRIES % ("slow", LAST))) == {"n000, GPU 4"}
        assert set(await tab.run(ENTRIES % ("sizes", LAST))) == ADVICE.keys() - {"research/w1"}
        pending = await tab.run("document.getElementById('pending').innerText.split('\\n').filter(Boolean)")
        assert pending == ["Pending pods · 0", "2 more, on no GPU that is shown"]
        assert await tab.run(LEGEND) == ["research", "slow"], "what is drawn, and no more"
        await choose(tab, "state", "")
        await choose(tab, "node", "")
        assert {"batch", "ml", "research", "vision"} <= set(await tab.run(LEGEND))
        await choose(tab, "color", "workload")
        assert "batch/p0-0-2" in await tab.run(LEGEND)
        await tab.run("document.querySelector('.gpu').focus()")
        await tab.press("PageDown")
        assert await tab.run("document.activeElement.dataset.gpu") == "n001/0", "eight GPUs on"
        await tab.press("PageUp")
        assert await tab.run("document.activeElement.dataset.gpu") == "n000/0"
        for gpu_of, words in (
            ("n001/1", "lowered: power cap"), ("n001/4", "Contention"), ("n000/0", "MIG"), ("n000/4", "whole GPU"),
        ):  # fmt: skip
            await tab.run(f"document.querySelector('[data-gpu=\"{gpu_of}\"]').click()")
            assert words in await tab.run("document.getElementById('details').innerText")
        assert "hardware isolation" in await tab.run("document.getElementById('details').innerText")
        await kube.create(
            PODS, pod("stray", {"nvidia.com/gpu": 16}, node="n000", annotations={}, metadata={"namespace": "ml"})
        )
        await tab.until("document.getElementById('details').innerText.includes('On this node, GPU unknown: ml/stray')")
        assert tab.console == []


@pytest.mark.anyio
async def test_a_pending_pod_is_shown_with_the_gpus_on_which_its_instances_are_being_created() -> None:
    kube = await fleet(16)
    await make_pod(kube, "small", MIG)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30})
    async with opened(kube) as (tab, url):
        for query, want in (
            ("?state=planned", ["ns/small"]),
            ("?node=n001", ["ns/small"]),
            ("?node=n001&state=planned", ["ns/small"]),
            ("?node=n001&state=problem", []),
            ("?namespace=ns", ["ns/small", "ns/large"]),
            ("?namespace=ns&node=n001", ["ns/small"]),
        ):
            await tab.open(f"{url}{query}")
            await tab.until("!document.getElementById('pending').hidden")
            names = await tab.run("[...document.querySelectorAll('#pending li b')].map((each) => each.textContent)")
            assert set(names) == set(want), query
        assert tab.console == []


@pytest.mark.anyio
async def test_gpus_of_a_node_that_is_not_ready_are_among_those_with_problems() -> None:
    kube = await fleet(16)
    conditions = [{"type": "Ready", "status": "False"}]
    await kube.patch(NODES, "n001", {"status": {"conditions": conditions}}, subresource="status")
    async with opened(kube) as (tab, url):
        await tab.open(f"{url}?state=problem")
        await tab.until(f"{DRAWN} && document.getElementById('shown').textContent")
        assert await tab.run("document.getElementById('shown').textContent") == "9 of 16 GPUs"
        assert tab.console == []


@pytest.mark.anyio
async def test_back_undoes_the_opening_and_closing_of_details_and_links_and_no_filter() -> None:
    kube = await fleet(16)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30}, metadata={"namespace": "ml"})
    details = "document.getElementById('details')"
    async with opened(kube) as (tab, url):
        await tab.open(url)
        await tab.until(DRAWN)
        await tab.run("document.querySelector('[data-gpu=\"n001/4\"]').click()")
        assert "research/w1" in await tab.run(f"{details}.innerText")
        await tab.run("document.querySelector('#details .close').click()")
        assert await tab.run(f"{details}.hidden")
        await tab.run("document.querySelector('#pending li a').click()")
        await tab.until("location.search === '?namespace=ml'")
        await tab.run("history.back()")
        await tab.until("location.search === '' && !document.querySelector('[name=namespace]').value")
        await tab.run("history.back()")
        await tab.until(f"location.search === '?gpu=n001%2F4' && {details}.innerText.includes('research/w1')")
        await tab.run(
            "document.querySelector('[name=node]').value = 'n001';"
            "document.querySelector('[name=node]').dispatchEvent(new Event('input', {bubbles: true}))"
        )
        await tab.until("location.search === '?node=n001&gpu=n001%2F4'")
        await tab.run("history.back()")
        await tab.until(f"location.search === '' && {details}.hidden")
        assert tab.console == []


@pytest.mark.anyio
async def test_a_gpu_says_how_many_pods_it_has_where_none_of_their_parts_has_room_for_a_name() -> None:
    kube = MemoryKube()
    await make_node(kube, "n000", *(gpu(i, node="n000") for i in range(2)))
    small = ((f"p{number}", share(0, 2048, Mode.MEMORY_SHARE)) for number in range(16))
    large = ((f"q{number}", share(1, 12288, Mode.MEMORY_SHARE)) for number in range(3))
    for name, amount in (*small, *large):
        await hold(kube, name, {"tessera.dev/gpu-memory": amount.memory_mib // 1024}, amount, node="n000")
    counts = (
        "[...document.querySelectorAll('.gpu')].map((each) => [each.querySelector('.count').innerText,"
        " each.querySelector('.count').clientWidth > 9,"
        " [...each.querySelectorAll('.part.allocated .words')].every(e => getComputedStyle(e).display === 'none')])"
    )
    async with opened(kube) as (tab, url):
        for width, narrow in ((390, True), (1280, False)):
            await tab.open(url, width=width)
            await tab.until(f"{DRAWN} && document.querySelectorAll('.part.allocated').length === 19")
            want = [["16 pods", narrow, narrow], ["3 pods", False, False]]
            assert await tab.run(counts) == want, width
            await tab.run("document.querySelector('[data-gpu=\"n000/1\"]').click()")
            assert "no isolation" in await tab.run("document.getElementById('details').innerText")
            assert await tab.violations() == []


@pytest.mark.anyio
async def test_memory_reads_as_in_the_commands() -> None:
    amounts = [0, 1, 512, 1023, 1024, 4864, 5836, 9850, 23034, 81559, 1_023_948, 1_023_999, 1 << 20, 12_345_678]
    async with opened(MemoryKube()) as (tab, url):
        await tab.open(url)
        found = await tab.run(f"{MODULE % 'fleet.js'}.then(all => {amounts}.map(all.gib))")
    assert found == [gib(mib) for mib in amounts]


USED = """all => {
  const [first, ...others] = JSON.parse(%s);
  const plain = (value) => value instanceof Map ? [...value].map(([name, each]) => [name, plain(each)]).sort() : value;
  const fleet = new all.Fleet();
  return others.map(([change, whole]) => {
    if (change === null) fleet.replace(first); else fleet.apply(change);
    const known = new all.Fleet();
    known.replace(whole);
    return [fleet, known].map((each) => JSON.stringify([each.nodes, each.activity, each.memoryMib].map(plain)));
  });
}"""
"""What the page makes of a fleet by its changes, and by all of it."""


@pytest.mark.anyio
async def test_changes_in_order_make_of_a_fleet_the_next_one_whatever_it_names() -> None:
    random = Random(7)

    def some(*names: str) -> list[str]:
        return [name for name in names if random.random() < 0.6]

    def usage() -> dict[str, int]:
        return {pod: random.randrange(3) for pod in some("x/p", "x/q", "__proto__")}

    views = [
        FleetView(
            nodes=tuple(NodeView(name=name, ready=random.random() < 0.5) for name in some("a", "b", "constructor")),
            activity=usage(),
            memory_mib={gpu: usage() for gpu in some("GPU-0", "GPU-1", "__proto__")},
        )
        for _ in range(200)
    ]
    steps = [(b"null", views[0]), *((write_change(changes(*pair)), pair[1]) for pair in pairwise(views))]
    written = b",".join([write_fleet(views[0]), *(b"[%b,%b]" % (change, write_fleet(view)) for change, view in steps)])
    async with opened(MemoryKube()) as (tab, url):
        await tab.open(url)
        found = await tab.run(f"{MODULE % 'fleet.js'}.then({USED % json.dumps(f'[{written.decode()}]')})")
        assert await tab.run("Object.keys(Object.prototype)") == []
    assert [by_changes for by_changes, _ in found] == [whole for _, whole in found]
    assert len({whole for _, whole in found}) > 100


class Judged:
    """What is measured: two replicas that were allocated too much memory, and that one heats its GPU."""

    def refresh(self, changed: Callable[[], None]) -> None:
        pass

    @property
    def measured(self) -> MeasuredUsage:
        heated = Contention(cause="thermal", caused_by=("research/w1/main",), scope="node")
        even = Contention(cause="saturated", evenly=("research/w1/main", "ml/other/main"))
        points = (ScalePoint(0, 1, 1, 2.0), ScalePoint(1800, 3, 1, 24.0), ScalePoint(3600, 3, 3, 9.4))
        facts: dict[str, Any] = {
            "gpu": 4,
            "device": "whole",
            "namespace": "research",
            "container": "main",
            "allocated_mib": 40960,
            "peak_mib": 3000,
            "observed_s": 90000,
            "verdict": Sizing.TOO_MUCH,
            "fits": "1g.5gb",
            "saved_mib": 36096,
        }
        return MeasuredUsage(
            activity={("n001", PodKey("research/w1")): 99.0, ("n000", PodKey("ml/p0-0-0")): 0.0},
            memory_mib={("n000", "GPU-n000-0"): {PodKey("ml/p0-0-0"): 3000}},
            contention={("n001", "GPU-n001-4"): (heated, even)},
            model_servers=(
                ModelServerHistory(namespace="research", name="llm", points=points),
                ModelServerHistory(namespace="ml", name="new", points=points[:1]),
            ),
            recommendations=tuple(
                Recommendation(node=f"n00{number}", pod=f"w{number}", **facts) for number in range(2)
            ),
        )


@pytest.mark.anyio
async def test_what_was_allocated_too_much_is_said_with_what_would_fit_and_what_that_saves() -> None:
    async with opened(await fleet(16), metrics=Judged()) as (tab, url):
        await tab.open(url)
        await tab.until("document.querySelectorAll('#sizes li').length")
        text = await tab.run("document.getElementById('sizes').innerText")
        assert text.splitlines()[0] == "Right-sizing · frees 70.5 GiB"
        assert "40 GiB allocated, at most 2.9 GiB used in 25 hours" in text
        assert "1g.5gb is enough; frees 35.2 GiB." in text
        assert (await tab.run("document.getElementById('slow').innerText")).split("\n") == [
            "Slow GPUs · 1", "n001, GPU 4", "throttled: thermal", "", "Caused by research/w1 on this node.", "",
            "saturated", "", "research/w1 and ml/other use it about equally.",
        ]  # fmt: skip
        await tab.run("document.querySelector('[name=namespace]').value = 'ml'")
        await tab.run("document.querySelector('[name=namespace]').dispatchEvent(new Event('input', {bubbles: true}))")
        await tab.until("document.getElementById('sizes').hidden")
        assert tab.console == []


class Grouped:
    """What is measured: one pod with two parts of a GPU, and two replicas of a Deployment that use nothing."""

    def refresh(self, changed: Callable[[], None]) -> None:
        pass

    @property
    def measured(self) -> MeasuredUsage:
        facts: dict[str, Any] = {"node": "n000", "device": "whole", "namespace": "ml", "container": "main"}
        return MeasuredUsage(
            memory_mib={("n000", "GPU-n000-1"): {PodKey("ml/both"): 5000, PodKey("ml/p0-1-3"): 100}},
            recommendations=tuple(
                Recommendation(
                    pod=f"workshop-7d4b9c6f58-{number}", gpu=number, allocated_mib=40960, peak_mib=0,
                    observed_s=hours * 3600.0, verdict=Sizing.UNUSED, **facts,
                )
                for number, hours in ((5, 72), (6, 25))
            ),
        )  # fmt: skip


@pytest.mark.anyio
async def test_pods_of_one_workload_are_one_entry_and_the_memory_of_a_pod_with_two_parts_is_shown_once() -> None:
    kube = await fleet(8)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "workshop-7d4b9c6f58", "uid": "r"}
    for number in (5, 6):
        title = {"namespace": "ml", "ownerReferences": [owner | {"controller": True}]}
        whole = share(number, 40960, Mode.WHOLE)
        await kube.create(PODS, pod(f"workshop-7d4b9c6f58-{number}", WHOLE, whole, node="n000", metadata=title))
    for start, namespace in ((0, "ml"), (1, "vision")):
        await kube.delete(PODS, f"p0-1-{start}", namespace=namespace)
    parts = [mig_share(1, "1g.5gb", start) for start in (0, 1)]
    await kube.create(
        PODS, pod("both", {"nvidia.com/mig-1g.5gb": 2}, *parts, node="n000", metadata={"namespace": "ml"})
    )
    async with opened(kube, metrics=Grouped()) as (tab, url):
        await tab.open(f"{url}?gpu=n000/1")
        await tab.until("document.querySelectorAll('#sizes li').length")
        (entry,) = await tab.run("[...document.querySelectorAll('#sizes li')].map((each) => each.innerText)")
        assert [each for each in entry.split("\n") if each] == [
            "ml/workshop \N{MULTIPLICATION SIGN} 2",
            "40 GiB allocated, nothing used in 25 hours",
            "Unused. Deleting the pods frees 2 replicas.",
        ]
        await tab.until("document.querySelector('#details tbody')")
        rows = await tab.run("[...document.querySelectorAll('#details tbody tr')].map((each) => each.innerText)")
        cells = [row.split("\t") for row in rows]
        assert [each[2] for each in cells if each[1].startswith("ml/both")] == ["4.8 GiB", ""]
        assert [each[2] for each in cells if each[1].startswith("ml/p0-1-3")] == ["100 MiB"]
        assert tab.console == []


@pytest.mark.anyio
@pytest.mark.parametrize("dark", [False, True])
async def test_every_panel_is_drawn_and_axe_finds_nothing_wrong_with_them(dark: bool) -> None:
    kube = await fleet(16)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30})
    await make_pod(kube, "small", MIG)
    for kind, status in (
        (NODE_IMAGES, {"images": [{"image": "vllm:1", "state": "Present"}]}),
        (NODE_MODELS, {"models": [{"name": "bert", "state": "Fetching", "fetchedBytes": 1, "totalBytes": 3}]}),
    ):
        await kube.create(kind, {"metadata": {"name": "n000"}, "spec": {}})
        await kube.patch(kind, "n000", {"status": status}, subresource="status")
    async with opened(kube, metrics=Judged()) as (tab, url):
        await tab.open(f"{url}?gpu=n000/0", dark=dark, height=2000)
        for panel, words in (
            ("pending", "ns/large"),
            ("pending", "MIG instances are being created on n000, n001."),
            ("slow", "throttled: thermal"),
            ("sizes", "1g.5gb is enough"),
            ("model-servers", "research/llm"),
            ("details", "bert · Fetching · 33 % fetched"),
            ("details", "vllm:1 · Present"),
        ):
            await tab.until(f"document.getElementById({panel!r}).innerText.includes({words!r})")
        layouts = await tab.run("document.querySelector('#details .layouts').innerText")
        (present, planned) = re.findall("layout\\s+(.+)", layouts)
        assert present == ", ".join(f"1g.5gb at {start}" for start in range(6))
        assert planned == f"{present}, 1g.5gb at 6"
        rows = await tab.run("[...document.querySelectorAll('#details tbody tr')].map(each => each.innerText)")
        part, _, *used = rows[0].split("\t")
        assert (part, used) == ("1g.5gb", ["2.9 GiB", "0 %"])
        assert rows[1].split("\t")[2:] == ["", ""], "what is unknown is not 0"
        assert await tab.run("document.querySelectorAll('.part.idle').length") == 1
        figures = await tab.run("document.querySelector('#model-servers').innerText")
        assert "3 replicas desired, 3 ready, 9 requests in flight" in figures
        assert "ml/new" not in figures, "one moment is no line"
        label = "document.querySelector('#model-servers svg').getAttribute('aria-label')"
        assert await tab.run(label) == "research/llm: 3 replicas desired, 3 ready, 9 requests in flight"
        line = await tab.run("document.querySelector('#model-servers .desired').getAttribute('d')")
        assert line == "M0 48.7H160.0V6.0H320.0V6.0", "one of three replicas, then all, in steps"
        assert await tab.violations() == []
        assert tab.console == []


@pytest.mark.anyio
async def test_a_change_among_a_thousand_gpus_draws_one_gpu_anew() -> None:
    """How long that takes is measured by bench/page.py."""
    kube = await fleet(1000)
    async with opened(kube) as (tab, url):
        await tab.open(url, width=1600, height=1000)
        await tab.until("document.querySelectorAll('.gpu').length === 1000")
        await tab.run("document.querySelectorAll('.node, .gpu').forEach(each => { each.known = true; })")
        await kube.delete(PODS, "w77", namespace="research")
        await tab.until("document.getElementById('totals').innerText.includes('624 of 1000')")
        anew = "[...document.querySelectorAll('.gpu')].filter(each => !each.known)"
        assert await tab.run(f"{anew}.map(each => each.dataset.gpu)") == ["n077/4"]
        kept = "[...document.querySelectorAll('.node')].every(each => each.known)"
        assert await tab.run(kept), "a new card is not drawn until the browser knows that it is on the screen"
        assert tab.console == []
