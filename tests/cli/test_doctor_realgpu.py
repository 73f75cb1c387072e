"""`tessera doctor` and `tessera mig list` on a machine with a real GPU, without Kubernetes: they change nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.realgpu import RealGpu, note, program

pytestmark = pytest.mark.gpu


def tessera(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    known = Path(program("nvidia-smi")).parent  # where the MPS program is too
    command = [sys.executable, "-m", "tessera", *arguments]
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{known}"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert "Traceback" not in run.stderr, run.stderr
    return run.returncode, run.stdout or run.stderr


def test_the_doctor_reads_the_driver_and_says_what_is_missing(real_gpu: RealGpu) -> None:
    code, text = tessera("doctor", "-o", "json")
    found = {each["name"]: each for each in json.loads(text)}
    note(code=code, checks={name: f"{each['verdict']}: {each['found']}" for name, each in found.items()})
    smi = real_gpu.smi()
    assert found["driver"]["verdict"] == "ok", found["driver"]
    assert smi.text("driver_version") in found["driver"]["found"]
    assert found["mig"]["verdict"] in {"ok", "skipped"}
    assert found.get("compute-mode", {}).get("verdict", "ok") == "ok"
    # There is no kubelet and no containerd here, and it says so.
    assert code == 1
    assert all(each["advice"] for each in found.values() if each["verdict"] == "failed")


def test_the_layouts_of_the_gpus_are_listed(real_gpu: RealGpu) -> None:
    code, text = tessera("mig", "list", "-o", "json")
    assert code == 0, text
    listed = json.loads(text)
    with real_gpu.cuda(mib=512) as one:
        code, used = tessera("mig", "list")
        assert code == 0, used
        users = [each["users"] for each in json.loads(tessera("mig", "list", "-o", "json")[1])["gpus"]]
    note(listed=listed, used=used.splitlines(), pid=one.pid, users=users)
    assert real_gpu.smi().text("uuid") in text
    exported = tessera("mig", "export")
    note(exported=exported)
    assert exported[0] == 0
    assert "mig-enabled: false" in exported[1]
    planned = tessera("mig", "apply", "-c", "all-1g.10gb", "--dry-run")
    note(dry_run=planned)
    assert "1g.10gb" in planned[1]
    assert tessera("mig", "assert", "-c", "all-1g.10gb")[0] != 0
    assert tessera("mig", "assert", "-c", "all-disabled")[0] == 0
    smi = real_gpu.smi()
    assert (smi.text("mig_mode/current_mig"), smi.text("mig_mode/pending_mig")) in {
        ("Disabled", "Disabled"),
        ("N/A", "N/A"),
    }
