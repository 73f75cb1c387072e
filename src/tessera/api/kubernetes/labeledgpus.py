"""The GPUs of a node by its labels: of GPU feature discovery, or of its cloud.

Source: NVIDIA/k8s-device-plugin `docs/gpu-feature-discovery/README.md`; GKE documentation of GPU node pools;
aws/karpenter-provider-aws `pkg/apis/v1/labels.go`; Kubernetes, Well-Known Labels; `gpumodels.INSTANCE_TYPES`.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial

import msgspec

from tessera.api.fields import Field, in_place, read_model
from tessera.core.gpu.gpumodels import INSTANCE_TYPES, GpuModel, model, sized_model
from tessera.core.workload import units
from tessera.core.workload.tesseranames import GPU_MODEL
from tessera.errors import InvalidInput, shown

__all__ = ["INSTANCE_TYPE_LABELS", "MODEL_LABELS", "LabeledGpus", "ModelRule", "model_rules", "read_labeled_gpus"]

_PRODUCTS = (GPU_MODEL, "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_KARPENTER = "karpenter.k8s.aws/instance-gpu-"
_KARPENTER_NAME = f"{_KARPENTER}name"
INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
MODEL_LABELS = (*_PRODUCTS, _KARPENTER_NAME, *INSTANCE_TYPE_LABELS)
"""Labels with the GPU model; the first with a known one counts."""
_WHOLE_PERCENT = 90
"""From this part of a model's memory on the nominal figure is that of a whole GPU."""


class LabeledGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node."""

    model: GpuModel
    memory_mib: int
    """Of each: the model's, or less if the node has a part of a GPU."""
    count: int | None = None
    """From the cloud's label; None without one."""
    label: str = ""
    """The label with the model."""


class ModelRule(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU model of some nodes, given by a user."""

    nodes: str
    """A node's name, a shell pattern of names, or a label `KEY=VALUE`."""
    model: GpuModel

    def applies(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether this node matches."""
        key, equals, value = self.nodes.partition("=")
        return labels.get(key) == value if equals else fnmatchcase(name, self.nodes)


def model_rules(texts: Iterable[str]) -> tuple[ModelRule, ...]:
    """Return the rules `NODE=MODEL`, where NODE may be a pattern of names or a label `KEY=VALUE`.

    Raises:
        InvalidInput: another form, or an unknown GPU model.

    """
    rules = []
    for text in texts:
        nodes, _, name = text.rpartition("=")
        subject = f"--gpu-model {shown(text)}"
        if not nodes or not name:
            raise InvalidInput(
                subject, found="it names no node or no model", hint="write NODE=MODEL: gpu-1=T4, 'gpu-*=T4', pool=t4=T4"
            )
        rules.append(ModelRule(nodes=nodes, model=in_place(subject, partial(model, name))))
    return tuple(rules)


def read_labeled_gpus(labels: Field, given: GpuModel | None = None) -> LabeledGpus | None:
    """Return a node's GPUs by its labels; None if no label tells.

    Args:
        labels: the labels of a Node object.
        given: the model given by a user, which takes precedence over all labels.

    Raises:
        InvalidInput: a label has an unknown GPU model, and no other label a known one.

    """
    present = labels.mapping()
    cloud, wrong = None, None
    try:
        cloud = _karpenter(labels)
    except InvalidInput as error:
        wrong = error
    cloud = cloud or _instance_type(labels)
    if given is not None:
        return _joined(given, cloud, "")
    for key in _PRODUCTS:
        if key in present:
            try:
                return _joined(read_model(labels.get(key)), cloud, key)
            except InvalidInput as error:
                if key == GPU_MODEL:
                    raise
                wrong = wrong or error
    if cloud is None and wrong is not None:
        raise wrong
    return cloud


def _joined(known: GpuModel, cloud: LabeledGpus | None, label: str) -> LabeledGpus:
    """Return a model with the cloud's facts about its GPUs, if they agree."""
    if cloud is not None and cloud.model == known:
        return msgspec.structs.replace(cloud, label=label)
    return LabeledGpus(model=known, memory_mib=known.memory_mib, label=label)


def _karpenter(labels: Field) -> LabeledGpus | None:
    name = labels.get(_KARPENTER_NAME)
    if not name.present or labels.get(f"{_KARPENTER}manufacturer").text("nvidia") != "nvidia":
        return None
    nominal_mib = labels.get(f"{_KARPENTER}memory").read(units.count, 0)
    known = in_place(name, partial(sized_model, name.text(), nominal_mib))
    part = 0 < nominal_mib * 100 < _WHOLE_PERCENT * known.memory_mib
    return LabeledGpus(
        model=known,
        memory_mib=nominal_mib if part else known.memory_mib,
        # 0 where the instance has a part of a GPU, which is advertised as one.
        count=labels.get(f"{_KARPENTER}count").read(units.count, 0) or None,
        label=_KARPENTER_NAME,
    )


def _instance_type(labels: Field) -> LabeledGpus | None:
    for key in INSTANCE_TYPE_LABELS:
        found = INSTANCE_TYPES.get(labels.get(key).text("").casefold())
        if found is not None:
            return LabeledGpus(model=found.model, memory_mib=found.memory_mib, count=found.count, label=key)
    return None
