"""`tessera notebook`: JupyterLab on a part of a GPU, at an address of this machine."""

from importlib.resources import files as files_of
from typing import Unpack

import click

from tessera.api.kubernetes.jobs import NOTEBOOK_KEY
from tessera.api.kubernetes.notebooks import notebook_command
from tessera.cli.options import Seconds
from tessera.cli.work.follow.forwarding import follow_notebook, port_option
from tessera.cli.work.submit.submitting import submit
from tessera.cli.work.submit.workoptions import WorkOptions, submission_of, work_options

__all__ = ["jupyterlab_program", "notebook"]

_LEAST_IDLE_S = 60.0
_MOST_IDLE_S = 365 * 86_400.0


class NotebookOptions(WorkOptions):
    """The options as click passes them."""

    port: int | None
    idle_s: float


def jupyterlab_program() -> str:
    """Return the Python program that starts JupyterLab in a pod."""
    return files_of("tessera.cli.work").joinpath("jupyterlab_idle.py").read_text(encoding="utf-8")


@click.command(
    epilog="""
\b
Examples:
  tessera notebook --image quay.io/jupyter/pytorch-notebook --gpu-memory 10
  tessera notebook --environment jupyter --slice 1g.10gb --code .
"""
)
@work_options
@port_option
@click.option(
    "--idle-s",
    type=Seconds(_LEAST_IDLE_S, _MOST_IDLE_S),
    default=3600.0,
    show_default=True,
    help="Stop the notebook after this long without a busy kernel, a program in a terminal, or a saved file.",
)
def notebook(**options: Unpack[NotebookOptions]) -> int:
    """Open JupyterLab on part of a GPU: submit a Job, and forward it to an address of this machine.

    Submits the Job, and reports why it is pending. When JupyterLab answers, prints its address with the token and
    forwards the port until Ctrl-C. The notebook keeps running: `tessera attach` opens it again, `tessera stop` deletes
    it. Files that are not on a volume are lost when it ends. The image must have JupyterLab. Needs the rights of
    Kubernetes' role `edit` in one namespace.
    """
    command = notebook_command(jupyterlab_program(), round(options["idle_s"]))
    submission = submission_of(options, command, notebook=True)
    namespace, token = submission.work.namespace, submission.files[NOTEBOOK_KEY].decode()
    return submit(submission, lambda kube, name: follow_notebook(kube, (namespace, name), token, options["port"]))
