"""The page in headless Chromium: what is marked in the fleet, and where what the panels name leads."""

import json
from collections.abc import Callable

import pytest

from builders.kubeobjects import mig_share, pod
from harness.servers import make_pod
from server.page.test_page_browser import DRAWN, MIG, Judged, fleet, opened
from tessera.clients.kube import PODS
from tessera.core.explain.observedfleet import MeasuredUsage
from tessera.core.usage.contention import Contention

pytestmark = pytest.mark.anyio
CHOSEN = "document.querySelector('.gpu[aria-current]')?.dataset.gpu"
SHOWN = "[...document.querySelectorAll('.gpu')].filter(each => each.checkVisibility()).length"
VISIBLE = (
    "(() => { const place = document.querySelector('.gpu[aria-current]').getBoundingClientRect();"
    " return place.top >= 0 && place.bottom <= innerHeight; })()"
)


async def test_a_slow_gpu_is_marked_found_by_its_state_and_says_why() -> None:
    async with opened(await fleet(16), metrics=Judged()) as (tab, url):
        await tab.open(f"{url}?gpu=n001/4")
        await tab.until(f"{DRAWN} && document.querySelector('.gpu.slow')")
        slow = "[...document.querySelectorAll('.gpu.slow')].map(each => each.dataset.gpu)"
        assert await tab.run(slow) == ["n001/4"]
        assert "slow" in (await tab.run("document.getElementById('legend').innerText")).split()
        spoken = await tab.run("document.querySelector('.gpu.slow').ariaLabel")
        assert "; throttled: thermal; saturated: " in spoken
        details = await tab.run("document.getElementById('details').innerText")
        assert "throttled: thermal. Caused by research/w1 on this node." in details
        assert "saturated. research/w1 and ml/other use it about equally." in details
        assert await tab.violations() == []
        await tab.run("[...document.querySelectorAll('#totals a')].find(each => each.search === '?state=slow').click()")
        assert await tab.run(f"[location.search, {SHOWN}]") == ["?state=slow&gpu=n001%2F4", 1]
        assert tab.console == []


@pytest.mark.parametrize("panel", ["slow", "sizes"])
async def test_an_entry_leads_to_its_gpu_and_is_hidden_with_it(panel: str) -> None:
    async with opened(await fleet(400), metrics=Judged()) as (tab, url):
        await tab.open(url, height=500)
        entry = f"document.querySelector('#{panel} b a')"
        await tab.until(f"{DRAWN} && {entry}")
        want = "n001/4" if panel == "slow" else "n000/4"
        assert await tab.run(f"{entry}.getAttribute('href')") == f"?gpu={want.replace('/', '%2F')}"
        await tab.run("document.querySelector('[data-gpu=\"n049/4\"]').scrollIntoView()")
        await tab.run(f"{entry}.click()")
        assert await tab.run(f"[{CHOSEN}, {VISIBLE}]") == [want, True]
        assert not await tab.run("document.getElementById('details').hidden")
        await tab.run("document.querySelector('[name=node]').value = 'n049'")
        await tab.run("document.querySelector('[name=node]').dispatchEvent(new Event('input', {bubbles: true}))")
        await tab.until(f"{SHOWN} === 8")
        assert await tab.run(f"{entry} === null")
        await tab.run("document.querySelector('[type=reset]').click()")
        await tab.until(f"{SHOWN} === 400 && {entry}")
        assert tab.console == []


class HeatedBy:
    """A GPU that pods of one workload heat and saturate."""

    def __init__(self, pods: int) -> None:
        names = tuple(f"ml/train-{number}-x2x4b/main" for number in range(pods))
        slow = tuple(Contention(cause=cause, caused_by=names) for cause in ("thermal", "saturated"))
        self.measured = MeasuredUsage(contention={("n000", "GPU-n000-4"): slow})

    def refresh(self, changed: Callable[[], None]) -> None:
        pass


@pytest.mark.parametrize(("pods", "spelled_out"), [(1, True), (5, True), (6, False)])
async def test_each_pod_that_slows_a_gpu_is_named(pods: int, spelled_out: bool) -> None:
    kube = await fleet(8)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "train", "controller": True}
    for number in range(pods):
        metadata = {"namespace": "ml", "ownerReferences": [owner]}
        await make_pod(kube, f"train-{number}-x2x4b", {"tessera.dev/gpu-memory": 30}, metadata=metadata)
    names = ", ".join(f"ml/train-{number}-x2x4b" for number in range(pods))
    entry = "document.querySelector('#slow li p')"
    async with opened(kube, metrics=HeatedBy(pods)) as (tab, url):
        await tab.open(f"{url}?gpu=n000/4")
        await tab.until(f"{DRAWN} && {entry}")
        short = f"ml/train \u00d7 {pods}" if pods > 1 else names
        assert await tab.run(f"{entry}.innerText") == f"Caused by {short}."
        assert await tab.run(f"{entry}.title") == f"Caused by {names}."
        slow = "document.getElementById('slow').innerText"
        assert (await tab.run(slow)).count("Caused by") == 1, "once for both"
        assert "throttled: thermal, saturated" in await tab.run(slow)
        details = await tab.run("document.getElementById('details').innerText")
        assert f"Caused by {names if spelled_out else short}." in details


async def test_pending_pods_lead_to_their_namespace_and_problems_to_their_gpus() -> None:
    kube = await fleet(16)
    await make_pod(kube, "large", {"tessera.dev/gpu-memory": 30}, metadata={"namespace": "research"})
    async with opened(kube) as (tab, url):
        await tab.open(url)
        await tab.until(f"{DRAWN} && document.querySelector('#pending b a')")
        await tab.run("document.querySelector('#pending b a').click()")
        assert await tab.run(f"[location.search, {SHOWN}]") == ["?namespace=research", 2]
        await tab.run("document.querySelector('[type=reset]').click()")
        await tab.until(f"{SHOWN} === 16")
        await tab.run("document.querySelector('#totals [href=\"?state=problem\"]').click()")
        assert await tab.run(f"[location.search, {SHOWN}]") == ["?state=problem", 1]
        assert await tab.run("document.querySelector('[name=state]').value") == "problem"
        assert await tab.violations() == []


async def test_the_link_of_a_total_shows_all_that_it_counts() -> None:
    """It counts the whole fleet, so it clears the other filters; what colors mean stays."""
    async with opened(await fleet(16), metrics=Judged()) as (tab, url):
        await tab.open(f"{url}?namespace=ml&model=other&node=n000&color=workload")
        slow = "document.querySelector('#totals [href=\"?state=slow\"]')"
        await tab.until(f"{DRAWN} && {slow}")
        assert await tab.run(SHOWN) == 0
        await tab.run(f"{slow}.click()")
        assert await tab.run(f"[location.search, {SHOWN}]") == ["?state=slow&color=workload", 1]
        assert tab.console == []


async def test_a_deep_link_scrolls_to_its_gpu_and_a_pointed_one_has_a_tooltip() -> None:
    async with opened(await fleet(1000)) as (tab, url):
        await tab.open(f"{url}?gpu=n110/3", width=1600, height=1000)
        await tab.until(f"{CHOSEN} === 'n110/3' && {VISIBLE}")
        over = json.dumps('[data-gpu="n110/5"] .bar')
        await tab.run(
            f"document.querySelector({over}).dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))"
        )
        titles = await tab.run("[...document.querySelectorAll('.gpu[title]')].map(each => each.title)")
        assert len(titles) == 1
        assert titles[0].startswith("n110, GPU 5, A100-40GB, 0 GiB of 40 GiB allocated")


CONTRAST = """
(() => {
  const part = document.querySelector(".part.allocated.planned");
  const of = (element, name) => getComputedStyle(element)[name];
  const numbers = (color) => color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = (color) => color
    .map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const strand = part.querySelector(".strand");
  const cover = Number(of(strand, "opacity"));
  const below = numbers(of(part, "backgroundColor"));
  const behind = numbers(of(strand, "backgroundColor")).map((each, i) => cover * each + (1 - cover) * below[i]);
  const words = [...part.querySelectorAll(".words *")].map((each) => light(numbers(of(each, "color"))));
  return words.map((each) => {
    const [less, more] = [each, light(behind)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);
  });
})()
"""
"""Of the words on a planned instance, by WCAG 2.2: axe does not compute it, because the words lie over the color."""


@pytest.mark.parametrize("dark", [False, True])
async def test_the_words_on_an_instance_that_is_planned_for_a_pod_can_be_read_in_each_color(dark: bool) -> None:
    kube = await fleet(8)
    await kube.create(PODS, pod("new", MIG, mig_share(0, "1g.5gb", 6), node="n000", metadata={"namespace": "ml"}))
    async with opened(kube) as (tab, url):
        await tab.open(url, dark=dark)
        await tab.until(f"{DRAWN} && document.querySelector('.part.allocated.planned .words b')")
        for number in range(12):
            strand = "document.querySelector('.part.allocated.planned .strand')"
            await tab.run(f"{strand}.className = 'strand c-{number}'")
            assert min(await tab.run(CONTRAST)) >= 4.5, number
