"""The container runtime in memory does what every one does."""

import pytest

from conformance.runtimesuite import PASSWORD, RuntimeSuite
from tessera.clients.runtime import MemoryRuntime, Runtime

pytestmark = pytest.mark.anyio

ONE, SEVERAL = "sha256:" + "1" * 64, "sha256:" + "2" * 64


class TestMemoryRuntime(RuntimeSuite):
    @pytest.fixture
    def host(self) -> str:
        return "registry.example"

    @pytest.fixture
    def locked(self) -> str:
        return "locked.example"

    @pytest.fixture
    def digests(self) -> dict[str, str]:
        return {"1": ONE, "several": SEVERAL}

    @pytest.fixture
    def runtime(self, host: str, locked: str) -> Runtime:
        one = MemoryRuntime()
        for registry in (host, locked):
            one.offered |= {f"{registry}/suite/one:1": (ONE, 7), f"{registry}/suite/one:several": (SEVERAL, 9)}
        one.passwords[locked] = PASSWORD
        return one
