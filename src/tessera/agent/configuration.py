"""The files that say how this node shares its GPUs, read again whenever their content changes.

A file that cannot be read or is refused leaves the former configuration in force, also after a restart of the agent:
what was applied last is kept on disk. A ConfigMap that changes swaps symbolic links under the same names, so the
content is compared, not the file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import UNREADABLE, read_file
from tessera.api import documents, nodepolicy, sharingconfig
from tessera.core.doctor import APPLIED
from tessera.core.inventory import GpuFacts
from tessera.core.nodesharing import NodeSharing, combined
from tessera.errors import InvalidInput, shown

__all__ = [
    "APPLIED",
    "CONFIG_LABEL",
    "SHARE_LABEL",
    "Configuration",
    "ConfigurationFiles",
    "GivenPolicy",
    "Sources",
]

CONFIG_LABEL = "nvidia.com/device-plugin.config"
"""Label of the node that names a file of the sharing directory. Source: NVIDIA/k8s-device-plugin README."""
SHARE_LABEL = "gpushare"
"""Label of a node whose GPUs are memory shares. Source: AliyunContainerService/gpushare-scheduler-extender."""
_DEFAULT_KEY = "default"


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files are; one that is not there says nothing."""

    sharing: Path | None = None
    """NVIDIA's sharing configuration: a file, or a directory of files of which the node's label names one."""
    default: str = ""
    """Which file of the directory holds where the node has no label; empty for `default`, else the only one."""
    policy: Path | None = None
    """The node policy."""
    applied: Path | None = None
    """File that keeps what was applied last; None keeps it in memory alone."""


class GivenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPUPolicy says about this node; a node policy file, where there is one, wins."""

    name: str
    text: str
    """As the file would have it."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force, and why nothing newer is."""

    node_sharing: NodeSharing | None
    """None where the files are refused and nothing was in force before: then nothing may be offered."""
    generation: str = ""
    """Names and hash of the files in force: `balanced@0a1b2c3d4e`; empty where there are none."""
    problem: str = ""
    """Why the files that are there now are not in force; empty where they are."""
    overruled: str = ""
    """Why a GPUPolicy has no effect here; empty where it has, or there is none."""


class _Texts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the files."""

    name: str = ""
    sharing: str = ""
    policy: str = ""
    policy_name: str = ""
    """The GPUPolicy it comes from; empty for the file."""

    @property
    def generation(self) -> str:
        names = "+".join(name for name in (self.name, "policy" if self.policy else "") if name)
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:10]
        return f"{names}@{digest}" if names else ""


class ConfigurationFiles:
    """Reads the files; keeps the former configuration where they are refused."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._applied: _Texts | None = None
        self._saved: _Texts | None = None

    def read(
        self, labels: Mapping[str, str], gpus: Sequence[GpuFacts], given: GivenPolicy | None = None
    ) -> Configuration:
        """Return the configuration in force for a node with these labels and GPUs; reads a few small files.

        Args:
            labels: of the node.
            gpus: of the node.
            given: what a GPUPolicy says about it; None where none applies.

        """
        overruled = ""
        if given is not None and self._sources.policy is not None and self._sources.policy.exists():
            overruled = f"GPUPolicy {given.name} has no effect: the node policy {self._sources.policy} decides here"
            given = None
        found = self._read(labels, gpus, given)
        return msgspec.structs.replace(found, overruled=overruled)

    def _read(self, labels: Mapping[str, str], gpus: Sequence[GpuFacts], given: GivenPolicy | None) -> Configuration:
        memory_share = labels.get(SHARE_LABEL) == "true"
        try:
            texts = self._texts(labels, given)
            node_sharing = _parsed(texts, gpus, memory_share=memory_share)
        except InvalidInput as error:
            return self._former(gpus, str(error), memory_share=memory_share)
        except OSError as error:
            return self._former(gpus, f"{error.filename}: {error.strerror}", memory_share=memory_share)
        self._keep(texts)
        return Configuration(node_sharing=node_sharing, generation=texts.generation)

    def _former(self, gpus: Sequence[GpuFacts], problem: str, *, memory_share: bool) -> Configuration:
        former = self._applied or self._load()
        if former is None:
            return Configuration(node_sharing=None, problem=problem)
        try:
            node_sharing = _parsed(former, gpus, memory_share=memory_share)
        except InvalidInput as error:
            return Configuration(node_sharing=None, problem=f"{problem}; the former configuration: {error}")
        return Configuration(node_sharing=node_sharing, generation=former.generation, problem=problem)

    # Files

    def _texts(self, labels: Mapping[str, str], given: GivenPolicy | None) -> _Texts:
        name, path = self._chosen(labels.get(CONFIG_LABEL, ""))
        policy = self._sources.policy
        own = _content(policy) if policy is not None and policy.exists() else ""
        return _Texts(
            name=name,
            sharing=_content(path) if path is not None else "",
            policy=own if given is None else given.text,
            policy_name="" if given is None else given.name,
        )

    def _chosen(self, label: str) -> tuple[str, Path | None]:
        """Return name and path of the sharing configuration; none where there is none and none is named."""
        root = self._sources.sharing
        if root is not None and root.is_file():
            return root.name, root
        keys = {path.name: path for path in _listed(root)}
        wanted = label or self._sources.default
        if wanted and wanted not in keys:
            raise InvalidInput(
                f"label {CONFIG_LABEL}" if label else "default configuration",
                found=shown(wanted),
                wanted=f"the name of a file in {root}",
                accepted=", ".join(sorted(keys)) or "none: the directory has no files",
            )
        name = wanted or (_DEFAULT_KEY if _DEFAULT_KEY in keys else next(iter(keys), "") if len(keys) == 1 else "")
        return name, keys.get(name)

    # What was applied

    def _keep(self, texts: _Texts) -> None:
        self._applied = texts
        path = self._sources.applied
        if path is None or texts == self._saved:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(texts))
            new.replace(path)
        except OSError:
            return  # tried again with the next reading; meanwhile it is kept in memory
        self._saved = texts

    def _load(self) -> _Texts | None:
        path = self._sources.applied
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Texts) if path is not None else None
        except UNREADABLE:
            return None


def _listed(root: Path | None) -> Sequence[Path]:
    """Return the files of a directory, without those of Kubernetes' own that begin with two dots."""
    try:
        return (
            [
                each
                for each in root.iterdir()
                if each.name.isprintable() and not each.name.startswith("..") and each.is_file()
            ]
            if root
            else []
        )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _content(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), found="bytes that are not UTF-8", wanted="YAML or JSON") from error


def _parsed(texts: _Texts, gpus: Sequence[GpuFacts], *, memory_share: bool) -> NodeSharing:
    config = sharingconfig.read(documents.one(texts.name, texts.sharing)) if texts.name else NodeSharing()
    source = f"GPUPolicy {texts.policy_name}" if texts.policy_name else "node policy"
    policy = nodepolicy.read(documents.one(source, texts.policy), gpus) if texts.policy else NodeSharing()
    return combined(config, policy, memory_share=memory_share)
