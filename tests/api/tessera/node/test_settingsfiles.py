"""Records of MPS daemons and of former power settings: written and read back, and as earlier agents wrote them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.node.settingsfiles import read_daemon, read_originals, write_daemon, write_originals
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.node.mpslifecycle import DaemonRecord
from tessera.core.node.power import Original
from tessera.errors import InvalidInput

FORMER_DAEMON = (
    b'{"target":{"key":"GPU-1-0-4","gpu":"GPU-1","visible":"MIG-7","memory_limit_mib":9728,"thread_percent":50,'
    b'"exclusive":false},"pid":17,"started":"boot 99","former_mode":"default"}'
)
DAEMON = DaemonRecord(
    target=MpsTarget(
        key="GPU-1-0-4", gpu="GPU-1", visible="MIG-7", memory_limit_mib=9728, thread_percent=50, exclusive=False
    ),
    pid=17,
    started="boot 99",
    former_mode="default",
)
FORMER_ORIGINALS = (
    b'[{"gpu":"GPU-1","power":true,"power_limit_watts":300,"clocks":true},'
    b'{"gpu":"GPU-2","power":true,"power_limit_watts":null,"clocks":false}]'
)
ORIGINALS = (
    Original(gpu="GPU-1", power=True, power_limit_watts=300, clocks=True),
    Original(gpu="GPU-2", power=True),
)


@given(record=st.from_type(DaemonRecord))
def test_the_record_of_a_daemon_is_read_back(record: DaemonRecord) -> None:
    content = write_daemon(record)
    assert read_daemon(content, "daemon.json") == record
    assert msgspec.json.decode(content, type=DaemonRecord) == record, "an older agent reads it"
    assert msgspec.json.decode(content)["version"] == 1


@given(originals=st.lists(st.from_type(Original)))
def test_former_power_settings_are_read_back(originals: list[Original]) -> None:
    content = write_originals(originals)
    assert read_originals(content, "power.json") == tuple(originals)
    assert msgspec.json.decode(content, type=list[Original]) == originals, "an older agent reads them"
    assert all(each["version"] == 1 for each in msgspec.json.decode(content))


def test_what_earlier_agents_wrote_is_read() -> None:
    assert read_daemon(FORMER_DAEMON, "daemon.json") == DAEMON
    assert read_originals(FORMER_ORIGINALS, "power.json") == ORIGINALS


def test_the_form_of_today_stays_as_it_is() -> None:
    assert write_daemon(DAEMON) == b'{"version":1,' + FORMER_DAEMON[1:]
    assert write_originals(ORIGINALS) == FORMER_ORIGINALS.replace(b'{"gpu"', b'{"version":1,"gpu"')


# Keyed by a sentence: the content of daemon.json, and why it is refused.
REFUSED = {
    "an empty file": (b"", "it is not complete JSON"),
    "a file that is cut off": (FORMER_DAEMON[:-9], "it is not complete JSON"),
    "bytes": (b"\xff", "it is not JSON"),
    "a list": (b"[]", "a list is not a mapping"),
    "a version to come": (b'{"version": 2}', "version: 2 is not a value that is accepted there"),
    "no process": (FORMER_DAEMON.replace(b'"pid":17,', b""), "pid: it is missing"),
    "a number that is a text": (FORMER_DAEMON.replace(b"9728", b'"9728"'), "target.memory_limit_mib: '9728' is not"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_an_unreadable_record_of_a_daemon_is_refused(sentence: str) -> None:
    content, why = REFUSED[sentence]
    with pytest.raises(InvalidInput) as refused:
        read_daemon(content, "K/daemon.json")
    assert str(refused.value).startswith("K/daemon.json: ")
    assert why in str(refused.value)
    assert str(refused.value).endswith("remove the file once its MPS daemon has ended")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'[{"version": 2, "gpu": "GPU-1"}]', b'[{"gpu": 1}]', b"\xff"], ids=str
)
def test_unreadable_power_settings_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"power\.json: .*remove the file once power limits and clocks are correct"):
        read_originals(content, "power.json")
