"""A churn of pods with every form of request, on nodes whose processes are killed all the time, watched from outside.

Nothing is given twice, no running pod is harmed, forged pods get nothing, and at the end all is free. What is given is
judged by `deviceuse` from containers, driver and the kubelet's checkpoint, never from what Tessera says.

`TESSERA_SOAK=20` makes it last twenty times as long, `TESSERA_SEED=7` draws other pods and troubles,
`TESSERA_SOAK_OUT=FOLDER` keeps the log and the numbers.
"""

import contextlib
import heapq
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from judges.allocated import untrue
from judges.deviceuse import Fault
from kube import pods
from kube.breaking import Breaker, troubles
from kube.churn import OURS, SLICE, Act, acts, objects_of
from kube.conftest import fresh
from kube.observing import Api
from kube.watching import START_S, Book, Seen, Watcher
from tessera.errors import Unavailable
from tessera.sim.mpscontrol import install
from testbed.cluster import Cluster, Desired
from testbed.node import Node
from testbed.processes import Process, until

SOAK = float(os.environ.get("TESSERA_SOAK", "1"))
SEED = os.environ.get("TESSERA_SEED", "1")
OUT = os.environ.get("TESSERA_SOAK_OUT", "")
CHURN_S = 60 * SOAK
RATE = float(os.environ.get("TESSERA_SOAK_RATE", "1.5"))
"""Pods and Jobs a second, on average; fewer where the machine does not keep up."""
ADMISSION = os.environ.get("TESSERA_SOAK_ADMISSION") == "on"
"""Off, forged and misrouted pods come as far as the agents; on, the API server routes or refuses them."""
GAP_S = 2.0
MOST_ALIVE = 45
LATE_S = 45.0
"""A pod that is not bound so long after it was made is deleted, so that others come; one that is bound has START_S."""
GPUS = ("3xA100-40GB",)
FIXED, AUTO_GPUS = "1", 2
UNITS, WHOLE = "tessera.dev/gpu-memory", "nvidia.com/gpu"
POLICY = {
    "gpus": [
        {"devices": [FIXED], "sharing": {"mode": "mig", "layout": {"configuration": "all-1g.5gb"}}},
        {"sharing": {"mode": "auto"}},
    ],
    "repartition": {"idleSeconds": 1, "longestSeconds": 5, "keepIdleSeconds": 10},
    "disruption": {"budget": "100%"},
}
NAMESPACE = "/api/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


class Log:
    """Lines with the time since the start, in a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def close(self) -> None:
        self._file.close()

    def __call__(self, text: str) -> None:
        with self._lock:
            self._file.write(f"{time.monotonic() - self._began:8.2f} {text}\n")


class Maker:
    """Makes pods and lets them go, as the seed says; the order does not depend on what becomes of them."""

    def __init__(self, cluster: Cluster, book: Book, watcher: Watcher, log: Log) -> None:
        self._api, self._book, self._watcher, self._log = Api(cluster), book, watcher, log
        self._due: list[tuple[float, int, Act]] = []
        self._made_at: dict[str, float] = {}
        self.made = 0
        self.late: Counter[str] = Counter()
        self.unused: Counter[str] = Counter()

    def run(self, plan: Iterator[Act], ends_s: float, watching: Future[None]) -> None:
        """Make one act after the other until a time of the monotonic clock, or until nobody watches any more."""
        for act in plan:
            self._pass(act.after_s)
            while self._alive() >= MOST_ALIVE:
                self._pass(0.3)
            if time.monotonic() > ends_s or watching.done():
                self._api.close()
                return
            self._make(act)

    def _pass(self, seconds: float) -> None:
        """Let time pass, in which acts end and what has ended is swept."""
        until_s = time.monotonic() + seconds
        self._sweep()
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._end(heapq.heappop(self._due)[2])
            if now >= until_s:
                return
            next_s = self._due[0][0] if self._due else until_s
            time.sleep(max(0.0, min(until_s, next_s) - now))

    def _alive(self) -> int:
        return sum(not each.ended for each in self._present())

    def _present(self) -> list[Seen]:
        """Return the pods that the API has, as the watcher, in a thread of its own, last saw them."""
        return [each for uid, each in list(self._watcher.pods.items()) if uid in self._watcher.present]

    def _make(self, act: Act) -> None:
        self._log(f"make {act}")
        self._book.acts[act.name] = act
        self._made_at[act.name] = time.monotonic()
        path = JOBS if act.copies else f"{NAMESPACE}/pods"
        status, found = self._api.insist("POST", path, objects_of(act))
        if status not in {201, 409}:  # 409: made, and the answer was lost
            self.unused[f"{act.kind.name}: {found.get('message', '')[:200]}"] += 1
        self.made += act.copies or 1
        heapq.heappush(self._due, (time.monotonic() + act.life_s, act.number, act))

    def _end(self, act: Act) -> None:
        if act.patient and any(each.starting for each in self._present() if self._book.act_of(each.name) is act):
            heapq.heappush(self._due, (time.monotonic() + 1, act.number, act))
        elif act.end != "alone":
            self._log(f"{act.end} {act.name}")
            self._delete(act, act.end)

    def _delete(self, act: Act, how: str = "deleted") -> None:
        self._book.let_go.add(act.name)
        grace = {"gracePeriodSeconds": 0} if how == "forced" else {}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **grace}
        path = f"{JOBS}/{act.name}" if act.copies else f"{NAMESPACE}/pods/{act.name}"
        if how == "evicted" and not act.copies:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": act.name}}
            self._api.insist("POST", f"{path}/eviction", body)
        else:
            self._api.insist("DELETE", path, options)
        if how == "forced" and act.copies:
            query = f"?labelSelector=act%3D{act.number}"
            self._api.insist("DELETE", f"{NAMESPACE}/pods{query}", options)

    def _sweep(self) -> None:
        """Delete pods that have ended, those that are not bound for long, and those noted for never starting."""
        now = time.monotonic()
        for known in self._present():
            act = self._book.act_of(known.name)
            if act is None or act.name in self._book.let_go:
                continue
            if known.overdue or (known.ended and not act.copies):
                self._delete(act)
            elif now - self._made_at[act.name] > LATE_S and not known.bound_since:
                self.late[act.kind.name] += 1
                self._log(f"late {known.name}: {known.phase}")
                self._delete(act)


class Bed:
    """The cluster of a soak, with agents as it starts them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._options: dict[str, tuple[str, ...]] = {}
        for number, node in enumerate(cluster.nodes):
            options: tuple[str, ...] = ("--log-format=json", f"--mps-control={install(node.folder / 'mps-bin')}")
            if number:  # the other node hands devices over in the other way
                path = node.folder / "sharing.json"
                path.write_text(json.dumps({"version": "v1", "flags": {"plugin": {"deviceListStrategy": ["cdi-cri"]}}}))
                options = (*options, f"--sharing-config={path}")
            self._options[node.name] = options

    def agent(self, node: Node) -> Process:
        return node.start_agent(self.cluster.agent_kubeconfig(node.name), *self._options[node.name])

    def ready(self) -> None:
        """Start the agents, give the policy, and wait until all nodes offer what they have."""
        self.cluster.kubectl("patch", "gpupolicy", "testbed", "--type=merge", f"--patch={json.dumps({'spec': POLICY})}")
        for node in self.cluster.nodes:
            self.agent(node)
        for node in self.cluster.nodes:
            words = partial(self.cluster.processes.last_words, f"{node.name}-agent")
            until(f"what {node.name} offers", partial(self._offers, node), timeout_s=90, found=words)

    def _offers(self, node: Node) -> bool:
        offered = partial(pods.allocatable, self.cluster, node.name)
        return offered(SLICE) == 7 and offered(UNITS) > 0


@pytest.fixture
def bed(program_folder: Path) -> Iterator[Bed]:
    testbed = fresh("soak", program_folder)
    try:
        testbed.up(Desired(nodes=2, gpus=GPUS, scheduler=True, admission=ADMISSION))
        made = Bed(testbed)
        made.ready()
        yield made
    finally:
        if OUT:
            keep(testbed, Path(OUT))
        testbed.down()


def keep(cluster: Cluster, folder: Path) -> None:
    """Keep what the processes said."""
    for name in cluster.processes.names():
        path = cluster.processes.log(name)
        if path.exists() and path.stat().st_size:
            (folder / path.name).write_bytes(path.read_bytes())


def test_nothing_is_given_twice_and_nobody_is_harmed(bed: Bed, tmp_path: Path) -> None:
    folder = Path(OUT) if OUT else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Log(folder / "soak.log")) as log:
        numbers, found = soak(bed, log)
    (folder / "soak.json").write_text(json.dumps(numbers, indent=1))
    Console(width=160).print(table(numbers))
    assert found == []
    assert numbers["harmed"] == []
    assert numbers["bound and never started"] == []
    assert numbers["left"] == []
    assert numbers["troubles that failed"] == []
    enough = numbers["looks"] / 50
    assert numbers["pods in which a device was seen"] > enough, "too few pods ran for this test to prove anything"


def soak(bed: Bed, log: Log) -> tuple[dict[str, Any], list[Fault]]:
    """Churn, break and watch; return the numbers, and what was given twice or wrongly."""
    book = Book()
    breaker = Breaker(bed.cluster, bed.agent, log)
    watcher = Watcher(bed.cluster, book, log, breaker.away_s)
    maker = Maker(bed.cluster, book, watcher, log)
    quiet, over = threading.Event(), threading.Event()
    left: list[str] = []
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(watcher.run, over)
        # containerd that is killed loses exit codes, so that pods fail that nobody harmed: people read longer runs.
        names = tuple(name for name in breaker.names if SOAK > 1 or not name.endswith("containerd"))
        breaking = pool.submit(breaker.run, troubles(SEED, names, GAP_S), quiet)
        try:
            maker.run(acts(SEED, RATE), time.monotonic() + CHURN_S, watching)
            quiet.set()
            breaking.result()
            breaker.mend()
            left += ends_well(bed.cluster, book, log)
        finally:
            quiet.set()
            over.set()
        watching.result()
    return report(book, maker, breaker, watcher, left), [each.fault for each in watcher.found.values()]


def ends_well(cluster: Cluster, book: Book, log: Log) -> list[str]:
    """Return what is not as it should be once nobody breaks anything: who waits without cause, what is not free."""
    with contextlib.closing(Api(cluster)) as api:
        return _ends_well(cluster, api, book, log)


def _ends_well(cluster: Cluster, api: Api, book: Book, log: Log) -> list[str]:
    left = _settled("pending though it fits", partial(_waits_without_cause, api), 60, log)
    log("all pods go")
    book.let_go |= book.acts.keys()
    for path in (JOBS, f"{NAMESPACE}/pods"):
        api.insist("DELETE", f"{path}?labelSelector=made-by%3Dtest&propagationPolicy=Background")
    kept = _settled("not gone", lambda: [each["metadata"]["name"] for each in _pods(api)], 60, log)
    kept += _settled("not free", partial(_used, api), 90, log)
    left += kept
    if not kept:
        left += _settled("not all to be had", partial(_not_had, cluster, full(cluster)), 120, log)
        api.insist("DELETE", f"{NAMESPACE}/pods?labelSelector=made-by%3Dtest")
    return left


def _settled(what: str, look: Callable[[], list[str]], within_s: float, log: Log) -> list[str]:
    """Return what is still found after a while."""
    deadline = time.monotonic() + within_s
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(1)
    for each in found:
        log(f"LEFT {what}: {each}")
    return [f"{what}: {each}" for each in found]


def _pods(api: Api) -> list[dict[str, Any]]:
    return _objects(api, f"{NAMESPACE}/pods?labelSelector=made-by%3Dtest")


def _objects(api: Api, path: str) -> list[dict[str, Any]]:
    """Return the items of a list, asked again of an API server that has only just begun (429) or does not answer."""
    items: list[dict[str, Any]] = api.insist("GET", path)[1]["items"]
    return items


def _waits_without_cause(api: Api) -> list[str]:
    """Return the pods that wait for what a node has, by what its kubelet offers and its pods ask."""
    found, nodes = _pods(api), _objects(api, "/api/v1/nodes")
    gpu_nodes = _objects(api, "/apis/tessera.dev/v1alpha1/gpunodes")
    honest = [each for each in found if not each["metadata"]["name"].startswith(("forged", "misrouted"))]
    waiting = [each for each in honest if each["status"]["phase"] == "Pending" and not each["spec"].get("nodeName")]
    # Forged and misrouted ones too: those that must not start are to fail, or to be evicted.
    stuck = [each for each in found if each["status"]["phase"] == "Pending" and each["spec"].get("nodeName")]
    named = [f"{each['metadata']['name']} asks {_asked(each)}" for each in waiting if _fits(each, nodes, found)]
    pending = untrue(gpu_nodes, map(_of_one_container, honest))
    return [*named, *pending, *(f"{each['metadata']['name']} does not start" for each in stuck)]


def _limits(pod: dict[str, Any]) -> dict[str, int]:
    """Return what a pod asks in all: its containers together, or an init container where that asks more."""
    together = Counter[str]()
    for each in pod["spec"]["containers"]:
        together.update(_limits_of(each))
    for each in pod["spec"].get("initContainers", ()):
        together |= Counter(_limits_of(each))
    return dict(together)


def _limits_of(container: dict[str, Any]) -> dict[str, int]:
    limits = container.get("resources", {}).get("limits") or {}
    return {name: int(count) for name, count in limits.items()}


def _of_one_container(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as if one container asked for all."""
    return {**pod, "spec": {**pod["spec"], "containers": [{"resources": {"limits": _limits(pod)}}]}}


def _asked(pod: dict[str, Any]) -> dict[str, int]:
    return {name: count for name, count in _limits(pod).items() if name.startswith("nvidia.com/")}


def _fits(pod: dict[str, Any], nodes: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    asked = _asked(pod)
    alive = [each for each in found if each["status"]["phase"] in {"Pending", "Running"}]
    for node in nodes if asked else ():
        free = Counter({name: int(node["status"]["allocatable"].get(name, 0)) for name in asked})
        for each in alive:
            if each["spec"].get("nodeName") == node["metadata"]["name"]:
                free.subtract(_asked(each))
        if all(free[name] >= count for name, count in asked.items()):
            return True
    return False


def _used(api: Api) -> list[str]:
    """Return what GPUNodes still keep for pods that are gone."""
    found = []
    for each in _objects(api, "/apis/tessera.dev/v1alpha1/gpunodes"):
        spec = each.get("spec") or {}
        found += [f"{each['metadata']['name']}: {key} {spec[key]}" for key in ("claims", "desired") if spec.get(key)]
    return found


def full(cluster: Cluster) -> list[str]:
    """Make the pods that take all there is: every slice of the fixed GPUs by name, every other GPU whole."""
    each_node = [("all-slice", SLICE, "default-scheduler")] * 7 + [("all-gpu", WHOLE, OURS)] * AUTO_GPUS
    desired = [pod for _ in cluster.nodes for pod in each_node]
    made = [
        pods.busybox(f"{name}-{number}", limits={resource: 1}, schedulerName=scheduler)
        for number, (name, resource, scheduler) in enumerate(desired)
    ]
    cluster.apply(*made)
    return [each["metadata"]["name"] for each in made]


def _not_had(cluster: Cluster, names: list[str]) -> list[str]:
    try:
        found = cluster.get("pods", "-l", "made-by=test")["items"]
    except Unavailable:
        return names
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in found}
    return [f"{name} {phases.get(name)}" for name in names if phases.get(name) != "Running"]


def kind_of(book: Book, pod_name: str) -> str:
    act = book.act_of(pod_name)
    return act.kind.name if act else "at the end"


def report(book: Book, maker: Maker, breaker: Breaker, watcher: Watcher, left: list[str]) -> dict[str, Any]:
    """Return what was done and found, as numbers."""
    ran = [each for each in watcher.pods.values() if each.ran_since]
    return {
        "seed": SEED,
        "pods asked for": maker.made,
        "pods": len(watcher.pods),
        "pods that ran": len(ran),
        "pods in which a device was seen": len(watcher.served),
        "pods by kind": dict(Counter(kind_of(book, each.name) for each in ran)),
        "faults": breaker.made.total(),
        "faults by process": dict(sorted(breaker.made.items())),
        "troubles that failed": breaker.failed,
        "looks": watcher.checks,
        "containers looked at": watcher.containers,
        "given twice and the like": dict(Counter(each.fault.kind for each in watcher.found.values())),
        "harmed": watcher.harmed,
        "bound and never started": watcher.never_started,
        "seconds from bound to started": _starts(book, watcher),
        "ended by themselves and told as refused": watcher.unreported,
        "ended while containerd was starting them": watcher.unstarted,
        "denied by a restarted kubelet for a container that did not run": watcher.denied_again,
        "deleted by the Job controller, which had made too many": watcher.surplus,
        "refused": dict(watcher.refused),
        "reasons of refusals": dict(watcher.reasons.most_common()),
        "late": dict(maker.late),
        "not made": dict(maker.unused),
        "left": left,
        "found": [
            {"kind": each.fault.kind, "where": each.fault.where, "who": each.fault.who, "text": each.fault.text}
            | {"first_s": round(each.first_s, 1), "lasted_s": round(each.last_s - each.first_s, 1), "times": each.times}
            for each in watcher.found.values()
        ],
    }


def _starts(book: Book, watcher: Watcher) -> list[str]:
    """Return in words how long the pods of each kind took to start once bound, the slowest kind first."""
    by_kind = defaultdict[str, list[float]](list)
    for each in watcher.pods.values():
        if each.started_after_s is not None:
            by_kind[kind_of(book, each.name)].append(each.started_after_s)
    ordered = sorted(by_kind.items(), key=lambda item: median(item[1]), reverse=True)
    return [f"{kind}: median {median(took):.1f}, longest {max(took):.1f}, of {len(took)}" for kind, took in ordered]


def table(numbers: dict[str, Any]) -> Table:
    """Return the numbers for people."""
    made = Table(box=SIMPLE_HEAD, title=f"Churn soak, seed {numbers['seed']}")
    made.add_column("What")
    made.add_column("Number", justify="right")
    for name, value in numbers.items():
        if isinstance(value, dict):
            made.add_row(name, str(sum(value.values())))
            for key, count in value.items():
                made.add_row(f"  {key}", str(count))
        elif isinstance(value, list):
            made.add_row(name, str(len(value)))
        elif name != "seed":
            made.add_row(name, str(value))
    return made


def test_a_seed_gives_the_same_acts_and_troubles_again() -> None:
    names = ("apiserver", "node1-agent", "etcd")
    for make in (lambda seed: acts(seed, 2), lambda seed: troubles(seed, names, 2)):
        first, again, other = (make(seed) for seed in ("7", "7", "8"))
        drawn = [next(first) for _ in range(50)]
        assert drawn == [next(again) for _ in range(50)]
        assert drawn != [next(other) for _ in range(50)]
    assert random.Random("7").random() != random.Random("8").random()


def test_a_pod_that_is_bound_and_does_not_start_is_found() -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": "no device"}}}
    begun = {"name": "beside", "state": {"running": {}}}
    ended = {"name": "main", "state": {"terminated": {"startedAt": "1970-01-01T00:00:00Z", "exitCode": 128}}}
    bound: dict[str, Any] = {
        "metadata": {},
        "spec": {"nodeName": "node1", "containers": [{}, {}]},
        "status": {"containerStatuses": [waiting, begun]},
    }
    away = {"node1": 10.0}

    def after(seconds: float, pod: dict[str, Any]) -> str:
        known = Seen("p")
        known.phase = "Pending"
        assert known.follow_start({**bound, "spec": {"containers": [{}, {}]}}, 50, lambda *_: 0) == ""
        assert known.follow_start(bound, 100, lambda *_: 0) == ""
        return known.follow_start(pod, 100 + seconds, lambda node, since_s: away[node] if since_s == 100 else 0)

    assert after(START_S + 9, bound) == ""
    words = "p on node1: Pending for 61 s; main waiting CreateContainerError no device; beside running"
    assert after(START_S + 11, bound) == words
    assert after(START_S + 11, {**bound, "metadata": {"deletionTimestamp": "now"}}) == ""
    assert after(START_S + 11, {**bound, "status": {"containerStatuses": [begun, ended]}}) == ""
