"""The Dockerfile, built by a real engine from a Debian made here: what comes out is what the testbed runs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.tesseraimage import CONFIG, tessera_image

CHECKOUT = Path(__file__).parents[1]
LACK = [
    name for name in ("buildah", "debootstrap", "runc") if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
BUILD = f"""
set -euo pipefail
engine() {{ buildah --root "$1/storage" --runroot "$1/run" "${{@:2}}"; }}
base=$(engine "$1" from scratch)
cp -a "$1/debian/." "$(engine "$1" mount "$base")"
engine "$1" config --env SSL_CERT_FILE={CERTIFICATES} "$base"
engine "$1" commit --quiet "$base" localhost/debian
engine "$1" rm "$base"
engine "$1" bud --network host --pull-never --build-arg DEBIAN=localhost/debian --tag localhost/tessera "$2"
engine "$1" push --quiet localhost/tessera "docker-archive:$1/image.tar"
made=$(engine "$1" from --pull-never localhost/tessera)
engine "$1" run --network host "$made" -- tessera plan --gpus T4 -f /dev/null -o json >"$1/planned"
"""
"""In a mount namespace of its own, so that no mount of the engine outlives it."""
Layout = dict[str, tuple[bytes, int, str, str]]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(LACK) or os.geteuid() != 0, reason=f"a container engine needs root, and here: {LACK}"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder with the image that buildah makes of the Dockerfile, and what the planner says in it."""
    folder = tmp_path_factory.mktemp("dockerfile")
    debian(folder / "debian")
    command = ("unshare", "--mount", "--propagation=private", "bash", "-c", BUILD, "build", str(folder), str(CHECKOUT))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    yield folder
    shutil.rmtree(folder)


def debian(folder: Path) -> None:
    """Make a Debian 12 that asks whom this machine asks for packages: the pinned base image comes from a registry."""
    known = subprocess.run(("apt-cache", "policy", "base-files"), capture_output=True, text=True, check=True).stdout
    mirror = re.findall(r"^ *\d+ (https?:\S+) .*/main", known, re.MULTILINE)[-1]
    command = ("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(folder), mirror)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    for each in ("etc/apt", "usr/local/share/ca-certificates"):
        shutil.rmtree(folder / each, ignore_errors=True)
        shutil.copytree(Path("/", each), folder / each, symlinks=True)
    for each in (CERTIFICATES, "/etc/pip.conf"):
        if Path(each).exists():
            shutil.copyfile(each, folder / each[1:])


def read(archive: Path) -> tuple[Layout, dict[str, object]]:
    """Return what an image is made of, as type, mode, target and digest by path, and how it runs."""
    found: Layout = {}
    with tarfile.open(archive) as image:

        def part(name: str) -> bytes:
            content = image.extractfile(name)
            assert content is not None
            return content.read()

        (manifest,) = json.loads(part("manifest.json"))
        for name in manifest["Layers"]:
            content = image.extractfile(image.getmember(name).linkname or name)
            with tarfile.open(fileobj=content) as layer:
                for each in layer:
                    # What Python compiles is the same code, not always the same bytes: its source is compared.
                    inside = layer.extractfile(each) if each.isreg() and not each.name.endswith(".pyc") else None
                    digest = hashlib.sha256(inside.read()).hexdigest() if inside else ""
                    found[each.name.removesuffix("/")] = (each.type, each.mode & 0o7777, each.linkname, digest)
                    assert (each.uid, each.gid) == (0, 0)
        return found, json.loads(part(manifest["Config"]))["config"]


def test_a_container_engine_makes_of_the_dockerfile_what_the_testbed_runs(built: Path, tmp_path: Path) -> None:
    made, runs = read(built / "image.tar")
    want, _ = read(tessera_image(print, cache=tmp_path))
    assert {path: each for path, each in made.items() if want.get(path) != each} == {}
    assert want.keys() - made.keys() == set()
    assert {key: runs[key] for key in CONFIG} == CONFIG


def test_the_image_plans(built: Path) -> None:
    assert json.loads((built / "planned").read_text())["summary"]["gpus"] == 1
