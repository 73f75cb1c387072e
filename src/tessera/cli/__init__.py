"""The composition root: one thin module per command. Reads arguments, wires, calls one function, prints."""

import contextlib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from tessera import __version__
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

__all__ = ["COMMANDS", "EXIT_CODES", "main"]

COMMANDS: dict[str, str] = {
    "plan": "Plan a cluster: GPU layouts, a node and GPU for each pod, and why the others stay pending.",
    "explain": "Explain WORKLOAD: its requests, the GPUs that can serve it, its node, or why it is pending.",
    "inspect": "Show GPU usage in a live cluster: pods, memory, layout, isolation, health, fragmentation.",
    "top": "Show GPU usage live: memory used of what was allocated, load, throttling, and its causes.",
    "recommend": "Recommend GPU memory and MIG profiles from the usage of containers.",
    "run": "Run COMMAND in an image on part of a GPU: submit a Job, explain why it is pending, follow its log.",
    "notebook": "Open JupyterLab on part of a GPU: submit a Job, and forward it to an address of this machine.",
    "environments": "List the environments of `tessera run` and `notebook`: images by name, and their contents.",
    "jobs": "List the Jobs of `tessera run`, `notebook` and `render --job`: status, parts done, and why pending.",
    "attach": "Follow Job NAME: why it is pending, its log or the address of its notebook, its end.",
    "logs": "Print the output of Job NAME so far; `tessera attach` follows it.",
    "stop": "Delete the Jobs NAME with their pods and logs.",
    "defrag": "Find the fewest running pods to move so that pending pods fit; move them with --execute.",
    "profiles": "List the known GPU models, or one MODEL's MIG profiles and placements.",
    "mig": "Show and change the MIG layout of this node's GPUs.",
    "disks": "Make this node's local disks one filesystem: RAID 0, formatted once, mounted.",
    "models": "Keep models on this machine's disk: sync them from a bucket, list, verify, evict and warm them.",
    "agent": "Run the node agent: partition and share this node's GPUs and advertise them to the kubelet.",
    "disk-agent": "Run the disk agent: keep this node's local disks one filesystem, and report them.",
    "metrics": "Serve the metrics APIs for model servers, and compute the replicas that each needs.",
    "server": "Run the scheduler extender: filter, score and bind pods that use GPUs, and choose preemption victims.",
    "controller": "Run the controller: reconcile policies, caches and model servers; choose MIG instances.",
    "manifests": "Print the objects of the Helm chart, for kubectl apply.",
    "images": "Show the layers that container images share, and the bytes that nodes would pull.",
    "render": "Print the Kubernetes objects of ModelServers, for kubectl apply.",
    "wake": "Wake the ModelServers NAME: each has a replica until it is idle again.",
    "size": "Print the GPUs and MIG instances on which a language model fits, and the tokens of its KV cache.",
    "simulate": "Replay a workload under several packing policies and compare the results.",
    "doctor": "Check this GPU node: driver, MIG, MPS, container runtime, CDI, kubelet, configuration, labels.",
    "sim-gpus": "Simulate GPUs with MIG for any program that uses NVML (libnvidia-ml.so.1).",
    "completion": "Print a script that completes commands, options and names in bash, zsh or fish.",
}
"""Commands and what each does in one line. `x-y` is `x_y` in module `x_y`, imported when it is called."""

_FOLDERS = {
    "storage": ("disks", "models", "images"),
    "processes": ("agent", "disk_agent", "server", "controller", "metrics"),
    "usage": ("top", "recommend"),
    "work": ("run", "notebook", "environments", "jobs", "attach", "logs", "stop"),
}
"""Packages in which modules of commands are; those of the others are here."""

EXIT_CODES: dict[type[TesseraError], int] = {InvalidInput: 2, Unsupported: 3, Unavailable: 4, Conflict: 5}
"""What a shell sees of each branch of the error tree; wrong use of the command line is invalid input."""

_OF_CLUSTER = frozenset(
    {
        "aiohttp",
        "blake3",
        "cryptography",
        "google",
        "grpc",
        "httpx2",
        "lightkube",
        "pathspec",
        "pynvml",
        "re2",
        "starlette",
        "structlog",
        "uvicorn",
    }
)
"""Packages that only the extra `cluster` brings; without it there is the planner."""
_OWN_EXTRAS = {"tessera models": "models"}
"""Commands that need less of these than `cluster` brings, with the extra that is enough."""

_UNEXPECTED = 1
_INTERRUPTED = 130
_NO_READER = 141
"""What a shell reports for a program that SIGPIPE ended, as it ends `ls | head -1`; Python ignores that signal."""

_EPILOG = """
\b
Exit codes:
  0  done; pending pods are a result, not an error
  1  a defect of Tessera; `doctor`, `mig assert` or `models verify` found a
     fault; `models sync` failed
  2  the input or the command line is wrong: fix it
  3  this GPU, node or build cannot do it: choose another
  4  the API server, kubelet or driver did not answer: try again later
  5  the cluster or node has changed: run it again
  6  a pod stays pending, with `plan --fail-pending`
  130  interrupted
  141  the reader closed the pipe, as in `... | head`

Every option can be set by an environment variable: TESSERA_PLAN_POLICY for `tessera plan --policy`.
The command line wins.

Shell completion: eval "$(tessera completion bash)", or zsh, fish.
"""


_OUT_OF_RANGE = re.compile(r"(.*) is not in the range .*")
_LONG_WORD = re.compile(r"([^\s']{64})[^\s']+")


class _Defect(Exception):
    """An unexpected error, as one line."""


class _NoReader(Exception):  # no error: `... | head` has read enough
    """The reader of the output is gone."""


class _Root(click.Group):
    """The group of all commands: imports a command when it is called, and turns errors into exit codes, here alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order of `COMMANDS`."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing its module; None when there is no such command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        folder = next((f"{folder}." for folder, names in _FOLDERS.items() if name in names), "")
        collects = gc.isenabled()
        gc.disable()  # imports leave nothing to collect, and looking for it takes a tenth of the start
        try:
            with _needing_cluster(f"tessera {cmd_name}"):
                command = getattr(importlib.import_module(f"tessera.cli.{folder}{name}"), name)
        finally:
            if collects:
                gc.enable()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; one that does not exist is refused with those of similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their lines, importing none, so that help is quick."""
        del ctx
        if COMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; exits with the code in `EXIT_CODES`."""
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        _open_what_was_closed()
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.Abort:
            sys.exit(_INTERRUPTED)
        except _NoReader:
            _let_go_of_output()
            sys.exit(_NO_READER)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(EXIT_CODES[InvalidInput])
        except click.ClickException as error:
            _stop(_usage(error), EXIT_CODES[InvalidInput])
        except TesseraError as error:
            _stop(str(error), next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), _UNEXPECTED))
        except _Defect as error:
            _stop(str(error), _UNEXPECTED)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the command line; options that print and leave do so here."""
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as error:
            raise _NoReader from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an unexpected error becomes one line, with the traceback under `--debug`."""
        try:
            with _needing_cluster(f"tessera {ctx.invoked_subcommand or ''}".rstrip()):
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, TesseraError, EOFError):
            raise
        except BrokenPipeError as error:
            raise _NoReader from error
        except SystemExit as leaving:
            if isinstance(leaving.__context__, BrokenPipeError):  # so does rich leave
                raise _NoReader from leaving
            raise
        except OSError as error:
            subject = str(error.filename or "the operating system")
            if isinstance(error, PermissionError):
                fix = "run it as a user with access to it, or as root"
                raise InvalidInput(subject, found=error.strerror or str(error), hint=fix) from error
            raise Unavailable(subject, found=error.strerror or str(error), hint="try again") from error
        except Exception as error:
            if (known := _first_known(error)) is not None:
                raise known from error
            if ctx.params["debug"]:
                traceback.print_exc()
            text = f"unexpected {type(error).__name__}: {error}; run `tessera --debug ...` and report what it prints"
            raise _Defect(text) from error


def _first_known(error: Exception) -> TesseraError | None:
    """Return the first of our errors with which tasks ended; None where one ended with another."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, TesseraError) else None


@contextlib.contextmanager
def _needing_cluster(command: str) -> Iterator[None]:
    """Refuse a command that needs a library which is not installed, with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _OF_CLUSTER:
            raise
        extra = _OWN_EXTRAS.get(command, "cluster")
        raise Unsupported(
            command,
            found=f"it needs the Python package {library}",
            hint=f"run pip install '.[{extra}]' in a checkout of Tessera",
        ) from error


def _usage(error: click.ClickException) -> str:
    """Return one line for a wrong command line, with the command that explains the right one."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and (value := _value_refused(error)):
        return _LONG_WORD.sub(r"\1...", f"{value}: try `{context.command_path} --help`")
    text = _LONG_WORD.sub(r"\1...", error.format_message())
    if context is None:
        return text
    more = f"ry `{context.command_path} --help`"
    return f"{text} T{more}" if text.endswith(("?", "?)")) else f"{text.rstrip('.')}; t{more}"


def _value_refused(error: click.ClickException) -> str:
    """Return the option of a wrong value and what the value is not, as all other errors say it; empty if it is none."""
    if not isinstance(error, click.BadParameter) or error.param is None:
        return ""
    name = max(error.param.opts, key=len) if isinstance(error.param, click.Option) else error.param.human_readable_name
    if isinstance(error, click.MissingParameter):
        return f"{name}: it is missing"
    kind, text = error.param.type, error.message.rstrip(".")
    if isinstance(kind, click.IntRange | click.FloatRange) and (found := _OUT_OF_RANGE.fullmatch(text)):
        least = f"{'more than' if kind.min_open else 'at least'} {kind.min:.15g}" if kind.min is not None else ""
        most = f"{'less than' if kind.max_open else 'at most'} {kind.max:.15g}" if kind.max is not None else ""
        text = f"{found[1]} is not {' and '.join(filter(None, (least, most)))}"
    value, no_number, _ = text.rpartition(" is not a valid ")
    if no_number and isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        text = f"{value} is not a {'whole number' if isinstance(kind, click.types.IntParamType) else 'number'}"
    return f"{name}: {text}"


def _let_go_of_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not complain of it at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_was_closed() -> None:
    """Replace standard streams that the parent process closed: reads are empty, writes are dropped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  to the end


def _stop(text: str, code: int) -> NoReturn:
    click.echo(f"error: {' '.join(text.split())}", err=True)
    sys.exit(code)


@click.group(
    cls=_Root,
    context_settings={"auto_envvar_prefix": "TESSERA", "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="tessera")
@click.option("--debug", is_flag=True, help="Print the traceback of an unexpected error.")
def main(*, debug: bool) -> None:
    """Share a Kubernetes cluster's GPUs: partition GPUs, place pods, and explain why a pod is pending."""
    del debug  # read by _Root.invoke
