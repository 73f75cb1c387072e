"""Seconds from Apply to Running on a real node with simulated GPUs, for each way to ask.

`scripts/bench apply_to_running -- [--rounds N] [--misrouted N] [--no-admission] [-o FILE]`

One node with two A100-40GB on the testbed (needs what `scripts/testbed` needs), all of Tessera on it as deployed. One
pod at a time: the clock starts when the pod is sent to the API server, and stops when its phase is Running, asked a
hundred times a second. What is there is arranged before the clock starts: an instance that a pod of that kind has left;
none, after a pod that had an amount of both GPUs; none, after a pod that had both GPUs by name, which are kept for the
next of its kind. The policy is that of the testbed, `idleSeconds: 1`; `--policy-default` leaves out `repartition`, as a
user's first policy does.

`cpu` waits for nothing of Tessera: it is what this machine takes to start any pod, and every other figure is to be read
beside it. `cpu beside misrouted` creates 50 pods first that request shares by the default scheduler: admission routes
them to Tessera's; with `--no-admission` they reach the node, and its agent refuses them. `cpu beside too large` has 50
pods first that the kubelet refuses by itself, and `cpu beside cpu` 50 that run: what each takes without Tessera. These
are measured in each fourth round, or in each with `--only` or `--no-admission`. Of misrouted pods it also prints how
often the kubelet has called `Allocate` for them, and how long a call took: that is all of their time that is Tessera's;
and how many times `cpu beside cpu` the median of `cpu beside misrouted` is, as pods that start delay each other.

`tessera run` is from the start of that program until it has printed the first line of its command, with the start of
Python, the forecast of where it would run, the Job's controller and the log on the way. A user of one namespace has no
forecast.

Floors: each pod runs, and the median of each `tessera run` is at most 5 s; where even `cpu` takes longer than a second,
because the machine is busy, at most five times that.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kube import pods
from kube.observing import Api, NoAnswerError, used_node
from testbed.cluster import Cluster, Desired, default_folder
from testbed.images import BUSYBOX
from testbed.processes import until
from testbed.programs import programs

OURS = "tessera-scheduler"
NEED, SHARE, SLICE = "tessera.dev/gpu-memory", "aliyun.com/gpu-mem", "nvidia.com/mig-2g.10gb"
LONGEST_S = 240.0
PODS = "/api/v1/namespaces/default/pods"
MADE = "labelSelector=made-by%3Dtest"


class Case(NamedTuple):
    """A way to ask, and what is there before."""

    name: str
    limits: dict[str, int]
    isolation: str = ""
    before: str = ""
    """What is there: `instance`, `none`, or `whole` for two GPUs that a pod had by name."""
    crowd: str = ""
    """Which pods come first: `misrouted`, `too large` for the node, which the kubelet itself refuses, or `cpu`."""
    times: int = 1
    """How many times `--misrouted` pods these are."""
    scheduler: str = OURS


MISROUTED, CROWD = "cpu beside misrouted", "cpu beside cpu"
CASES = (
    Case("cpu", {}, scheduler="default-scheduler"),
    Case("gpushare's share", {SHARE: 3}, before="none"),
    Case("need, isolation none", {NEED: 4}, "none", "none"),
    Case("need, isolation none, after whole GPUs", {NEED: 4}, "none", "whole"),
    Case("need, hardware, instance there", {NEED: 9}, "hardware", "instance"),
    Case("need, hardware, new instance", {NEED: 9}, "hardware", "none"),
    Case("need, hardware, after whole GPUs", {NEED: 9}, "hardware", "whole"),
    Case("slice by name, instance there", {SLICE: 1}, before="instance", scheduler="default-scheduler"),
    Case("slice by name, new instance", {SLICE: 1}, before="none", scheduler="default-scheduler"),
    Case("slice by name, after whole GPUs", {SLICE: 1}, before="whole", scheduler="default-scheduler"),
    Case(CROWD, {}, crowd="cpu", scheduler="default-scheduler"),
    Case("cpu beside too large", {}, crowd="too large", scheduler="default-scheduler"),
    Case(MISROUTED, {}, crowd="misrouted", scheduler="default-scheduler"),
    Case("cpu beside ten times too large", {}, crowd="too large", times=10, scheduler="default-scheduler"),
    Case("cpu beside ten times misrouted", {}, crowd="misrouted", times=10, scheduler="default-scheduler"),
)

REFERENCE = CASES[0]
"""What this machine takes to start any pod."""
USER = "tessera run, cpu, by a user of one namespace"
TYPED = {
    "tessera run, cpu": (),
    USER: (),
    "tessera run, need, isolation none": ("--gpu-memory=4", "--isolation=none"),
    "tessera run, need, driver": ("--gpu-memory=4", "--gpu-compute=10", "--isolation=driver"),
}
"""Options of `tessera run`."""
TYPED_MOST_S, TYPED_MOST_RATIO = 5.0, 5.0


class Bench:
    """The cluster that pods run on."""

    def __init__(self, cluster: Cluster, misrouted: int) -> None:
        self._cluster = cluster
        self._api, self._watched = Api(cluster), Api(cluster)
        self._misrouted = misrouted
        self._number = 0
        self._user: Path | None = None

    def timed(self, case: Case) -> float | None:
        """Return the seconds of one pod; None where it did not run."""
        self._prepare(case)
        self._number += 1
        return self._run(self._pod(case, f"timed-{self._number}"))

    def typed(self, name: str, options: tuple[str, ...]) -> float | None:
        """Return the seconds from typing `tessera run` to the first line of the command; None where it failed."""
        self.clean()
        program = str(Path(sys.executable).with_name("tessera"))
        kubeconfig = self._of_user() if name == USER else self._cluster.kubeconfig
        where = (f"--kubeconfig={kubeconfig}", f"--image={BUSYBOX}")
        began = time.monotonic()
        with subprocess.Popen((program, "run", *where, *options, "echo", "there"), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            line, took_s = process.stdout.readline(), time.monotonic() - began
        self._cluster.kubectl("delete", "jobs", "--all", "--cascade=foreground", f"--timeout={LONGEST_S:g}s")
        return took_s if line == b"there\n" else None

    def _of_user(self) -> Path:
        """Return the kubeconfig of a user who has the role `edit` in the default namespace alone."""
        if not self._user:
            kubectl = self._cluster.kubectl
            kubectl("create", "serviceaccount", "user")
            kubectl("create", "rolebinding", "user", "--clusterrole=edit", "--serviceaccount=default:user")
            token = kubectl("create", "token", "user", "--duration=8h").strip()
            server = json.loads(kubectl("config", "view", "-o=json"))["clusters"][0]["cluster"]["server"]
            self._user = self._cluster.pki.token_kubeconfig("bench-user", token, server)
        return self._user

    def clean(self) -> None:
        """Take all pods away."""
        self._api.insist("DELETE", f"{PODS}?{MADE}")
        until("pods gone", lambda: not self._api.list(f"{PODS}?{MADE}"), timeout_s=120)

    def _prepare(self, case: Case) -> None:
        self.clean()
        if case.before == "none":
            self._uncut()
        elif case.before:
            first = Case("", {"nvidia.com/gpu": 2}) if case.before == "whole" else case
            self._run(self._pod(first, f"before-{self._number}"))
            self.clean()
        if case.crowd:
            limits = {"misrouted": {NEED: 1}, "too large": {"cpu": 10_000}, "cpu": {}}[case.crowd]
            crowd = Case("", limits, "none", scheduler="default-scheduler")
            for each in range(self._misrouted * case.times):
                pod = self._pod(crowd, f"crowd-{self._number}-{each}")
                if case.crowd == "too large":  # no scheduler would place it
                    pod["spec"]["nodeName"] = "node1"
                self._create(pod)

    def _uncut(self) -> None:
        """Have every instance destroyed: nothing is kept for pods by name, and a pod takes an amount of each GPU."""
        self._keep_idle(1)
        until("nothing kept", lambda: not self._of_node("desired"), timeout_s=120)
        amounts = Case("", {NEED: 30, "tessera.dev/gpu-count": 2}, "none")
        self._run(self._pod(amounts, f"amounts-{self._number}"))
        self.clean()
        node = self._cluster.nodes[0]
        until("no instance", lambda: not used_node(node).instances and not self._of_node("claims"), timeout_s=60)
        self._keep_idle(600)

    def allocate_calls(self) -> tuple[int, float]:
        """Return how often the kubelet has called `Allocate` for units, and the seconds of all calls."""
        status, text = self._api.insist("GET", "/api/v1/nodes/node1/proxy/metrics")
        found = dict.fromkeys(("count", "sum"), 0.0)
        for key in found:
            name = f'kubelet_device_plugin_alloc_duration_seconds_{key}{{resource_name="{NEED}"}} '
            lines = (line for line in text.decode().splitlines() if line.startswith(name))
            found[key] = sum(float(line.removeprefix(name)) for line in lines)
        return int(found["count"]), found["sum"] if status == 200 else float("nan")

    def _keep_idle(self, seconds: int) -> None:
        patch = {"spec": {"repartition": {"keepIdleSeconds": seconds}}}
        self._cluster.kubectl("patch", "gpupolicy", "testbed", "--type=merge", f"--patch={json.dumps(patch)}")

    def _of_node(self, key: str) -> object:
        """Return a field of what the GPUNode asks for."""
        (node,) = self._api.list("/apis/tessera.dev/v1alpha1/gpunodes")
        return node.get("spec", {}).get(key)

    def _pod(self, case: Case, name: str) -> dict[str, Any]:
        made = pods.busybox(name, command="exec sleep 3600", limits=case.limits, schedulerName=case.scheduler)
        made["metadata"]["annotations"] = {"tessera.dev/isolation": case.isolation} if case.isolation else {}
        return made

    def _create(self, pod: dict[str, Any]) -> None:
        status, found = self._api.insist("POST", PODS, pod)
        if status != 201:
            raise SystemExit(f"pod {pod['metadata']['name']}: {found}")

    def _run(self, pod: dict[str, Any]) -> float | None:
        """Create a pod and return when it ran, by looking as often as can be."""
        path = f"{PODS}/{pod['metadata']['name']}"
        began = time.monotonic()
        self._create(pod)
        while time.monotonic() < began + LONGEST_S:
            try:
                status, found = self._watched.ask("GET", path)
            except NoAnswerError:
                continue
            phase = found["status"].get("phase") if status == 200 else "gone"
            if phase == "Running":
                return time.monotonic() - began
            if phase in {"Failed", "gone"}:
                return None
            time.sleep(0.01)
        return None

    def close(self) -> None:
        """Disconnect."""
        self._api.close()
        self._watched.close()


@contextmanager
def brought_up(misrouted: int, policy: dict[str, Any] | None, *, admission: bool) -> Iterator[Bench]:
    """Give a cluster with one node, under the testbed's policy or another, with or without admission policies."""
    cluster = Cluster(default_folder("bench-run"), programs(lambda *_: None))
    cluster.down()
    try:
        cluster.up(Desired(nodes=1, gpus=("2xA100-40GB",), agents=True, scheduler=True, admission=admission))
        if policy is not None:
            patch = json.dumps([{"op": "replace", "path": "/spec", "value": policy}])
            cluster.kubectl("patch", "gpupolicy", "testbed", "--type=json", f"--patch={patch}")
        until("units", lambda: pods.allocatable(cluster, "node1", NEED) > 0, timeout_s=90)
        made = Bench(cluster, misrouted)
        yield made
        made.close()
    finally:
        cluster.down()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--misrouted", type=int, default=50)
    parser.add_argument("--policy-default", action="store_true", help="leave out repartition, as a user's first policy")
    parser.add_argument(
        "--no-admission", action="store_true", help="nobody routes misrouted pods: the agent refuses them"
    )
    parser.add_argument("--only", action="append", default=[], help="cases whose name begins so")
    parser.add_argument("-o", "--output", type=Path, help="file for the seconds as JSON")
    given = parser.parse_args()
    cases = [each for each in CASES if not given.only or each.name.startswith(tuple(given.only))]
    typed = {name: each for name, each in TYPED.items() if not given.only or name.startswith(tuple(given.only))}
    if typed and not any(each.name == REFERENCE.name for each in cases):
        cases.insert(0, REFERENCE)
    seconds: dict[str, list[float | None]] = {each: [] for each in (*(case.name for case in cases), *typed)}
    policy: dict[str, Any] | None = {} if given.policy_default else None
    with brought_up(given.misrouted, policy, admission=not given.no_admission) as bench:
        for number in range(given.rounds):
            for case in cases:
                if not case.crowd or number % 4 == 0 or given.only or given.no_admission:
                    calls, spent_s = bench.allocate_calls()
                    seconds[case.name].append(bench.timed(case))
                    print(f"round {number + 1}: {case.name}: {seconds[case.name][-1]}", file=sys.stderr)
                    if case.crowd == "misrouted":
                        later, until_s = bench.allocate_calls()
                        each_ms = 1000 * (until_s - spent_s) / max(later - calls, 1)
                        print(f"{later - calls} calls of Allocate, {each_ms:.1f} ms each", file=sys.stderr)
            for name, options in typed.items():
                seconds[name].append(bench.typed(name, options))
                print(f"round {number + 1}: {name}: {seconds[name][-1]}", file=sys.stderr)
        bench.clean()
    print_table(seconds)
    if given.output:
        given.output.write_text(json.dumps(seconds, indent=1))
    if failures := below_floors(seconds):
        raise SystemExit("\n".join(failures))


def print_table(seconds: dict[str, list[float | None]]) -> None:
    """Print the medians, and how much longer a pod takes beside misrouted ones than beside others."""
    print(f"{'Apply to Running, seconds':40} {'median':>7} {'least':>7} {'most':>7} {'ran':>6}")
    for name, found in seconds.items():
        ran = sorted(each for each in found if each is not None)
        figures = (statistics.median(ran), ran[0], ran[-1]) if ran else (float("nan"),) * 3
        print(f"{name:40} " + " ".join(f"{each:7.2f}" for each in figures) + f" {len(ran):>3}/{len(found)}")
    if all(any(seconds.get(each, ())) for each in (MISROUTED, CROWD)):
        beside_ours, beside_any = (statistics.median(filter(None, seconds[each])) for each in (MISROUTED, CROWD))
        print(f"{MISROUTED}: {beside_ours / beside_any:.2f} times {CROWD}")


def below_floors(seconds: dict[str, list[float | None]]) -> list[str]:
    """Return what is below its floor, as sentences."""
    failures = [f"{name}: a pod did not run" for name, found in seconds.items() if None in found]
    medians = {name: statistics.median(each for each in found if each is not None)
               for name, found in seconds.items() if any(found)}  # fmt: skip
    most_s = max(TYPED_MOST_S, TYPED_MOST_RATIO * medians.get(REFERENCE.name, 0.0))
    failures += [
        f"{name}: {medians[name]:.2f} s is more than {most_s:.2f} s"
        for name in TYPED
        if medians.get(name, 0.0) > most_s
    ]
    return failures


if __name__ == "__main__":
    main()
