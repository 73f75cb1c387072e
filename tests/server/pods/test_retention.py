"""A pod keeps its allocation until it is deleted, whatever happens to its annotations and the keys."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import gpu, gpunode, node, pod, share
from builders.signed import AGENT, SERVER, STRANGER, keys, signed
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.clusterpods import read_live_pod
from tessera.api.tessera.pods.signatures import KEYS, key_id, keys_text
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import Object
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.packing.ledger import Ledger
from tessera.log import logger
from tessera.server.pods.retention import Retention
from tessera.server.view import View
from tessera.signing import Signer

FULL = {"tessera.dev/gpu-memory": 40}
ALLOCATED, OTHER = share(0, 40000), share(1, 1024)


class Watched:
    """A view of what happens to one node, one pod on it and the servers' keys."""

    def __init__(self, signer: Signer = SERVER) -> None:
        self.now_s = 1000.0
        self.view = View(Ledger("first-fit"), lambda: self.now_s, logger())
        self.version = 0
        self.keys_uid = 0
        self.public = {SERVER}
        self.gpus: tuple[Gpu, ...] = (gpu(0),)
        self.agent: tuple[Signer, ...] = (AGENT,)
        self.unit_mib = 1024
        self.tell_keys()
        self.tell_gpu_node()
        self.view.take_node(self.versioned(node("a")))
        self.good = signed(pod("p", FULL, ALLOCATED), signer)
        self.view.take_pod(self.versioned(self.good))

    def versioned(self, each: Object, uid: str = "") -> Object:
        self.version += 1
        metadata = each["metadata"] | {"resourceVersion": str(self.version)} | ({"uid": uid} if uid else {})
        return {**each, "metadata": metadata}

    def tell_keys(self) -> None:
        data = {key_id(each.public): keys_text([each.public])[0] for each in self.public}
        each = {"metadata": {"name": KEYS, "namespace": NAMESPACE}, "data": data}
        self.view.take_keys(self.versioned(each, f"uid-{self.keys_uid}"))

    def tell_gpu_node(self) -> None:
        told = keys_text(each.public for each in self.agent)
        self.view.take_gpu_node(self.versioned(gpunode("a", *self.gpus, assignment_keys=told, unit_mib=self.unit_mib)))

    def annotated(self, assignment: str | None, signature: Callable[[Object], Object] = lambda each: each) -> None:
        """Let the pod's owner write another assignment beside the signature, or none, and then sign it somehow."""
        annotations = dict(self.good["metadata"]["annotations"])
        annotations.pop("tessera.dev/assignment")
        if assignment is not None:
            annotations["tessera.dev/assignment"] = assignment
        each = {**self.good, "metadata": self.good["metadata"] | {"annotations": annotations}}
        self.view.take_pod(self.versioned(signature(each)))

    def unsigned(self) -> None:
        annotations = {"tessera.dev/assignment": write_shares((OTHER,))}
        each = {**self.good, "metadata": self.good["metadata"] | {"annotations": annotations}}
        self.view.take_pod(self.versioned(each))

    def doubted(self) -> None:
        """Sign it with a key that nobody has asked for yet, another one each time."""
        key = Signer(self.version.to_bytes(32, "big"))
        self.annotated(write_shares((OTHER,)), lambda each: signed(each, key))

    def requested(self) -> None:
        """Let the API have been asked for the keys that are not known."""
        self.view.reject_unknown_keys(list(self.view.keys.doubts))

    def held(self) -> tuple[Share, ...]:
        self.requested()
        return self.of("uid-p")

    def of(self, uid: str) -> tuple[Share, ...]:
        return next((each.shares for each in self.view.ledger.pods_on("a") if each.id == uid), ())


def with_gpu(watched: Watched) -> None:
    watched.gpus = (gpu(0), gpu(1)) if len(watched.gpus) == 1 else (gpu(0),)
    watched.tell_gpu_node()


def with_agent_key(watched: Watched) -> None:
    watched.agent = (STRANGER, AGENT)
    watched.tell_gpu_node()


def with_other_agent_key(watched: Watched) -> None:
    watched.agent = (STRANGER,)
    watched.tell_gpu_node()


def with_server_key(watched: Watched) -> None:
    watched.public = {SERVER, Signer(bytes(range(3, 35)))}
    watched.tell_keys()


def with_another_object(watched: Watched) -> None:
    watched.public, watched.keys_uid = {STRANGER}, watched.keys_uid + 1
    watched.tell_keys()
    watched.public = {STRANGER, SERVER}  # written again by a server that knows it


def with_another_unit(watched: Watched) -> None:
    watched.unit_mib = 1024 if watched.unit_mib == 1 else 1
    watched.tell_gpu_node()
    assert watched.view.pods.share_unit_mib == watched.unit_mib


def without_gpu_node(watched: Watched) -> None:
    watched.view.take_gpu_node(watched.versioned(gpunode("a", *watched.gpus)), gone=True)
    watched.requested()
    watched.tell_gpu_node()


def without_node(watched: Watched) -> None:
    watched.view.take_node(watched.versioned(node("a")), gone=True)
    watched.requested()
    watched.view.take_node(watched.versioned(node("a")))


SPOILED: dict[str, Callable[[Watched], None]] = {
    "it has none": lambda watched: watched.annotated("[]"),
    "it is removed": lambda watched: watched.annotated(None),
    "it is another": lambda watched: watched.annotated(write_shares((OTHER,))),
    "it has no signature": Watched.unsigned,
    "a stranger signed it": lambda watched: watched.annotated(
        write_shares((OTHER,)), lambda each: signed(each, Signer(bytes(range(4, 36))))
    ),
    "doubted, unanswered": Watched.doubted,
}
CHANGED: dict[str, Callable[[Watched], None]] = {
    "a GPU comes or goes": with_gpu,
    "the agent has another key too": with_agent_key,
    "the agent has another key alone": with_other_agent_key,
    "servers have another key too": with_server_key,
    "the servers' keys are written anew": with_another_object,
    "the node counts in MiB": with_another_unit,
    "the GPUNode is deleted and made again": without_gpu_node,
    "the Node is deleted and made again": without_node,
}


@pytest.mark.parametrize("signer", [SERVER, AGENT], ids=["server", "agent"])
@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_spoiled_assignment_holds_whatever_is_read_again(spoiled: str, change: str, signer: Signer) -> None:
    watched = Watched(signer)
    SPOILED[spoiled](watched)
    assert watched.of("uid-p") == watched.held() == (ALLOCATED,)
    CHANGED[change](watched)
    assert watched.held() == (ALLOCATED,)


@given(
    st.sampled_from((SERVER, AGENT)),
    st.lists(st.sampled_from(sorted(SPOILED) + sorted(CHANGED)), max_size=8),
)
def test_what_was_granted_is_held_until_the_pod_is_gone(signer: Signer, story: list[str]) -> None:
    """In whatever order its assignment is spoiled, keys change, and all is read again."""
    watched = Watched(signer)
    for each in story:
        (SPOILED | CHANGED)[each](watched)
        assert watched.of("uid-p") == (ALLOCATED,), "while the API has not answered"
        if each != "doubted, unanswered":
            assert watched.held() == (ALLOCATED,)
    assert [each.id for each in watched.view.ledger.pods_on("a")] == ["uid-p"], "and nothing besides"
    watched.view.take_pod(watched.good, gone=True)
    assert watched.held() == ()
    watched.good = {**watched.good, "metadata": watched.good["metadata"] | {"uid": "uid-next"}}
    watched.annotated(None)
    assert watched.of("uid-next") == ()


@pytest.mark.parametrize("spoiled", [*SPOILED, ""])
def test_a_server_s_key_that_is_revoked_voids_what_it_signed(spoiled: str) -> None:
    watched = Watched()
    if spoiled:
        SPOILED[spoiled](watched)
        assert watched.held() == (ALLOCATED,)
    watched.public = {STRANGER}
    watched.tell_keys()
    assert watched.held() == ()


def test_a_grant_stays_while_another_key_is_doubted_and_changes_once_the_key_is_known() -> None:
    watched = Watched()
    watched.annotated(write_shares((OTHER,)), lambda each: signed(each, STRANGER))
    watched.now_s += 11
    watched.view.pods.drop_expired()
    assert [(each.id, each.shares) for each in watched.view.ledger.pods_on("a")] == [("uid-p", (ALLOCATED,))]
    assert watched.view.keys.doubts, "it is asked for"
    watched.public = {SERVER, STRANGER}
    watched.tell_keys()
    assert watched.held() == (OTHER,)
    assert [each.shares for each in watched.view.ledger.pods_on("a")] == [(OTHER,), (ALLOCATED,)], (
        "an exchange, perhaps"
    )


def test_doubted_shares_hold_nothing_after_they_were_refused() -> None:
    """Nor where another doubt comes in their place, or where the pod's request cannot be read."""
    watched = Watched()
    watched.view.take_pod(watched.good, gone=True)
    watched.good = {**watched.good, "metadata": watched.good["metadata"] | {"uid": "uid-next"}}
    for shares, key in ((ALLOCATED, 5), (OTHER, 6)):
        signer = Signer(bytes(range(key, key + 32)))
        watched.annotated(write_shares((shares,)), lambda each, signer=signer: signed(each, signer))  # type: ignore[misc]
        assert [each.shares for each in watched.view.ledger.pods_on("a")] == [(shares,)]
    watched.requested()
    assert [each.shares for each in watched.view.ledger.pods_on("a")] == [()]
    nonsense = signed(pod("q", {"tessera.dev/gpu-memory": "x"}, ALLOCATED), STRANGER)
    watched.view.take_pod(watched.versioned(nonsense))
    assert watched.of("uid-q") == ()


def test_what_counted_without_signature_is_void_once_the_agent_tells_keys() -> None:
    """A version that does not sign was upgraded: it signed what runs before it told its keys."""
    watched = Watched()
    watched.agent = ()
    watched.tell_gpu_node()
    watched.unsigned()
    assert watched.held() == (OTHER,)
    watched.annotated(None)
    assert watched.held() == (OTHER,)
    watched.agent = (AGENT,)
    watched.tell_gpu_node()
    assert watched.held() == ()


def test_gpushare_s_annotations_that_are_removed_hold_on_a_node_without_an_agent_alone() -> None:
    watched = Watched()
    with_another_unit(watched)
    amounts = {"aliyun.com/gpu-mem": "39000", "aliyun.com/gpu-count": "1"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    watched.view.take_node(watched.versioned(node("b", amounts, **labels)))
    of_gpushare = pod("q", {"aliyun.com/gpu-mem": 30000}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}, node="b")
    watched.view.take_pod(watched.versioned(of_gpushare))
    ((before,),) = (each.shares for each in watched.view.ledger.pods_on("b"))
    watched.view.take_pod(watched.versioned(pod("q", {"aliyun.com/gpu-mem": 30000}, node="b")))
    with_another_unit(watched)
    assert [each.shares for each in watched.view.ledger.pods_on("b")] == [(before,)]
    told = keys_text([AGENT.public])
    watched.view.take_gpu_node(watched.versioned(gpunode("b", gpu(0), assignment_keys=told)))
    assert [each.shares for each in watched.view.ledger.pods_on("b")] == [()]


def test_a_grant_that_was_overtaken_by_its_spoiled_version_is_taken_from_the_late_watch() -> None:
    """The pods of a node are listed after others were bound; the owner of one was faster than this server's watch."""
    watched = Watched()
    late = signed(pod("q", FULL, share(1, 40000)), SERVER)
    late = watched.versioned(late)
    watched.view.take_pod(watched.versioned(pod("q", FULL)))
    watched.view.take_pod(late)
    assert watched.of("uid-q") == (share(1, 40000),)
    watched.view.take_pod(watched.versioned(pod("q", FULL, phase="Succeeded")))
    assert watched.of("uid-q") == ()


def test_nothing_is_remembered_of_a_pod_that_is_gone() -> None:
    good, bad = signed(pod("p", FULL, ALLOCATED)), pod("p", FULL)
    retention = Retention()
    for each, want in ((good, (ALLOCATED,)), (bad, (ALLOCATED,))):
        assert retention.retained(each, read_live_pod(each, keys=keys()), keys(), ()).shares == want
    retention.forget("uid-p")
    assert retention.retained(bad, read_live_pod(bad, keys=keys()), keys(), ()).shares == ()
