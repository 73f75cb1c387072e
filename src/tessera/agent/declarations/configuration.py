"""The configuration files of this node's GPU sharing, reloaded when their content changes.

An unreadable or invalid file leaves the former configuration in force, also across restarts of the agent:
the last applied one is kept on disk. An update of a ConfigMap swaps symbolic links under the same names, so the
content is compared, not the file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import UNREADABLE, read_file, write_through
from tessera.api import documents
from tessera.api.fields import error_phrase
from tessera.api.nvidia import sharingconfig
from tessera.api.tessera.node import nodepolicy
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.node.doctor import APPLIED
from tessera.core.node.nodelabels import MIG_CONFIG, PLUGIN_CONFIG
from tessera.core.node.nodesharing import NodeSharing, Strategy
from tessera.core.node.precedence import DeclaredSources, EffectiveSharing, Overridden, Statement, decide
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
    """Paths of the files; a missing file is ignored."""

    sharing: Path | None = None
    """NVIDIA's sharing configuration: a file, or a directory with a file for each name in the node's label."""
    default: str = ""
    """File of the directory for nodes without the label; empty for `default`, else the only one."""
    policy: Path | None = None
    """The node policy."""
    applied: Path | None = None
    """File with the last applied configuration; None keeps it in memory."""
    strategy: Strategy | None = None
    """MIG strategy where neither a file nor a policy sets it; None for no default."""


class GivenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUPolicy's settings for this node; a node policy file takes precedence."""

    name: str
    text: str
    """In the form of the node policy file."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force, and why newer files are not."""

    node_sharing: NodeSharing | None
    """None where the files are invalid and nothing was in force before: then nothing may be advertised."""
    generation: str = ""
    """Names and hash of the configuration: `balanced@0a1b2c3d4e`; empty where there is neither file nor policy."""
    problem: str = ""
    """Why the present files are not in force; empty where they are."""
    overridden: tuple[Overridden, ...] = ()
    """Declarations without effect, because something else takes precedence."""


class _Texts(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the files."""

    name: str = ""
    sharing: str = ""
    policy: str = ""
    policy_name: str = ""
    """The GPUPolicy it comes from; empty for the file."""
    source: str = ""
    """The label that selected the sharing configuration; empty for none."""

    def generation(self, decision: EffectiveSharing) -> str:
        """Return names and hash of these contents."""
        acting = msgspec.structs.replace(self, source="")
        if not decision.sharing_config:
            acting = msgspec.structs.replace(acting, name="", sharing="")
        policy = f"gpupolicy/{self.policy_name}" if self.policy_name else "policy"
        names = [name for name in (acting.name, policy if self.policy else "") if name]
        digest = hashlib.sha256(msgspec.json.encode(acting)).hexdigest()[:10]
        return f"{'+'.join(names)}@{digest}" if names else ""


class ConfigurationFiles:
    """Reads the files; invalid ones leave the former configuration in force."""

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
            given: the GPUPolicy's settings for the node; None where no policy applies.

        """
        file = self._sources.policy
        overrides = _is_there(file)
        common = DeclaredSources(
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

    def _former(self, gpus: Sequence[GpuFacts], problem: str, common: DeclaredSources) -> Configuration:
        try:
            former = self._applied or self._load()
        except UNREADABLE as error:
            what = error.strerror if isinstance(error, OSError) else error_phrase(error, b"")
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
        """Whether the sharing configuration is a single file, so that no label selects it."""
        root = self._sources.sharing
        return root is not None and _is_there(root) and root.is_file()

    def _chosen(self, label: str) -> tuple[str, Path | None]:
        """Return name and path of the sharing configuration; none where there is none and none is requested."""
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

    # The last applied configuration

    def _keep(self, texts: _Texts) -> None:
        self._applied = texts
        path = self._sources.applied
        if path is None or texts == self._saved:
            return
        try:
            write_through(path, msgspec.json.encode(texts))
        except OSError:
            return  # tried again at the next reading; in memory until then
        self._saved = texts

    def _load(self) -> _Texts | None:
        path = self._sources.applied
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Texts) if path is not None else None
        except FileNotFoundError:
            return None


def _is_there(path: Path | None) -> bool:
    """Return whether the file exists; errors are reported when it is read."""
    try:
        return path is not None and path.exists()
    except OSError:
        return False


def _listed(root: Path | None) -> Sequence[Path]:
    """Return the files of a directory, without Kubernetes' own whose names begin with two dots."""
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


def _decided(texts: _Texts, gpus: Sequence[GpuFacts], common: DeclaredSources) -> EffectiveSharing:
    """Return the configuration by these texts, labels and options."""
    declared = common
    if texts.name:
        config = sharingconfig.read(documents.one(texts.name, texts.sharing))
        source = texts.source or f"sharing configuration {texts.name}"
        declared = msgspec.structs.replace(declared, sharing_config=Statement(source=source, node_sharing=config))
    if texts.policy:
        source = f"GPUPolicy {texts.policy_name}" if texts.policy_name else "node policy"
        node_sharing = nodepolicy.read(documents.one(source, texts.policy), gpus)
        if texts.policy_name:
            declared = msgspec.structs.replace(
                declared, gpu_policy=Statement(source=source, node_sharing=node_sharing), node_policy=None
            )
        else:
            named = declared.node_policy or Statement(source=source)
            declared = msgspec.structs.replace(
                declared, node_policy=msgspec.structs.replace(named, node_sharing=node_sharing)
            )
    return decide(declared, gpus)


def _configuration(texts: _Texts, decision: EffectiveSharing) -> Configuration:
    return Configuration(
        node_sharing=decision.node_sharing, generation=texts.generation(decision), overridden=decision.overridden
    )
