"""How it stands with a label's configuration: every sequence of looks ends in success or failed in time."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.gpufacts import at, gpu_facts
from builders.nodefacts import node_of
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.node.layouts import (
    Attempted,
    DeviceUser,
    LayoutCause,
    LayoutEvent,
    LayoutLimits,
    LayoutRequest,
    LayoutState,
    NodeObserved,
    NodeUnobserved,
    NotRebooted,
    Outlook,
    advance,
    outlook,
    resumed,
)

A100 = model("A100-40GB")
SEVEN = at(A100, *(("1g.5gb", start) for start in range(7)))
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
LIMITS = LayoutLimits(pending_s=100, rebooting_s=1000, retry_s=10, retry_most_s=35)
REBOOTS = msgspec.structs.replace(LIMITS, may_reboot=True)
USED = (DeviceUser(device=DeviceId("GPU-0", HALVES[0]), pod="ns/p"),)


def look(
    gpu: GpuFacts, users: tuple[DeviceUser, ...] = (), name: str = "all-1g.5gb", *, unseen: tuple[int, ...] = ()
) -> NodeObserved:
    """Return an observed node with one GPU to be partitioned into seven instances, and others that were lost before."""
    return NodeObserved(name, outlook(name, {}, msgspec.structs.replace(node_of(gpu), unseen=unseen), users))


ASKED = look(gpu_facts(layout=SEVEN))
OTHER = look(gpu_facts(layout=HALVES))
BLOCKED = look(gpu_facts(layout=HALVES), USED)
SWITCHED = look(gpu_facts(pending=True))
SWITCHED_BUSY = look(gpu_facts(pending=True), (DeviceUser(device=DeviceId("GPU-0"), pid=7),))
LOST = look(gpu_facts(layout=HALVES, lost=True))
UNSEEN = look(gpu_facts(layout=SEVEN), unseen=(1,))
UNSEEN_YET = look(gpu_facts(layout=HALVES), unseen=(1,))
UNKNOWN = look(gpu_facts(layout=HALVES), name="all-9g")
NONE = look(gpu_facts(layout=HALVES), name="")
BROKEN = Attempted(("GPU 0: create failed",), OTHER.outlook.observed)
DARK = NodeUnobserved("all-1g.5gb", "the kubelet does not answer")
WORKED = Attempted((), ASKED.outlook.observed)
TAKEN = NotRebooted("pod ns/p was admitted before the node could be rebooted", SWITCHED_BUSY.outlook, tried=False)
UNHEARD = NotRebooted("the reboot failed", SWITCHED.outlook, tried=True)


def after(*events: tuple[float, LayoutEvent], limits: LayoutLimits = LIMITS) -> LayoutRequest:
    """Return how it stands after events, each with its time."""
    request = LayoutRequest()
    for now_s, event in events:
        request = advance(request, event, now_s, limits)
    return request


@pytest.mark.parametrize(
    ("events", "limits", "want"),
    [
        pytest.param([(0, NONE)], LIMITS, (None, LayoutCause.PENDING, ""), id="no label"),
        pytest.param([(0, OTHER), (1, NONE)], LIMITS, (None, LayoutCause.PENDING, ""), id="the label is taken away"),
        pytest.param(
            [(0, ASKED)],
            LIMITS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs have the requested layout"),
            id="as asked",
        ),
        pytest.param(
            [(0, OTHER)], LIMITS, (LayoutState.PENDING, LayoutCause.PENDING, "being applied"), id="it differs"
        ),
        pytest.param(
            [(0, OTHER), (1, WORKED), (2, ASKED)],
            LIMITS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs have the requested layout"),
            id="applied",
        ),
        pytest.param(
            [(0, ASKED), (9, OTHER)], LIMITS, (LayoutState.PENDING, LayoutCause.PENDING, "being applied"), id="drift"
        ),
        pytest.param(
            [(0, UNSEEN)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "the driver has lost GPU 1; reset it or reboot the node"),
            id="a GPU that was lost before the agent started",
        ),
        pytest.param(
            [(0, UNSEEN_YET), (1, WORKED), (2, UNSEEN)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "the driver has lost GPU 1"),
            id="the other GPUs are done",
        ),
        pytest.param(
            [(0, UNSEEN), (9, ASKED)],
            LIMITS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs have the requested layout"),
            id="a GPU that came back as asked",
        ),
        pytest.param(
            [(0, UNSEEN), (9, OTHER)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "being applied"),
            id="a GPU that came back otherwise",
        ),
        pytest.param(
            [(0, UNKNOWN)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "MIG configuration: 'all-9g' is not the name of"),
            id="a name that does not exist",
        ),
        pytest.param(
            [(0, BLOCKED)],
            LIMITS,
            (
                LayoutState.PENDING,
                LayoutCause.BLOCKED,
                "GPU 0: 3g.20gb at 0 is in use and occupies memory slices 0, 1, 2, 3",
            ),
            id="a used instance is waited for",
        ),
        pytest.param(
            [(0, BLOCKED), (99, BLOCKED)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.BLOCKED, "GPU 0: 3g.20gb"),
            id="as long as there is time",
        ),
        pytest.param(
            [(0, BLOCKED), (100, BLOCKED)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.BLOCKED, "not done in time; GPU 0: 3g.20gb at 0 is in use"),
            id="and no longer",
        ),
        pytest.param(
            [(0, BLOCKED), (100, BLOCKED), (500, BLOCKED)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.BLOCKED, "not done in time; GPU 0: 3g.20gb at 0 is in use"),
            id="it stays failed while it is blocked",
        ),
        pytest.param(
            [(0, BLOCKED), (100, BLOCKED), (500, LOST)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "the driver has lost GPU 0"),
            id="and says so when it is something else",
        ),
        pytest.param(
            [(0, BLOCKED), (100, BLOCKED), (500, OTHER)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "being applied"),
            id="the user has gone after all",
        ),
        pytest.param(
            [(0, OTHER), (100, OTHER)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "not done in time"),
            id="nobody in the way and yet not done",
        ),
        pytest.param(
            [(0, OTHER), (1, BROKEN)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "GPU 0: create failed"),
            id="a step failed",
        ),
        pytest.param(
            [(0, OTHER), (1, BROKEN), (10, OTHER)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "GPU 0: create failed"),
            id="not tried again at once",
        ),
        pytest.param(
            [(0, OTHER), (1, Attempted(("GPU 0: no answer",), ())), (2, OTHER)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "GPU 0: no answer"),
            id="nor when it is not known whether anything has changed",
        ),
        pytest.param(
            [(0, OTHER), (1, BROKEN), (11, OTHER)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "being applied"),
            id="tried again after a pause",
        ),
        pytest.param(
            [(0, OTHER), (1, BROKEN), (2, look(gpu_facts(layout=HALVES[:1])))],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "being applied"),
            id="tried again when the GPU has changed",
        ),
        pytest.param(
            [(0, LOST)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "the driver has lost GPU 0; reset it or reboot the node"),
            id="a lost GPU",
        ),
        pytest.param(
            [(0, SWITCHED)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "GPU 0: MIG is switched on with the next reset: drain the node"),
            id="a reset is needed, and nobody may reboot",
        ),
        pytest.param(
            [(0, SWITCHED)],
            REBOOTS,
            (LayoutState.REBOOTING, LayoutCause.REBOOTING, "MIG was switched; the node reboots"),
            id="a reset is needed, and the node may reboot",
        ),
        pytest.param(
            [(0, SWITCHED_BUSY)],
            REBOOTS,
            (LayoutState.PENDING, LayoutCause.BLOCKED, "MIG was switched; the node reboots once its GPUs are idle"),
            id="not while a GPU is used",
        ),
        pytest.param(
            [(0, SWITCHED_BUSY), (100, SWITCHED_BUSY)],
            REBOOTS,
            (
                LayoutState.FAILED,
                LayoutCause.FAILED,
                "not done in time; MIG was switched; the node reboots once its GPUs",
            ),
            id="nor for ever",
        ),
        pytest.param(
            [(0, SWITCHED_BUSY), (100, SWITCHED_BUSY), (200, SWITCHED)],
            REBOOTS,
            (LayoutState.REBOOTING, LayoutCause.REBOOTING, "MIG was switched; the node reboots"),
            id="but when they have gone",
        ),
        pytest.param(
            [(0, SWITCHED), (999, SWITCHED)],
            REBOOTS,
            (LayoutState.REBOOTING, LayoutCause.REBOOTING, "MIG was switched; the node reboots"),
            id="a reboot takes its time",
        ),
        pytest.param(
            [(0, SWITCHED), (1000, SWITCHED)],
            REBOOTS,
            (LayoutState.FAILED, LayoutCause.FAILED, "the reboot did not help; GPU 0: MIG is switched on"),
            id="and no longer than that",
        ),
        pytest.param(
            [(0, SWITCHED), (1000, SWITCHED), (2000, SWITCHED)],
            REBOOTS,
            (
                LayoutState.FAILED,
                LayoutCause.FAILED,
                "the reboot did not help; GPU 0: MIG is switched on with the next reset",
            ),
            id="a node is not rebooted twice for one request",
        ),
        pytest.param(
            [(0, SWITCHED), (900, look(gpu_facts(layout=())))],
            REBOOTS,
            (LayoutState.PENDING, LayoutCause.PENDING, "being applied"),
            id="after the reboot it goes on",
        ),
        pytest.param(
            [(0, SWITCHED), (900, ASKED)],
            REBOOTS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs have the requested layout"),
            id="after the reboot all is there",
        ),
        pytest.param(
            [(0, SWITCHED), (1, TAKEN), (2, SWITCHED_BUSY), (3, SWITCHED)],
            REBOOTS,
            (
                LayoutState.FAILED,
                LayoutCause.BLOCKED,
                "pod ns/p was admitted before the node could be rebooted; GPU 0: MIG is switched",
            ),
            id="a GPU came into use before the reboot",
        ),
        pytest.param(
            [(0, SWITCHED), (1, TAKEN), (2, SWITCHED_BUSY), (11, SWITCHED)],
            REBOOTS,
            (LayoutState.REBOOTING, LayoutCause.REBOOTING, "MIG was switched; the node reboots"),
            id="and is free again after a pause",
        ),
        pytest.param(
            [(0, SWITCHED), (1, UNHEARD), (500, SWITCHED), (5000, SWITCHED)],
            REBOOTS,
            (
                LayoutState.FAILED,
                LayoutCause.FAILED,
                "the reboot failed; GPU 0: MIG is switched on with the next reset",
            ),
            id="the node is not told twice to reboot",
        ),
        pytest.param(
            [(0, ASKED), (1, UNHEARD)],
            REBOOTS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs"),
            id="word of it too late",
        ),
        pytest.param(
            [(0, DARK)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "the kubelet does not answer"),
            id="nothing to see",
        ),
        pytest.param(
            [(0, OTHER), (99, DARK)],
            LIMITS,
            (LayoutState.PENDING, LayoutCause.PENDING, "the kubelet does not answer"),
            id="nothing to see, with time left",
        ),
        pytest.param(
            [(0, DARK), (100, DARK)],
            LIMITS,
            (LayoutState.FAILED, LayoutCause.FAILED, "not done in time; the kubelet does not answer"),
            id="nothing to see for too long",
        ),
        pytest.param(
            [(0, ASKED), (500, DARK)],
            LIMITS,
            (LayoutState.SUCCESS, LayoutCause.APPLIED, "all GPUs"),
            id="it may well still be so",
        ),
        pytest.param(
            [(0, ASKED), (1, BROKEN)], LIMITS, (LayoutState.SUCCESS, LayoutCause.APPLIED, "all"), id="a report too late"
        ),
    ],
)
def test_layout_request(
    events: list[tuple[float, LayoutEvent]], limits: LayoutLimits, want: tuple[LayoutState | None, LayoutCause, str]
) -> None:
    got = after(*events, limits=limits)
    assert (got.state, got.cause) == want[:2]
    assert got.reason.startswith(want[2])


def test_pauses_double_up_to_the_longest() -> None:
    now_s, request, pauses = 0.0, LayoutRequest(), []
    for _ in range(4):
        request = advance(advance(request, OTHER, now_s, LIMITS), BROKEN, now_s, LIMITS)
        pauses.append(request.retry_s - now_s)
        now_s = request.retry_s
    assert pauses == [10, 20, 35, 35]
    assert advance(request, ASKED, now_s, LIMITS).attempts == 0
    assert [after((0, each)).acts for each in (OTHER, ASKED, UNKNOWN)] == [True, False, False]


def test_another_label_starts_anew() -> None:
    request = after((0, OTHER), (1, BROKEN), (2, look(gpu_facts(layout=HALVES), name="all-2g.10gb")))
    assert (request.name, request.state, request.attempts) == ("all-2g.10gb", LayoutState.PENDING, 0)


def test_the_condition_says_it_in_kubernetes_words() -> None:
    assert LayoutRequest().condition is None
    said = [request.condition for request in (after((0, OTHER)), after((0, ASKED)), after((0, UNKNOWN)))]
    assert [(each.status, each.reason) for each in said if each] == [
        ("Unknown", "LayoutPending"),
        ("True", "LayoutApplied"),
        ("False", "LayoutFailed"),
    ]
    assert said[1] is not None
    assert said[1].message == "configuration all-1g.5gb: all GPUs have the requested layout"


def test_an_agent_that_asked_for_a_reboot_goes_on_after_it() -> None:
    request = resumed("all-1g.5gb", "rebooting", 50, REBOOTS)
    assert (request.state, request.until_s, request.rebooted) == (LayoutState.REBOOTING, 1050, True)
    assert advance(request, ASKED, 51, REBOOTS).state is LayoutState.SUCCESS
    still = advance(advance(request, look(gpu_facts()), 51, REBOOTS), SWITCHED, 52, REBOOTS)
    assert (still.state, still.reason[:25]) == (LayoutState.FAILED, "GPU 0: MIG is switched on")
    assert resumed("all-1g.5gb", "pending", 50, REBOOTS) == LayoutRequest()
    assert resumed("", "rebooting", 50, REBOOTS) == LayoutRequest()
    assert resumed("", "failed", 50, REBOOTS, rebooted=True) == LayoutRequest()


def test_an_agent_that_finds_that_the_node_was_told_to_reboot_does_not_tell_it_again() -> None:
    request = resumed("all-1g.5gb", "failed", 50, REBOOTS, rebooted=True)
    assert advance(request, SWITCHED, 51, REBOOTS).state is LayoutState.FAILED
    assert advance(request, ASKED, 51, REBOOTS).state is LayoutState.SUCCESS
    other = advance(request, look(gpu_facts(pending=True), name="all-2g.10gb"), 51, REBOOTS)
    assert other.state is LayoutState.REBOOTING


LOOKS = st.sampled_from([ASKED, OTHER, BLOCKED, SWITCHED, SWITCHED_BUSY, LOST])


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.floats(0, 60), LOOKS | st.sampled_from([BROKEN, WORKED, DARK, TAKEN, UNHEARD])), max_size=40),
    st.booleans(),
)
def test_the_label_never_stays_pending_or_rebooting(events: list[tuple[float, LayoutEvent]], reboots: bool) -> None:
    limits = REBOOTS if reboots else LIMITS
    request, now_s, since_s = LayoutRequest(), 0.0, 0.0
    for pause_s, event in events:
        now_s += pause_s
        before = request.state
        request = advance(request, event, now_s, limits)
        if request.state is not before:
            since_s = now_s
        if isinstance(event, NodeObserved):
            assert request.state is not None
            assert (request.state is LayoutState.SUCCESS) is event.outlook.done
            assert request.reason
        if not isinstance(event, Attempted | NotRebooted):
            if request.state is LayoutState.PENDING:
                assert now_s - since_s < limits.pending_s
            if request.state is LayoutState.REBOOTING:
                assert now_s - since_s < limits.rebooting_s


@given(LOOKS, LOOKS, st.booleans())
def test_whatever_is_seen_for_long_enough_is_reported_and_no_more_is_tried(
    first: NodeObserved, last: NodeObserved, reboots: bool
) -> None:
    limits = REBOOTS if reboots else LIMITS
    request = after((0, first), (1, last), (2000, last), (4000, last), limits=limits)
    if not last.outlook.feasible:
        assert request.state in {LayoutState.SUCCESS, LayoutState.FAILED}
        assert advance(request, last, 9000, limits).state is request.state
    assert isinstance(last.outlook, Outlook)
