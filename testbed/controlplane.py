"""etcd, the API server, the controller manager and the scheduler: their arguments, and when each is ready."""

import json
from pathlib import Path

import msgspec

from testbed.addresses import API_PORT, API_SERVICE, CONTROL_PLANE, SERVICES
from testbed.pki import Pki

__all__ = [
    "COMPONENTS",
    "REQUESTS_PER_S",
    "Settings",
    "api_server",
    "controller_manager",
    "etcd",
    "inside_url",
    "prepare",
    "scheduler",
]

COMPONENTS = ("etcd", "apiserver", "controller-manager", "scheduler")
"""In order of start."""
REQUESTS_PER_S = 2000
"""What controllers may ask of the API server; their own default makes a test of a hundred pods slow."""


class Settings(msgspec.Struct, frozen=True):
    """What differs between control planes."""

    folder: Path
    """Where their data and configuration lie."""
    bin: Path
    """Where the programs are."""
    pki: Pki
    real_nodes: bool
    """Whether kubelets run; without them nodes are objects that nobody renews, and nobody marks them as lost."""
    services: bool = False
    """Whether Services lead to pods. The API server runs on no node and has no kube-proxy: it calls pods itself."""

    @property
    def scheduler_configuration(self) -> Path:
        """Where the scheduler's file lies; an extender is added by writing it before the scheduler starts."""
        return self.folder / "scheduler.yaml"


def inside_url() -> str:
    """Return where the API server answers inside the namespaces."""
    return f"https://{CONTROL_PLANE}:{API_PORT}"


def prepare(settings: Settings) -> None:
    """Make keys, certificates and configuration; what is there is kept."""
    pki = settings.pki
    pki.prepare()
    own_names = (
        "DNS:localhost",
        "DNS:kubernetes.default.svc",
        "IP:127.0.0.1",
        f"IP:{CONTROL_PLANE}",
        f"IP:{API_SERVICE}",
    )
    pki.issue("apiserver", "/CN=kube-apiserver", names=own_names)
    pki.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    pki.issue("front-client", "/CN=front-proxy-client", authority="front")
    pki.issue("admin", "/O=system:masters/CN=admin")
    for name in ("controller-manager", "scheduler"):
        pki.issue(name, f"/CN=system:kube-{name}")
        pki.kubeconfig(name, name, inside_url())
    if not settings.scheduler_configuration.exists():
        settings.scheduler_configuration.write_text(json.dumps(_scheduler_configuration(pki), indent=1))


def _scheduler_configuration(pki: Pki) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(pki.folder / "scheduler.kubeconfig"),
            "qps": REQUESTS_PER_S,
            "burst": 2 * REQUESTS_PER_S,
        },
    }


def etcd(settings: Settings) -> tuple[str, ...]:
    """Return etcd's command line: it forgets to sync, because what it holds may be lost with the machine."""
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return (
        str(settings.bin / "etcd"),
        *("--name=testbed", f"--data-dir={settings.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
        *(
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=testbed={peer}",
            "--quota-backend-bytes=8000000000",
        ),
    )


def api_server(settings: Settings) -> tuple[str, ...]:
    """Return the API server's command line."""
    pki = settings.pki
    return (
        str(settings.bin / "kube-apiserver"),
        *("--etcd-servers=http://127.0.0.1:2379", f"--bind-address={CONTROL_PLANE}", f"--secure-port={API_PORT}"),
        *(f"--advertise-address={CONTROL_PLANE}", "--endpoint-reconciler-type=none"),
        *(f"--tls-cert-file={pki.certificate('apiserver')}", f"--tls-private-key-file={pki.key('apiserver')}"),
        *(f"--client-ca-file={pki.certificate('ca')}", "--authorization-mode=Node,RBAC"),
        "--allow-privileged=true",  # pods may be, as on every cluster with a network of its own: the agent is
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.folder / 'sa.pub'}",
        f"--service-account-signing-key-file={pki.key('sa')}",
        f"--service-cluster-ip-range={SERVICES}",
        # By name the API server would ask DNS, which is not there.
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki.certificate('kubelet-client')}",
        f"--kubelet-client-key={pki.key('kubelet-client')}",
        f"--kubelet-certificate-authority={pki.certificate('ca')}",
        f"--requestheader-client-ca-file={pki.certificate('front')}",
        f"--enable-aggregator-routing={str(settings.services).lower()}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki.certificate('front-client')}",
        f"--proxy-client-key-file={pki.key('front-client')}",
    )


def controller_manager(settings: Settings) -> tuple[str, ...]:
    """Return the controller manager's command line."""
    pki = settings.pki
    kubeconfig = pki.folder / "controller-manager.kubeconfig"
    controllers = () if settings.real_nodes else ("--controllers=*,-node-lifecycle-controller",)
    return (
        str(settings.bin / "kube-controller-manager"),
        *(f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}"),
        *(f"--authorization-kubeconfig={kubeconfig}", "--bind-address=127.0.0.1", "--leader-elect=false"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.key('sa')}",
        f"--root-ca-file={pki.certificate('ca')}",
        f"--cluster-signing-cert-file={pki.certificate('ca')}",
        f"--cluster-signing-key-file={pki.key('ca')}",
        *(f"--kube-api-qps={REQUESTS_PER_S}", f"--kube-api-burst={2 * REQUESTS_PER_S}"),
        "--horizontal-pod-autoscaler-sync-period=5s",
        *controllers,
    )


def scheduler(settings: Settings) -> tuple[str, ...]:
    """Return the scheduler's command line."""
    kubeconfig = settings.pki.folder / "scheduler.kubeconfig"
    return (
        str(settings.bin / "kube-scheduler"),
        *(f"--config={settings.scheduler_configuration}", "--bind-address=127.0.0.1"),
        *(f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"),
    )
