"""A folder as an archive: what is in it, what is left out, what is refused by name."""

import io
import itertools
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tessera.cli.work.submit import codefolder
from tessera.cli.work.submit.codefolder import LARGEST_ARCHIVE, archive_folder
from tessera.errors import InvalidInput


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    return folder


def names(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive_folder(folder).content)) as archive:
        return [each.name for each in archive if not each.isdir()]


def test_what_belongs_to_other_tools_or_is_named_stays_here(tmp_path: Path) -> None:
    fill(
        tmp_path,
        ".git/HEAD",
        ".venv/bin/python",
        "a/__pycache__/b.pyc",
        "a/b.py",
        "data/large.bin",
        "a/keep.log",
        "x.log",
    )
    everything = ["data/large.bin", "x.log", "a/b.py", "a/keep.log"]
    assert sorted(names(tmp_path)) == sorted(everything)
    (tmp_path / ".gitignore").write_text("data/\n*.log\n!keep.log\n")
    assert sorted(names(tmp_path)) == [".gitignore", "a/b.py", "a/keep.log"]
    (tmp_path / ".tesseraignore").write_text(".*ignore\n/a\n")
    assert sorted(names(tmp_path)) == ["data/large.bin", "x.log"]


@settings(max_examples=25)
@given(
    st.dictionaries(st.text("ab-é 'ß$", min_size=1, max_size=120), st.binary(max_size=2_000), min_size=1, max_size=6)
)
def test_tar_itself_unpacks_what_was_packed(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    (source / "deep" / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    for number, (name, content) in enumerate(files.items()):
        path = (source / "deep" / ("d" * 90) / ("e" * 90) if number % 2 else source) / name
        path.write_bytes(content)
        path.chmod(0o755 if number % 3 else 0o600)
    (source / "link").symlink_to("deep/" + "d" * 90)
    content = archive_folder(source).content
    assert content == archive_folder(source).content
    subprocess.run(["tar", "-xzf", "-", "-C", target], input=content, check=True)

    def contents(folder: Path) -> dict[str, tuple[bytes, bool]]:
        found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK)) for path in found}

    assert contents(target) == contents(source)
    assert (target / "link").readlink() == (source / "link").readlink()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "a/../../outside", "inside", "../folder/a/b.py"])
def test_a_link_that_leaves_the_folder_is_refused_by_name(tmp_path: Path, target: str) -> None:
    folder = fill(tmp_path / "folder", "a/b.py")
    fill(tmp_path, "outside")
    if target == "inside":
        (folder / "inside").symlink_to(tmp_path)
    else:
        (folder / "link").symlink_to(target)
    with pytest.raises(InvalidInput, match=r"link '?(link|inside)'? to .*relative links within the folder"):
        archive_folder(folder)


@pytest.mark.parametrize("links", [("a", "a"), ("a", "b", "b", "a")])
def test_links_in_a_circle_are_refused(tmp_path: Path, links: tuple[str, ...]) -> None:
    fill(tmp_path, "c.py")
    for name, target in zip(links[::2], links[1::2], strict=True):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(InvalidInput, match=r"files that can be read|relative links"):
        archive_folder(tmp_path)


def test_credentials_stay_here_are_named_and_go_along_where_a_pattern_says_so(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", ".env", "deep/id_rsa", ".aws/credentials", "environment")
    assert sorted(names(tmp_path)) == ["a.py", "environment"]
    assert archive_folder(tmp_path).left_out == (".aws/", ".env", "deep/id_rsa")
    (tmp_path / ".tesseraignore").write_text(".aws/\n!.env\n")
    assert sorted(names(tmp_path)) == [".env", ".tesseraignore", "a.py", "environment"]
    assert archive_folder(tmp_path).left_out == ("deep/id_rsa",)


@pytest.mark.parametrize(
    "name",
    [
        *(".ENV", "server.Key", "SERVER.PEM", ".envrc", "prod.env", ".pgpass", "_netrc", ".dockercfg", ".vault-token"),
        *("terraform.tfstate", "terraform.tfstate.backup", "member.kubeconfig", "credentials.json", "id_ed25519_sk"),
        *(".kaggle/kaggle.json", ".huggingface/token", ".config/gcloud/application_default_credentials.json"),
        *(
            ".streamlit/secrets.toml",
            "secrets.yaml",
            "service-account-1.json",
            "a\nb/.env",
            "a\nb/.ssh/config",
            "a\nb.pem",
        ),
    ],
)
def test_usual_names_of_credentials_stay_here_and_are_taken_back_by_name(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "a.py", name)
    assert names(tmp_path) == ["a.py"]
    (left,) = archive_folder(tmp_path).left_out
    assert name.startswith(left.rstrip("/"))
    if "\n" not in name:
        (tmp_path / ".tesseraignore").write_text(f"!{left}\n")
        assert name in names(tmp_path)


TAKE_NOTHING_BACK = (
    "!*/",
    "!**/",
    "!.*",
    "!*",
    "!**",
    "!/*",
    "*\n!*/\n!*",
    "!.a*/",
    "!**/*env",
    "!.[es]*",
    "!\\.env",
)


@pytest.mark.parametrize("pattern", TAKE_NOTHING_BACK)
def test_only_its_own_name_takes_a_credential_back(tmp_path: Path, pattern: str) -> None:
    kept = (".aws/credentials", "deep/.aws/credentials", ".env", "deep/.env.local", ".ssh/id_rsa", "server.key")
    fill(tmp_path, "a.py", *kept)
    (tmp_path / ".tesseraignore").write_text(pattern)
    assert sorted(names(tmp_path)) == [".tesseraignore", "a.py"]
    assert set(archive_folder(tmp_path).left_out) == {
        ".aws/", "deep/.aws/", ".env", "deep/.env.local", ".ssh/", "server.key",
    }  # fmt: skip
    (tmp_path / ".tesseraignore").write_text(f"{pattern}\n!deep/.aws/\n!.env.local \n!/server.key\n")
    assert sorted(names(tmp_path)) == [
        ".tesseraignore", "a.py", "deep/.aws/credentials", "deep/.env.local", "server.key",
    ]  # fmt: skip


def test_no_pattern_takes_folders_of_version_control_back(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", ".git/config", "a/.hg/hgrc")
    (tmp_path / ".tesseraignore").write_text("!*/\n!.git/\n!a\n")
    assert sorted(names(tmp_path)) == [".tesseraignore", "a.py"]


@pytest.mark.parametrize("name", [".git", ".hg", ".svn", "module/.git"])
def test_a_file_that_leads_to_a_repository_stays_here(tmp_path: Path, name: str) -> None:
    """As a worktree's or a submodule's `.git` does."""
    fill(tmp_path, "a.py", name)
    (tmp_path / ".tesseraignore").write_text("!.git\n!*\n")
    assert sorted(names(tmp_path)) == [".tesseraignore", "a.py"]


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 20 + "c", "a" * 200 + "b"),
        ("**/a/" * 12 + "c", "a/" * 60 + "b"),
        ("\n".join(f"*x{number}*y" for number in range(5_000)), "x" * 200),
        ("\n".join(f"data/run{number}/*.bin" for number in range(5_000)), "data/run4/b"),
    ],
)
def test_a_name_is_matched_with_a_pattern_in_time_that_grows_with_it(tmp_path: Path, pattern: str, name: str) -> None:
    """An expression that backtracks does not end on these within a lifetime."""
    fill(tmp_path, "a.py", name)
    (tmp_path / ".tesseraignore").write_text(f"/data/run1/\n{pattern}\n.*ignore\n")
    assert sorted(names(tmp_path)) == sorted(["a.py", name])


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"\xef\xbb\xbf.x\n", [".x"]),
        (b".x\r\ny\r\n", [".x", "y"]),
        (b"b\x0cc\nb\xc2\x85c", ["b\x0cc", "b\x85c"]),
        (b"b[\xc3\xa9x]c\n\xc3\xa9*", ["\xe9d", "bxc"]),
        (b"\xff*", ["\udcffz"]),
        (b"**\r*x\nc\rd", ["c\rd"]),
        (b"e\t\n", ["e\t"]),
        (b"f\\   \n", ["f "]),
        (b"/*\n!/\n!a.py\n!.gitignore\n", ["folder/x"]),
        (b"!\nx", ["x"]),
        (b"[[:digit:][:upper:]]*\n", ["1x", "X"]),
        (b"[[:nothing:]a]*\nx", ["x"]),
        (b"x[b-a!]\nx[!!-~]", ["x!", "x "]),
        (b"***/x/y\n****/z\n!***/a.py", ["a/x/y", "a/b/x/y", "x/y", "z"]),
        (b"y[]-]\nz[\\]]\n[!a.]*[!y]", ["y]", "y-", "z]", "data/x"]),
    ],
)
def test_an_ignore_file_is_read_as_git_reads_it(tmp_path: Path, content: bytes, left: list[str]) -> None:
    fill(tmp_path, "a.py", *left)
    (tmp_path / ".gitignore").write_bytes(content)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    assert [os.fsdecode(each) for each in listed.stdout.split(b"\0")[:-1]] == [".gitignore", "a.py"]
    assert sorted(names(tmp_path)) == [".gitignore", "a.py"]


def test_a_negated_bracket_expression_matches_no_slash(tmp_path: Path) -> None:
    fill(tmp_path, "a.py", "data/x", "data1/x")
    (tmp_path / ".gitignore").write_text("data[!_]*\n")
    assert sorted(names(tmp_path)) == [".gitignore", "a.py", "data/x"]


PIECES = ("a", "b", "*", "?", "/", "[ab]", "[!a]", "[^b]", "\\*", "\\ ", " ", "\t", "\r", "#", "!", "[]", "]", "-", "é")
CLASSES = ("[]]", "[!]]", "[[:alpha:]]", "[[:upper:]-]", "[!-a]", "[b-a]", "[a-b]", "[\\]]", "[[:x]", "[[:x:]]", "[!/]")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PIECES + CLASSES), min_size=1, max_size=4).map("".join), min_size=1, max_size=4)
)
def test_git_leaves_out_the_same(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    folder = fill(
        tmp_path_factory.mktemp("code"),
        *("main", "a", "b/a", "ab/b", "a b", "A/a", "a\t", "-", "]/b", "#a", " ", "é/a", "1", "a\r"),
    )
    ignored = folder / ".gitignore"
    ignored.write_bytes("\n".join(lines).encode())
    command = ("git", "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    try:
        found = names(folder)
    except InvalidInput as error:
        assume("a pattern, as git reads it" not in str(error))  # said, and not left out
        found = []
    assert sorted(found) == sorted(os.fsdecode(each) for each in listed.split(b"\0")[:-1])


def test_git_leaves_out_the_same_whatever_the_number_of_stars(tmp_path: Path) -> None:
    lines = [
        "/".join(each) for most in (1, 2, 3) for each in itertools.product(("a", "*", "**", "***", ""), repeat=most)
    ]
    for number, line in enumerate(lines):
        folder = fill(tmp_path / str(number), "main", "a/b/c", "a/c", "b/a/c", "b/c", "b/d/a", "b/d/c", "c")
        (folder / ".gitignore").write_text(f"{line}\n!main\n!.gitignore\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ("git", "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore")
    listed = os.fsdecode(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout)
    want = {line: set[str]() for line in lines}
    for path in listed.split("\0")[:-1]:
        place, _, name = path.partition("/")
        want[lines[int(place)]].add(name)
    found = {line: set(names(tmp_path / str(number))) for number, line in enumerate(lines)}
    assert {line: (each, want[line]) for line, each in found.items() if each != want[line]} == {}


def test_an_ignore_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "a.py")
    (tmp_path / ".gitignore").write_text("a" * (128 << 10))
    assert sorted(names(tmp_path)) == [".gitignore", "a.py"]
    (tmp_path / ".gitignore").write_text("a" * 50_000_000)
    with pytest.raises(InvalidInput, match=r"\.gitignore: it has 47\.7 MiB: .*at most 128 KiB are read"):
        archive_folder(tmp_path)


def test_a_folder_that_is_taken_back_takes_none_of_its_own_folders_back(tmp_path: Path) -> None:
    """As git has it: a pattern decides about what it names, and not about what is below."""
    fill(tmp_path, "src/a.py", "src/data/large.bin", "src/.aws/credentials", "data/x", "src/keep/data/y")
    (tmp_path / ".tesseraignore").write_text("data/\n!/src\n!src/keep/**\n")
    assert sorted(names(tmp_path)) == [".tesseraignore", "src/a.py", "src/keep/data/y"]
    assert archive_folder(tmp_path).left_out == ("src/.aws/",)
    (tmp_path / ".tesseraignore").write_text("*\n!*/\n!*.py\n")
    assert names(tmp_path) == ["src/a.py"]


def test_a_folder_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codefolder, "_MOST_FILES", 3)
    fill(tmp_path, "a", "b", "c")
    assert names(tmp_path) == ["a", "b", "c"]
    fill(tmp_path, "d/e")
    with pytest.raises(InvalidInput, match=r"more than 3 files.*\.tesseraignore"):
        archive_folder(tmp_path)


def test_what_no_archive_carries_is_refused_by_name_unless_it_is_ignored(tmp_path: Path) -> None:
    fill(tmp_path, "a.py")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match=r"pipe.* a socket, pipe or device"):
        archive_folder(tmp_path)
    (tmp_path / ".tesseraignore").write_text("pipe\n")
    assert names(tmp_path) == [".tesseraignore", "a.py"]


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    (tmp_path / "random").write_bytes(os.urandom(LARGEST_ARCHIVE + 1))
    fill(tmp_path, "a.py")
    with pytest.raises(
        InvalidInput,
        match=r"1024 KiB compressed.*most 1023 KiB.*largest: 'random' 1024 KiB, 'a.py' 1 KiB.*\.tesseraignore",
    ):
        archive_folder(tmp_path)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidInput, match=r"files of 1048577.0 MiB.*largest: 'sparse'"):
        archive_folder(tmp_path)


def test_no_folder_no_files_and_no_pattern_are_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "absent", "no such folder"),
        (Path(__file__), "no folder"),
        (tmp_path, "it has no file"),
    ):
        with pytest.raises(InvalidInput, match=words):
            archive_folder(path)
    fill(tmp_path, "a.py")
    for pattern in ("\\", "a\\"):
        (tmp_path / ".tesseraignore").write_text(f"*.log\n{pattern}\n")
        with pytest.raises(InvalidInput, match=r"\.tesseraignore line 2: .*a pattern, as git reads it"):
            archive_folder(tmp_path)
