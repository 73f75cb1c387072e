"""`tessera run`: a command on a part of a GPU, as a Job."""

from typing import Unpack

import click

from tessera.cli.work.follow.following import follow_job
from tessera.cli.work.submit.submitting import submit
from tessera.cli.work.submit.workoptions import WorkOptions, submission_of, work_options

__all__ = ["run"]


class RunOptions(WorkOptions):
    """The options as click passes them."""

    command: tuple[str, ...]


@click.command(
    context_settings={"allow_interspersed_args": False},  # what follows the command's first word is the command's
    epilog="""
\b
Examples:
  tessera run --image pytorch/pytorch --gpu-memory 10 -- python train.py
  tessera run -e pytorch --gpu-memory 10 --code . -- python train.py
  tessera run --environment pytorch --slice 1g.10gb --model llama -d
  tessera run --image pytorch --slice 1g.10gb --dry-run | kubectl create -f -
""",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@work_options
def run(**options: Unpack[RunOptions]) -> int:
    """Run COMMAND in an image on part of a GPU: submit a Job, explain why it is pending, follow its log.

    Ends with the exit code of the command. Ctrl-C leaves the Job running: `tessera attach` follows it again, `tessera
    stop` deletes it. Needs rights in one namespace, as Kubernetes' role `edit` gives them: to create, get, list and
    watch Jobs, to list and watch pods, and to get their logs; --code also needs Secrets,
    --cancel-on-interrupt to delete Jobs.

    The folder of --code goes into a Secret of the Job, at most 1023 KiB compressed, without what its .tesseraignore or
    .gitignore names. The image must have tar and gzip.
    """
    submission = submission_of(options, options["command"])
    return submit(submission, lambda kube, name: follow_job(kube, name, submission.work.namespace))
