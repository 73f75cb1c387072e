"""The record of a filesystem that is being created: written and read back, and as earlier versions wrote it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.storage.creations import read_creation, write_creation
from tessera.core.storage.disks.blockdevices import Creation
from tessera.errors import InvalidInput

FORMER = b'{"array":"a1b2","filesystem":"f-1","disks":["/dev/nvme0n1","/dev/nvme1n1"]}'
CREATION = Creation(array="a1b2", filesystem="f-1", disks=("/dev/nvme0n1", "/dev/nvme1n1"))


@given(creation=st.from_type(Creation))
def test_a_record_is_read_back(creation: Creation) -> None:
    content = write_creation(creation)
    assert read_creation(content, "creation.json") == creation
    assert msgspec.json.decode(content, type=Creation) == creation, "an older version reads it"


def test_what_earlier_versions_wrote_is_read_and_the_form_of_today_stays_as_it_is() -> None:
    assert read_creation(FORMER, "creation.json") == CREATION
    assert write_creation(CREATION) == b'{"version":1,' + FORMER[1:]


# Keyed by the content: why it is refused.
REFUSED = {
    b"": "it is not complete JSON",
    FORMER[:-5]: "it is not complete JSON",
    b"\xff": "it is not JSON",
    b'{"version": 2, "uuid": "x"}': "version: 2 is not a value that is accepted there",
    b'{"array": "a"}': "filesystem: it is missing",
    FORMER.replace(b'"f-1"', b"7"): "filesystem: 7 is not",
}


@pytest.mark.parametrize("content", REFUSED, ids=str)
def test_an_unreadable_record_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_creation(content, "S/creation.json")
    assert str(refused.value).startswith("S/creation.json: ")
    assert REFUSED[content] in str(refused.value)
