"""`tessera models`: copies of models on this machine's disk, synced with a bucket, a server or a folder."""

import contextlib
import errno
import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from tessera.agent.nodefiles import BROKEN_DISK
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.opening import open_folder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.agent.storage.models.syncedfolder import Revision, refuse_broken_disk
from tessera.api.kubernetes.times import time_text
from tessera.cli.drawing.lettering import counted
from tessera.cli.options import CommandGroup, Number, WholeNumber, output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.progress import progress_bar
from tessera.clients.store import open_store
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable

__all__ = ["models"]

_GARBAGE = 200_000
"""Allocations between two runs of Python's garbage collection: among 20,000 files there are no cycles, and scanning
them after each 700 would take a fifth of the time."""
_FOLDER = click.argument("folder", metavar="DST", type=click.Path(file_okay=False, path_type=Path))

_EPILOG = """
\b
Examples:
  tessera models sync s3://models/llama /mnt/models/llama
  tessera models sync https://models.example/llama/ /mnt/models/llama
  tessera models list /mnt/models/llama
  tessera models verify /mnt/models/llama
"""


@click.group(cls=CommandGroup, epilog=_EPILOG)
def models() -> None:
    """Keep models on this machine's disk: sync them from a bucket, list, verify, evict and warm them."""


@contextlib.contextmanager
def _naming_broken_disk() -> Iterator[None]:
    """Say what helps where the disk is broken, which trying again does not."""
    try:
        yield
    except OSError as error:
        refuse_broken_disk(error)
        raise


@models.command("sync", epilog="\b\nExample:\n  tessera models sync s3://models/llama /mnt/models/llama --keep 3\n")
@click.argument("source", metavar="SRC")
@_FOLDER
@click.option("--keep", type=WholeNumber(1), default=2, show_default=True, help="Revisions that stay on the disk.")
@click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    help="Only files that match, such as '*.safetensors'; may be repeated.",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="No files that match; may be repeated.")
@click.option("--bandwidth", type=Number(min=0.1, max=1e6), help="Bandwidth limit in MiB/s.")
@click.option("--mirror", is_flag=True, help="Mirror SRC as plain files in DST, without revisions.")
@click.option(
    "--pack",
    type=click.Choice(["Never", "Auto", "Always"], case_sensitive=False),
    default="Never",
    help="Keep a revision as one mounted image: always, or where files are many and small (auto). Needs root.  "
    "[default: never]",
)
@click.option("--check", is_flag=True, help="Verify files on the disk before reusing them.")
@click.option("--require-checksums", is_flag=True, help="Refuse files that no checksum of SRC verifies.")
@output_option()
def sync_command(
    source: str, folder: Path, output: str, bandwidth: float | None, *, mirror: bool, **options: object
) -> None:
    """Fetch what changed at SRC; DST/current is then the new revision.

    With --mirror the files are in DST itself: each is replaced atomically, files that SRC no longer has are removed,
    and files that Tessera did not create are kept. Programs that read several files meanwhile may get some of each
    state.

    SRC is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, hf://OWNER/NAME@REVISION,
    https://HOST/FOLDER/, file:///FOLDER or a folder. The S3 endpoint and credentials are those of AWS_ENDPOINT_URL,
    AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; gs:// and az:// use what Google's and Azure's own libraries
    find, hf:// HF_TOKEN. Exits 1 when the transfer fails.
    """
    if mirror and options["pack"] != "Never":
        raise InvalidInput("--pack", found="--mirror keeps plain files, which are no image", hint="give one of the two")
    limits = TransferLimits(bytes_per_second=(bandwidth or 0) * 2**20)
    desired = msgspec.convert({**options, "limits": limits}, SyncOptions)
    store = open_store(source, os.environ)
    gc.set_threshold(_GARBAGE)
    try:
        with progress_bar("listing") as report:
            fetching = functools.partial(report, "fetching")
            done = (
                sync_mirror(store, folder, desired, fetching)
                if mirror
                else sync(store, ModelFolder(folder), desired, fetching)
            )
    except Unavailable as error:
        raise TesseraError(error.subject, found=error.found, expected=error.expected, hint=error.hint) from error
    except PermissionError:
        raise  # as of every command
    except OSError as error:
        elsewhere = "name another folder" if error.errno in BROKEN_DISK else "see the kernel's log"
        passing = error.errno in {*BROKEN_DISK, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
        fix = f"sync again; if it persists, {elsewhere}" if passing else "name a folder to write to"
        raise TesseraError(str(error.filename or folder), found=error.strerror or str(error), hint=fix) from error
    finally:
        store.close()
    if not print_document(done, output):
        table = headed_table("revision", "files", "fetched MiB", "requests", "seconds")
        name = done.revision if output == "wide" else done.revision[:12]
        table.add_row(name, str(done.files), f"{done.bytes / 2**20:.1f}", str(done.requests), f"{done.seconds:.1f}")
        wide_console(output=output).print(trimmed(table))


@models.command("list", epilog="\b\nExample:\n  tessera models list /mnt/models/llama\n")
@_FOLDER
@output_option()
@_naming_broken_disk()
def list_command(folder: Path, output: str) -> None:
    """List the revisions in DST, the most recently used first."""
    opened = open_folder(folder)
    opened.refuse_broken()
    revisions = opened.revisions()
    if print_document([_printed(each) for each in revisions], output):
        return
    if not revisions:
        click.echo(f"{folder} has no revision: `tessera models sync SRC {folder}` fetches one", err=True)
        return
    table = headed_table("revision", "files", "MiB", "verified", "protected", "source")
    for each in revisions:
        name = each.revision if output == "wide" else each.revision[:12]
        verified = f"{len(each.damaged)} damaged" if each.damaged else _time(each.verified_s)
        table.add_row(name, str(each.files), f"{each.bytes / 2**20:.1f}", verified, each.protected, each.source)
    wide_console(output=output).print(trimmed(table))


def _printed(revision: Revision) -> dict[str, object]:
    """Return a revision for scripts, with its times as everywhere else: RFC 3339, empty for never."""
    times = {"last_used_s": "last_used", "verified_s": "verified"}
    fields = msgspec.structs.asdict(revision)
    return {times.get(key, key): _time(value) if key in times else value for key, value in fields.items()}


def _time(at_s: float) -> str:
    return time_text(at_s) if at_s else ""


@models.command("verify", epilog="\b\nExample:\n  tessera models verify /mnt/models/llama\n")
@_FOLDER
@click.option(
    "--revision", default="", metavar="NAME", help="The beginning of a revision's name, or `current`.  [default: all]"
)
@output_option()
@_naming_broken_disk()
def verify_command(folder: Path, revision: str, output: str) -> None:
    """Compare each file in DST with its digest. Exits 1 and names the files that differ."""
    opened, reads = open_folder(folder), ChunkReads()
    opened.refuse_broken()
    damaged = {}
    for name in opened.select(revision):
        with contextlib.suppress(FileNotFoundError):  # another process has evicted it meanwhile
            damaged[name] = opened.damaged(name, reads)
    if revision and not damaged:
        found = "another process has evicted it meanwhile"
        raise Conflict(f"{folder}: revision {name[:12]}", found=found, hint="verify another")
    count = sum(map(len, damaged.values()))
    rows = [
        {"revision": name, "damaged": [{"file": path, "problem": problem} for path, problem in files.items()]}
        for name, files in damaged.items()
    ]
    if not print_document(rows, output):
        table = headed_table("revision", "file", "problem")
        for name, files in damaged.items():
            for path, problem in files.items():
                table.add_row(name[:12], path, problem)
        if count:
            wide_console(output=output).print(trimmed(table))
        found = f"{counted(count, 'file')} {'is' if count == 1 else 'are'} damaged" if count else "no file is damaged"
        click.echo(f"verified {counted(len(damaged), 'revision')}: {found}", err=True)
    if count:
        click.get_current_context().exit(1)


@models.command("evict", epilog="\b\nExample:\n  tessera models evict /mnt/models/llama 3f2a9c\n")
@_FOLDER
@click.argument("revision")
@_naming_broken_disk()
def evict_command(folder: Path, revision: str) -> None:
    """Remove a REVISION from DST. One that is current, pinned or read by a process stays."""
    opened = open_folder(folder)
    opened.find(revision, unreadable=True)  # before the lock is created in a foreign folder
    with opened.locked():
        name, kept, there = opened.find(revision, unreadable=True), opened.protected(), opened.all_names()
        if name in kept:
            others = [each for each in there if each not in kept]
            fix = "remove the folder, which has no other" if len(there) == 1 else "evict another once nothing uses it"
            fix = f"evict another, such as {others[0][:12]}" if others else fix
            raise Conflict(f"{folder}: revision {name[:12]}", found=f"it is {kept[name]}", hint=fix)
        opened.evict(name)


@models.command("warm", epilog="\b\nExample:\n  tessera models warm /mnt/models/llama\n")
@_FOLDER
@click.option(
    "--revision", default="current", show_default=True, metavar="NAME", help="The beginning of a revision's name."
)
@_naming_broken_disk()
def warm_command(folder: Path, revision: str) -> None:
    """Read the current revision into the page cache. The next reader then does not wait for the disk."""
    opened = open_folder(folder)
    opened.refuse_broken()
    read = sum(map(opened.warm, opened.select(revision)))
    click.echo(f"{read / 2**20:.1f} MiB read")
