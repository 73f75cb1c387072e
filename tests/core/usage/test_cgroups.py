"""Which container a process runs in."""

import pytest

from tessera.core.usage.attribution import Owner
from tessera.core.usage.cgroups import outside_pods, owner_of

UID, OTHER = "0f0f0f0f-1111-2222-3333-444444444444", "9f0f0f0f-1111-2222-3333-444444444444"
ID = "ab" * 32
SYSTEMD = f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
MAIN, POD = Owner(uid=UID, container="main"), Owner(uid=UID)

CASES = {
    "containerd, systemd": (f"{SYSTEMD}/cri-containerd-{ID}.scope\n", MAIN),
    "CRI-O": (f"{SYSTEMD}/crio-{ID}.scope\n", MAIN),
    "cgroupfs": (f"0::/kubepods/burstable/pod{UID}/{ID}\n", MAIN),
    "guaranteed, cgroupfs": (f"0::/kubepods/pod{UID}/{ID}", MAIN),
    "kind's kubelet": (
        SYSTEMD.replace("/kubepods.slice", "/kubelet.slice/kubelet-kubepods.slice") + f"/cri-containerd-{ID}.scope",
        MAIN,
    ),
    "version 1": (f"12:pids:/user.slice\n4:memory:/kubepods/pod{UID}/{ID}\n", MAIN),
    "nested by the container, with another pod's name": (
        f"{SYSTEMD}/cri-containerd-{ID}.scope/kubepods/pod{OTHER}/{'cd' * 32}\n",
        MAIN,
    ),
    "containerd without systemd, under a kubelet with it": (
        f"0::/system.slice/containerd.service/{SYSTEMD.rpartition('/')[2]}:cri-containerd:{ID}\n",
        MAIN,
    ),
    "the same, version 1, guaranteed": (
        f"4:memory:/system.slice/containerd.service/kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}\n",
        MAIN,
    ),
    "seen from a group beside it": (f"0::/../../{SYSTEMD.rpartition('/')[2]}/cri-containerd-{ID}.scope\n", MAIN),
    "seen from a group beside it, nested by the container": (
        f"0::/../{SYSTEMD.rpartition('/')[2]}/cri-containerd-{ID}.scope/kubepods/pod{OTHER}/{'cd' * 32}\n",
        MAIN,
    ),
    "seen from a group beside it, cgroupfs": (f"0::/../../pod{UID}/{ID}\n", MAIN),
    "seen from a group of another quality of service, cgroupfs": (f"0::/../../../besteffort/pod{UID}/{ID}\n", MAIN),
    "seen from a group beside it, cgroupfs, nested by the container": (
        f"0::/../../pod{UID}/{ID}/kubepods/pod{OTHER}/{'cd' * 32}\n",
        MAIN,
    ),
    "the machine's, seen from a pod's group": ("0::/../../../../system.slice/podman.service/pod\n", None),
    "the pod's own group": (f"{SYSTEMD}\n", POD),
    "a container that is not known": (f"{SYSTEMD}/cri-containerd-{'cd' * 32}.scope\n", POD),
    "a group that is no container": (f"{SYSTEMD}/something\n", POD),
    "a static pod": (f"0::/kubepods/pod{'ab' * 16}/{ID}\n", Owner(uid="ab" * 16, container="main")),
    "the machine's": ("0::/system.slice/ssh.service\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_is_its_container_s(case: str) -> None:
    text, want = CASES[case]
    assert owner_of(text, {ID: "main"}, [UID, OTHER]) == want


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        (CASES["the machine's"][0], True),
        ("12:pids:/user.slice\n0::/\n", True),
        ("", False),
        ("0::/kubepods/of/a/form/that/nobody/knows\n", False),
        (CASES["CRI-O"][0], False),
    ],
)
def test_only_a_process_of_known_groups_is_outside_of_pods(text: str, outside: bool) -> None:
    assert outside_pods(text) is outside


def test_a_pod_that_is_not_known_has_the_uid_that_it_had() -> None:
    assert owner_of(f"{SYSTEMD}/crio-{ID}.scope\n", {}, [OTHER]) == POD
