"""Tests in a virtual machine run where they are asked for: they take minutes, and download a kernel the first time."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out where no argument names it."""
    del collection_path
    return None if any("guest" in str(each) for each in config.invocation_params.args) else True
