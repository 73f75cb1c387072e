"""Forwards a notebook in a pod to an address of this machine, while it is followed."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import click

from tessera.api.kubernetes.jobs import NOTEBOOK_KEY
from tessera.api.kubernetes.jobstates import JobState
from tessera.api.kubernetes.notebooks import NOTEBOOK_PORT
from tessera.cli.options import PortNumber
from tessera.cli.work.follow.following import follow_job
from tessera.clients.kube import SECRETS, Forbidden, Kube, Tunnel
from tessera.errors import InvalidInput, TesseraError, Unavailable, shown

__all__ = ["follow_notebook", "port_option", "token_of"]

_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
_HOST = "127.0.0.1"
_PIECE = 65_536
_AGAIN_S = 0.5
_ANSWER_S = 10.0
_PATIENCE_S = 20.0
"""JupyterLab needs some seconds."""
_QUESTION = b"GET /api HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"

port_option = click.option(
    "--port", type=PortNumber(1), help=f"Port on this machine.  [default: {NOTEBOOK_PORT}, or a free one]"
)


async def token_of(kube: Kube, state: JobState) -> str:
    """Return the token of a Job's notebook.

    Raises:
        Unavailable: its Secret is gone.

    """
    found = await kube.get(SECRETS, state.token_secret, state.namespace)
    try:
        return base64.b64decode((found or {})["data"][NOTEBOOK_KEY], validate=True).decode()
    except (KeyError, TypeError, ValueError) as error:
        subject = f"Secret {state.namespace}/{state.token_secret}"
        hint = f"run tessera stop {state.name} -n {state.namespace}, and begin a new notebook"
        raise Unavailable(subject, found="its notebook has no token", hint=hint) from error


async def follow_notebook(
    kube: Kube, job: tuple[str, str], token: str, port: int | None, *, patience_s: float = _PATIENCE_S
) -> int:
    """Report the progress of a notebook's Job, keep its port open, and return the exit code.

    Args:
        kube: the cluster.
        job: namespace and name.
        token: of the notebook; printed percent-encoded, as another may have written its Secret.
        port: of this machine; None for the default, or a free one if that is in use.
        patience_s: how long the notebook may take to answer before the obstacle is printed.

    """
    namespace, name = job

    async def forward(state: JobState) -> None:
        async with _forwarded(kube, state, port) as local_port:
            await _answering(kube, state, patience_s)
            click.echo(f"http://{_HOST}:{local_port}/lab?token={quote(token, safe='')}")
            await asyncio.Event().wait()

    code = await follow_job(kube, name, namespace, forward)
    if code:
        click.echo(f"tessera logs {name} -n {namespace} prints what it wrote", err=True)
    return code


async def _answering(kube: Kube, state: JobState, patience_s: float) -> None:
    """Return when the notebook answers; print the obstacle if that takes long.

    Raises:
        TesseraError: it never will, as without permission.

    """
    loop, reported = asyncio.get_running_loop(), set[str]()
    patient_s = loop.time() + patience_s
    while True:
        try:
            async with (
                asyncio.timeout(_ANSWER_S),
                kube.tunnel(state.pod, state.namespace, port=NOTEBOOK_PORT) as tunnel,
            ):
                await tunnel.send(_QUESTION)
                if await tunnel.receive():
                    return
            problem = "it ends connections"
        except Forbidden:
            raise
        except (TimeoutError, Unavailable) as error:
            problem = str(error) or f"no answer in {_ANSWER_S:g} s"
        if loop.time() > patient_s and problem not in reported:
            reported.add(problem)
            click.echo(f"the notebook does not respond yet: {problem}", err=True)
        await asyncio.sleep(_AGAIN_S)


@asynccontextmanager
async def _forwarded(kube: Kube, state: JobState, port: int | None) -> AsyncIterator[int]:
    """Listen on this machine and forward each connection to the notebook; yield the port."""
    reported, connections = set[str](), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with kube.tunnel(state.pod, state.namespace, port=NOTEBOOK_PORT) as tunnel:
                await _both_ways(reader, writer, tunnel)
        except TesseraError as error:
            if str(error) not in reported:
                reported.add(str(error))
                click.echo(f"a connection broke off: {error}", err=True)
        finally:
            writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await _listening(begin, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _listening(serve: _Serve, port: int | None) -> asyncio.Server:
    try:
        return await asyncio.start_server(serve, _HOST, port or NOTEBOOK_PORT)
    except OSError as error:
        if port is not None:
            hint = "omit --port to use a free one"
            raise InvalidInput(f"--port {port}", found=shown(error), hint=hint) from error
    return await asyncio.start_server(serve, _HOST, 0)


async def _both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tunnel: Tunnel) -> None:
    """Copy bytes both ways until either side ends the connection."""

    async def to_pod() -> None:
        while piece := await reader.read(_PIECE):
            await tunnel.send(piece)

    async def from_pod() -> None:
        while piece := await tunnel.receive():
            writer.write(piece)
            await writer.drain()

    ways = [asyncio.ensure_future(each) for each in (to_pod(), from_pod())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
    for ended in await asyncio.gather(*ways, return_exceptions=True):
        if isinstance(ended, TesseraError):
            raise ended
