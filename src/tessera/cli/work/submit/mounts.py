"""What work mounts: `--data` and `--secret`."""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.cli.work.submit.validation import NameFormat, checked, checked_folder
from tessera.core.deviceplugin.offers.modeloffers import mount_path
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.errors import InvalidInput, shown

__all__ = ["Data", "check_folders", "data_of", "secrets_of"]

_CLAIM = "pvc/"


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Data sets, read-only."""

    limits: dict[str, str]
    """Resource requests for ModelCaches."""
    env: tuple[tuple[str, str], ...]
    """Path of each: `TESSERA_DATA_NAME_PATH`."""
    claims: tuple[tuple[str, str], ...]
    """PersistentVolumeClaims: name, folder."""
    caches: tuple[str, ...]


def data_of(words: Sequence[str]) -> Data:
    """Return the data sets of `--data`: ModelCaches, or PersistentVolumeClaims with the prefix `pvc/`.

    Raises:
        InvalidInput: an invalid name, or two with the same variable.

    """
    claims = tuple(
        (name := checked("--data", each.removeprefix(_CLAIM), NameFormat.OBJECT), f"/data/{name}")
        for each in words
        if each.startswith(_CLAIM)
    )
    caches = tuple(
        (checked("--data", each, NameFormat.LABEL), mount_path(each)) for each in words if not each.startswith(_CLAIM)
    )
    env = {_variable(name): folder for name, folder in (*caches, *claims)}
    if len(env) != len(words):
        found = f"{' and '.join(words)}, of which two would be one variable"
        raise InvalidInput("--data", found=found, expected="names that differ in more than - and .")
    limits = {f"{MODEL_RESOURCE}{name}": "1" for name, _ in caches}
    return Data(limits=limits, env=tuple(env.items()), claims=claims, caches=tuple(name for name, _ in caches))


def secrets_of(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the Secrets of `--secret` whose keys are variables, and with their folders those whose keys are files.

    Raises:
        InvalidInput: an invalid name or folder.

    """
    parts = (word.partition(":") for word in words)
    found = [(checked("--secret", name, NameFormat.OBJECT), colon, folder) for name, colon, folder in parts]
    folders = dict.fromkeys((name, checked_folder("--secret", folder)) for name, colon, folder in found if colon)
    return tuple(dict.fromkeys(name for name, colon, _ in found if not colon)), tuple(folders)


def check_folders(folders: Iterable[tuple[str, str]]) -> None:
    """Reject two mounts at one folder of a container.

    Args:
        folders: by their option, as on the command line.

    Raises:
        InvalidInput: two are the same.

    """
    there: dict[str, str] = {}
    for name, folder in folders:
        if (other := there.setdefault(folder, name)) != name:
            found = f"{shown(folder)} is already the folder of {other}"
            raise InvalidInput(name, found=found, hint="name another folder for one of them")


def _variable(name: str) -> str:
    return f"TESSERA_DATA_{name.upper().replace('-', '_').replace('.', '_')}_PATH"
