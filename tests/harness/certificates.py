"""Certificates of an authority, and of another one, made by openssl."""

import subprocess
from pathlib import Path

from tessera.clients.store.peers import PEER_NAME

__all__ = ["make_certificates"]


def make_certificates(folder: Path) -> Path:
    """Make an authority with certificates for servers, clients and agents, some of them expired, and another's."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("ca", "other"):
        extension = "keyUsage=critical,keyCertSign,cRLSign"
        files = ("-keyout", f"{authority}.key", "-out", f"{authority}.crt")
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={authority}", "-days", "2", "-addext", extension)
    signed = {"server": "ca", "renewed": "ca", "client": "ca", "expired": "ca", "stranger": "other"}
    signed |= {"agent": "ca", "agent-expired": "ca", "agent-stranger": "other"}
    for name, authority in signed.items():
        days = "-1" if name.endswith("expired") else "2"
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        san = f"DNS:{PEER_NAME}" if name.startswith("agent") else "IP:127.0.0.1"
        (folder / "san").write_text(f"subjectAltName={san}")
        sign = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", days)
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *sign, "-extfile", "san")
    return folder
