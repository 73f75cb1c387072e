"""The node's label `nvidia.com/mig.config`: the configurations that it may name, and where its state is reported."""

from collections.abc import Mapping
from pathlib import Path

from tessera.agent.nodefiles import read_file
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.api import documents
from tessera.api.nvidia import migparted
from tessera.api.tessera.node.nodereports import Report
from tessera.core.node.layouts import Group, LayoutRequest
from tessera.core.node.nodelabels import MIG_CONFIG_STATE
from tessera.errors import InvalidInput

__all__ = ["MigConfigLabel"]


class MigConfigLabel:
    """The label of this node.

    Args:
        path: of mig-parted's file of configurations; None where there is none.
        record: the Node object.

    """

    def __init__(self, path: Path | None, record: NodeRecord) -> None:
        self._path = path
        self._record = record
        self._read: tuple[bytes | None, Mapping[str, tuple[Group, ...]]] = (None, {})
        """The last valid file of configurations, and its content."""

    def check(self) -> None:
        """Report an invalid file before a label names one of its configurations."""
        try:
            self.configurations()
        except InvalidInput as error:
            self._record.note("mig-config", (str(error),))
        else:
            self._record.note("mig-config", ())

    def configurations(self) -> Mapping[str, tuple[Group, ...]]:
        """Return the file's current configurations.

        Raises:
            InvalidInput: it cannot be read, or is invalid.

        """
        if self._path is None:
            return {}
        try:
            content = read_file(self._path)
        except OSError as error:
            raise InvalidInput(
                str(self._path), found=error.strerror or str(error), hint="name a mig-parted file that can be read"
            ) from error
        if content != self._read[0]:
            self._read = content, migparted.read(documents.one(str(self._path), content))
        return self._read[1]

    async def report(self, request: LayoutRequest) -> None:
        """Report the state of the label's request: another label, a condition, an event."""
        record, condition = self._record, request.condition
        if request.state is None or condition is None:
            await record.set_labels({}, owned=lambda key: key == MIG_CONFIG_STATE)
            await record.remove_condition()
            return
        report = Report(reason=condition.reason, message=condition.message, warning=request.state.value == "failed")
        await record.set_condition(condition.status, report)
        await record.set_labels({MIG_CONFIG_STATE: request.state.value}, owned=lambda key: key == MIG_CONFIG_STATE)
        await record.report(report)
