"""Checkpoints come back as written, and whatever else lies in the file is refused and named."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.node.checkpoints import read, write
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, all_layouts
from tessera.core.node.layouts import Recorded
from tessera.errors import InvalidInput

ROWS = st.builds(
    Recorded,
    uuid=st.text(max_size=9),
    model=st.just("A100-40GB"),
    mig=st.booleans(),
    placements=st.sampled_from(all_layouts(model("A100-40GB"))),
)


@given(st.lists(ROWS, unique_by=lambda row: row.uuid, max_size=4).map(tuple))
def test_what_is_written_comes_back(rows: tuple[Recorded, ...]) -> None:
    assert read("file", write(rows)) == rows


def test_the_form_stays_as_it_is() -> None:
    """A node that reboots after an upgrade has the file of the earlier agent."""
    placements = (Placement(start=0, size=4, profile="3g.20gb"),)
    assert (
        write((Recorded(uuid="GPU-1", model="A100-40GB", mig=True, placements=placements),)).split()
        == (
            b'{ "version": 1, "gpus": [ { "uuid": "GPU-1", "model": "A100-40GB", "mig": true, "placements": '
            b'[ { "start": 0, "size": 4, "profile": "3g.20gb" } ] } ] }'
        ).split()
    )


GOOD = write((Recorded(uuid="GPU-1", model="A30-24GB", mig=True, placements=()),))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(b"", "(it is not complete JSON)", id="empty"),
        pytest.param(GOOD[:-9], "(it is not complete JSON)", id="cut off"),
        pytest.param(b"[" * 100_000, "file: ", id="deep"),
        pytest.param(b"\xff\x00", "file: ", id="not JSON"),
        pytest.param(GOOD.replace(b"1,", b"2,", 1), "version: 2 is not a value that is accepted", id="another version"),
        pytest.param(GOOD.replace(b"model", b"mode", 1), "(gpus[0].mode: it is an unknown field)", id="unknown field"),
        pytest.param(b'{"version": 1, "gpus": [{"uuid": "a"}]}', "(gpus[0].model: it is missing)", id="missing field"),
        pytest.param(
            b'{"version":1,"gpus":[{"uuid":"a","model":"","mig":true},{"uuid":"a","model":"","mig":true}]}',
            "file: it has a GPU twice: write the checkpoint again",
            id="twice",
        ),
    ],
)
def test_anything_else_is_refused(text: bytes, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read("file", text)
    assert want in str(caught.value)


@given(st.binary(max_size=64), st.integers(0, 80))
def test_no_bytes_do_worse_than_be_refused(junk: bytes, at: int) -> None:
    with contextlib.suppress(InvalidInput):
        read("file", GOOD[:at] + junk + GOOD[at:])
