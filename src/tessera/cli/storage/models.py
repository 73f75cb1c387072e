"""`tessera models`: copies of models on this machine's disk, synced with a bucket, a server or a folder."""

import functools
import gc
import os
from pathlib import Path

import click
import msgspec

from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.packed import read_ahead
from tessera.agent.storage.models.plainfiles import PlainFiles
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.sync import SyncOptions, sync
from tessera.agent.storage.models.verify import damaged_files, warm
from tessera.api.kubernetes.times import time_text
from tessera.cli.options import CommandGroup, Number, output_option
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


@models.command("sync", epilog="\b\nExample:\n  tessera models sync s3://models/llama /mnt/models/llama --keep 3\n")
@click.argument("source", metavar="SRC")
@_FOLDER
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="Revisions that stay on the disk.")
@click.option("--include", multiple=True, help="Only files that match, such as '*.safetensors'; may be repeated.")
@click.option("--exclude", multiple=True, help="No files that match; may be repeated.")
@click.option("--bandwidth", type=Number(min=0.1, max=1e6), help="Bandwidth limit in MiB/s.")
@click.option("--mirror", is_flag=True, help="Keep plain files in DST, the same as SRC's, without revisions.")
@click.option(
    "--pack",
    type=click.Choice(["Never", "Auto", "Always"], case_sensitive=False),
    default="Never",
    help="Keep a revision as one mounted image: always, or where files are many and small (auto). Needs root.  "
    "[default: never]",
)
@click.option("--check", is_flag=True, help="Compare the files on the disk with their digests, too.")
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
    except OSError as error:
        found = error.strerror or str(error)
        raise TesseraError(str(error.filename or folder), found=found, hint="name a folder to write to") from error
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
def list_command(folder: Path, output: str) -> None:
    """List the revisions in DST, the most recently used first."""
    _check_folder(folder)
    plain = PlainFiles(folder)
    _refuse_broken(folder)
    revisions = plain.revisions() or ModelFolder(folder).revisions()
    if print_document(revisions, output):
        return
    if not revisions:
        click.echo(f"{folder} has no revision: `tessera models sync SRC {folder}` fetches one", err=True)
        return
    table = headed_table("revision", "files", "MiB", "verified", "protected", "source")
    for each in revisions:
        name = each.revision if output == "wide" else each.revision[:12]
        verified = f"{len(each.damaged)} damaged" if each.damaged else time_text(each.verified) if each.verified else ""
        table.add_row(name, str(each.files), f"{each.bytes / 2**20:.1f}", verified, each.protected, each.source)
    wide_console(output=output).print(trimmed(table))


@models.command("verify", epilog="\b\nExample:\n  tessera models verify /mnt/models/llama\n")
@_FOLDER
@click.option("--revision", default="", help="The beginning of a revision's name, or `current`.  [default: all]")
@output_option()
def verify_command(folder: Path, revision: str, output: str) -> None:
    """Compare each file in DST with its digest. Exits 1 and names the files that differ."""
    revisions = _revisions(folder, revision)
    plain, reads = PlainFiles(folder).manifest(), ChunkReads()
    rows = [
        {"revision": name, "file": path, "problem": problem}
        for name in revisions
        for path, problem in (
            damaged_files(folder, plain, reads) if plain is not None else ModelFolder(folder).damaged(name, reads)
        ).items()
    ]
    if not print_document(rows, output):
        table = headed_table("revision", "file", "problem")
        for row in rows:
            table.add_row(row["revision"][:12], row["file"], row["problem"])
        if rows:
            wide_console(output=output).print(trimmed(table))
        click.echo(f"{len(revisions)} revisions, {len(rows)} damaged files", err=True)
    if rows:
        click.get_current_context().exit(1)


@models.command("evict", epilog="\b\nExample:\n  tessera models evict /mnt/models/llama 3f2a9c\n")
@_FOLDER
@click.argument("revision")
def evict_command(folder: Path, revision: str) -> None:
    """Remove a REVISION from DST. One that is current, pinned or read by a process stays."""
    _check_folder(folder)
    models = ModelFolder(folder)
    models.find(revision)  # before the lock is created in a foreign folder
    with models.locked():
        name = models.find(revision)
        why = next(each.protected for each in models.revisions() if each.revision == name)
        if why:
            raise Conflict(f"{folder}: revision {name[:12]}", found=f"it is {why}", hint="evict another")
        models.evict(name)


@models.command("warm", epilog="\b\nExample:\n  tessera models warm /mnt/models/llama\n")
@_FOLDER
@click.option("--revision", default="current", show_default=True, help="The beginning of a revision's name.")
def warm_command(folder: Path, revision: str) -> None:
    """Read the current revision into the page cache. The next reader then does not wait for the disk."""
    names, read, models = _revisions(folder, revision), 0, ModelFolder(folder)
    if (plain := PlainFiles(folder).manifest()) is not None:
        read = warm(folder, plain)
    for name in names if plain is None else ():
        if (image := models.image(name)) is None:
            read += warm(models.versions / name, models.manifest(name))
        else:
            models.mount_images()
            read += read_ahead(image)
    click.echo(f"{read / 2**20:.1f} MiB read")


def _check_folder(folder: Path) -> None:
    """Reject a missing folder: an empty one has no models, a missing one is most often a wrong path.

    Raises:
        InvalidInput: there is no such folder.

    """
    if not folder.is_dir():
        fix = f"check the path, or fetch a model with `tessera models sync SRC {folder}`"
        raise InvalidInput(str(folder), found="there is no such folder", hint=fix)


def _refuse_broken(folder: Path) -> None:
    """Reject a folder of which not all can be listed or verified.

    Raises:
        InvalidInput: a manifest is broken.

    """
    for error in ModelFolder(folder).broken_manifests().values():
        raise error


def _revisions(folder: Path, revision: str) -> list[str]:
    """Return the named revision, or all; a mirror has one, whatever is named."""
    _check_folder(folder)
    if (plain := PlainFiles(folder).manifest()) is not None:
        return [plain.revision]
    _refuse_broken(folder)
    models = ModelFolder(folder)
    names = [each.revision for each in models.revisions()]
    if not names:
        raise InvalidInput(
            str(folder), found="it has no revision", hint=f"`tessera models sync SRC {folder}` fetches one"
        )
    return [models.find(revision)] if revision else names
