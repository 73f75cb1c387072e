"""What kube-scheduler sends is read as Go reads it, and answered in the form it was asked."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.scheduler.extender import (
    BindingArgs,
    PreemptionCandidate,
    read_args,
    read_binding,
    read_preemption,
    write_bound,
    write_error,
    write_filtered,
    write_priorities,
    write_victims,
)
from tessera.errors import InvalidInput

POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "default", "uid": "u1"}}


def body(**members: Any) -> bytes:
    return msgspec.json.encode(members)


NODES: dict[str, Any] = {
    "metadata": {},
    "items": [{"metadata": {"name": "a"}, "status": {"x": 1.0}}, {"metadata": {"name": "b"}}],
}

ARGS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "names, as with nodeCacheCapable": (body(Pod=POD, Nodes=None, NodeNames=["a", "b"]), ("a", "b")),
    "nodes, as without": (body(Pod=POD, Nodes=NODES, NodeNames=None), ("a", "b")),
    "keys in another case": (body(pod=POD, nODES=None, nodenames=["a"]), ("a",)),
    "keys Go folds to ASCII": ('{"Pod":{},"NodeName\u017f":["a"]}'.encode(), ("a",)),
    "unknown keys are left out": (body(Pod=POD, NodeNames=["a"], Later={"x": [1]}), ("a",)),
    "the last of two keys counts": (b'{"Pod":{},"NodeNames":["a"],"nodenames":["b"],"Pod":{"metadata":{}}}', ("b",)),
    "a name twice counts once": (body(Pod=POD, NodeNames=["a", "b", "a"]), ("a", "b")),
    "no nodes": (body(Pod=POD, NodeNames=[]), ()),
    "an empty Go slice of nodes": (body(Pod=POD, Nodes={"metadata": {}, "items": None}), ()),
    "a node without metadata": (body(Pod=POD, Nodes={"items": [{}]}), ("",)),
}


@pytest.mark.parametrize("case", ARGS)
def test_nodes_asked_about(case: str) -> None:
    sent, want = ARGS[case]
    assert read_args(sent).names == want


def test_numbers_with_a_fraction_stay_exact() -> None:
    got = read_args(b'{"Pod":{"a":0.1},"NodeNames":[]}').pod["a"]
    assert str(got) == "0.1"


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "it is not complete JSON"),
    "cut off": (b'{"Pod":{"metadata"', "it is not complete JSON"),
    "not JSON": (b"\xff\x00", "it is not JSON"),
    "a list": (b"[]", "a list is not a mapping"),
    "null": (b"null", "null"),
    "brackets without end": (b'{"Pod":' + b"[" * 100_000, "nested too deeply"),
    "a deep pod": (b'{"Pod":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b'},"NodeNames":[]}', "nested too deeply"),
    "no pod": (body(NodeNames=[]), "no Pod"),
    "null for a pod": (body(Pod=None, NodeNames=[]), "no Pod"),
    "a number for a pod": (body(Pod=1, NodeNames=[]), "Pod: .*an integer is not a mapping"),
    "no nodes at all": (body(Pod=POD), "neither Nodes nor NodeNames"),
    "a number for a name": (body(Pod=POD, NodeNames=[1]), r"NodeNames: \[0\]: 1 is not a text"),
    "a list for nodes": (body(Pod=POD, Nodes=[]), "Nodes: .*a list is not a mapping"),
    "a number for a node": (body(Pod=POD, Nodes={"items": [1]}), "Nodes: .*an integer is not a mapping"),
    "text that is not UTF-8": (b'{"Pod":{"a":"\xff"},"NodeNames":[]}', "it is not UTF-8"),
    "a number no machine has": (b'{"Pod":{"a":' + b"9" * 5000 + b'},"NodeNames":[]}', "out of range"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_body_is_refused_with_what_was_found(case: str) -> None:
    sent, want = WRONG[case]
    with pytest.raises(InvalidInput, match=want):
        read_args(sent)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(sent: bytes) -> None:
    for read in (read_args, read_binding, read_preemption):
        with pytest.raises(InvalidInput):
            read(sent)


@given(st.sampled_from([ARGS[case][0] for case in ARGS]), st.data())
def test_no_truncated_body_is_taken_for_a_question(whole: bytes, data: st.DataObject) -> None:
    with pytest.raises(InvalidInput):
        read_args(whole[: data.draw(st.integers(0, len(whole) - 1))])


def decoded(answer: bytes) -> Any:
    return msgspec.json.decode(answer)


def test_names_are_answered_with_names() -> None:
    args = read_args(body(Pod=POD, NodeNames=["a", "b", "c"]))
    want = {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {"b": "full"},
        "FailedAndUnresolvableNodes": {"c": "no GPU"},
        "Error": "",
    }
    assert decoded(write_filtered(args, ("a",), {"b": "full"}, {"c": "no GPU"})) == want


def test_nodes_are_answered_with_the_nodes_as_they_were_sent() -> None:
    args = read_args(body(Pod=POD, Nodes=NODES))
    got = decoded(write_filtered(args, ("a",), {"b": "full"}, {}))
    assert (got["Nodes"], got["NodeNames"]) == ({"metadata": {}, "items": [NODES["items"][0]]}, None)


def test_scores_errors_and_victims_have_the_names_of_go() -> None:
    assert decoded(write_priorities(("a", "b"), (10, 0))) == [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 0}]
    assert decoded(write_bound()) == {"Error": ""}
    assert decoded(write_bound("node gone")) == {"Error": "node gone"}
    assert decoded(write_error(ValueError("x"))) == {"Error": "x"}
    want = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}}
    assert decoded(write_victims((PreemptionCandidate(node="a", victims=("u",), violations=2),))) == want


BINDINGS: dict[str, tuple[bytes, BindingArgs | str]] = {
    "as sent": (
        body(PodName="p", PodNamespace="n", PodUID="u", Node="a"),
        BindingArgs(namespace="n", name="p", uid="u", node="a"),
    ),
    "in another case, without UID": (
        body(podname="p", podNamespace="n", node="a", PodUID=None),
        BindingArgs(namespace="n", name="p", uid="", node="a"),
    ),
    "without node": (body(PodName="p", PodNamespace="n", PodUID="u", Node=""), "no Node"),
    "without anything": (b"{}", "no PodName, no PodNamespace, no Node"),
    "with a number": (body(PodName=1, PodNamespace="n", Node="a"), "PodName: 1 is not a text"),
}


@pytest.mark.parametrize("case", BINDINGS)
def test_bindings(case: str) -> None:
    sent, want = BINDINGS[case]
    if isinstance(want, BindingArgs):
        assert read_binding(sent) == want
        assert want.key == f"{want.namespace}/p"
    else:
        with pytest.raises(InvalidInput, match=want):
            read_binding(sent)


PREEMPTIONS: dict[str, tuple[bytes, tuple[PreemptionCandidate, ...]]] = {
    "victims by UID": (
        body(Pod=POD, NodeNameToMetaVictims={"a": {"Pods": [{"UID": "u"}, {"uid": "v"}], "NumPDBViolations": 1}}),
        (PreemptionCandidate(node="a", victims=("u", "v"), violations=1),),
    ),
    "victims as pods": (
        body(Pod=POD, NodeNameToVictims={"a": {"Pods": [POD, {}], "NumPDBViolations": 0}}, NodeNameToMetaVictims=None),
        (PreemptionCandidate(node="a", victims=("u1", "")),),
    ),
    "nothing, as Go writes it": (
        body(Pod=POD, NodeNameToMetaVictims={"a": None, "b": {"Pods": None, "NumPDBViolations": None}}),
        (PreemptionCandidate(node="a", victims=()), PreemptionCandidate(node="b", victims=())),
    ),
    "no candidates": (body(Pod=POD, NodeNameToVictims=None), ()),
}


@pytest.mark.parametrize("case", PREEMPTIONS)
def test_preemptions(case: str) -> None:
    sent, want = PREEMPTIONS[case]
    assert read_preemption(sent).candidates == want


@pytest.mark.parametrize("sent", [body(NodeNameToVictims={}), body(Pod=POD, NodeNameToVictims={"a": [1]})])
def test_a_wrong_preemption_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_preemption(sent)
