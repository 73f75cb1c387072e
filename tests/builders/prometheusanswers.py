"""Answers of Prometheus' HTTP API about a GPU of node n and the pods ml/p and ml/q on it."""

import json
from typing import Any

__all__ = ["BROKEN", "GPU", "OTHER", "POD", "answer", "now", "over_time"]

GPU = {"Hostname": "n", "UUID": "a", "modelName": "NVIDIA H100 80GB HBM3"}
POD = {**GPU, "namespace": "ml", "pod": "p", "container": "c", "pod_uid": "u1"}
OTHER = {**GPU, "namespace": "ml", "pod": "q", "container": "c", "pod_uid": "u2"}

BROKEN = {
    "no JSON": b"<html>",
    "an error": b'{"status":"error","error":"x"}',
    "a number": b'{"data":{"result":3}}',
    "deep": b"[" * 100_000,
    "no text": b"\xff",
}
"""Answers that are none."""


def answer(*series: dict[str, Any]) -> bytes:
    """Return an answer with these series."""
    return json.dumps({"status": "success", "data": {"resultType": "any", "result": series}}).encode()


def now(value: str, labels: dict[str, str] = POD) -> dict[str, Any]:
    """Return a series with one sample."""
    return {"metric": labels, "value": [1.5, value]}


def over_time(labels: dict[str, str], *values: str) -> dict[str, Any]:
    """Return a series with a sample each minute."""
    return {"metric": labels, "values": [[60 * number, value] for number, value in enumerate(values)]}
