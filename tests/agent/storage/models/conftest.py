"""A store that fails on demand, with the contents that a test's module names."""

import threading
from collections.abc import Iterator

import pytest

from harness.flakys3 import FlakyS3


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[FlakyS3]:
    """Serve the `CONTENTS` of the test's module."""
    with FlakyS3(request.module.CONTENTS) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()
