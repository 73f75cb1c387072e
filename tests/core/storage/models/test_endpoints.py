"""Which endpoints get which credentials."""

import pytest

from tessera.core.storage.models.endpoints import reveals_credentials

BLOB = "https://models.blob.core.windows.net"
SAS, KEY, TOKEN = {"AZURE_STORAGE_SAS_TOKEN": "sig=x"}, {"AZURE_STORAGE_KEY": "k"}, {"HF_TOKEN": "t"}
OTHER = "https://other.example.com"

CASES: dict[str, tuple[str, str, dict[str, str], bool]] = {
    "a token of the Hub elsewhere": ("hf", OTHER, TOKEN, True),
    "a token of the Hub without TLS": ("hf", "http://huggingface.co", TOKEN, True),
    "a token of the Hub at a name that only begins so": ("hf", "https://huggingface.co.example.com", TOKEN, True),
    "a token of the Hub there": ("hf", "https://huggingface.co", TOKEN, False),
    "a token where the Secret says": ("hf", OTHER, {**TOKEN, "HF_ENDPOINT": OTHER}, False),
    "a token beside another endpoint": ("hf", OTHER, {**TOKEN, "HF_ENDPOINT": BLOB}, True),
    "no token": ("hf", OTHER, {}, False),
    "no endpoint": ("hf", "", TOKEN, False),
    "a signature elsewhere": ("az", OTHER, SAS, True),
    "a signature beside a key": ("az", OTHER, {**SAS, **KEY}, True),
    "a signature at Azure": ("az", BLOB, SAS, False),
    "a signature at Azure without TLS": ("az", BLOB.replace("https", "http"), SAS, True),
    "a signature where the Secret says": ("az", OTHER, {**SAS, "AZURE_STORAGE_SERVICE_ENDPOINT": OTHER}, False),
    "a user of that name elsewhere": ("az", f"{BLOB}@other.example.com", SAS, True),
    "the own identity elsewhere": ("az", OTHER, {}, True),
    "the own identity at Azure": ("az", "https://m.z12.blob.storage.azure.net/", {}, False),
    "a key, whose signatures name no server": ("az", OTHER, KEY, True),
    "a key where the Secret says": ("az", OTHER, {**KEY, "AZURE_STORAGE_SERVICE_ENDPOINT": OTHER}, False),
    "S3, which signs": ("s3", OTHER, {"AWS_SECRET_ACCESS_KEY": "s"}, False),
    "Google's, which go nowhere else": ("gs", OTHER, {"GOOGLE_CREDENTIALS": "{}"}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_server_learns_no_credentials_that_are_not_for_it(case: str) -> None:
    scheme, endpoint, credentials, want = CASES[case]
    assert reveals_credentials(scheme, endpoint, credentials) is want
