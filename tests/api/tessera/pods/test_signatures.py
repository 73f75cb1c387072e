"""Whose assignments count: every forgery that comes to mind, and never more than was asked."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import amount, gpu, gpunode, mig_share, place, pod, share
from builders.signed import AGENT, SERVER, STRANGER, authority, config_map, keys, public, signed
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.tessera.pods.assignments import read_shares, write_shares
from tessera.api.tessera.pods.clusterpods import object_field, read_live_pod
from tessera.api.tessera.pods.signatures import (
    InvalidAssignment,
    Keys,
    UnknownKey,
    is_signed,
    key_id,
    key_named,
    keys_text,
    public_keys,
    published,
    published_keys,
    secret,
    secret_seed,
    signed_text,
)
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Isolation
from tessera.errors import InvalidInput

Object = dict[str, Any]

NEED, GPUSHARE, GPU, SLICE = "tessera.dev/gpu-memory", "aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
SIGNATURE = "tessera.dev/assignment-signature"
HONEST = pod("p", {NEED: 4}, amount(0))


def shares_of(each: Object, counting: Keys | None, unit_mib: int = 1024) -> tuple[Share, ...] | None:
    field = object_field("Pod", each)
    return read_shares(field, read_need(field, share_unit_mib=unit_mib), share_unit_mib=unit_mib, keys=counting)


def annotated(each: Object, **annotations: str) -> Object:
    named = {f"tessera.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return {**each, "metadata": {**each["metadata"], "annotations": {**each["metadata"]["annotations"], **named}}}


def resigned(text: Callable[[str], str]) -> Object:
    """Return the honest pod with its signature changed."""
    good = signed(HONEST)
    return annotated(good, assignment_signature=text(good["metadata"]["annotations"][SIGNATURE]))


def version_2(text: str) -> str:
    return text.replace("v1", "v2")


def test_what_a_server_or_the_node_s_own_agent_signed_counts() -> None:
    for signer in (SERVER, AGENT):
        assert shares_of(signed(HONEST, signer), keys(SERVER, AGENT)) == (amount(0),)
        assert is_signed(signed(HONEST, signer), keys(SERVER, AGENT))


FORGED: Mapping[str, tuple[Object, str]] = {
    "no signature": (HONEST, "no signature"),
    "the signature of another pod": (signed(HONEST, uid="uid-other"), "another pod, node or assignment"),
    "that of the pod of this name that was before it": (signed(HONEST, uid="uid-former"), "another pod"),
    "that of a pod without a UID": (signed(HONEST, uid=""), "another pod"),
    "that of another node": (signed(HONEST, node="b"), "another pod, node or assignment"),
    "that of another text": (
        annotated(signed(HONEST), assignment=write_shares((amount(1),))),
        "another pod, node or assignment",
    ),
    "that of a text that reads the same": (
        annotated(signed(HONEST), assignment=" " + write_shares((amount(0),))),
        "another pod, node or assignment",
    ),
    "another node's agent's key": (signed(HONEST, STRANGER), f"key '{key_id(STRANGER.public)}'"),
    "a stranger's signature under the server's id": (
        resigned(lambda text: f"v1.{text.split('.')[1]}.{base64.b64encode(bytes(64)).decode()}"),
        "another pod, node or assignment",
    ),
    "a truncated signature": (resigned(lambda text: text[:-8]), "not base64 of 64 bytes"),
    "a signature with more behind it": (resigned(lambda text: f"{text}AAAA"), "not base64 of 64 bytes"),
    "another way to write the same bytes": (resigned(lambda text: f"{text[:-3]}B=="), "not base64 of 64 bytes"),
    "no base64": (resigned(lambda text: text.replace(text[-20:], "*" * 20)), "not base64 of 64 bytes"),
    "letters that are none of base64": (resigned(lambda text: f"{text[:-9]}ü{text[-8:]}"), "not base64"),
    "another version": (resigned(version_2), "not of the form v1.KEYID.BASE64"),
    "no key": (resigned(lambda text: text.replace(text.split(".")[1], "")), "not of the form"),
    "no signature behind the key": (resigned(lambda text: text.rpartition(".")[0]), "not of the form"),
    "nothing": (resigned(lambda _: ""), "not of the form"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_assignment_does_not_count(case: str) -> None:
    each, want = FORGED[case]
    with pytest.raises(InvalidAssignment, match="assignment not signed by Tessera, pod ns/p") as raised:
        shares_of(each, keys(SERVER, AGENT))
    assert want in raised.value.found
    assert "schedulerName: tessera-scheduler" in raised.value.hint
    assert not is_signed(each, keys(SERVER, AGENT))
    live = read_live_pod(each, keys=keys(SERVER, AGENT))
    assert (live.shares, live.doubted) == ((), "")
    assert "not signed by Tessera" in live.unread


def test_a_signature_that_is_no_text_is_refused() -> None:
    each = annotated(HONEST, assignment_signature=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="assignment-signature"):
        shares_of(each, keys())
    assert not is_signed(each, keys())


@given(uid=st.text(max_size=8), node=st.text(max_size=8), text=st.text(max_size=20), more=st.text(max_size=3))
def test_what_is_signed_tells_pod_node_and_text_apart(uid: str, node: str, text: str, more: str) -> None:
    uid, node = uid.replace("\0", ""), node.replace("\0", "")  # names have none
    same = signed_text(uid, node, text)
    assert (signed_text(f"{uid}{more}", node, text) == same) == (more.strip("\0") == more == "")
    assert (signed_text(uid, node, f"{text}{more}") == same) == (not more)
    assert signed_text(uid, node, text) != signed_text(node + "x", uid, text)


def test_keys_without_reading_are_taken_at_their_word() -> None:
    assert shares_of(HONEST, None) == (amount(0),)


# Whose keys count on which node


def test_a_node_s_agent_signs_for_its_own_node_alone() -> None:
    (text,) = keys_text([AGENT.public])
    state = read_gpu_node(gpunode("a", gpu(0), assignment_keys=(text, "no key")))
    known = authority().keys(state)
    assert (known.public, known.unsigned) == (public(SERVER, AGENT), "refused")
    other = authority().keys(read_gpu_node(gpunode("b", gpu(0), assignment_keys=keys_text([STRANGER.public]))))
    assert shares_of(signed(HONEST, AGENT), known)
    with pytest.raises(UnknownKey):
        shares_of(signed(HONEST, AGENT), other)
    assert known.refuses("x")
    assert known.like(authority().keys(state))
    assert not known.like(other)
    assert not known.like(None)


def test_where_an_older_agent_reports_that_does_not_sign_all_count_since_it_hands_out_all() -> None:
    older = authority().keys(read_gpu_node(gpunode("a", gpu(0))))
    assert older.unsigned == "counts"
    assert shares_of(HONEST, older) == (amount(0),)
    assert shares_of(pod("p", {NEED: 4}), older) is None


@pytest.mark.parametrize("unread", [True, False])
def test_a_key_that_may_have_been_made_just_now_counts_until_somebody_asked(*, unread: bool) -> None:
    each = signed(HONEST, STRANGER)
    live = read_live_pod(each, keys=keys(refuses=lambda _: unread))
    want = ((), "") if unread else ((amount(0),), key_id(STRANGER.public))
    assert (live.shares, live.doubted) == want


def test_what_such_a_key_signs_counts_for_no_more_than_is_asked() -> None:
    each = signed(pod("p", {NEED: 4}, amount(0, memory_mib=40960)), STRANGER)
    live = read_live_pod(each, keys=keys(refuses=lambda _: False))
    assert (live.shares, live.doubted) == ((), key_id(STRANGER.public))
    assert "more than" in live.unread
    each = signed(pod("p", {NEED: "x"}, amount(0)), STRANGER)
    live = read_live_pod(each, keys=keys(refuses=lambda _: False))
    assert (live.shares, live.doubted) == ((), key_id(STRANGER.public)), "a request that cannot be read asks nothing"


# gpushare's annotations

INDEX = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
ALLOCATION = {"scheduler.framework.gpushare.allocation": '{"0":{"1":2}}'}
THERE = frozenset({0, 1})


def test_gpushare_s_own_annotations_count_where_no_agent_is() -> None:
    foreign = authority().keys(None, THERE)
    assert foreign.unsigned == "gpushare"
    want = (share(1, 2048, resource=GPUSHARE),)
    for annotations in (INDEX, ALLOCATION):
        each = pod("p", {GPUSHARE: 2}, annotations=annotations)
        assert shares_of(each, foreign) == tuple(msgspec.structs.replace(one, container="") for one in want)
    assert shares_of(pod("p", {GPUSHARE: 2}), foreign) is None
    # Tessera's own, unsigned, do not; those beside them do.
    both = pod("p", {GPUSHARE: 2}, share(0, 2048, resource=GPUSHARE), annotations=INDEX)
    found = shares_of(both, foreign)
    assert found is not None
    assert [one.gpu for one in found] == [1]
    assert shares_of(signed(both), foreign) == (share(0, 2048, resource=GPUSHARE),)


FOREIGN: Mapping[str, tuple[Object, frozenset[int] | None, str]] = {
    "more than asked": (
        pod("p", {GPUSHARE: 2}, annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":38}}'}),
        THERE,
        "38912 MiB",
    ),
    "more than asked, on several GPUs": (
        pod("p", {GPUSHARE: 2}, annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":2},"1":{"1":1}}'}),
        THERE,
        "3072 MiB",
    ),
    "a GPU that is not there": (
        pod("p", {GPUSHARE: 2}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "2"}),
        THERE,
        "GPU 2 is not one of the node's 2 GPUs",
    ),
    "memory where none is asked": (pod("p", {GPU: 1}, annotations=ALLOCATION), THERE, "aliyun.com/gpu-mem"),
    "Tessera's alone, unsigned": (pod("p", {GPUSHARE: 2}, share(0, 2048, resource=GPUSHARE)), THERE, "no signature"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_they_count_for_what_is_asked_and_for_gpus_that_are_there(case: str) -> None:
    each, gpus, want = FOREIGN[case]
    with pytest.raises(InvalidAssignment) as raised:
        shares_of(each, authority().keys(None, gpus))
    assert want in str(raised.value)


def test_where_nobody_knows_the_gpus_any_index_may_be() -> None:
    assert shares_of(pod("p", {GPUSHARE: 2}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "2"}), authority().keys(None))


@pytest.mark.parametrize("annotations", [INDEX, ALLOCATION])
def test_on_a_node_with_an_agent_they_do_not(annotations: Mapping[str, str]) -> None:
    with pytest.raises(InvalidAssignment, match="no signature"):
        shares_of(pod("p", {GPUSHARE: 2}, annotations=annotations), keys())


# Never more than was asked

WHOLE = share(0, 40192, Mode.WHOLE)
ASKED: Mapping[str, tuple[Mapping[str, int], tuple[Share, ...]]] = {
    "a need by a part": ({NEED: 4}, (amount(0),)),
    "a need by MPS": ({NEED: 4}, (share(0, 4096, Mode.MPS),)),
    "a need by a MIG instance": ({NEED: 4}, (amount(0, place("A100-40GB", "1g.5gb", 0), memory_mib=4864),)),
    "a need by a larger MIG instance": ({NEED: 1}, (mig_share(0, "3g.20gb", 0),)),
    "a need by a whole GPU": ({NEED: 1}, (msgspec.structs.replace(WHOLE, resource=NEED),)),
    "a need by a replica of fixed size": ({NEED: 1}, (share(0, 10000, Mode.MPS, resource="nvidia.com/gpu.shared"),)),
    "a need of two GPUs": ({NEED: 4, "tessera.dev/gpu-count": 2}, (amount(0), amount(1))),
    "a memory share": ({GPUSHARE: 4}, (share(0, 4096, resource=GPUSHARE),)),
    "a memory share on two GPUs": (
        {GPUSHARE: 4},
        (share(0, 1024, resource=GPUSHARE), share(1, 3072, resource=GPUSHARE)),
    ),
    "a device by name": ({GPU: 1}, (WHOLE,)),
    "two by name": ({SLICE: 2}, (mig_share(0, "1g.5gb", 0), mig_share(0, "1g.5gb", 1))),
    "by the name of another driver": (
        {"nvidia.com/mig-3g.20gb": 1},
        (msgspec.structs.replace(mig_share(0, "3g.20gb", 0), resource="nvidia.com/mig-3g.19gb"),),
    ),
    "a replica by name": ({GPU: 1}, (share(0, 10000, Mode.MPS, resource=GPU),)),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_serves_a_request_counts(case: str) -> None:
    limits, shares = ASKED[case]
    assert shares_of(signed(pod("p", limits, *shares)), keys()) == shares


def test_an_amount_counts_beside_a_device_by_name_before_and_after_that_is_recorded() -> None:
    containers = [
        {"name": name, "resources": {"limits": {resource: count}}}
        for name, resource, count in (("main", GPU, "1"), ("side", NEED, "4"))
    ]
    for shares in ((amount(1),), (WHOLE, amount(1))):
        assert shares_of(signed(pod("p", {}, *shares, spec={"containers": containers})), keys()) == shares


MORE: Mapping[str, tuple[Mapping[str, int], tuple[Share, ...], str]] = {
    "more memory": ({NEED: 1}, (amount(0, memory_mib=38000),), "38000 MiB"),
    "more of two": (
        {NEED: 4, "tessera.dev/gpu-count": 2},
        (amount(0), amount(1, memory_mib=4097)),
        "8193 MiB",
    ),
    "a memory share of more": (
        {GPUSHARE: 1},
        (share(0, 1025, resource=GPUSHARE),),
        "are more than the 1024 MiB requested",
    ),
    "a whole GPU for a memory share": (
        {GPUSHARE: 1},
        (WHOLE,),
        f"nvidia.com/gpu, mode whole is not what is requested: 1 {GPUSHARE}",
    ),
    "an instance for a memory share": ({GPUSHARE: 1}, (mig_share(0, "1g.5gb", 0),), "mode mig"),
    "a share twice": ({NEED: 4}, (amount(0), amount(1)), "2 shares"),
    "a share where nothing is asked": ({}, (amount(0),), "1 shares"),
    "more devices by name": ({SLICE: 1}, (mig_share(0, "1g.5gb", 0), mig_share(0, "1g.5gb", 1)), "2 shares"),
    "another device by name": ({SLICE: 1}, (mig_share(0, "3g.20gb", 0),), "nvidia.com/mig-3g.20gb"),
    "the whole GPU for a slice": ({SLICE: 1}, (WHOLE,), "nvidia.com/gpu"),
    "an instance with the media engines": (
        {SLICE: 1},
        (msgspec.structs.replace(mig_share(0, "1g.5gb", 0), resource=f"{SLICE}.me"),),
        f"{SLICE}.me",
    ),
    "memory for a device by name": ({GPU: 1}, (amount(0),), "tessera.dev/gpu-memory"),
}


@pytest.mark.parametrize("case", MORE)
def test_more_than_was_asked_does_not_count_even_signed(case: str) -> None:
    limits, shares, want = MORE[case]
    with pytest.raises(InvalidAssignment) as raised:
        shares_of(signed(pod("p", limits, *shares)), keys())
    assert "pod ns/p" in raised.value.subject
    assert want in str(raised.value)


def test_the_unit_may_have_been_a_larger_one_when_the_pod_was_bound() -> None:
    each = signed(pod("p", {GPUSHARE: 4}, share(0, 4096, resource=GPUSHARE)))
    assert shares_of(each, keys(), unit_mib=1) == (share(0, 4096, resource=GPUSHARE),)


def test_what_a_pod_holds_whose_request_cannot_be_read_is_what_was_signed() -> None:
    each = signed(pod("p", {NEED: "4x"}, amount(0)))
    live = read_live_pod(each, keys=keys())
    assert live.wrong
    assert live.shares == (amount(0),)


# Where keys are kept


def test_public_keys_come_back_from_the_objects_that_publish_them() -> None:
    assert published_keys(published(SERVER.public)) == public(SERVER)
    assert published_keys(config_map(AGENT)) == public(AGENT)
    assert published_keys(None) == published_keys({}) == {}
    assert published_keys(
        {"data": {"x": "short", "y": None, key_id(AGENT.public): keys_text([AGENT.public])[0]}}
    ) == public(AGENT)
    assert public_keys(keys_text([SERVER.public, AGENT.public])) == public(SERVER, AGENT)
    # An id is made from the key: nobody publishes a key under another's.
    assert published_keys({"data": {key_id(SERVER.public): keys_text([STRANGER.public])[0]}}) == public(STRANGER)


def test_the_private_key_comes_back_from_its_secret() -> None:
    assert secret_seed(secret(SERVER.seed)) == SERVER.seed


@pytest.mark.parametrize("data", [None, {}, {"seed": None}, {"seed": "AAAA"}, {"seed": "*"}])
def test_a_secret_without_a_key_is_reported_without_showing_it(data: object) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"tessera-system/tessera-assignment-key: data\.seed is not a private key, 32 bytes in base64",
    ) as raised:
        secret_seed({"data": data})
    assert "delete secret" in raised.value.hint


def test_isolation_is_not_part_of_what_is_checked() -> None:
    stronger = msgspec.structs.replace(amount(0), isolation=Isolation.DRIVER)
    assert shares_of(signed(pod("p", {NEED: 4}, stronger)), keys()) == (stronger,)


@pytest.mark.parametrize(
    ("text", "want"), [("v1.abc.x", "abc"), ("v1..x", ""), ("v1.abc", ""), ("v2.abc.x", ""), ("", "")]
)
def test_the_key_that_a_signature_names(text: str, want: str) -> None:
    assert key_named(text) == want
