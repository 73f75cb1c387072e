"""Answers as vLLM did when the image was made: `recordedvllm.py serve MODEL --port=8000`, of `vllmserver.sh`'s image.

For replicas that a machine has no room for. It computes and counts nothing; its answers have the header `X-Recorded`.
"""

import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["RECORDED", "Handler"]

RECORDED = Path("/opt/vllm/recorded")
"""A file for each path: `v1-completions`."""


class Handler(BaseHTTPRequestHandler):
    """Answers what is recorded for a path, whatever was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # noqa: D102  # as http.server calls it
        path = RECORDED / self.path.partition("?")[0].strip("/").replace("/", "-")
        content = path.read_bytes() if path.is_file() else b""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Type", "text/plain" if path.name == "metrics" else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Recorded", "1")
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Be silent, as vLLM is with --disable-uvicorn-access-log."""


if __name__ == "__main__":
    (port,) = (int(each.partition("=")[2]) for each in sys.argv if each.startswith("--port="))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write("recorded answers of vLLM: this replica computes nothing\n")
    sys.stdout.flush()
    ThreadingHTTPServer(("", port), Handler).serve_forever()
