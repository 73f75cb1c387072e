"""S3: AWS's published signature, and another's server behind the suite that all stores pass."""

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.storesuite import Fill, StoreSuite, read
from harness.moto import Moto
from tessera.agent.storage.models.digests import start_checksum
from tessera.clients.store import ObjectStore, open_store
from tessera.clients.store.http1 import request_of
from tessera.clients.store.s3 import S3Settings, SignedRequests, sign
from tessera.core.storage.models.peers.multipart import proof_of

MIB = 2**20
PART = "/models/m/large?partNumber={}&uploadId={}"


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


@given(
    seconds=st.lists(st.floats(0, 5), min_size=1, max_size=5),
    etags=st.lists(st.sampled_from(["", "abc", '"%s"', "1-4000", "\xe9%(Host)s"]), min_size=1),
    paths=st.lists(st.sampled_from(["/m/a", "/m/b%20c", "/m/%25s"]), min_size=1),
    token=st.sampled_from(["", "to%ken=="]),
    key=st.sampled_from(["a", "%s"]),
)
def test_what_is_kept_for_a_second_signs_as_each_request_alone(
    seconds: list[float], etags: list[str], paths: list[str], token: str, key: str
) -> None:
    settings = S3Settings(access_key=key, secret_key="b", session_token=token)
    requests = SignedRequests(settings, "h%s:1")
    for after, etag, path in itertools.product(seconds, etags, paths):
        now = datetime(2026, 11, 26, 23, 59, 57, tzinfo=UTC) + timedelta(seconds=after)
        headers = {"Accept-Encoding": "identity", **({"If-Match": f'"{etag}"'} if etag else {})}
        alone = request_of("GET", path, sign(settings, now, path, {"Host": "h%s:1", **headers}))
        assert requests.request(now, path, headers) == alone


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto.served() as server:
        server.bucket("models")
        yield server


@pytest.mark.long
class TestS3StoreOnMoto(StoreSuite):
    @pytest.fixture
    def store(self, moto: Moto) -> Iterator[ObjectStore]:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        with closing(open_store("s3://models/m", {"AWS_ENDPOINT_URL": moto.address, **keys})) as made:
            yield made

    @pytest.fixture
    def fill(self, moto: Moto) -> Fill:
        there = set[str]()

        def replace(contents: dict[str, bytes]) -> None:
            for name in there - contents.keys():
                moto.remove("models", f"m/{name}")
            for name, data in {**{f"m/{name}": data for name, data in contents.items()}, "other": b"no"}.items():
                moto.put("models", name, data)
            there.clear()
            there.update(contents)

        return replace

    @pytest.fixture(autouse=True)
    def emptied(self, fill: Fill) -> Iterator[None]:
        yield
        fill({})

    def test_what_was_uploaded_in_parts_has_the_etag_that_follows_from_their_size(
        self, moto: Moto, store: ObjectStore, fill: Fill
    ) -> None:
        fill({"large": b""})
        content = os.urandom(5 * MIB + 17)
        begun, _ = moto.send("POST", "/models/m/large?uploads")
        (upload,) = re.findall(rb"<UploadId>(.+)</UploadId>", begun)
        parts = [content[: 5 * MIB], content[5 * MIB :]]
        etags = [moto.send("PUT", PART.format(n, upload.decode()), part)[1] for n, part in enumerate(parts, 1)]
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in enumerate(etags, 1)
        )
        end = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
        moto.send("POST", f"/models/m/large?uploadId={upload.decode()}", end)
        (listed,) = store.objects()
        assert (listed.etag.endswith("-2"), listed.checksum) == (True, "")
        got = read(store, listed, 0, 100)
        assert got == content[:100]
        checksum = start_checksum(proof_of(listed), listed.size)
        assert checksum is not None
        for first in range(0, len(content), MIB + 3):
            checksum.update(memoryview(content)[first : first + MIB + 3])
        assert checksum.hexdigest() == listed.etag
