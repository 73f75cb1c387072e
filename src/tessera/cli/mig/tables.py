"""What `tessera mig` prints: tables for people, and the same as plain values for JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tessera.cli.mig.node import GpuOutcome, NodeInUse
from tessera.cli.printing import headed_table
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Placement, open_placements
from tessera.core.node.layouts import DeviceUser, Difference

__all__ = ["differences_json", "differences_table", "node_json", "node_table", "outcomes_json", "outcomes_table"]

_GOOD = {"unchanged": "green", "done": "green", "planned": "cyan"}


def _place(placement: Placement) -> str:
    return f"{placement.profile} at {placement.start}"


def _mode(gpu: GpuFacts) -> str:
    if gpu.mig is None:
        return "no MIG"
    mode = f"MIG {'on' if gpu.mig.current else 'off'}"
    return f"{mode}, {'on' if gpu.mig.pending else 'off'} after a reset" if gpu.mig.needs_reset else mode


def _users(users: Iterable[DeviceUser]) -> str:
    return ", ".join(f"pod {user.pod}" if user.pod else f"process {user.pid}" for user in users)


def node_table(observed: NodeInUse, names: Sequence[str]) -> RenderableType:
    """Return every GPU with its MIG instances and what uses them, then the configurations this node supports."""
    table = headed_table("GPU", "model, MIG", "used by", "UUID")
    for gpu in observed.inventory.gpus:
        own = [user for user in observed.users if user.device.gpu == gpu.uuid]
        rows = [
            (_place(each.placement), _users(user for user in own if user.device.placement == each.placement), each.uuid)
            for each in gpu.instances
        ]
        rows += [(f"{_place(each)}, incomplete", "", "") for each in gpu.incomplete]
        whole = _users(user for user in own if user.device.placement is None)
        table.add_row(str(gpu.index), f"{gpu.model.name}, {'lost' if gpu.lost else _mode(gpu)}", whole, gpu.uuid)
        for place, users, uuid in rows:
            table.add_row("", f"  {place}", users, uuid)
    configurations = Text.assemble(("Configurations: ", "bold"), ", ".join(names))
    notes = [Text(f"note: {note}") for note in observed.inventory.remarks]
    return Group(table, "", configurations, *notes)


def node_json(observed: NodeInUse, names: Sequence[str]) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "driver": observed.inventory.driver,
        "gpus": [_gpu_json(gpu, observed.users) for gpu in observed.inventory.gpus],
        "configurations": list(names),
        "notes": list(observed.inventory.remarks),
    }


def _gpu_json(gpu: GpuFacts, users: Iterable[DeviceUser]) -> dict[str, Any]:
    own = [user for user in users if user.device.gpu == gpu.uuid]
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model.name,
        "lost": gpu.lost,
        "mig": None if gpu.mig is None else {"current": gpu.mig.current, "pending": gpu.mig.pending},
        "users": [_user_json(user) for user in own if user.device.placement is None],
        "instances": [
            {
                **_place_json(each.placement),
                "uuid": each.uuid,
                "memory_mib": each.memory_mib,
                "users": [_user_json(user) for user in own if user.device.placement == each.placement],
            }
            for each in gpu.instances
        ],
        "incomplete": [_place_json(each) for each in gpu.incomplete],
        "free": [_place_json(each) for each in open_placements(gpu.model, gpu.layout)]
        if gpu.layout is not None
        else [],
    }


def _place_json(placement: Placement) -> dict[str, Any]:
    return {"profile": placement.profile, "start": placement.start}


def _user_json(user: DeviceUser) -> dict[str, Any]:
    return {"pod": user.pod} if user.pod else {"pid": user.pid}


def outcomes_table(outcomes: Sequence[GpuOutcome]) -> RenderableType:
    """Return the outcome for each GPU, made or planned: its steps in order, and who each affects."""
    table = headed_table("GPU", "model", "result", "step", "affects")
    for each in outcomes:
        color = _GOOD.get(each.result, "yellow")
        table.add_row(str(each.index), each.model, Text(each.result, color), "", "")
        for pod in each.evicts:
            table.add_row("", "", "", "evict", f"pod {pod}")
        for action in each.actions:
            step = f"{action.what} {_place(action.placement)}" if action.placement else action.what
            table.add_row("", "", "", step, _users(action.disturbs) or "nothing")
    reasons = [Text(each.reason, "yellow") for each in outcomes if each.reason]
    return Group(table, *([""] if reasons else []), *reasons)


def outcomes_json(outcomes: Sequence[GpuOutcome]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [
        {
            "index": each.index,
            "uuid": each.uuid,
            "model": each.model,
            "result": each.result,
            "reason": each.reason,
            "steps": [
                *({"do": "evict", "disturbs": [{"pod": pod}]} for pod in each.evicts),
                *(
                    {
                        "do": action.what,
                        **(_place_json(action.placement) if action.placement else {}),
                        "disturbs": [_user_json(user) for user in action.disturbs],
                    }
                    for action in each.actions
                ),
            ],
        }
        for each in outcomes
    ]


def differences_table(differences: Sequence[Difference]) -> RenderableType:
    """Return how GPUs differ from what was asserted."""
    table = headed_table("GPU", "observed", "desired")
    for each in differences:
        table.add_row(str(each.index), each.found, each.expected)
    return table


def differences_json(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [
        {"index": each.index, "uuid": each.gpu, "found": each.found, "expected": each.expected} for each in differences
    ]
