"""Keys, certificates and kubeconfig files of a testbed's cluster, made with openssl."""

import json
import subprocess
from pathlib import Path

from tessera.errors import Unavailable

__all__ = ["Pki"]

_DAYS = "3650"


class Pki:
    """The folder of a cluster's keys: one authority for clients and servers, one for the API server's front proxy.

    Everything is made when it is asked for and kept, so asking twice gives the same.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make the authorities and the key that signs the tokens of service accounts."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("ca", "front"):
            if not self.certificate(name).exists():
                key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(self.key(name))]
                self._openssl(
                    "req",
                    "-x509",
                    *key,
                    "-days",
                    _DAYS,
                    "-subj",
                    f"/CN=testbed-{name}",
                    "-out",
                    str(self.certificate(name)),
                )
        if not (self.folder / "sa.pub").exists():
            self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.key("sa")))
            self._openssl("ec", "-in", str(self.key("sa")), "-pubout", "-out", str(self.folder / "sa.pub"))

    def certificate(self, name: str) -> Path:
        """Return where a certificate lies, or would."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return where a private key lies, or would."""
        return self.folder / f"{name}.key"

    def issue(self, name: str, subject: str, *, names: tuple[str, ...] = (), authority: str = "ca") -> Path:
        """Return a certificate for a client, or for the server of `names`, with its key beside it.

        Args:
            name: what its files are called.
            subject: its distinguished name: `/O=system:masters/CN=admin`.
            names: as openssl writes alternative names: `DNS:localhost`, `IP:127.0.0.1`.
            authority: who signs it, `ca` or `front`.

        """
        certificate = self.certificate(name)
        if certificate.exists():
            return certificate
        request = self.folder / f"{name}.csr"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(
            "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth,serverAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        self._openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject),
            *("-keyout", str(self.key(name)), "-out", str(request)),
        )
        self._openssl(
            *("x509", "-req", "-in", str(request), "-days", _DAYS, "-extfile", str(extensions), "-CAcreateserial"),
            *("-CA", str(self.certificate(authority)), "-CAkey", str(self.key(authority)), "-out", str(certificate)),
        )
        request.unlink()
        extensions.unlink()
        return certificate

    def kubeconfig(self, name: str, user: str, server: str) -> Path:
        """Write the kubeconfig file `name` for the certificate of `user`.

        Args:
            name: the file is `NAME.kubeconfig`.
            user: the name under which the certificate was issued.
            server: `https://HOST:PORT`.

        """
        # Paths, not contents: the files beside it are as secret as it is.
        credentials = {"client-certificate": str(self.certificate(user)), "client-key": str(self.key(user))}
        return self._write_kubeconfig(name, server, credentials)

    def token_kubeconfig(self, name: str, token: str, server: str) -> Path:
        """Write the kubeconfig file `name` for a service account's token."""
        return self._write_kubeconfig(name, server, {"token": token})

    def _write_kubeconfig(self, name: str, server: str, credentials: dict[str, str]) -> Path:
        # JSON is YAML.
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "testbed",
                    "cluster": {"server": server, "certificate-authority": str(self.certificate("ca"))},
                }
            ],
            "users": [{"name": "user", "user": credentials}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "user"}}],
            "current-context": "testbed",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"openssl {arguments[0]}", found=done.stderr.strip(), hint="see what it says")
