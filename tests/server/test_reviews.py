"""What the API server says of users: how long it counts, and what strangers with many tokens can do."""

import asyncio

import pytest

from harness.servers import Clock
from tessera.api.kubernetes.reviews import Attributes, ReviewedUser
from tessera.clients.kube import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, MemoryKube
from tessera.clients.kube.protocol import Kind, Object
from tessera.server.reviews import Reviews

pytestmark = pytest.mark.anyio

JANE = ReviewedUser(username="jane")
EIGHT = 8
"""Questions about tokens at once."""
READ = Attributes(group="g", resource="r")


class SlowKube(MemoryKube):
    """Counts the reviews it is asked for, and answers those of tokens while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts.add("t", JANE)
        self.accounts.allow("jane", "get", "r")
        self.reviewed = {TOKEN_REVIEWS: 0, SUBJECT_ACCESS_REVIEWS: 0}
        self.at_once = self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.crowded = asyncio.Event()

    async def create(self, kind: Kind, body: Object) -> Object:
        """Answer a review."""
        self.reviewed[kind] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == EIGHT:
            self.crowded.set()
        if kind == TOKEN_REVIEWS:
            await self.gate.wait()
        self.at_once -= 1
        return await super().create(kind, body)


@pytest.fixture
async def kube() -> SlowKube:
    return SlowKube()


async def test_an_answer_counts_for_a_while(kube: SlowKube) -> None:
    clock = Clock()
    reviews = Reviews(kube, 10, clock)
    for _ in range(3):
        assert await reviews.user("t") == JANE
        assert await reviews.user("strange") is None
        assert await reviews.refusal(JANE, READ) is None
        assert await reviews.refusal(ReviewedUser(username="bob"), READ) == "no role grants it"
    assert [*kube.reviewed.values()] == [2, 2]
    kube.accounts.drop("t")
    clock.now_s += 10
    assert await reviews.user("t") is None
    assert await reviews.refusal(JANE, READ) is None
    assert [*kube.reviewed.values()] == [3, 3]


async def test_no_question_is_asked_about_what_cannot_be_a_token(kube: SlowKube) -> None:
    reviews = Reviews(kube, 10, Clock())
    assert await reviews.user("") is None
    assert await reviews.user("x" * (16 << 10 | 1)) is None
    assert kube.reviewed[TOKEN_REVIEWS] == 0


async def test_many_tokens_do_not_fill_the_memory(kube: SlowKube) -> None:
    """The oldest answer goes for the 4,097th."""
    reviews = Reviews(kube, 10, Clock())
    await reviews.user("t")
    for number in range(4095):
        await reviews.user(str(number))
    await reviews.user("t")
    assert kube.reviewed[TOKEN_REVIEWS] == 4096
    await reviews.user("one more")
    await reviews.user("t")
    assert kube.reviewed[TOKEN_REVIEWS] == 4098


async def test_many_tokens_at_once_are_few_questions_at_once_and_delay_nobody_who_is_known(kube: SlowKube) -> None:
    reviews = Reviews(kube, 10, Clock())
    assert await reviews.user("t") == JANE
    kube.gate.clear()
    strangers = [asyncio.create_task(reviews.user(str(number % 50))) for number in range(100)]
    async with asyncio.timeout(20):
        await kube.crowded.wait()
        assert await reviews.user("t") == JANE
        assert await reviews.refusal(JANE, READ) is None
    kube.gate.set()
    assert await asyncio.gather(*strangers) == [None] * 100
    assert kube.most_at_once == EIGHT + 1, "eight tokens, and what jane may"
    assert kube.reviewed[TOKEN_REVIEWS] == 51, "each token once"


async def test_no_token_stays_in_the_memory(kube: SlowKube) -> None:
    reviews = Reviews(kube, 10, Clock())
    await reviews.user("t-of-somebody")
    kept = {name: vars(part) for name, part in vars(reviews).items() if part is not kube}
    assert "_known" in str(kept)
    assert "t-of-somebody" not in str(kept)
