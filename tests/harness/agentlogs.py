"""What an agent logs, waited for."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

SHARING = """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 3
"""


async def until_logged(logs: Sequence[Mapping[str, Any]], event: str, *, times: int = 1, **fields: object) -> None:
    """Return as soon as an event with these fields is logged so often."""
    desired = {"event": event, **fields}.items()
    for _ in range(1000):
        if sum(desired <= each.items() for each in logs) >= times:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"after 20 s: {logs}")
