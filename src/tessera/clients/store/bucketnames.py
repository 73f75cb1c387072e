"""The error of an address that names no bucket, or one that cannot exist."""

from tessera.errors import InvalidInput, shown

__all__ = ["no_bucket"]


def no_bucket(scheme: str, noun: str, name: str, prefix: str) -> InvalidInput:
    """Return the error of `SCHEME://NAME/PREFIX`, whose name cannot be one of a bucket or container."""
    address = f"{scheme}://{name}/{prefix}".rstrip("/") if name else f"{scheme}://"
    form = f"write {scheme}://{noun.upper()}/PREFIX"
    if not name:
        return InvalidInput(address, found=f"it names no {noun}", hint=form)
    letters = "a-z, 0-9 and '-'" if noun == "container" else "a-z, 0-9, '.' and '-'"
    return InvalidInput(address, found=f"{shown(name)} is no name of a {noun}", hint=f"{form}: 3 to 63 of {letters}")
