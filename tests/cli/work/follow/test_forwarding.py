"""A notebook's pod at an address of this machine, whatever becomes of the pod."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.submittedjob import NO_PYTHON, RUNS, SubmittedJob, said
from tessera.cli.work.follow.forwarding import follow_notebook, token_of
from tessera.cli.work.jobreading import state_of
from tessera.clients.kube import SECRETS, Forbidden, MemoryKube
from tessera.errors import Conflict, InvalidInput, Unavailable


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[tuple[str, int]]:
    """Give the address of a server that answers each request so, and counts nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


async def get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    content = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return content


async def begun(kube: MemoryKube | None = None) -> SubmittedJob:
    one = SubmittedJob(kube)
    await one.submit_notebook()
    await one.pod(RUNS, "n")
    return one


@pytest.mark.anyio
async def test_its_address_is_printed_when_it_answers_and_leads_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    one = await begun()
    token = await token_of(one.kube, await state_of(one.kube, "j", "ns"))
    task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), token, None))
    await said(capsys, "j: Running on n")
    await asyncio.sleep(0)
    assert "http" not in "".join(capsys.readouterr())
    place = (("ns", "j-1"), 8888)
    async with serving(b"here" * 100_000) as one.kube.listening[place]:
        line = await said(capsys, "token=")
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)/lab\?token=opens\n", line)
        assert found is not None
        port = int(found[1])
        answers = await asyncio.gather(*(get(port) for _ in range(5)))
        assert {each.partition(b"\r\n\r\n")[2] for each in answers} == {b"here" * 100_000}
    assert await get(port) == b""
    assert await get(port) == b""
    assert (await said(capsys, "no container listens on the port")).count("a connection broke off") == 1
    async with serving(b"again") as one.kube.listening[place]:
        assert (await get(port)).endswith(b"again")
    await one.ends(1)
    assert await task == 1
    assert "tessera logs j -n ns" in "".join(capsys.readouterr())
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await get(port)


@pytest.mark.anyio
async def test_a_token_that_another_wrote_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    one = await begun()
    async with serving(b"here") as one.kube.listening[("ns", "j-1"), 8888]:
        task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), "a b\x1b]0;owned\x07\n\u202e/&", None))
        line = await said(capsys, "token=")
    assert "/lab?token=a%20b%1B%5D0%3Bowned%07%0A%E2%80%AE%2F%26\n" in line
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_after_a_preemption_its_port_leads_to_its_second_pod(capsys: pytest.CaptureFixture[str]) -> None:
    one = await begun()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), "opens", port))
    async with serving(b"first") as one.kube.listening[("ns", "j-1"), 8888]:
        await said(capsys, "token=")
        assert (await get(port)).endswith(b"first")
    await one.is_preempted(capsys)
    async with serving(b"second") as one.kube.listening[("ns", "j-2"), 8888]:
        await said(capsys, "token=")
        assert (await get(port)).endswith(b"second")
    await one.ends(0, name="j-2")
    assert await task == 0


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_said_and_another_one_is_only_taken_unasked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = await begun()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInput, match="omit --port to use a free one"):
            await follow_notebook(one.kube, ("ns", "j"), "opens", taken.getsockname()[1])
    assert "http" not in "".join(capsys.readouterr())


class NoTunnels(MemoryKube):
    """An API that leads to no pod."""

    def tunnel(self, name: str, namespace: str, *, port: int) -> Any:
        raise Forbidden(f"port {port} of {namespace}/{name}", found="no right", expected="the right to do so")


@pytest.mark.anyio
async def test_who_may_not_reach_it_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    one = await begun(NoTunnels())
    with pytest.raises(Forbidden, match="no right"):
        await follow_notebook(one.kube, ("ns", "j"), "opens", None)
    assert "http" not in "".join(capsys.readouterr())


@pytest.mark.anyio
async def test_one_that_does_not_answer_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    one = await begun()
    task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), "opens", None, patience_s=0.1))
    await said(capsys, "the notebook does not respond yet: port 8888 of Pod ns/j-1: no container listens on the port")
    await one.ends(0)
    assert await task == 0


@pytest.mark.anyio
async def test_a_notebook_whose_image_has_no_python_has_a_cause_and_no_advice_to_read_a_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = SubmittedJob()
    await one.submit_notebook()
    task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), "opens", None))
    await said(capsys, "j: Pending")
    await one.pod(NO_PYTHON, "n")
    with pytest.raises(
        Conflict, match=r'did not start: exec: "python3": not found in \$PATH: correct that, and submit it'
    ):
        await task
    printed = "".join(capsys.readouterr())
    assert "http" not in printed
    assert "tessera logs" not in printed


@pytest.mark.anyio
async def test_a_notebook_whose_token_is_gone_cannot_be_opened_again() -> None:
    one = await begun()
    await one.kube.delete(SECRETS, "j-own", namespace="ns")
    with pytest.raises(Unavailable, match=r"no token.*tessera stop j -n ns"):
        await token_of(one.kube, await state_of(one.kube, "j", "ns"))
