"""A cluster with a server, and certificates, that tests of the server share."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders.kubeobjects import gpu, node
from harness.servers import Asked, make_node, servers
from tessera.clients.kube import NODES, MemoryKube


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority with certificates for a server, its next one and a client, and another authority's client."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("ca", "other"):
        extension = "keyUsage=critical,keyCertSign,cRLSign"
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.crt")
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={authority}", "-days", "2", "-addext", extension)
    for name, authority in (("server", "ca"), ("renewed", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
        sign = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *sign, "-extfile", "san")
    return folder


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with two nodes of two A100 each and one node without GPUs."""
    made = MemoryKube()
    for name in ("a", "b"):
        await make_node(made, name, gpu(0), gpu(1))
    await made.create(NODES, node("plain"))
    return made


@pytest.fixture
async def server(kube: MemoryKube) -> AsyncIterator[Asked]:
    async with servers(kube) as (one,):
        yield one
