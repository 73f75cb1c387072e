"""Where models come from: S3, Google Cloud Storage, the Hugging Face Hub, HTTP servers, folders, and one in memory."""

from tessera.clients.store.memory import MemoryStore
from tessera.clients.store.opening import open_store
from tessera.clients.store.protocol import Body, Changed, Refused, Store, Temporary

__all__ = ["Body", "Changed", "MemoryStore", "Refused", "Store", "Temporary", "open_store"]
