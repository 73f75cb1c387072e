"""How an engine is started: its program and options, its ports, its liveness and readiness."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tessera.core.gpu.gpumodels import model
from tessera.core.serving.engineflags import GivenOption, check_options, check_owned, given_options
from tessera.core.serving.modelserver import MODELS, ModelServer
from tessera.core.serving.render.vllmprogram import START, START_ALONE, START_SIZED
from tessera.core.serving.sizing import BATCHES, Batch, batch_for
from tessera.core.workload.need import Isolation
from tessera.errors import InvalidInput

__all__ = ["DRAIN_SECONDS", "HTTP_PORT", "METRICS_PORT", "EngineProgram", "Port", "batch_limits", "program"]

HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 8001, 8002
DRAIN_SECONDS: Final = 15
"""A terminating replica serves this long before it gets SIGTERM: until no proxy sends it new requests."""
_MARGIN_SECONDS: Final = 5
"""Between the engine's own end and the kubelet's SIGKILL."""
_CONNECTION_AGE_MS: Final = 300_000
"""A gRPC connection is closed after this time, so that the next may reach another replica. Source:
triton-inference-server/server#6177: clients stay with the first replica for ever otherwise."""


class Port(msgspec.Struct, frozen=True):
    """A port of the container and of the Service."""

    name: str
    number: int
    target: str
    """Name of the container's port: vLLM has its metrics on that of its API."""


class EngineProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What the container runs."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    ports: tuple[Port, ...]
    live: str
    """Path of the liveness probe."""
    ready: str
    """Path of the readiness probe."""
    slots: int | None = None
    """Requests that it serves at once; None where its options do not say so."""
    measures_memory: bool = False
    """Whether it measures the free memory of a shared GPU as it starts: what starts beside it would be counted."""


_MEMORY_SIZED = ("gpu-memory-utilization", "kv-cache-memory-bytes")
_WHOLE_SEQUENCES: Final = 256
"""`--max-num-seqs` on whole GPUs of any model: vLLM's own below 70 GiB, and on an A100."""
_SHARED: Final = Batch(_WHOLE_SEQUENCES, 2048)
"""On a shared GPU of which the name says no size: vLLM's own for the smallest GPUs."""


def program(server: ModelServer, subject: str) -> EngineProgram:
    """Return what the container runs.

    Raises:
        InvalidInput: an option that the engine does not have, or that another field sets.

    """
    spec, place = server.spec, f"{subject}: spec.args"
    given = given_options(spec.engine, spec.args)
    check_owned(spec.engine, given, place)
    if not spec.allow_unknown_args:
        check_options(spec.engine, spec.args, place)
    for number, variable in enumerate(spec.env):
        if spec.engine == "triton" and variable.name == "AIP_MODE":
            found = "with AIP_MODE Triton may serve Vertex AI in place of HTTP and gRPC"
            raise InvalidInput(f"{subject}: spec.env[{number}]", found=found, hint="remove it")
    names = {each.name for each in given}
    runs = _triton(server) if spec.engine == "triton" else _vllm(server, given)
    head = [each for each in runs.args if names.isdisjoint(own.name for own in given_options(spec.engine, [each]))]
    return msgspec.structs.replace(runs, command=spec.command or runs.command, args=(*head, *spec.args))


def _ending_seconds(server: ModelServer) -> int:
    """Return how long the engine may finish its requests, after `DRAIN_SECONDS`."""
    return server.spec.termination_grace_period_seconds - DRAIN_SECONDS - _MARGIN_SECONDS


def _triton(server: ModelServer) -> EngineProgram:
    return EngineProgram(
        command=("tritonserver",),
        args=(
            f"--model-repository={MODELS}/{server.model}",
            f"--http-port={HTTP_PORT}",
            f"--grpc-port={GRPC_PORT}",
            f"--metrics-port={METRICS_PORT}",
            f"--exit-timeout-secs={_ending_seconds(server)}",
            f"--grpc-max-connection-age={_CONNECTION_AGE_MS}",
        ),
        ports=(
            Port("http", HTTP_PORT, "http"),
            Port("grpc", GRPC_PORT, "grpc"),
            Port("metrics", METRICS_PORT, "metrics"),
        ),
        live="/v2/health/live",
        ready="/v2/health/ready",
    )


def _vllm(server: ModelServer, options: Sequence[GivenOption]) -> EngineProgram:
    limits, given = batch_limits(server), {each.name: each.value for each in options}
    by_share = not any(each in given for each in _MEMORY_SIZED) and not server.spec.command
    # NVIDIA's device plugin does not pass its share of a GPU to a container, so that START gives the cache no size.
    sized = "kv-cache-memory-bytes" in given or (by_share and not (server.spec.gpu.resource or "").endswith(".shared"))
    batch = limits or BATCHES[-1][1]
    sequences = given.get("max-num-seqs", str(batch.sequences))
    tokens = given.get("max-num-batched-tokens", str(batch.tokens))
    start: tuple[str, ...] = (START_SIZED,)
    if by_share:
        alone = server.isolation is Isolation.HARDWARE
        start = (START_ALONE,) if alone else (START, sequences, tokens)
    # Inside a MIG container vLLM cannot ask NVML for the memory and takes the smallest GPU's limits, which costs 28 to
    # 53 % of the throughput: vllm-project/vllm#55381.
    own = limits.sequences if limits else _WHOLE_SEQUENCES
    batches = [f"--max-num-seqs={own}"]
    batches += [f"--max-num-batched-tokens={limits.tokens}"] if limits else []
    return EngineProgram(
        command=("python3", "-c", *start),
        args=(
            f"{MODELS}/{server.model}",
            f"--served-model-name={server.model}",
            f"--port={HTTP_PORT}",
            f"--tensor-parallel-size={server.spec.gpu.count}",
            f"--shutdown-timeout={_ending_seconds(server)}",
            *batches,
        ),
        ports=(Port("http", HTTP_PORT, "http"), Port("metrics", METRICS_PORT, "http")),
        live="/health",
        ready="/health",
        slots=int(given.get("max-num-seqs", own)),
        measures_memory=not sized,
    )


def batch_limits(server: ModelServer) -> Batch | None:
    """Return the largest batch of vLLM by the memory of the device; None on whole GPUs of any model."""
    gpu = server.spec.gpu
    if gpu.memory_gib is not None:
        return batch_for(gpu.memory_gib)
    if size := re.search(r"\.([0-9]+)gb", gpu.resource or ""):
        return batch_for(int(size[1]))
    if (gpu.resource or "").endswith(".shared"):
        return _SHARED
    memory_mib = min((model(product).memory_mib for product in gpu.models), default=None)
    return None if memory_mib is None else batch_for(memory_mib / 1024)
