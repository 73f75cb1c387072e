"""The registry client and the reference registry."""

from collections.abc import AsyncIterator

import pytest

from conformance.registrysuite import RegistrySuite, filled
from kube.registry import RealRegistry
from tessera.clients.registry import HttpRegistry, Registry

pytestmark = pytest.mark.anyio


class TestReferenceRegistry(RegistrySuite):
    @pytest.fixture
    def host(self, real_registry: RealRegistry) -> str:
        real_registry.push(*filled(), "suite/one")
        return real_registry.host

    @pytest.fixture
    async def registry(self) -> AsyncIterator[Registry]:
        async with HttpRegistry() as client:
            yield client
