"""Annotations of model servers, their Deployments and pods, and their label."""

from typing import Final

__all__ = ["COLD_START", "IDLE", "KIND", "ONE_BY_ONE", "PORT", "SERVER_LABEL", "SLOTS", "WAKE"]

KIND: Final = "ModelServer"
"""Kind of the objects that have such Deployments."""
SERVER_LABEL: Final = "serving.tessera.dev/server"
"""Label of a model server's objects and pods: its name. Set by the controller and users; read by `tessera metrics`."""
SLOTS: Final = "serving.tessera.dev/slots"
"""Annotation of a Deployment: requests that a replica serves at once; else vLLM's `--max-num-seqs`. Set by the
controller and users; read by `tessera metrics`."""
ONE_BY_ONE: Final = "serving.tessera.dev/start-one-by-one"
"""Annotation of a Deployment: `true` where the next replica is requested when the one before is ready, as each measures
the free memory of a GPU while it starts. Set by the controller and users; read by `tessera metrics`."""
IDLE: Final = "serving.tessera.dev/idle-seconds"
"""Annotation of a Deployment: it may be scaled to zero when it had no request for so many seconds. Set by the
controller and users; read by `tessera metrics`."""
WAKE: Final = "serving.tessera.dev/wake"
"""Annotation of a ModelServer or Deployment: the time when it was last woken, `2026-11-26T08:00:00Z`; until it is idle
after that it has a replica. Set by `tessera wake`, users and the controller; read by the controller and
`tessera metrics`."""
PORT: Final = "serving.tessera.dev/metrics-port"
"""Annotation of a pod: the port of its metrics; else the container port named `metrics`, else the first that an engine
has them at. Set by users; read by `tessera metrics`."""
COLD_START: Final = "serving.tessera.dev/cold-start-seconds"
"""Annotation of a Deployment: seconds from asking for a replica until it takes requests; else what is measured. Set by
users; read by `tessera metrics`."""
