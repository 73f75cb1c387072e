"""Answers `/metrics` as a Triton under a load does: run beside a control plane, where pods' addresses lead to it.

The file LOAD says how many requests end in a second and how long each waits: `RATE WAIT_SECONDS`.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LABELS = '{model="m",version="1"}'


class Handler(BaseHTTPRequestHandler):
    """Counts on from one question to the next."""

    load = Path()
    ended = queued_s = 0.0
    last_s = time.monotonic()

    def do_GET(self) -> None:
        cls = type(self)
        rate, wait_s = map(float, cls.load.read_text().split())
        now_s = time.monotonic()
        passed_s, cls.last_s = now_s - cls.last_s, now_s
        cls.ended += rate * passed_s
        cls.queued_s += rate * passed_s * wait_s
        lines = (
            f"nv_inference_request_success{LABELS} {cls.ended}",
            f"nv_inference_queue_duration_us{LABELS} {cls.queued_s * 1e6}",
            f"nv_inference_compute_input_duration_us{LABELS} 0",
            f"nv_inference_compute_infer_duration_us{LABELS} {cls.ended * 1e6}",
            f"nv_inference_compute_output_duration_us{LABELS} 0",
            f"nv_inference_pending_request_count{LABELS} {rate * wait_s}",
        )
        body = "".join(f"{line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Handler.load = Path(sys.argv[3])
    HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
