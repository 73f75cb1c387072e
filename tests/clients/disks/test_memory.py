"""Disks in memory do what every implementation does."""

import pytest

from conformance.disksuite import ArraySuite
from harness.diskworlds import MemoryWorld


class TestMemoryDisks(ArraySuite):
    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld()
