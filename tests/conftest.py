"""Settings of all tests."""

import asyncio
import gc
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from harness.certificates import make_certificates
from harness.realgpu import RealGpu, without_gpu

# No deadlines: a busy machine is not a defect. Where CI is set, the same examples each time, so that a change does not
# fail for what was there before; elsewhere new examples, which is how laws find what nobody thought of.
settings.register_profile("tessera", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("tessera")


LONG = pytest.StashKey[list[str]]()
"""The tests that were not run because they are long."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked long too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("all"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.stash[LONG] = [item.nodeid for item in long]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays until the end: modules and tests. Tests take a tenth less time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each test that was not run: nobody shall think that it passed."""
    if long := terminalreporter.config.stash.get(LONG, []):
        terminalreporter.section("not run, because they are long: scripts/test --all")
        for name in long:
            terminalreporter.line(name)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests, those marked `anyio`, on asyncio alone, as the program runs."""
    return "asyncio"


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Give an empty folder whose path is short enough for unix sockets, which that of `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority with certificates for a server, its next one, a client and an expired one, and another's.

    Those whose name begins with `agent` have the name by which agents of other nodes know each other.
    """
    return make_certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def real_gpu() -> RealGpu:
    """Give the real GPU of this machine, read only; without one the test is skipped, which is no evidence."""
    if why := without_gpu():
        pytest.skip(why)
    return RealGpu()


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Take back what a test said about logs: who reads them would see none after one that wants errors alone."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keep one event loop for all asynchronous tests: gRPC's one poller calls back into loops that are closed by then.

    Source: grpc/grpc `src/python/grpcio/grpc/_cython/_cygrpc/aio/completion_queue.pyx.pxi`.
    """
    assert anyio_backend == "asyncio"
    yield
    await asyncio.sleep(0)  # callbacks that are due have their loop still
