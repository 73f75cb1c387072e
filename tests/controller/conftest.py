"""A controller of ModelServers on a cluster of this process."""

import pytest

from harness.modelservercluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
