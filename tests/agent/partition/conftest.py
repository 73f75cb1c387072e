"""What changes of layouts log is not shown."""

import pytest

from tessera.log import configure


@pytest.fixture(autouse=True)
def _quiet() -> None:
    configure("error")
