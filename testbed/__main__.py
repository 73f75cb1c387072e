"""The command `scripts/testbed`: up, status, shell, run, down."""

import contextlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tessera.cli import EXIT_CODES
from tessera.errors import InvalidInput, TesseraError, Unavailable
from testbed.cluster import Cluster, Component, Desired, Source, default_folder
from testbed.programs import Report, programs
from testbed.requirements import check_machine
from testbed.tesseraimage import JUPYTERLAB, jupyterlab_image

__all__ = ["building", "main"]


@contextlib.contextmanager
def building(console: Console) -> Iterator[Report]:
    """Give what shows how far the build of the programs is; nothing is shown where there is nothing to build."""
    columns = (TextColumn("building {task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    progress = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
    tasks: dict[str, TaskID] = {}

    def report(name: str, done: int, total: int) -> None:
        progress.start()
        if name not in tasks:
            for former in tasks.values():
                progress.stop_task(former)
            tasks[name] = progress.add_task(name, total=None)
            if not console.is_terminal:
                console.print(
                    f"building {name} ... (once; Kubernetes takes about seven minutes on two cores)", soft_wrap=True
                )
        progress.update(tasks[name], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


def _testbed(name: str) -> Cluster:
    check_machine()
    with building(Console(stderr=True)) as report:
        folder = programs(report)
    return Cluster(default_folder(name), folder)


def _running(name: str) -> Cluster:
    testbed = _testbed(name)
    if not testbed.running:
        raise Unavailable(f"testbed {name}", found="it does not run", hint="run scripts/testbed up")
    return testbed


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "TESSERA_TESTBED"},
    epilog="\b\nExample:\n  scripts/testbed up\n  scripts/testbed shell\n  scripts/testbed down",
)
@click.option("--name", default="default", show_default=True, help="Which testbed; several may run at once.")
@click.pass_context
def main(context: click.Context, name: str) -> None:
    """Run a real Kubernetes on this machine, in namespaces of its own, to try Tessera on.

    Needs root on Linux. The first `up` builds Kubernetes, which takes about seven minutes; later ones take seconds.
    """
    if not name.replace("-", "").isalnum():
        raise InvalidInput("--name", found=name, expected="letters, digits and -")
    context.obj = name


@main.command()
@click.option("--nodes", type=click.IntRange(min=0), default=1, show_default=True, help="Nodes with a kubelet.")
@click.option("--gpus", multiple=True, help="Simulated GPUs of each node: 2xA100-40GB; may be repeated.")
@click.option("--agent/--no-agent", default=True, show_default=True, help="Start tessera agent on nodes with GPUs.")
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Start tessera server, the scheduler tessera-scheduler that asks it, and tessera controller.",
)
@click.option(
    "--admission/--no-admission",
    default=True,
    show_default=True,
    help="With the scheduler, put the admission policies into force.",
)
@click.option("--notebooks", is_flag=True, help="With an image that has JupyterLab: the environment `jupyter`.")
@click.option(
    "--from",
    "source",
    type=click.Choice(get_args(Source)),
    help="Run Tessera as pods of its image, or as processes of this checkout.  [default: image where there are nodes]",
)
@click.pass_obj
def up(name: str, /, *, source: Source | None, **given: Any) -> None:
    """Bring it up, or start again what does not run of it, and print the KUBECONFIG line."""
    testbed = _testbed(name)
    console = Console(stderr=True)
    with console.status("starting") as status:
        desired = Desired(
            given["nodes"],
            given["gpus"],
            agents=given["agent"] and bool(given["gpus"]),
            scheduler=given["scheduler"],
            admission=given["admission"],
            source=source or ("image" if given["nodes"] else "source"),
        )
        report = _reporter(console, status.update)
        testbed.up(desired, report)
        if given["notebooks"]:
            archive = jupyterlab_image(report)
            for node in testbed.nodes:
                report(f"{node.name}: image of JupyterLab")
                node.import_image(archive)
            spec = {"image": JUPYTERLAB, "notebook": True, "tools": ["jupyterlab 4"], "description": "notebooks"}
            testbed.apply(
                {
                    "apiVersion": "tessera.dev/v1alpha1",
                    "kind": "Environment",
                    "metadata": {"name": "jupyter"},
                    "spec": spec,
                }
            )
    click.echo(f"export KUBECONFIG={testbed.kubeconfig}")


def _reporter(console: Console, update: Callable[[str], None]) -> Callable[[str], None]:
    """Return what shows a step: in place in a terminal, as a line elsewhere."""
    return update if console.is_terminal else lambda step: console.print(f"{step} ...", soft_wrap=True)


@main.command()
@click.option(
    "-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True, help="Format."
)
@click.pass_obj
def status(name: str, output: str) -> None:
    """Show each process: whether it runs, whether it answers, its memory. Exit status 4 when one does not."""
    components = _testbed(name).components()
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(components)).decode())
    elif not components:
        click.echo(f"testbed {name} is not up")
    else:
        Console().print(_table(components))
    if not all(component.healthy for component in components):
        sys.exit(EXIT_CODES[Unavailable])


def _table(components: tuple[Component, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for column in ("Component", "Process", "State", "Memory"):
        table.add_column(column, justify="right" if column in {"Process", "Memory"} else "left")
    for one in components:
        down = "not ready" if one.name.startswith("pod ") else "ended"
        state = "healthy" if one.healthy else "does not answer" if one.pid else down
        style = "green" if one.healthy else "red"
        memory = f"{one.memory_mib} MiB" if one.pid else ""
        table.add_row(one.name, str(one.pid or ""), f"[{style}]{state}[/]", memory)
    return table


@main.command()
@click.pass_obj
def shell(name: str) -> None:
    """Start a shell in which kubectl finds the cluster and `tessera` is this checkout's.

    It is a shell of this machine, not of a node: what looks at GPUs, as `tessera mig list`, is for `run`.
    """
    testbed = _running(name)
    path = os.pathsep.join((str(testbed.folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    program = os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"
    click.echo(f"a shell with KUBECONFIG={testbed.kubeconfig}; leave it with exit", err=True)
    tessera = shlex.quote(str(Path(sys.executable).with_name("tessera")))
    click.echo(f"what looks at a node runs there: scripts/testbed --name {name} run -- {tessera} mig list", err=True)
    os.execve(program, [program], {**os.environ, "PATH": path, "KUBECONFIG": str(testbed.kubeconfig)})  # noqa: S606


@main.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  scripts/testbed run -- ls /var/lib/kubelet/device-plugins",
)
@click.option("--node", default="node1", show_default=True, help="On which node.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(name: str, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on a node: in its network, with its folders and processes."""
    testbed = _running(name)
    found = next((one for one in testbed.nodes if one.name == node), None)
    if found is None or not found.running:
        names = ", ".join(one.name for one in testbed.nodes if one.running)
        raise InvalidInput(
            "--node", found=f"{node} does not run", hint=f"there run {names}" if names else "run scripts/testbed up"
        )
    line = found.command(*command)
    os.execvpe(line[0], line, found.environment())  # noqa: S606


@main.command()
@click.pass_obj
def down(name: str) -> None:
    """Stop all of it, whatever state it is in, and remove what it left: nothing remains but the built programs."""
    if platform.system() == "Linux":
        Cluster(default_folder(name), Path("/nonexistent")).down()


def _run() -> None:
    try:
        main(prog_name="scripts/testbed", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(EXIT_CODES[InvalidInput])
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(EXIT_CODES[InvalidInput])
    except click.Abort:
        sys.exit(130)
    except TesseraError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind)))


if __name__ == "__main__":
    _run()
