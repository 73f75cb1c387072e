"""The registry in memory does what every registry does."""

import pytest

from conformance.registrysuite import RegistrySuite, filled
from tessera.clients.registry import Registry

pytestmark = pytest.mark.anyio


class TestMemoryRegistry(RegistrySuite):
    @pytest.fixture
    def registry(self) -> Registry:
        return filled()[0]

    @pytest.fixture
    def host(self) -> str:
        return "registry.example"
