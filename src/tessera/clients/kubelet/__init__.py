"""The kubelet: its record of devices, registration and transport of device plugins, and an in-memory kubelet."""

import os

# Threads of gRPC and a fork deadlock now and then (grpc/grpc#22624); nobody forks here, so gRPC need not prepare.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# What happens to a connection is shown by the errors of its calls.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from tessera.clients.kubelet.devicecheckpoint import DeviceCheckpoint
from tessera.clients.kubelet.memory import Container, MemoryKubelet
from tessera.clients.kubelet.plugin import DevicePlugin, OptionalCalls, PluginServer, register, serve
from tessera.clients.kubelet.podresources import PodResources
from tessera.clients.kubelet.sockets import socket_path

__all__ = [
    "Container",
    "DeviceCheckpoint",
    "DevicePlugin",
    "MemoryKubelet",
    "OptionalCalls",
    "PluginServer",
    "PodResources",
    "register",
    "serve",
    "socket_path",
]
