"""Which endpoints may get the credentials of a Secret, or the agent's own: a ModelCache's author names any address."""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["ENDPOINTS", "reveals_credentials"]

ENDPOINTS: Final = {
    "s3": "AWS_ENDPOINT_URL",
    "gs": "STORAGE_EMULATOR_HOST",
    "az": "AZURE_STORAGE_SERVICE_ENDPOINT",
    "hf": "HF_ENDPOINT",
}
"""By kind of source, the name of the setting with its endpoint."""
_OWN = {
    "az": re.compile(
        r"https://[a-z0-9.-]+\.blob\.(core\.(windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)|storage\.azure\.net)/?"
    ),
    "hf": re.compile(r"https://huggingface\.co/?"),
}
"""The services' own endpoints.

Source: azure-storage-blob and Azure's list of endpoints by cloud; huggingface_hub, constants.py.
"""


def reveals_credentials(scheme: str, endpoint: str, credentials: Mapping[str, str]) -> bool:
    """Return whether a server at this endpoint would learn something with which others can read.

    Requests to S3 are signed for one server: they reveal nothing. Google's token is sent to no other endpoint. The
    token of the Hub, a shared access signature and the token of the agent's own identity at Azure go as they are, and
    a request signed with an account's key does not name its server, so that another could repeat it for 15 minutes:
    they go to the service itself, and to the endpoint that the Secret names beside them.

    Source: Microsoft's "Authorize with Shared Key".

    Args:
        scheme: kind of source.
        endpoint: named by the ModelCache; empty for the service's own.
        credentials: the Secret's, by the names of the services' own programs.

    """
    own = _OWN.get(scheme)
    if own is None or not endpoint or own.fullmatch(endpoint) or endpoint == credentials.get(ENDPOINTS[scheme]):
        return False
    return scheme == "az" or bool(credentials.get("HF_TOKEN"))
