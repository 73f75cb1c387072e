"""`tessera render`: the Kubernetes objects of a model server, or of a batch job on the same parts of GPUs."""

import click

from tessera._planning import read_documents
from tessera.api import documents
from tessera.api.fields import Field
from tessera.api.tessera.v1alpha1.modelservers import KIND, read_model_server
from tessera.cli.options import WholeNumber, output_option, refuse_without, write_output
from tessera.cli.printing import print_document
from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.render import job as job_object
from tessera.core.serving.render import render as objects_of
from tessera.errors import InvalidInput

__all__ = ["render"]

_EPILOG = """
\b
Examples:
  tessera render -f examples/9-model-servers/triton.yaml
  tessera render -f examples/9-model-servers/vllm.yaml -o json
  tessera render -f server.yaml | kubectl apply -f -
  tessera render --job -f server.yaml -- python3 /app/embed.py
"""


@click.command(epilog=_EPILOG)
@click.option("-f", "--filename", multiple=True, required=True, metavar="PATH", help="ModelServers; - is stdin.")
@click.option("--prometheus", default="", metavar="URL", help="Prometheus that KEDA queries.")
@click.option("--job", is_flag=True, help="A Job that runs COMMAND on the server's image, model and part of a GPU.")
@click.option("--parallelism", type=WholeNumber(1, 100_000), help="Pods of the Job at once.  [default: replicas.max]")
@click.option(
    "--completions", type=WholeNumber(1, 1_000_000), help="Parts of the Job's work.  [default: --parallelism]"
)
@click.argument("command", nargs=-1)
@output_option(formats=("yaml", "json"))
def render(*, filename: tuple[str, ...], prometheus: str, job: bool, output: str, **given: int | None) -> None:
    """Print the Kubernetes objects of ModelServers, for kubectl apply.

    The objects that the controller would create. No cluster is needed. With --job it prints an indexed Job; its pods
    know their part of the work by JOB_COMPLETION_INDEX, and without COMMAND run that of the image.
    """
    command: tuple[str, ...] = given.pop("command") or ()  # type: ignore[assignment]  # click gives texts
    objects = []
    if not job:
        for option in ("--parallelism", "--completions"):
            refuse_without(option, "--job")
        if command:
            raise InvalidInput(
                "COMMAND", found=f"{command[0]} is a command, and only a Job has one", hint="give --job, or no command"
            )
    for subject, server in _servers(filename):
        if job:
            parallelism = given["parallelism"] or server.max_replicas
            completions = given["completions"] or parallelism
            objects.append(job_object(server, command, parallelism=parallelism, completions=completions))
        else:
            objects += objects_of(server, subject, prometheus=prometheus)
    if output == "json":
        print_document({"apiVersion": "v1", "kind": "List", "items": objects}, output)
        return
    write_output("-", "".join(f"---\n{documents.write(each, block=True)}" for each in objects))


def _servers(paths: tuple[str, ...]) -> list[tuple[str, ModelServer]]:
    found = []
    for path in paths:
        for document in read_documents(path):
            source = Field(document, document.data).place
            if not isinstance(document.data, dict):
                raise InvalidInput(source, found="it is not a mapping", hint=f"write a {KIND}")
            server = read_model_server(document.data, source)
            found.append((f"{source}: {KIND} {server.name}", server))
    if not found:
        raise InvalidInput(", ".join(paths), found="it is empty", hint=f"name a file with a {KIND}")
    return found
