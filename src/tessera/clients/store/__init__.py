"""Sources of models: S3, Google Cloud Storage, Azure, the Hugging Face Hub, web servers, folders, peers, and memory."""

from tessera.clients.store.memory import MemoryStore
from tessera.clients.store.opening import open_store
from tessera.clients.store.protocol import SMALL_BYTES, Body, Changed, ObjectStore, Refused, Retry, Temporary

__all__ = [
    "SMALL_BYTES",
    "Body",
    "Changed",
    "MemoryStore",
    "ObjectStore",
    "Refused",
    "Retry",
    "Temporary",
    "open_store",
]
