"""A folder of code as one archive that fits into a Secret."""

import codecs
import gzip
import io
import itertools
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tessera.api.patterns import PatternSet
from tessera.cli.work.submit.ignorepatterns import expression
from tessera.errors import InvalidInput, shown

__all__ = ["LARGEST_ARCHIVE", "Archive", "archive_folder"]

LARGEST_ARCHIVE: Final = (1 << 20) - (1 << 10)
"""Bytes: all values of a Secret may have 1 MiB in sum, and a notebook's token is one of them. Source: Kubernetes API,
`core/v1` (`MaxSecretSize`)."""
_LARGEST_FOLDER: Final = 64 << 20
"""Limit of bytes that are read: more could not compress below the other limit, except zeros."""
_VERSIONS: Final = (".git", ".hg", ".svn")
"""Always left out: version control has no code to run, and a remote's address may have a password.

`.git` is a file in a worktree or a submodule.
"""
_CACHES: Final = ("__pycache__/", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/")
_CREDENTIALS: Final = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd"),
    *(".pgpass", ".my.cnf", ".boto", ".s3cfg", ".databrickscfg", ".dockercfg", ".vault-token", "rclone.conf"),
    *("kubeconfig", "*.kubeconfig", "*.tfstate", "*.tfstate.*", "*.tfvars", "secrets.toml", "secrets.y*ml"),
    *("credentials.json", "credentials.db", "application_default_credentials.json", "service[-_]account*.json"),
    *(".ssh/", ".aws/", ".azure/", ".gcloud/", ".kube/", ".docker/", ".gnupg/", ".kaggle/", ".huggingface/"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "*.pem", "*.key", "*.ppk"),
    *("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx"),
)
"""Left out in any case of letters, with a note, unless a line such as `!.env` includes one by its name; `!.*` and `!*/`
include none.

Everybody who may read the namespace's Secrets sees them.
"""
_WILD: Final = re.compile(r"[*?\[\\]")
_MOST_FILES: Final = 20_000
"""A folder with more is a home or data, and is not read to its end."""
_IGNORE_FILES: Final = (".tesseraignore", ".gitignore")
_LARGEST_IGNORE_FILE: Final = 128 << 10
"""Bytes; the time to match a path grows with it."""
_NAMED: Final = 3
"""Number of the largest files listed in the error of a large folder."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of code, packed."""

    content: bytes
    """A gzip-compressed tar archive; the same files give the same bytes."""
    left_out: tuple[str, ...] = ()
    """Files that look like credentials and match no pattern of the folder."""


def archive_folder(folder: Path) -> Archive:
    """Return the files of a folder as an archive.

    Left out are folders of version control and caches, files known to contain credentials, and matches of the patterns
    in `.tesseraignore`, or if there is none, in `.gitignore`; both are read in the folder itself alone.
    Owners are left out, too.

    Raises:
        InvalidInput: not a folder, no files or too many, or content that no archive can carry to another machine:
            a link that leaves it, a socket, a device, a file that cannot be read.

    """
    subject = f"--code {shown(str(folder))}"
    if not folder.is_dir():
        raise InvalidInput(
            subject,
            found="it is no folder" if folder.exists() else "there is no such folder",
            hint="name a folder of code",
        )
    root = folder.resolve()
    try:
        choice = _Choice(root)
        found = [(path, path.lstat()) for path in itertools.islice(_walk(root, choice), _MOST_FILES + 1)]
        if len(found) > _MOST_FILES:
            hint = f"name in {_IGNORE_FILES[0]} what the command does not need"
            raise InvalidInput(subject, found=f"it has more than {_MOST_FILES} files", hint=hint)
        for path, status in found:
            _check(subject, root, path, status)
        sizes = {path.relative_to(root): status.st_size for path, status in found if stat.S_ISREG(status.st_mode)}
        if not sizes:
            raise InvalidInput(subject, found="it has no file", hint="name a folder of code")
        total = sum(sizes.values())
        if total > _LARGEST_FOLDER:
            raise _too_large(subject, f"files of {_size(total)}", sizes)
        content = gzip.compress(_tar(root, found), mtime=0)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise InvalidInput(subject, found=shown(error), hint="name files that can be read") from error
    if len(content) > LARGEST_ARCHIVE:
        raise _too_large(subject, f"{_size(len(content))} compressed", sizes)
    return Archive(content=content, left_out=tuple(choice.left_out))


class _Choice:
    """Which files of a folder are included.

    Raises:
        InvalidInput: a line of its ignore file is no pattern, or the file is too large.

    """

    def __init__(self, root: Path) -> None:
        file = next((path for name in _IGNORE_FILES if (path := root / name).is_file()), None)
        lines = _lines(f"--code {shown(str(root))}: {file.name}", file) if file else []
        self._ignored = _Patterns([*_CACHES, *lines, *_VERSIONS])
        hidden = _Patterns(_CREDENTIALS, any_case=True)
        named = [each for each in lines if _names_credentials(hidden, each)]
        self._credentials = _Patterns([*_CREDENTIALS, *named], any_case=True)
        self.left_out: list[str] = []

    def takes(self, path: str) -> bool:
        """Return whether a file is included, or a folder, whose path ends with a slash."""
        if self._ignored.exclude(path):
            return False
        if self._credentials.exclude(path):
            self.left_out.append(path)
            return False
        return True


def _lines(subject: str, file: Path) -> list[str]:
    """Return the lines of an ignore file, of which each is a pattern."""
    if (size := file.stat().st_size) > _LARGEST_IGNORE_FILE:
        hint = f"name folders, or use patterns: at most {_size(_LARGEST_IGNORE_FILE)} are read"
        raise InvalidInput(subject, found=f"it has {_size(size)}", hint=hint)
    # As git has it: a byte order mark is no part of the first pattern, and only line feeds end lines.
    text = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    lines = [os.fsdecode(each.removesuffix(b"\r")) for each in text.split(b"\n")]
    for number, line in enumerate(lines, 1):
        try:
            _Patterns([line])
        except (ValueError, InvalidInput) as error:
            place, expected = f"{subject} line {number}", "a pattern, as git reads it"
            raise InvalidInput(place, found=shown(line), expected=expected) from error
    return lines


def _names_credentials(hidden: "_Patterns", line: str) -> bool:
    """Return whether a line names files that may contain credentials."""
    name = line.removeprefix("!").rstrip().rstrip("/").rpartition("/")[2]
    return bool(name) and not _WILD.search(name) and (hidden.exclude(name) or hidden.exclude(f"{name}/"))


class _Patterns:
    """The patterns of a `.gitignore`, matched in time that grows with the path and no faster.

    Raises:
        ValueError: a line is no pattern.
        InvalidInput: a line is no pattern, or they are too large.

    """

    def __init__(self, lines: Iterable[str], *, any_case: bool = False) -> None:
        read = [each for line in lines if (each := expression(line)) is not None]
        self._excludes = [excludes for _, excludes in read]
        self._found = PatternSet((text for text, _ in read), any_case=any_case)

    def exclude(self, path: str) -> bool:
        """Return whether a path is excluded whose folders are not: the last pattern that matches it decides."""
        found = self._found.matches(os.fsencode(path))
        return bool(found) and self._excludes[found[-1]]


def _walk(root: Path, choice: _Choice) -> Iterator[Path]:
    """Yield the content of a folder, folders first, ordered by name; no link is followed."""

    def broken(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(root, onerror=broken):
        here = Path(place)
        near = here.relative_to(root)
        folders[:] = sorted(each for each in folders if choice.takes(f"{near / each}/"))
        if here != root:
            yield here
        yield from (here / each for each in folders if (here / each).is_symlink())
        yield from (here / each for each in sorted(files) if choice.takes(str(near / each)))


def _check(subject: str, root: Path, path: Path, status: os.stat_result) -> None:
    """Reject what cannot be carried to another machine."""
    name = str(path.relative_to(root))
    hint = f"name it in {_IGNORE_FILES[0]}, or remove it"
    if stat.S_ISLNK(status.st_mode):
        if not _stays(path.parent.relative_to(root), path.readlink()) or not path.resolve().is_relative_to(root):
            found = f"link {shown(name)} to {shown(str(path.readlink()))}"
            raise InvalidInput(subject, found=found, hint=f"{hint}: only relative links within the folder are sent")
    elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        found = f"{shown(name)}, a socket, pipe or device"
        raise InvalidInput(subject, found=found, hint=f"only files, folders and links are sent: {hint}")


def _stays(folder: Path, target: Path) -> bool:
    """Return whether a link in a folder leads nowhere else on its way; another machine has other folders around it."""
    depth = len(folder.parts)
    for part in target.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return not target.is_absolute()


def _tar(root: Path, files: list[tuple[Path, os.stat_result]]) -> bytes:
    """Return the archive, in a format that GNU's and BusyBox's tar both read with names of any length."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, status in files:
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            entry.mtime = int(status.st_mtime)
            entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
            if stat.S_ISDIR(status.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            elif stat.S_ISLNK(status.st_mode):
                entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, str(path.readlink())
                archive.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def _too_large(subject: str, found: str, sizes: dict[Path, int]) -> InvalidInput:
    largest = sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:_NAMED]
    named = ", ".join(f"{shown(str(path))} {_size(size)}" for path, size in largest)
    hint = f"largest: {named}; name in {_IGNORE_FILES[0]} what the command does not need, put data and models elsewhere"
    return InvalidInput(subject, found=found, hint=f"at most {_size(LARGEST_ARCHIVE)} compressed are sent: {hint}")


def _size(size: int) -> str:
    return f"{-(-size >> 10)} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"
