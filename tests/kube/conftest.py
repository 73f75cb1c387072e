"""Fixtures with a real Kubernetes: brought up by the first test that asks, taken down at the end of the session."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kube.gpunode import GpuNode
from kube.helm import Helm
from kube.registry import RealRegistry
from testbed.__main__ import building
from testbed.cluster import Cluster, Desired, default_folder
from testbed.node import Node
from testbed.processes import until
from testbed.programs import ADAPTER, CERT_MANAGER, HELM, MONITORING, REGISTRY, programs
from testbed.requirements import missing

HERE = Path(__file__).parent
LACK = missing()


PARTS = ("own", "shared")
_OWN = frozenset(
    {
        "bare_cluster",
        "eight_h100s",
        "gpu_cluster",
        "helm_folder",
        "image_cluster",
        "sleeper",
        "three_nodes",
        "two_a100s",
    }
)
"""Fixtures of testbeds that one part alone brings up; about half of the time of all tests here."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kube-part",
        choices=PARTS,
        help="run a part of the tests alone: those on testbeds of their modules' own, or the others; "
        "two sessions, one for each part, have no testbed in common and may run at once",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("kube_part", default=None):
        left = [item for item in items if part_of(item) != part]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    reason = f"a real Kubernetes needs root on Linux and a few programs; here: {LACK}"
    for item in items:
        if LACK and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=reason))
    # Modules with the same GPUs follow each other, so that they can have one cluster.
    places = [place for place, item in enumerate(items) if gpus_of(item)]
    for place, item in zip(places, sorted((items[place] for place in places), key=gpus_of), strict=True):
        items[place] = item


def part_of(item: pytest.Item) -> str:
    """Return the part that a test is of."""
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    return PARTS[_OWN.isdisjoint(fixtures)]


def gpus_of(item: pytest.Item) -> tuple[str, ...]:
    """Return the GPUs of the `gpu_cluster` that a test is given; none where it is given none."""
    if not isinstance(item, pytest.Function) or "gpu_cluster" not in item.fixturenames:
        return ()
    gpus: tuple[str, ...] = item.module.GPUS
    return gpus


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that was not run: nobody shall think that it passed."""
    left = [report.nodeid for report in terminalreporter.stats.get("skipped", ()) if "tests/kube/" in report.nodeid]
    if LACK and left:
        terminalreporter.section(f"not run, because a real Kubernetes needs what is not here: {LACK}")
        for name in left:
            terminalreporter.line(name)


@contextmanager
def shown(config: pytest.Config) -> Iterator[Any]:
    """Show a build, past what captures the output."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), building(Console(stderr=True)) as report:
        yield report


@pytest.fixture(scope="session")
def program_folder(pytestconfig: pytest.Config) -> Path:
    """Return the programs of Kubernetes, building them the first time; the build is shown."""
    with shown(pytestconfig) as report:
        return programs(report)


def fresh(name: str, program_folder: Path) -> Cluster:
    """Return a testbed of this checkout that does not run: what a killed session left of it is removed."""
    checkout = hashlib.sha256(str(HERE).encode()).hexdigest()[:6]
    testbed = Cluster(default_folder(f"{name}-{checkout}"), program_folder)
    testbed.down()
    return testbed


@contextmanager
def brought_up(name: str, program_folder: Path, desired: Desired) -> Iterator[Cluster]:
    """Give a testbed of this checkout, which is taken down afterwards."""
    testbed = fresh(name, program_folder)
    try:
        testbed.up(desired)
        yield testbed
    finally:
        testbed.down()


@pytest.fixture(scope="session")
def control_plane(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster without kubelets: nodes are objects that the test makes, `kubeconfig` works from this process."""
    with brought_up("plane", program_folder, Desired(nodes=0)) as testbed:
        yield testbed


@pytest.fixture(scope="session")
def scheduling_plane(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster without kubelets with Tessera's server and scheduler; `kube.fakenodes` makes its nodes.

    Without admission policies: tests write assignments in the place of agents.
    """
    with brought_up("sched", program_folder, Desired(nodes=0, scheduler=True, admission=False)) as testbed:
        yield testbed


@pytest.fixture(scope="session")
def node_cluster(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster with a real node, `node1`, on which pods run."""
    with brought_up("node", program_folder, Desired(nodes=1)) as testbed:
        yield testbed


@pytest.fixture
def node(node_cluster: Cluster) -> Node:
    """Return the node of `node_cluster`."""
    return node_cluster.nodes[0]


@pytest.fixture
def second_cluster(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster with one node that the test may break, beside those that others use."""
    with brought_up("second", program_folder, Desired(nodes=1)) as testbed:
        yield testbed


@pytest.fixture(scope="session")
def gpu_testbed(program_folder: Path) -> Iterator[Cluster]:
    """Give the one testbed of `gpu_cluster`, which is brought up anew where a module wants other GPUS."""
    testbed = fresh("gpu", program_folder)
    try:
        yield testbed
    finally:
        testbed.down()


@pytest.fixture(scope="module")
def gpu_cluster(gpu_testbed: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a cluster with one node that has the simulated GPUs which the test module names in `GPUS`.

    Modules with the same GPUS that follow each other have one cluster, unless a test of the first failed.
    """
    failed = request.session.testsfailed
    gpu_testbed.up(Desired(nodes=1, gpus=request.module.GPUS))
    yield gpu_testbed
    items = request.session.items
    last = max(place for place, item in enumerate(items) if item.path == request.path)
    following = [gpus_of(item) for item in items[last + 1 : last + 2]]
    if following != [request.module.GPUS] or request.session.testsfailed > failed:
        gpu_testbed.down()


@pytest.fixture(scope="module")
def whole_cluster(program_folder: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a cluster with all of Tessera: one node with the GPUs in the test module's `GPUS`, agent, scheduler."""
    desired = Desired(nodes=1, gpus=request.module.GPUS, agents=True, scheduler=True)
    with brought_up("whole", program_folder, desired) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def image_cluster(program_folder: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a cluster as `whole_cluster` is, but with Tessera's image, run by the objects of the chart."""
    desired = Desired(nodes=1, gpus=request.module.GPUS, agents=True, scheduler=True, source="image")
    with brought_up("image", program_folder, desired) as testbed:
        yield testbed


@pytest.fixture
def gpu_node(gpu_cluster: Cluster) -> Iterator[GpuNode]:
    """Give that node without an agent, without pods, without labels of ours, with GPUs as they were bought."""
    one = GpuNode(gpu_cluster, gpu_cluster.nodes[0])
    yield one
    one.clean()


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Return the real Helm, building it the first time; the build is shown."""
    with shown(pytestconfig) as report:
        return Helm(programs(report, modules=HELM) / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def cert_manager(pytestconfig: pytest.Config) -> Path:
    """Return a folder with the definitions of cert-manager's kinds, downloading them the first time."""
    with shown(pytestconfig) as report:
        return programs(report, modules=CERT_MANAGER)


@pytest.fixture(scope="session")
def prometheus_adapter(pytestconfig: pytest.Config) -> Path:
    """Return the real prometheus-adapter, building it the first time; the build is shown."""
    with shown(pytestconfig) as report:
        return programs(report, modules=ADAPTER) / "adapter"


@pytest.fixture(scope="session")
def monitoring_kinds(pytestconfig: pytest.Config) -> Path:
    """Return a folder with the definitions of KEDA's and the Prometheus operator's kinds."""
    with shown(pytestconfig) as report:
        return programs(report, modules=MONITORING)


@pytest.fixture(scope="session")
def real_registry(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    """Give the reference registry on the loopback, building it the first time; the build is shown."""
    with shown(pytestconfig) as report:
        program = programs(report, modules=REGISTRY) / "registry"
    one = RealRegistry(program, tmp_path_factory.mktemp("registry"))
    try:
        until("registry", one.listening, timeout_s=60, found=one.log.read_text)
        yield one
    finally:
        one.process.terminate()
        one.process.wait()
