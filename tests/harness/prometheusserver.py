"""A real Prometheus on the loopback, with a history that is written before it starts."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

__all__ = ["history", "serving_history"]

_TYPE = re.compile(r"# TYPE (\S+) (\S+)")


def history(text: bytes, times_s: Iterable[float]) -> str:
    """Return metrics in Prometheus' text format as they were at these times: gauges alike, counters growing."""
    kinds = dict(_TYPE.findall(text.decode()))
    samples = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    counts = [
        kinds.get(re.split("[{ ]", series)[0], "histogram") in {"counter", "histogram"} for series, _, _ in samples
    ]
    return "".join(
        f"{series} {float(value) * (step if counts[place] else 1)} {at_s:.3f}\n"
        for place, (series, _, value) in enumerate(samples)
        for step, at_s in enumerate(times_s, 1)
    )


@contextmanager
def serving_history(
    folder: Path, samples: str, *, certificate: Path | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Give the address of a Prometheus that has these samples, each with its time; over TLS with a certificate.

    Args:
        folder: where it keeps what it has.
        samples: in the OpenMetrics format, without its end.
        certificate: beside which its key lies.
        settings: the content of its configuration.

    """
    prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
    if prometheus is None or promtool is None:
        pytest.skip("Prometheus and promtool are not on PATH")
    text, data, written = folder / "history.txt", folder / "data", folder / "prometheus.yaml"
    text.write_text(f"{samples}# EOF\n")
    written.write_text(yaml.safe_dump(dict(settings or {})))
    subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", text, data], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    flags = (f"--config.file={written}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}")
    command = [prometheus, *flags, "--storage.tsdb.retention.time=10y"]
    if certificate is not None:
        pair = f"{{cert_file: {certificate}, key_file: {certificate.with_suffix('.key')}}}"
        (folder / "web.yaml").write_text(f"tls_server_config: {pair}\n")
        command.append(f"--web.config.file={folder / 'web.yaml'}")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            for line in running.stderr:
                if "Server is ready to receive web requests" in line:
                    break
            else:
                pytest.fail("Prometheus did not start")
            yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.communicate()
