"""Names that Kubernetes takes for objects and resources. Source: k8s.io/apimachinery `pkg/util/validation`."""

import re
from typing import Annotated

import msgspec

__all__ = ["LABEL", "SUBDOMAIN", "LabelName", "ObjectName", "is_label", "is_pod", "is_qualified", "is_subdomain"]

LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""Regular expression of a label, without its length (`IsDNS1123Label`)."""
SUBDOMAIN = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
"""Regular expression of the name of most objects, without its length (`IsDNS1123Subdomain`)."""
_OF_DOMAIN = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LONGEST_LABEL, _LONGEST_SUBDOMAIN = 63, 253

LabelName = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_LABEL, pattern=f"^{LABEL}$")]
"""A label as a field of a kind or a record."""
ObjectName = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_SUBDOMAIN, pattern=f"^{SUBDOMAIN}$")]
"""The name of an object as a field of a kind or a record."""


def is_label(text: str) -> bool:
    """Return whether a text names what Kubernetes names by a label: a namespace, a container, a Job's pods."""
    return len(text) <= _LONGEST_LABEL and re.fullmatch(LABEL, text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether a text names an object of most kinds."""
    return len(text) <= _LONGEST_SUBDOMAIN and re.fullmatch(SUBDOMAIN, text) is not None


def is_pod(namespace: str, name: str) -> bool:
    """Return whether a namespace and a name are a pod's."""
    return is_label(namespace) and is_subdomain(name)


def is_qualified(text: str) -> bool:
    """Return whether a text is a name with a domain, as of an extended resource (`IsQualifiedName`)."""
    domain, slash, name = text.partition("/")
    named = len(name) <= _LONGEST_LABEL and re.fullmatch(_OF_DOMAIN, name) is not None
    return bool(slash) and is_subdomain(domain) and named
