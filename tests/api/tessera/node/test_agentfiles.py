"""What the agent keeps on the disk: read as it was written, by this version and by those of before."""

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.shares import share
from tessera.api.tessera.node.agentfiles import (
    Answers,
    read_allocations,
    read_answers,
    unreadable_entries,
    write_allocations,
    write_answers,
)
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.allocations.matching import Answer, AssignedRequest, Correction
from tessera.core.deviceplugin.allocations.unreadableentries import UnreadableEntry
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import ListStrategy
from tessera.errors import InvalidInput

NEED = "tessera.dev/gpu-memory"
TEXT, FLAG, AMOUNT = st.text(max_size=5), st.booleans(), st.integers(0, 1 << 50)
PLACEMENTS = st.none() | st.builds(Placement, start=AMOUNT, size=AMOUNT, profile=TEXT)
SHARES = st.lists(
    st.builds(
        Share,
        gpu=st.integers(0, 255),
        profile=st.none() | st.sampled_from(["1g.5gb", "7g.80gb+me"]),
        start=st.none() | st.integers(0, 64),
        memory_mib=st.integers(0, 1 << 24),
        compute_percent=st.integers(0, 100),
        resource=TEXT,
        container=TEXT,
    ),
    max_size=2,
).map(tuple)
KEYS = st.builds(RequestKey, TEXT, TEXT, TEXT, TEXT)
REQUESTS = st.builds(AssignedRequest, key=KEYS, units=AMOUNT, shares=SHARES, models=st.tuples(TEXT), at=AMOUNT)
USES = st.builds(
    AllocatedDevice,
    device=st.builds(DeviceId, TEXT, PLACEMENTS),
    exclusivity=st.sampled_from(Exclusivity),
    memory_mib=AMOUNT,
)
USES = st.builds(msgspec.structs.replace, USES, mps=st.sampled_from([None, False, True]), clients=AMOUNT)
ALLOCATIONS = st.builds(
    AgentAllocation,
    ids=st.tuples(TEXT),
    uses=st.tuples(USES),
    uid=TEXT,
    pod=TEXT,
    container=TEXT,
    initial=FLAG,
    order=st.integers(-1, 9),
    at_ns=AMOUNT,
    presumed=FLAG,
    started=FLAG,
    assignment=TEXT,
    key=TEXT,
    signature=TEXT,
    strategies=st.lists(st.sampled_from(get_args(ListStrategy)), max_size=2).map(tuple),
    indices=st.lists(TEXT, max_size=2).map(tuple),
    uuids=st.lists(TEXT, max_size=2).map(tuple),
    answer_known=FLAG,
)
ANSWERS = st.builds(
    Answers,
    answers=st.tuples(st.builds(Answer, ids=st.frozensets(TEXT), key=KEYS, shares=SHARES, fixed=FLAG)),
    exchanges=st.tuples(st.builds(Correction, request=REQUESTS, shares=SHARES)),
)


@given(st.lists(ALLOCATIONS, max_size=3).map(tuple))
def test_a_record_of_allocations_is_read_as_it_was_written(record: tuple[AgentAllocation, ...]) -> None:
    assert read_allocations(write_allocations(record)) == (record, "")


@given(ANSWERS)
def test_answers_are_read_as_they_were_written(kept: Answers) -> None:
    assert read_answers(write_answers(kept), "shares.json") == kept


FORMER_ALLOCATIONS = b"""[{"resource": "nvidia.com/mig-1g.5gb", "ids": ["MIG-1"], "uid": "u", "pod": "ns/p",
  "container": "c", "uses": [{"gpu": "GPU-1", "placement": {"start": 1, "size": 1, "profile": "1g.5gb"}, "sharer":
   "replica", "memory_mib": 7}], "initial": false, "at_ns": 5, "started": true}]"""
FORMER_ANSWERS = b"""{"answers": [{"ids": ["a"], "key": ["ns", "p", "c", "r"], "specification": "[]", "shares": [
  {"gpu": 0, "mode": "mps", "memory_mib": 4096, "compute_percent": 10, "isolation": "driver", "resource": "r"}]}],
  "exchanges": [{"due": {"key": ["ns", "p", "c", "r"], "units": 1, "shares": []}, "shares": []}]}"""
"""As versions of before wrote them, without a version."""


def test_version_1_has_these_names() -> None:
    """A name that changes is another version: agents of before and after a rollout read the same files."""
    (entry,) = json.loads(write_allocations(read_allocations(FORMER_ALLOCATIONS)[0]))
    placement = {"start": 1, "size": 1, "profile": "1g.5gb"}
    use = {"gpu": "GPU-1", "placement": placement, "sharer": "replica", "memory_mib": 7}
    use |= {"mps": None, "clients": 0, "absent": False}
    assert entry == {
        "version": 1,
        "resource": "nvidia.com/mig-1g.5gb",
        "ids": ["MIG-1"],
        "uses": [use],
        "uid": "u",
        "pod": "ns/p",
        "container": "c",
        "initial": False,
        "order": -1,
        "at_ns": 5,
        "guessed": False,
        "started": True,
        "assignment": "",
        "key": "",
        "signature": "",
        "strategies": [],
        "indices": [],
        "uuids": [],
        "answer_known": False,
    }
    kept = json.loads(write_answers(read_answers(FORMER_ANSWERS, "shares.json")))
    (answer,), (exchange,) = kept["answers"], kept["exchanges"]
    assert (kept["version"], sorted(answer), sorted(exchange)) == (
        1,
        ["fixed", "ids", "key", "shares", "specification"],
        ["due", "shares"],
    )
    assert sorted(answer["shares"][0]) == [
        *("compute_percent", "container", "gpu", "isolation", "memory_mib", "mode", "profile", "resource", "start"),
    ]


def test_what_was_written_before_there_were_versions_is_read() -> None:
    use = AllocatedDevice(
        device=DeviceId("GPU-1", Placement(1, 1, "1g.5gb")), exclusivity=Exclusivity.REPLICA, memory_mib=7
    )
    held = AgentAllocation(
        resource="nvidia.com/mig-1g.5gb",
        ids=("MIG-1",),
        uses=(use,),
        uid="u",
        pod="ns/p",
        container="c",
        at_ns=5,
        started=True,
    )
    assert read_allocations(FORMER_ALLOCATIONS) == ((held,), "")
    key = RequestKey("ns", "p", "c", "r")
    given_share = share(0, 4096, Mode.MPS, percent=10, resource="r", container="")
    kept = Answers(
        answers=(Answer(ids=frozenset({"a"}), key=key, specification="[]", shares=(given_share,)),),
        exchanges=(Correction(request=AssignedRequest(key=key, units=1, shares=()), shares=()),),
    )
    assert read_answers(FORMER_ANSWERS, "shares.json") == kept


STATE = Path(__file__).parents[3] / "data" / "agentstate"
"""Each file is what the agent of one day wrote, named by what was new in it."""
FILES = {
    kind: sorted((STATE / kind).iterdir(), key=lambda each: int(each.name.partition("-")[0]))
    for kind in ("allocations", "shares")
}


def test_there_is_a_file_of_what_this_version_writes() -> None:
    """A field that is new here needs a file with it: the versions to come read it then."""
    newest = json.loads(FILES["allocations"][-1].read_text())
    assert json.loads(write_allocations(read_allocations(FILES["allocations"][-1].read_bytes())[0])) == newest
    newest = json.loads(FILES["shares"][-1].read_text())
    assert json.loads(write_answers(read_answers(FILES["shares"][-1].read_bytes(), "shares.json"))) == newest


@pytest.mark.parametrize("path", FILES["allocations"], ids=lambda path: path.stem)
def test_each_record_of_allocations_that_was_ever_written_is_read(path: Path) -> None:
    """Nothing of it is forgotten: what it lacks is not yet known."""
    found, problem = read_allocations(path.read_bytes())
    assert problem == ""
    number = int(path.name.partition("-")[0])
    turns = AllocatedDevice(
        device=DeviceId("GPU-00000001"), exclusivity=Exclusivity.REPLICA, mps=False if number > 8 else None
    )
    part = msgspec.structs.replace(
        turns, device=DeviceId("GPU-00000002"), exclusivity=Exclusivity.MEMORY, memory_mib=2048
    )
    assert [(each.resource, each.ids, each.uses, each.uid, each.pod, each.container, each.at_ns) for each in found] == [
        (
            "nvidia.com/mig-1g.5gb",
            ("MIG-1",),
            (AllocatedDevice(device=DeviceId("GPU-00000000", Placement(0, 1, "1g.5gb"))),),
            *("uid-slice", "ns/slice", "main", 5),
        ),
        ("nvidia.com/gpu", ("GPU-00000001::0",), (turns,), "uid-turns", "ns/turns", "main", 6),
        (NEED, ("GPU-00000002-_-0", "GPU-00000002-_-1"), (part,), "uid-memory", "ns/memory", "main", 7),
        (NEED, ("GPU-00000002-_-2",), (msgspec.structs.replace(part, memory_mib=1024),), "", "", "", 8),
    ]
    assert [each.started for each in found] == [number > 4] * 3 + [False]
    assert [each.presumed for each in found] == [False] * 3 + [number > 3]
    assert found[2].assignment == ("{}" if number > 5 else "")
    assert [each.strategies for each in found] == [("envvar",) if number > 10 else ()] * 4
    assert [each.indices for each in found] == [(), ("1",) if number > 11 else (), (), ()]
    assert [each.uuids for each in found] == [(), (), ("GPU-00000002",) if number > 12 else (), ()]
    assert [each.answer_known for each in found] == [number > 13] * 4


@given(st.lists(ALLOCATIONS | st.just(None), max_size=4))
def test_of_a_record_the_readable_entries_are_read_and_a_phrase_says_why_others_are_not(
    entries: list[AgentAllocation | None],
) -> None:
    """An entry that is no allocation stands for None."""
    written = [b"7" if each is None else write_allocations([each])[1:-1] for each in entries]
    found, problem = read_allocations(b"[" + b",".join(written) + b"]")
    assert found == tuple(each for each in entries if each is not None)
    assert bool(problem) == (None in entries)
    assert read_allocations(b"[" + b",".join(written)) == ((), "it is not complete JSON")


@pytest.mark.parametrize("path", FILES["allocations"], ids=lambda path: path.stem)
def test_a_damaged_record_still_names_its_pods(path: Path) -> None:
    content = path.read_bytes()
    uids = frozenset(each.uid for each in read_allocations(content)[0] if each.uid)
    assert unreadable_entries(b"\xff" + content[:-2]) == {UnreadableEntry(uid) for uid in uids}
    assert unreadable_entries(content) == unreadable_entries(b"") == frozenset()


def test_of_a_damaged_entry_it_is_known_which_container_of_which_pod_it_was() -> None:
    whole = FILES["allocations"][-1].read_bytes()
    damaged = whole.replace(b'"gpu":"GPU-00000000"', b'"gpu":7').replace(b'"gpu":"GPU-00000001"', b'"gpu":"\xff"')
    found = {
        UnreadableEntry("uid-slice", "main", "nvidia.com/mig-1g.5gb"),
        UnreadableEntry("uid-turns", "main", "nvidia.com/gpu"),
    }
    assert unreadable_entries(damaged) == found
    assert unreadable_entries(b'[{"uid": "u", "container": 5, "resource": "r"}, 7]') == {UnreadableEntry("u", "", "r")}


@pytest.mark.parametrize("path", FILES["shares"], ids=lambda path: path.stem)
def test_all_answers_that_were_ever_written_are_read(path: Path) -> None:
    kept = read_answers(path.read_bytes(), "shares.json")
    key = RequestKey("ns", "p", "main", NEED)
    first, second = (share(gpu, 2048, Mode.MEMORY_SHARE, resource=NEED, container="main") for gpu in (0, 1))
    assert kept.answers == (Answer(ids=frozenset({"GPU-00000001-_-0"}), key=key, specification="[]", shares=(second,)),)
    uid = "uid-p" if int(path.name.partition("-")[0]) > 6 else ""
    request = AssignedRequest(key=key, uid=uid, units=2, shares=(first,), since_ns=7)
    assert kept.exchanges == (Correction(request=request, shares=(second,)),)


@pytest.mark.parametrize(
    ("changed", "was"),
    [
        (b'"gpu": 256', b'"gpu": 0'),
        (b'"memory_mib": -1', b'"memory_mib": 4096'),
        (b'"memory_mib": 16777217', b'"memory_mib": 4096'),
        (b'"compute_percent": 101', b'"compute_percent": 10'),
    ],
)
def test_a_share_on_the_disk_has_the_bounds_of_an_assignment(changed: bytes, was: bytes) -> None:
    content = FORMER_ANSWERS.replace(was, changed)
    assert content != FORMER_ANSWERS
    with pytest.raises(InvalidInput, match=r"shares\.json"):
        read_answers(content, "shares.json")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 2}', b"\xff", b"[" * 100_000], ids=str)
def test_answers_of_a_version_to_come_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"shares\.json"):
        read_answers(content, "shares.json")
