"""A stand-in for Terraform's google provider: it has the schema of GKE's node pools and creates nothing.

OpenTofu validates and tests a module against it without the provider itself, which neither Go's module proxy nor PyPI
has.

Source: the plugin protocol, version 5, opentofu/opentofu `docs/plugin-protocol`; the schema of
`ResourceContainerNodePool` in hashicorp/terraform-provider-google at e03b7622, of which this has what the module uses.
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

import grpc
import grpc.aio
import msgspec

__all__ = ["ADDRESSES", "google_provider"]

ADDRESSES = ("registry.opentofu.org/hashicorp/google", "registry.terraform.io/hashicorp/google")
"""What OpenTofu and Terraform call the provider."""

_Type = str | tuple[str, str]


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    required: Mapping[str, _Type] = {}
    optional: Mapping[str, _Type] = {}
    blocks: Mapping[str, "_Block"] = {}
    most: int = 1
    """How often it may be there; 0 for any number."""


_NODE_CONFIG = _Block(
    optional={
        "disk_size_gb": "number",
        "disk_type": "string",
        "image_type": "string",
        "labels": ("map", "string"),
        "machine_type": "string",
        "oauth_scopes": ("set", "string"),
        "service_account": "string",
        "spot": "bool",
    },
    blocks={
        "ephemeral_storage_local_ssd_config": _Block(required={"local_ssd_count": "number"}),
        "guest_accelerator": _Block(
            required={"count": "number", "type": "string"},
            optional={"gpu_partition_size": "string"},
            blocks={
                "gpu_driver_installation_config": _Block(required={"gpu_driver_version": "string"}),
                "gpu_sharing_config": _Block(
                    required={"gpu_sharing_strategy": "string", "max_shared_clients_per_gpu": "number"}
                ),
            },
            most=0,
        ),
        "gvnic": _Block(required={"enabled": "bool"}),
        "local_nvme_ssd_block_config": _Block(required={"local_ssd_count": "number"}),
        "taint": _Block(required={"effect": "string", "key": "string", "value": "string"}, most=0),
        "workload_metadata_config": _Block(required={"mode": "string"}),
    },
)
_RESOURCES = {
    "google_container_node_pool": _Block(
        required={"cluster": "string"},
        optional={
            "id": "string",
            "initial_node_count": "number",
            "location": "string",
            "max_pods_per_node": "number",
            "name": "string",
            "node_count": "number",
            "node_locations": ("set", "string"),
            "project": "string",
        },
        blocks={
            "autoscaling": _Block(
                optional={"location_policy": "string", "max_node_count": "number", "min_node_count": "number"}
            ),
            "management": _Block(optional={"auto_repair": "bool", "auto_upgrade": "bool"}),
            "node_config": _NODE_CONFIG,
            "placement_policy": _Block(required={"type": "string"}),
            "upgrade_settings": _Block(optional={"max_surge": "number", "max_unavailable": "number"}),
        },
    )
}
_PROVIDER = _Block(optional={"project": "string"})
_LIST = 2
"""The nesting of all blocks here."""


def _varint(number: int) -> bytes:
    more, low = number >> 7, number & 0x7F
    return bytes([low | 0x80]) + _varint(more) if more else bytes([low])


def _field(number: int, content: bytes | int) -> bytes:
    """Return a field of a protobuf message: bytes with their length, or a number."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _attribute(name: str, kind: _Type, *, required: bool) -> bytes:
    # What is optional is computed where it is left out, which nearly all of them are.
    how = _field(4, 1) if required else _field(5, 1) + _field(6, 1)
    return _field(1, name.encode()) + _field(2, json.dumps(kind).encode()) + how


def _block(block: _Block) -> bytes:
    attributes = [_attribute(name, kind, required=True) for name, kind in block.required.items()]
    attributes += [_attribute(name, kind, required=False) for name, kind in block.optional.items()]
    nested = [
        _field(1, name.encode()) + _field(2, _block(each)) + _field(3, _LIST) + _field(5, each.most)
        for name, each in block.blocks.items()
    ]
    return b"".join((*(_field(2, each) for each in attributes), *(_field(3, each) for each in nested)))


def _schema(block: _Block) -> bytes:
    return _field(2, _block(block))


def _all_schemas(resources: Mapping[str, _Block]) -> bytes:
    entries = [_field(1, name.encode()) + _field(2, _schema(block)) for name, block in resources.items()]
    return _field(1, _schema(_PROVIDER)) + b"".join(_field(2, entry) for entry in entries)


@contextlib.asynccontextmanager
async def google_provider(folder: Path) -> AsyncIterator[str]:
    """Serve the provider on a socket in a folder, and give what TF_REATTACH_PROVIDERS must be to use it."""
    answers: Mapping[str, Callable[[bytes], bytes]] = {
        "GetSchema": lambda _: _all_schemas(_RESOURCES),
        # The configuration that was asked about is the one prepared: field 1 in both messages.
        "PrepareProviderConfig": lambda requested: requested,
        "ValidateResourceTypeConfig": lambda _: b"",
        "Configure": lambda _: b"",
        "Stop": lambda _: b"",
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handlers("tfplugin5.Provider", answers.items()),))
    socket = folder / "provider"
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield json.dumps({address: _reattached(socket) for address in ADDRESSES})
    finally:
        await server.stop(grace=None)


def _handlers(service: str, answers: Iterable[tuple[str, Callable[[bytes], bytes]]]) -> grpc.GenericRpcHandler:
    def handler(answer: Callable[[bytes], bytes]) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def answered(requested: bytes, _: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
            return answer(requested)

        return grpc.unary_unary_rpc_method_handler(answered)

    return grpc.method_handlers_generic_handler(service, {name: handler(answer) for name, answer in answers})


def _reattached(socket: Path) -> dict[str, object]:
    address = {"Network": "unix", "String": str(socket)}
    return {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": os.getpid(), "Test": True, "Addr": address}
