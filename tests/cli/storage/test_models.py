"""`tessera models`: its five commands on a folder, by exit code, table, JSON and errors."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.api.kubernetes.times import read_time
from tessera.cli import main

CONTENTS = {"config.json": b"{}", "empty": b"", "weights/a b+%.bin": bytes(range(256)) * 50_000}
SYNC_KEYS = ["revision", "files", "bytes", "requests", "seconds", "peak_bytes_per_second"]
LIST_KEYS = [
    *("revision", "source", "files", "bytes", "last_used", "current", "pinned", "in_use"),
    *("unverified_bytes", "verified", "damaged"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, data in CONTENTS.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "source"


@pytest.fixture
def top(source: Path, tmp_path: Path) -> Path:
    """Give a folder with two revisions: the current one differs from the other in `config.json`."""
    folder = tmp_path / "dst"
    assert run("sync", source, folder).exit_code == 0
    (source / "config.json").write_bytes(b"new")
    assert run("sync", source, folder).exit_code == 0
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ("models", *map(str, arguments)))


def document(*arguments: object) -> Any:
    got = run(*arguments, "-o", "json")
    assert got.stderr == ""
    return json.loads(got.stdout)


def test_sync_reports_what_it_did(source: Path, tmp_path: Path) -> None:
    first = document("sync", source, tmp_path / "dst")
    assert list(first) == SYNC_KEYS
    assert (first["files"], first["bytes"]) == (3, sum(map(len, CONTENTS.values())))
    assert first["peak_bytes_per_second"] > 0
    assert (tmp_path / "dst/current").readlink() == Path("versions") / first["revision"]
    again = document("sync", f"file://{source}", tmp_path / "dst")
    assert (again["revision"], again["bytes"], again["peak_bytes_per_second"]) == (first["revision"], 0, 0)
    table = run("sync", source, tmp_path / "dst")
    assert (table.exit_code, table.stderr) == (0, "")  # no progress where no person watches
    heads, row = table.stdout.splitlines()
    assert heads.split() == ["REVISION", "FILES", "FETCHED", "MiB", "REQUESTS", "SECONDS"]
    assert row.split()[:4] == [first["revision"][:12], "3", "0.0", "1"]
    assert first["revision"] in run("sync", source, tmp_path / "dst", "-o", "wide").stdout


def test_a_mirror_has_plain_files(source: Path, tmp_path: Path) -> None:
    top = tmp_path / "plain"
    done = document("sync", source, top, "--mirror")
    assert list(done) == SYNC_KEYS
    assert {str(path.relative_to(top)) for path in top.iterdir()} == {".tessera", "config.json", "empty", "weights"}
    assert [each["revision"] for each in document("list", top)] == [done["revision"]]
    assert (run("verify", top).exit_code, run("warm", top).stdout) == (0, "12.2 MiB read\n")
    (top / "config.json").write_bytes(b"[]")
    damaged = run("verify", top)
    assert (damaged.exit_code, "config.json" in damaged.stdout) == (1, True)
    refused = run("evict", top, done["revision"])
    assert (refused.exit_code, refused.stderr.startswith("error: ")) == (5, True)
    mixed = run("sync", source, top)
    assert (mixed.exit_code, "use --mirror there" in mixed.stderr) == (5, True)


def test_sync_takes_what_is_chosen(source: Path, tmp_path: Path) -> None:
    run("sync", source, tmp_path / "dst", "--include", "*.json", "--include", "*.bin", "--exclude", "weights/*")
    assert [each.name for each in (tmp_path / "dst/current").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "want"),
    [
        (("sync", "ftp://host/folder", "{dst}"), 2, "its scheme 'ftp' is unknown: write s3://BUCKET/PREFIX"),
        (("sync", "{source}/none", "{dst}"), 1, "there is no such folder"),
        (("sync", "{source}", "{dst}", "--include", "none"), 1, "no objects"),
        (("sync", "{source}", "{dst}", "--keep", "0"), 2, "--keep"),
        (("sync", "{source}", "{dst}", "--bandwidth", "0"), 2, "--bandwidth"),
        (("sync", "{source}", "/dev/null/dst"), 1, "/dev/null"),
        (("sync", "{source}", "{source}/dst"), 2, "dst: it is in its source file://"),
        (("sync", "file://{source}", "{source}", "--mirror"), 2, "name a folder elsewhere"),
        (("sync", "{source}"), 2, "DST"),
        (("verify", "{dst}"), 2, "there is no such folder"),
        (("verify", "{dst}", "--revision", "current"), 2, "there is no such folder"),
        (("warm", "{dst}"), 2, "there is no such folder"),
        (("evict", "{dst}", "3f2a"), 2, "there is no such folder"),
        (("evict", "{dst}"), 2, "REVISION"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], code: int, want: str, source: Path, tmp_path: Path) -> None:
    got = run(*(each.format(source=source, dst=tmp_path / "dst") for each in arguments))
    assert (got.exit_code, got.stdout) == (code, "")
    assert got.stderr.startswith(("error: ", "Usage: "))
    assert want in got.stderr
    assert arguments[0] == "sync" or not (tmp_path / "dst").exists()  # a mistyped name leaves no folder
    assert not [*source.rglob(".tessera")]


def test_a_broken_manifest_is_named_and_the_next_sync_mends_it(top: Path, source: Path) -> None:
    name = ModelFolder(top).current()
    path = top / f".tessera/manifests/{name}.json"
    path.write_bytes(path.read_bytes().replace(b"config.json", b"config.yaml"))
    for command in ("list", "verify", "warm"):
        got = run(command, top)
        assert got.exit_code == 2
        assert str(path) in got.stderr
    assert run("sync", source, top).exit_code == 0, "it is fetched again"
    assert run("verify", top).exit_code == 0
    assert ModelFolder(top).current() == name


def test_a_former_revision_whose_manifest_is_broken_is_removed_by_the_next_sync_unless_it_is_read(
    top: Path, source: Path
) -> None:
    current, other = (row["revision"] for row in document("list", top))
    (top / f".tessera/manifests/{other}.json").write_bytes(b"broken")
    with subprocess.Popen(["/bin/sleep", "60"], cwd=top / "versions" / other) as reader:
        assert run("sync", source, top).exit_code == 0
        assert (top / "versions" / other).is_dir()
        reader.kill()
    assert run("sync", source, top).exit_code == 0
    assert [row["revision"] for row in document("list", top)] == [current]
    assert [each.name for each in (top / "versions").iterdir()] == [current]


@pytest.mark.parametrize(
    ("number", "code", "want"),
    [
        (errno.EACCES, 2, "Permission denied: run it as a user with access to it, or as root"),
        (errno.EIO, 1, "Input/output error: sync again; if it persists, name another folder"),
        (errno.EMFILE, 1, "Too many open files: sync again; if it persists, see the kernel's log"),
        (errno.EROFS, 1, "Read-only file system: name a folder to write to"),
    ],
)
def test_what_the_disk_refuses_has_its_fix(
    number: int, code: int, want: str, top: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ModelFolder) -> None:
        raise OSError(number, os.strerror(number), str(self.top))

    monkeypatch.setattr(ModelFolder, "evict_broken", fail)
    got = run("sync", source, top)
    assert (got.exit_code, got.stderr) == (code, f"error: {top}: {want}\n")


def test_list_shows_the_revisions(top: Path, source: Path) -> None:
    rows = document("list", top)
    assert [list(row) for row in rows] == [LIST_KEYS] * 2
    assert [row["current"] for row in rows] == [True, False]
    assert {row["source"] for row in rows} == {f"file://{source}"}
    assert rows[0]["bytes"] == sum(map(len, CONTENTS.values())) + 1
    lines = run("list", top).stdout.splitlines()
    assert lines[0].split() == ["REVISION", "FILES", "MiB", "VERIFIED", "PROTECTED", "SOURCE"]
    verified = rows[0]["verified"]
    assert read_time(rows[0]["last_used"]) > read_time("2026-01-01T00:00:00Z"), "times are RFC 3339"
    assert lines[1].split() == [rows[0]["revision"][:12], "3", "12.2", verified, "current", f"file://{source}"]
    assert rows[0]["unverified_bytes"] == rows[0]["bytes"], "a folder has no checksums"
    (top / "none").mkdir()
    assert document("list", top / "none") == []


def test_verify_leaves_out_what_another_process_evicts_meanwhile(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ModelFolder(top)
    current = folder.current()
    (other,) = {*folder.names()} - {current}

    class Evicting(ChunkReads):
        def open(self, path: str) -> int:
            if (folder.versions / other).exists():
                folder.evict(other)
            return super().open(path)

    monkeypatch.setattr("tessera.cli.storage.models.ChunkReads", Evicting)
    got = run("verify", top)
    assert (got.exit_code, got.stdout, got.stderr) == (0, "", "verified 1 revision: no file is damaged\n")


def test_verify_of_one_revision_that_another_process_evicts_meanwhile_is_an_error(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ModelFolder(top)
    (other,) = {*folder.names()} - {folder.current()}

    def gone(self: ModelFolder, revision: str, reads: ChunkReads | None) -> dict[str, str]:  # noqa: ARG001
        raise FileNotFoundError(errno.ENOENT, "the revision was evicted meanwhile", revision)

    monkeypatch.setattr(ModelFolder, "damaged", gone)
    got = run("verify", top, "--revision", other)
    want = f"error: {top}: revision {other[:12]}: another process has evicted it meanwhile: verify another\n"
    assert (got.exit_code, got.stdout, got.stderr) == (5, "", want)


def test_verify_names_damaged_files(top: Path, source: Path) -> None:
    whole = run("verify", top)
    assert (whole.exit_code, whole.stdout, whole.stderr) == (0, "", "verified 2 revisions: no file is damaged\n")
    assert [list(row) for row in document("verify", top)] == [["revision", "damaged"]] * 2, "all that was verified"
    (top / "current/weights/a b+%.bin").chmod(0o644)
    with (top / "current/weights/a b+%.bin").open("r+b") as file:
        file.write(b"\1")
    (top / "current/config.json").unlink()
    current = ModelFolder(top).current()
    (other,) = {*ModelFolder(top).names()} - {current}
    got = run("verify", top, "--revision", "current", "-o", "json")
    assert got.exit_code == 1
    (row,) = json.loads(got.stdout)
    assert (row["revision"], [each["file"] for each in row["damaged"]]) == (
        current,
        ["config.json", "weights/a b+%.bin"],
    )
    assert row["damaged"][0]["problem"] == "No such file or directory"
    one = run("verify", top, "--revision", other)
    assert one.stderr == "verified 1 revision: 1 file is damaged\n"
    both = run("verify", top)  # the revisions share the large file
    assert both.exit_code == 1
    assert both.stderr == "verified 2 revisions: 3 files are damaged\n"
    assert both.stdout.count("weights/a b+%.bin") == 2
    assert [len(each["damaged"]) for each in document("list", top)] == [2, 1]
    assert "2 damaged" in run("list", top).stdout
    assert run("sync", source, top).exit_code == 0
    assert run("verify", top, "--revision", "current").exit_code == 0, "the next sync mends it"


def test_evict_removes_what_is_not_protected(top: Path) -> None:
    current, other = (row["revision"] for row in document("list", top))
    refused = run("evict", top, current[:20])
    assert (refused.exit_code, "it is current: evict another" in refused.stderr) == (5, True)
    assert run("evict", top, "").exit_code == 2  # both begin so
    got = run("evict", top, other[:20])
    assert (got.exit_code, got.output) == (0, "")
    assert [each.name for each in (top / "versions").iterdir()] == [current]
    refused = run("evict", top, current)
    assert (refused.exit_code, "it is current: remove the folder, which has no other" in refused.stderr) == (5, True)


def damage_inode(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail at a file as ext4 does at an inode whose checksum is wrong."""

    def failing(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(path: Any, *more: Any, **others: Any) -> Any:
            if str(path) == os.fspath(damaged):
                raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), str(path))
            return look(path, *more, **others)

        return looked

    for name in ("lstat", "stat", "open", "unlink", "readlink"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))


def test_a_former_revision_whose_manifest_cannot_be_read_is_evicted_as_is_advised(
    top: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, other = (row["revision"] for row in document("list", top))
    manifest = top / ".tessera" / "manifests" / f"{other}.json"
    damage_inode(manifest, monkeypatch)
    for command in ("list", "verify", "warm"):
        got = run(command, top)
        want = f"error: {manifest}: Bad message: evict {other[:12]}, or replace the disk; the kernel's log names it\n"
        assert (got.exit_code, got.stderr) == (4, want)
    got = run("evict", top, current)
    assert (got.exit_code, f"it is current: evict another, such as {other[:12]}" in got.stderr) == (5, True)
    assert (run("evict", top, other[:12]).exit_code, manifest in [*manifest.parent.iterdir()]) == (0, True)
    assert [each.name for each in (top / "versions").iterdir()] == [current]
    for command in ("list", "verify", "warm"):
        assert run(command, top).exit_code == 0, "what stays is no revision"
    assert run("sync", source, top).exit_code == 0


@pytest.mark.parametrize("why", ["current", "pinned", "mirror", "link"])
def test_where_what_cannot_be_read_must_stay_another_folder_is_advised_and_helps(
    why: str, top: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, other = (row["revision"] for row in document("list", top))
    damaged = top / ".tessera" / "manifests" / f"{current if why == 'current' else other}.json"
    if why == "pinned":
        ModelFolder(top).records.pin(other, pinned=True)
    if why == "link":
        damaged = top / "current"
    if why == "mirror":
        top = tmp_path / "mirror"
        assert run("sync", source, top, "--mirror").exit_code == 0
        damaged = top / ".tessera" / "mirror.json"
    damage_inode(damaged, monkeypatch)
    for command in ("list", "verify", "warm"):
        got = run(command, top)
        want = (
            f"error: {damaged}: Bad message: sync to another folder, or replace the disk; the kernel's log names it\n"
        )
        assert (got.exit_code, got.stderr) == (4, want)
    got = run("sync", source, top, *(["--mirror"] if why == "mirror" else []))
    assert got.exit_code == (0 if why == "pinned" else 1)
    assert why == "pinned" or "sync again; if it persists, name another folder" in got.stderr
    assert run("sync", source, tmp_path / "elsewhere").exit_code == 0
    for command in ("list", "verify", "warm"):
        assert run(command, tmp_path / "elsewhere").exit_code == 0


def test_a_broken_manifest_of_a_revision_that_is_read_is_replaced_once_it_is_not(top: Path, source: Path) -> None:
    other = document("list", top)[1]["revision"]
    (top / f".tessera/manifests/{other}.json").write_bytes(b"broken")
    with subprocess.Popen(["/bin/sleep", "60"], cwd=top / "versions" / other) as reader:
        assert run("sync", source, top).exit_code == 0
        got = run("list", top)
        want = f"and its revision is in use by process {reader.pid}: sync again once that has ended"
        assert (got.exit_code, want in got.stderr) == (2, True)
        reader.kill()
    assert run("sync", source, top).exit_code == 0
    assert run("list", top).exit_code == 0


def test_a_broken_current_manifest_is_gone_after_the_sync_that_is_advised_also_of_a_new_revision(
    top: Path, source: Path
) -> None:
    current = ModelFolder(top).current()
    (top / f".tessera/manifests/{current}.json").write_bytes(b"broken")
    assert "sync again, which replaces it" in run("list", top).stderr
    (source / "new").write_bytes(b"1")
    assert run("sync", source, top).exit_code == 0
    assert run("list", top).exit_code == 0


def test_where_each_revision_must_stay_evict_says_when_another_may_go(top: Path) -> None:
    current, other = (row["revision"] for row in document("list", top))
    ModelFolder(top).records.pin(other, pinned=True)
    for each in (current, other):
        got = run("evict", top, each)
        assert (got.exit_code, "evict another once nothing uses it" in got.stderr) == (5, True)
    ModelFolder(top).records.pin(other, pinned=False)
    assert run("evict", top, other).exit_code == 0


def test_a_revision_that_a_process_reads_stays(top: Path) -> None:
    other = document("list", top)[1]["revision"]
    with subprocess.Popen(["/bin/sleep", "60"], cwd=top / "versions" / other) as reader:
        got = run("evict", top, other)
        assert f"in use by process {reader.pid}" in got.stderr
        reader.kill()
    assert run("evict", top, other).exit_code == 0


def test_warm_reads_the_current_revision(top: Path) -> None:
    got = run("warm", top)
    assert (got.exit_code, got.stdout) == (0, "12.2 MiB read\n")


def test_a_second_sync_names_the_first(source: Path, tmp_path: Path) -> None:
    """The first is slowed down, so that it surely holds the folder."""
    command = [
        sys.executable,
        "-c",
        "from tessera.cli import main; main()",
        "models",
        "sync",
        str(source),
        str(tmp_path / "dst"),
    ]
    slow = [*command, "--bandwidth", "0.1"]
    with subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        lock = tmp_path / "dst/.tessera/lock"
        while not (lock.exists() and lock.read_text() == str(first.pid)):
            assert first.poll() is None
            os.sched_yield()
        got = run("sync", source, tmp_path / "dst")
        first.send_signal(signal.SIGKILL)
    assert got.exit_code == 5
    assert f"process {first.pid} has the lock (a sync or an evict is running): wait for it" in got.stderr
    assert run("sync", source, tmp_path / "dst").exit_code == 0
