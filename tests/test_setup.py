"""`scripts/setup`, which other scripts source: fresh checkouts that set up at once share one installed uv."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PYTHON = f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"
mkdir -p "$3/bin"
cat > "$3/bin/pip" <<'EOF'
#!/bin/sh
echo installed >> "$STUBS/installed"
printf '#!/bin/sh\\necho uv 9.9.9\\n' > "${{0%/*}}/uv"
read -r go < "$STUBS/go"
chmod +x "${{0%/*}}/uv"
EOF
chmod +x "$3/bin/pip"
"""
"""Makes environments whose pip installs a uv that cannot be run before somebody writes to a pipe."""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Return a folder with a uv that is too old, a Python without packages from the net, and the pipe."""
    program(tmp_path / "uv", "#!/bin/sh\necho uv 0.1.0\n")
    program(tmp_path / "python3", PYTHON)
    os.mkfifo(tmp_path / "go")
    return tmp_path


def find_uv(stubs: Path) -> subprocess.Popen[str]:
    env = {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(stubs), "STUBS": str(stubs)}
    command = ["timeout", "60", "bash", "-c", ". scripts/setup; setup_find_uv"]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_checkouts_that_set_up_at_once_install_uv_once(stubs: Path) -> None:
    with find_uv(stubs) as first, (stubs / "go").open("w") as go, find_uv(stubs) as second:
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        print("go", file=go, flush=True)
        answers = [each.communicate()[0].strip() for each in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert answers == [str(next((stubs / ".cache" / "tessera").glob("uv-*/bin/uv")))] * 2
    assert (stubs / "installed").read_text() == "installed\n"
