"""Validates names and amounts of a command line, before the API server or the kubelet would reject them."""

import enum
import re
from pathlib import PurePosixPath

from tessera.core.gpu.gpumodels import is_profile
from tessera.core.gpu.sharing import mig_resource
from tessera.core.workload import units
from tessera.core.workload.objectnames import is_label, is_subdomain
from tessera.errors import InvalidInput, shown

__all__ = ["NameFormat", "checked", "checked_cpu", "checked_folder", "checked_memory", "checked_slice", "checked_text"]

_MOST_CPUS = 10_000
"""No node has as many: it is an amount of memory."""


class NameFormat(enum.Enum):
    """The format of a name: whether a text has it, and its words. Source: k8s.io/apimachinery `util/validation`."""

    LABEL = (is_label, "a name of at most 63 of a-z, 0-9 and -")
    OBJECT = (is_subdomain, "a name of at most 253 of a-z, 0-9, - and .")
    KEY = (re.compile(r"[-._A-Za-z0-9]{1,253}").fullmatch, "a key of at most 253 of A-Z, a-z, 0-9, -, _ and .")
    VARIABLE = (
        re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*").fullmatch,
        "the name of a variable: letters, digits, -, _ and ., no digit first",
    )
    IMAGE = (re.compile(r"[!-~]{1,512}").fullmatch, "the name of an image")


def checked(option: str, text: str, name_format: NameFormat) -> str:
    """Return a word of the command line.

    Raises:
        InvalidInput: it does not match.

    """
    matches, words = name_format.value
    if not matches(text):
        raise InvalidInput(option, found=shown(text), expected=words)
    return text


def checked_cpu(option: str, text: str) -> str:
    """Return a quantity of CPUs.

    Raises:
        InvalidInput: it is no quantity, nothing, or more than a node has.

    """
    if not 0 < units.cpu_milli(text, option) <= 1000 * _MOST_CPUS:
        raise InvalidInput(
            option, found=shown(text), expected="a number of CPUs", hint="write an amount such as 4 or 500m"
        )
    return text


def checked_memory(option: str, text: str) -> str:
    """Return a quantity of host memory, at least 1 MiB.

    Raises:
        InvalidInput: it is no quantity, or less, as an amount without its unit is.

    """
    amount = units.quantity(text, option)
    if amount < units.MIB:
        fix = f"write {text}Gi" if text.isdecimal() and amount else "write an amount such as 16Gi"
        raise InvalidInput(option, found=f"{text} is {float(amount):.12g} bytes", hint=fix)
    return text


def checked_slice(option: str, text: str) -> str:
    """Return the resource of a MIG profile.

    Raises:
        InvalidInput: no GPU model has the profile.

    """
    resource = mig_resource(text.strip().casefold())
    if not is_profile(resource):
        profiles = "a MIG profile that some GPU model has, such as 1g.10gb"
        raise InvalidInput(option, found=shown(text), expected=profiles, hint="`tessera profiles` lists them")
    return resource


def checked_text(option: str, text: str) -> str:
    """Return words in a form that a Job can have: JSON has only valid text.

    Raises:
        InvalidInput: they are not UTF-8.

    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(option, found=shown(text), expected="UTF-8", hint="bring bytes along in a file") from error
    return text


def checked_folder(option: str, text: str) -> str:
    """Return the folder of a container.

    Raises:
        InvalidInput: it is not an absolute path, or no volume can be mounted there.

    """
    path = PurePosixPath(text)
    if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts or ":" in text or not text.isprintable():
        raise InvalidInput(option, found=shown(text), expected="a folder of the container, such as /etc/hub")
    return "/".join(("", *path.parts[1:]))  # Python keeps `//code`, which is /code
