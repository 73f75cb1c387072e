"""Addresses whose bucket is missing, or cannot exist."""

import pytest

from tessera.clients.store import open_store
from tessera.errors import InvalidInput

AZURE = {"AZURE_STORAGE_ACCOUNT": "account", "AZURE_STORAGE_AUTH_MODE": "anonymous"}


@pytest.mark.parametrize(
    ("address", "want"),
    [
        ("s3:///m", "s3://: it names no bucket: write s3://BUCKET/PREFIX"),
        (
            "s3://x/m/n",
            "s3://x/m/n: 'x' is no name of a bucket: write s3://BUCKET/PREFIX: 3 to 63 of a-z, 0-9, '.' and",
        ),
        ("az://c/p", "az://c/p: 'c' is no name of a container: write az://CONTAINER/PREFIX: 3 to 63 of a-z, 0-9 and"),
    ],
)
def test_what_is_wrong_with_the_name_is_said(address: str, want: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        open_store(address, AZURE)
    assert want in str(raised.value)
