"""The checkpoint file is written as a whole, and what cannot be read or written is said."""

import os
from pathlib import Path

import pytest

from builders.gpufacts import at
from tessera.agent.partition import Checkpoint
from tessera.core.gpu.gpumodels import model
from tessera.core.node.layouts import Recorded
from tessera.errors import InvalidInput, Unavailable

ROWS = (Recorded(uuid="GPU-1", model="A100-40GB", mig=True, placements=at(model("A100-40GB"), ("3g.20gb", 4))),)


@pytest.mark.anyio
async def test_it_comes_back(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "deep" / "mig.json")
    assert file.read() == ()
    await file.write(ROWS)
    assert Checkpoint(file.path).read() == ROWS
    await file.write(())
    assert file.read() == ()
    assert [path.name for path in file.path.parent.iterdir()] == ["mig.json"]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b'{"version": 1, "gpus": [', "mig.json: it is not a checkpoint of MIG layouts"),
        (b" " * ((1 << 20) + 1), "mig.json: it has more than 1 MiB"),
    ],
)
def test_a_broken_file_is_refused_and_kept(tmp_path: Path, content: bytes, want: str) -> None:
    path = tmp_path / "mig.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        Checkpoint(path).read()
    assert want in str(caught.value)
    assert path.read_bytes() == content


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Is a directory"):
        Checkpoint(tmp_path).read()


@pytest.mark.anyio
async def test_what_cannot_be_written_says_what_that_costs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="without it a reboot loses the MIG layout"):
        await Checkpoint(tmp_path / "file" / "mig.json").write(ROWS)


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    """As root a rename would put a file in the place of a device."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="not a regular file"):
        Checkpoint(tmp_path / "pipe").replace(ROWS)
    assert (tmp_path / "pipe").is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.anyio
async def test_a_failed_write_keeps_the_former_content(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "mig.json")
    await file.write(ROWS)
    (tmp_path / f".mig.json.{os.getpid()}").mkdir()
    with pytest.raises(Unavailable, match="Is a directory"):
        await file.write(())
    assert file.read() == ROWS
