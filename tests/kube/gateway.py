"""A gateway before a Service: passes requests on, and counts the answers; run where the Service has its address.

`gateway.py HOST PORT URL NAMESPACE SERVICE`: what the Service refuses is answered by 503. `/metrics` has the counts.
"""

import sys
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar


class Handler(BaseHTTPRequestHandler):
    """One request."""

    url, labels = "", ""
    answered: ClassVar = Counter({"200": 0, "503": 0})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with urllib.request.urlopen(f"{self.url}{self.path}", data=body, timeout=20) as answer:
                self._answer(answer.status, answer.read())
        except OSError as error:
            self._answer(503, str(error).encode())

    def do_GET(self) -> None:
        lines = ("# TYPE gateway_requests_total counter", *map(self._line, sorted(self.answered)))
        self._answer(200, "".join(f"{line}\n" for line in lines).encode(), counted=False)

    def _line(self, code: str) -> str:
        return f'gateway_requests_total{{{self.labels},code="{code}"}} {self.answered[code]}'

    def _answer(self, code: int, body: bytes, *, counted: bool = True) -> None:
        if counted:
            self.answered[str(code)] += 1
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4")  # without it Prometheus 3 reads no metrics
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    host, port, Handler.url, namespace, service = sys.argv[1:]
    Handler.labels = f'namespace="{namespace}",service="{service}"'
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
