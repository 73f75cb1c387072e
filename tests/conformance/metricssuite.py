"""What every implementation of the metrics client's Protocol does; each is run through it by a subclass."""

import pytest

from tessera.clients.prometheus import MetricsClient
from tessera.errors import Unavailable

CONTENT = b"a 1\n"


class MetricsSuite:
    """A subclass has the fixtures `metrics` and `url`, at which there is `CONTENT`; nothing is at `url` with an `x`."""

    async def test_what_is_there_comes_again_and_again(self, metrics: MetricsClient, url: str) -> None:
        assert [await metrics.get(url) for _ in range(3)] == [CONTENT] * 3

    async def test_what_is_not_there_is_said_with_its_address(self, metrics: MetricsClient, url: str) -> None:
        with pytest.raises(Unavailable) as caught:
            await metrics.get(f"{url}x")
        assert caught.value.subject == f"{url}x"

    async def test_it_answers_after_its_connections_were_closed(self, metrics: MetricsClient, url: str) -> None:
        assert await metrics.get(url) == CONTENT
        await metrics.keep(frozenset({"http://127.0.0.1:1"}))
        assert await metrics.get(url) == CONTENT
        await metrics.close()
