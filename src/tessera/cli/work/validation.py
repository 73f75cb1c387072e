"""Validates names and amounts of a command line, before the API server or the kubelet would reject them."""

import enum
import re
from pathlib import PurePosixPath

from tessera.errors import InvalidInput, shown

__all__ = ["WordForm", "checked", "checked_folder", "checked_text"]


class WordForm(enum.Enum):
    """The form of a word: a regular expression, and its name. Source: k8s.io/apimachinery `util/validation`."""

    LABEL = (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a name of at most 63 of a-z, 0-9 and -")
    OBJECT = (r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", "a name of at most 253 of a-z, 0-9, - and .")
    KEY = (r"[-._A-Za-z0-9]{1,253}", "a key of at most 253 of A-Z, a-z, 0-9, -, _ and .")
    VARIABLE = (r"[-._A-Za-z][-._A-Za-z0-9]*", "the name of a variable: letters, digits, -, _ and ., no digit first")
    IMAGE = (r"[!-~]{1,512}", "the name of an image")
    AMOUNT = (r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?", "an amount such as 4, 500m or 16Gi")
    PROFILE = (r"([1-9]c\.)?[1-9]g\.[1-9][0-9]*gb([+.][a-z0-9]+)*", "a MIG profile such as 1g.10gb")


def checked(option: str, text: str, form: WordForm) -> str:
    """Return a word of the command line.

    Raises:
        InvalidInput: it does not match.

    """
    pattern, words = form.value
    if re.fullmatch(pattern, text) is None:
        raise InvalidInput(option, found=shown(text), expected=words)
    return text


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
