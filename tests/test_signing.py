"""Signatures of assignments, and a server's own certificate."""

import base64
import datetime as dt
import ssl
from pathlib import Path

import pytest

from tessera.api.kubernetes.podspecs import ASSIGNMENT, SIGNATURE
from tessera.api.tessera.pods.signatures import key_named, signature_text, signed_text
from tessera.signing import SEED_BYTES, Signer, self_signed, valid_until, verify

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def test_a_key_is_its_seed_and_two_new_ones_differ() -> None:
    made = Signer()
    assert (len(made.seed), Signer(made.seed).public) == (SEED_BYTES, made.public)
    assert Signer().public != made.public


def test_an_assignment_is_signed_for_one_pod_on_one_node() -> None:
    signer = Signer()
    sealed = signer.sealed({ASSIGNMENT: "text", "other": "x"}, uid="u", node="n")
    assert (sealed[ASSIGNMENT], sealed["other"]) == ("text", "x")
    assert key_named(sealed[SIGNATURE]) == key_named(signature_text(signer.public, b"x"))
    assert sealed == signer.sealed({ASSIGNMENT: "text", "other": "x"}, uid="u", node="n")
    others = [
        signer.sealed({ASSIGNMENT: text}, uid=uid, node=node)[SIGNATURE]
        for text, uid, node in (("text2", "u", "n"), ("text", "v", "n"), ("text", "u", "m"))
    ]
    assert sealed[SIGNATURE] not in others
    assert signer.sealed({"other": "x"}, uid="u", node="n") == {"other": "x"}, "nothing is assigned"


@pytest.mark.parametrize("change", ["", "message", "signature", "key"])
def test_only_the_owner_of_a_key_signs(change: str) -> None:
    signer, message = Signer(bytes(SEED_BYTES)), signed_text("u", "n", "text")
    signature = base64.b64decode(signer.sealed({ASSIGNMENT: "text"}, uid="u", node="n")[SIGNATURE].rpartition(".")[2])
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    got = verify(
        Signer().public if change == "key" else signer.public,
        flipped if change == "signature" else signature,
        message + b"x" if change == "message" else message,
    )
    assert got is (change == "")


def test_a_servers_own_certificate_is_its_own_authority(tmp_path: Path) -> None:
    certificate, key = self_signed("metrics.ns.svc", NOON, NOON + dt.timedelta(days=30))
    for name, content in (("crt", certificate), ("key", key)):
        (tmp_path / name).write_bytes(content)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "crt", tmp_path / "key")
    client = ssl.create_default_context(cadata=certificate.decode())
    assert client.cert_store_stats()["x509"] == 1
    assert valid_until(certificate) == NOON + dt.timedelta(days=30)
    assert valid_until(b"no certificate") is None
