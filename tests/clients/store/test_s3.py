"""S3: AWS's published signature, and listings that are none."""

from datetime import UTC, datetime

from tessera.clients.store.s3 import S3Settings, sign


def test_a_request_is_signed_as_aws_shows() -> None:
    """Source: AWS, "Signature Calculations for the Authorization Header", example GET Object."""
    settings = S3Settings(
        access_key="AKIAIOSFODNN7EXAMPLE",
        secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )
    headers = {"Host": "examplebucket.s3.amazonaws.com", "Range": "bytes=0-9"}
    signed = sign(settings, datetime(2013, 5, 24, tzinfo=UTC), "/test.txt", headers)
    want = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert signed["Authorization"].endswith(f"Signature={want}")
