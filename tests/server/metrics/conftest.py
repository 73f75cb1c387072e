"""Certificates that tests of the metrics APIs share."""

from pathlib import Path

import pytest

from harness.metricsserver import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    make_certificates(folder)
    return folder
