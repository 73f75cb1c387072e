"""Which pods are evicted, of those that were refused or have another's device, and when."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.clashes import Clash
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.refusals import (
    ContainerKey,
    RefusedContainer,
    blocked_pods,
    lasting_conflicts,
    refused_again,
    with_lost,
    without_ended,
)
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode

GPU, UNITS, GOLD = "nvidia.com/gpu", "tessera.dev/gpu-memory", "example.com/gold"
NODE = RegisteredNode(renamed=frozenset({GOLD}))
TEXT = "the kubelet has lost its record of the pod's devices, and cannot start a container with them again"
KEY: ContainerKey = ("p", "main", GPU)
LIVING, ENDING, ENDED = (
    GatePod(
        name="ns/p",
        requests=frozenset({("main", GPU), ("main", UNITS), ("main", GOLD), ("main", "rdma/hca")}),
        ended=ended,
        ending=ending,
    )
    for ended, ending in ((False, False), (False, True), (True, True))
)


def refusal(text: str = "no", *, at_s: float = 0.0, rival: str = "", final: bool = False) -> RefusedContainer:
    return RefusedContainer(pod="ns/p", text=text, since_s=at_s, last_s=at_s, rival=rival, final=final)


def lost(*, since_s: float = 9, last_s: float = 9) -> RefusedContainer:
    return RefusedContainer(pod="ns/p", text=TEXT, since_s=since_s, last_s=last_s, lost=True)


@given(st.lists(st.tuples(st.floats(0, 200), st.booleans()), min_size=1, max_size=8))
def test_a_pod_is_evicted_that_was_refused_again_after_a_minute_or_once_for_good(
    steps: list[tuple[float, bool]],
) -> None:
    times_s = sorted(at_s for at_s, _ in steps)
    kept: RefusedContainer | None = None
    for number, at_s in enumerate(times_s):
        final = any(each for _, each in steps[: number + 1])
        kept = refused_again(kept, refusal(str(number), at_s=at_s, final=steps[number][1]))
        evicted = blocked_pods({KEY: kept})
        assert bool(evicted) is (final or at_s - times_s[0] > 60)
        last = next((i for i in range(number + 1) if steps[i][1]), number)
        assert kept.text == str(last), "the last reason, or the first that is final"


# sentence: the pods of the API server: the refused one, and the one that has its devices; whether the refusal stays
PODS: dict[str, tuple[dict[str, GatePod], bool]] = {
    "both live": ({"p": LIVING, "q": LIVING}, True),
    "it is gone": ({"q": LIVING}, False),
    "it is being deleted": ({"p": ENDING, "q": LIVING}, False),
    "it has ended": ({"p": ENDED, "q": LIVING}, False),
    "the other is being deleted": ({"p": LIVING, "q": ENDING}, False),
    "the other has ended, and left processes": ({"p": LIVING, "q": ENDED}, True),
    "the other is gone, and left processes": ({"p": LIVING}, True),
}


@pytest.mark.parametrize("case", PODS)
def test_a_refusal_stays_that_does_not_resolve_itself(case: str) -> None:
    pods, stays = PODS[case]
    refused = {KEY: refusal(rival="q")}
    assert without_ended(refused, pods) == (refused if stays else {})


WORDS_OF_LOSS = "no devices found allocated in local cache for pod p, container main, resource nvidia.com/gpu"
# sentence: the last refusal; the kubelet's words; whether its checkpoint lacks the devices; the refusal then
WORDS: dict[str, tuple[RefusedContainer | None, str | None, bool, RefusedContainer | None]] = {
    "the kubelet says so": (None, WORDS_OF_LOSS, True, lost()),
    "its checkpoint has them": (None, WORDS_OF_LOSS, False, None),
    "it says so of another pod": (None, WORDS_OF_LOSS.replace("pod p", "pod q"), True, None),
    "it said so before": (lost(since_s=0, last_s=0), "back-off 40s", True, lost(since_s=0)),
    "it said so before, and its checkpoint has them": (lost(since_s=0, last_s=0), "back-off 40s", False, None),
    "it said so before, and the container runs": (lost(since_s=0, last_s=0), None, True, None),
    "it was refused in the same words, and the container runs": (refusal(TEXT), None, True, refusal(TEXT)),
    "it says another thing": (None, "back-off 40s", True, None),
    "it was refused before": (refusal(), WORDS_OF_LOSS, True, lost(since_s=0)),
    "it was refused before for good": (refusal(final=True), WORDS_OF_LOSS, True, refusal(final=True)),
    "it was refused, and the kubelet says another thing": (refusal(), "back-off 40s", True, refusal()),
}


@pytest.mark.parametrize("case", WORDS)
def test_devices_are_lost_by_the_kubelets_words_and_its_checkpoint(case: str) -> None:
    before, words, lacks, want = WORDS[case]
    messages = {} if words is None else {"p": {"main": words}}
    found = with_lost({} if before is None else {KEY: before}, {"p": LIVING}, messages, lambda *_: lacks, NODE, 9)
    assert found == ({} if want is None else {KEY: want})


@pytest.mark.parametrize("resource", [UNITS, GOLD])
def test_units_and_devices_of_other_names_are_lost_as_devices_are(resource: str) -> None:
    text = WORDS_OF_LOSS.replace(GPU, resource)
    want = {("p", "main", resource): lost()}
    assert with_lost({}, {"p": LIVING}, {"p": {"main": text}}, lambda *_: True, NODE, 9) == want


def test_a_message_of_another_container_or_of_no_device_is_not_ours() -> None:
    for container, resource in (("side", GPU), ("main", "rdma/hca")):
        text = WORDS_OF_LOSS.replace("main", container).replace(GPU, resource)
        assert with_lost({}, {"p": LIVING}, {"p": {container: text}}, lambda *_: True, NODE, 9) == {}


def entry(uid: str) -> AgentAllocation:
    return AgentAllocation(resource=GPU, ids=("x",), uid=uid, pod=f"ns/{uid}", container="main")


@example(steps=[(0.0, True, False), (15.0, True, True), (15.0, True, False)], moved=True)
@given(st.lists(st.tuples(st.floats(0, 20), st.booleans(), st.booleans()), max_size=12), st.booleans())
def test_a_conflict_lasts_at_once_or_after_half_a_minute_where_a_device_moved(
    steps: list[tuple[float, bool, bool]], moved: bool
) -> None:
    """Each step: how much later, whether the conflict is there, which of both is the later one."""
    now_s, since_s, standing = 0.0, None, dict[frozenset[ContainerKey], float]()
    for after_s, there, turned in steps:
        now_s += after_s
        later, earlier = (entry("p"), entry("q")) if turned else (entry("q"), entry("p"))
        conflicts = ((later, Clash(other=earlier, text="x")),) if there else ()
        lasting, standing = lasting_conflicts(conflicts, {KEY} if moved else set(), standing, now_s)
        since_s = (now_s if since_s is None else since_s) if there else None
        want = since_s is not None and (not moved or now_s - since_s >= 30)
        assert lasting == (conflicts if want else ())


def test_a_pod_that_alone_is_too_large_is_in_conflict_at_once() -> None:
    alone = (entry("p"), Clash(other=None, text="more memory", full=True))
    assert lasting_conflicts([alone], set(), {}, 5.0) == ((alone,), {})
