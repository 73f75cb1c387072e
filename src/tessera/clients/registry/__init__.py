"""Registries of container images: manifests and configurations; real and in-memory."""

from tessera.clients.registry.keychain import Keychain
from tessera.clients.registry.memory import MemoryRegistry
from tessera.clients.registry.protocol import Registry, RegistryContent, read_image
from tessera.clients.registry.real import HttpRegistry

__all__ = ["HttpRegistry", "Keychain", "MemoryRegistry", "Registry", "RegistryContent", "read_image"]
