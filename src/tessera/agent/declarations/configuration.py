"""The files that say how this node shares its GPUs, read again whenever their content changes.

A file that cannot be read or is refused leaves the former configuration in force, also after a restart of the agent:
what was applied last is kept on disk. A ConfigMap that changes swaps symbolic links under the same names, so the
content is compared, not the file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import UNREADABLE, read_file, write_through
from tessera.api import documents
from tessera.api.nvidia import sharingconfig
from tessera.api.tessera import nodepolicy
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.node.doctor import APPLIED
from tessera.core.node.nodelabels import MIG_CONFIG, PLUGIN_CONFIG
from tessera.core.node.nodesharing import NodeSharing, Strategy
from tessera.core.node.precedence import Declared, EffectiveSharing, Overridden, Statement, decide
from tessera.errors import InvalidInput, shown

__all__ = [
    "APPLIED",
    "SHARE_LABEL",
    "Configuration",
    "ConfigurationFiles",
    "GivenPolicy",
    "Sources",
]

SHARE_LABEL = "gpushare"
"""Label of a node: `true` makes its GPUs memory shares. Set by users; read by the agent. Source:
AliyunContainerService/gpushare-scheduler-extender."""
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
    strategy: Strategy | None = None
    """MIG strategy where neither a file nor a policy says; None where it is not given."""


class GivenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPUPolicy says about this node; it yields to a node policy file."""

    name: str
    text: str
    """As the file would have it."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force, and why nothing newer is."""

    node_sharing: NodeSharing | None
    """None where the files are refused and nothing was in force before: then nothing may be offered."""
    generation: str = ""
    """Names and hash of what is in force: `balanced@0a1b2c3d4e`; empty where there is neither file nor policy."""
    problem: str = ""
    """Why the files that are there now are not in force; empty where they are."""
    overridden: tuple[Overridden, ...] = ()
    """What was declared and has no effect, because something else decides."""


class _Texts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the files."""

    name: str = ""
    sharing: str = ""
    policy: str = ""
    policy_name: str = ""
    """The GPUPolicy it comes from; empty for the file."""
    source: str = ""
    """The label that chose the sharing configuration; empty where none did."""

    def generation(self, decision: EffectiveSharing) -> str:
        """Return names and hash of what of these is in force."""
        acting = msgspec.structs.replace(self, source="")
        if not decision.sharing_config:
            acting = msgspec.structs.replace(acting, name="", sharing="")
        policy = f"gpupolicy/{self.policy_name}" if self.policy_name else "policy"
        names = [name for name in (acting.name, policy if self.policy else "") if name]
        digest = hashlib.sha256(msgspec.json.encode(acting)).hexdigest()[:10]
        return f"{'+'.join(names)}@{digest}" if names else ""


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
        file = self._sources.policy
        overrides = _is_there(file)
        common = Declared(
            layout_label=labels.get(MIG_CONFIG, ""),
            gpu_policy=Statement(source=f"GPUPolicy {given.name}") if given is not None else None,
            node_policy=Statement(source=f"node policy file {file}") if overrides else None,
            unread_label=f"label {PLUGIN_CONFIG}={label}"
            if (label := labels.get(PLUGIN_CONFIG, "")) and self._alone
            else "",
            memory_share=labels.get(SHARE_LABEL) == "true",
            strategy=self._sources.strategy,
        )
        try:
            texts = self._texts(labels, None if overrides else given)
            decision = _decided(texts, gpus, common)
        except InvalidInput as error:
            return self._former(gpus, str(error), common)
        except OSError as error:
            return self._former(gpus, f"{error.filename}: {error.strerror}", common)
        self._keep(texts)
        return _configuration(texts, decision)

    def _former(self, gpus: Sequence[GpuFacts], problem: str, common: Declared) -> Configuration:
        try:
            former = self._applied or self._load()
        except UNREADABLE as error:
            what = error.strerror if isinstance(error, OSError) else error
            lost = f"what was applied before cannot be read from {self._sources.applied}: {what}"
            return Configuration(node_sharing=None, problem=f"{problem}; {lost}")
        if former is None:
            return Configuration(node_sharing=None, problem=problem)
        try:
            decision = _decided(former, gpus, common)
        except InvalidInput as error:
            return Configuration(node_sharing=None, problem=f"{problem}; the former configuration: {error}")
        return msgspec.structs.replace(_configuration(former, decision), problem=problem)

    # Files

    def _texts(self, labels: Mapping[str, str], given: GivenPolicy | None) -> _Texts:
        label = labels.get(PLUGIN_CONFIG, "")
        name, path = self._chosen(label)
        policy = self._sources.policy
        own = _content(policy) if policy is not None and policy.exists() else ""
        return _Texts(
            name=name,
            sharing=_content(path) if path is not None else "",
            policy=own if given is None else given.text,
            policy_name="" if given is None else given.name,
            source=f"label {PLUGIN_CONFIG}={label}" if label and not self._alone else "",
        )

    @property
    def _alone(self) -> bool:
        """Whether the sharing configuration is one file, so that no label chooses."""
        root = self._sources.sharing
        return root is not None and _is_there(root) and root.is_file()

    def _chosen(self, label: str) -> tuple[str, Path | None]:
        """Return name and path of the sharing configuration; none where there is none and none is named."""
        root = self._sources.sharing
        if root is not None and self._alone:
            return root.name, root
        keys = {path.name: path for path in _listed(root)}
        desired = label or self._sources.default
        if desired and desired not in keys:
            raise InvalidInput(
                f"label {PLUGIN_CONFIG}" if label else "default configuration",
                found=f"there is no {shown(desired)} in {root}" if root else f"{shown(desired)} needs --sharing-config",
                hint=f"choose one of {', '.join(sorted(keys))}" if keys else "give a folder with that file",
            )
        name = desired or (_DEFAULT_KEY if _DEFAULT_KEY in keys else next(iter(keys), "") if len(keys) == 1 else "")
        return name, keys.get(name)

    # What was applied

    def _keep(self, texts: _Texts) -> None:
        self._applied = texts
        path = self._sources.applied
        if path is None or texts == self._saved:
            return
        try:
            write_through(path, msgspec.json.encode(texts))
        except OSError:
            return  # tried again with the next reading; meanwhile it is kept in memory
        self._saved = texts

    def _load(self) -> _Texts | None:
        path = self._sources.applied
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Texts) if path is not None else None
        except FileNotFoundError:
            return None


def _is_there(path: Path | None) -> bool:
    """Return whether there is such a file; of one that cannot be looked at, the reading says why."""
    try:
        return path is not None and path.exists()
    except OSError:
        return False


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
        raise InvalidInput(str(path), found="it has bytes that are not UTF-8", hint="write YAML or JSON") from error


def _decided(texts: _Texts, gpus: Sequence[GpuFacts], common: Declared) -> EffectiveSharing:
    """Return what holds of these texts, beside what labels and options say."""
    declared = common
    if texts.name:
        config = sharingconfig.read(documents.one(texts.name, texts.sharing))
        source = texts.source or f"sharing configuration {texts.name}"
        declared = msgspec.structs.replace(declared, sharing_config=Statement(source=source, said=config))
    if texts.policy:
        source = f"GPUPolicy {texts.policy_name}" if texts.policy_name else "node policy"
        said = nodepolicy.read(documents.one(source, texts.policy), gpus)
        if texts.policy_name:
            declared = msgspec.structs.replace(
                declared, gpu_policy=Statement(source=source, said=said), node_policy=None
            )
        else:
            named = declared.node_policy or Statement(source=source)
            declared = msgspec.structs.replace(declared, node_policy=msgspec.structs.replace(named, said=said))
    return decide(declared, gpus)


def _configuration(texts: _Texts, decision: EffectiveSharing) -> Configuration:
    return Configuration(
        node_sharing=decision.said, generation=texts.generation(decision), overridden=decision.overridden
    )
