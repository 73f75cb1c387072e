"""`tessera render`: manifests of model servers and jobs, and errors that name the field."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders.modelservers import model_server
from tessera.api import documents
from tessera.cli import main
from tessera.cli.render import render
from tessera.errors import TesseraError

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/9-model-servers/*.yaml"))


def run(*words: str, stdin: str = "") -> str:
    """Return what is printed; an error of ours is raised, as the root command would print it."""
    result = CliRunner().invoke(render, words, input=stdin, standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda each: each.stem)
def test_examples_are_rendered_alike_as_yaml_and_json(path: Path) -> None:
    found = [each.data for each in documents.read("yaml", run("-f", str(path)))]
    assert len(found) == 5
    assert json.loads(run("-f", str(path), "-o", "json")) == {"apiVersion": "v1", "kind": "List", "items": found}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda each: each.stem)
def test_tessera_reads_the_pods_that_it_renders(path: Path) -> None:
    """The scheduler reads them alike; a fleet in short form has no cached models."""
    words = ("plan", "--gpus", "2xH100-80GB", "-f", "-", "-o", "json")
    result = CliRunner().invoke(main, words, input=run("-f", str(path)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    pending = [each["reason"] for each in json.loads(result.stdout)["pending"]]
    assert [each for each in pending if "models.tessera.dev/llama-8b" not in each] == []


def test_several_servers_come_in_the_order_given() -> None:
    text = "".join(f"---\n{json.dumps(model_server(name=name))}\n" for name in ("b", "a"))
    names = [each.data["metadata"]["name"] for each in documents.read("yaml", run("-f", "-", stdin=text))]  # type: ignore[call-overload, index]  # of any document
    assert names == ["b"] * 4 + ["a"] * 4


def test_a_job_has_as_many_pods_as_the_server_has_at_most() -> None:
    text = json.dumps(model_server({"replicas": {"max": 4}}))
    for options, want in (((), (4, 4)), (("--completions", "60"), (4, 60)), (("--parallelism", "2"), (2, 2))):
        (found,) = json.loads(run("--job", "-f", "-", "-o", "json", *options, "--", "run", "-x", stdin=text))["items"]
        assert (found["spec"]["parallelism"], found["spec"]["completions"]) == want
        assert found["spec"]["template"]["spec"]["containers"][0]["command"] == ["run", "-x"]


def test_a_job_of_very_many_parts_ends_when_as_many_fail_as_kubernetes_takes() -> None:
    text = json.dumps(model_server({"replicas": {"max": 4}}))
    for options, want in ((("100000", "100000"), None), (("100001", "10000"), 10_000), (("1000000", "7"), 10_000)):
        words = ("--completions", options[0], "--parallelism", options[1])
        (found,) = json.loads(run("--job", "-f", "-", "-o", "json", *words, stdin=text))["items"]
        assert found["spec"].get("maxFailedIndexes") == want


WRONG = {
    "more pods at once than Kubernetes takes": (
        ("-f", "-", "--job", "--completions", "100001", "--parallelism", "10001"),
        json.dumps(model_server()),
        "--parallelism 10001: Kubernetes takes at most 10000 for more than 100000 completions: lower it, or",
    ),
    "no object": (("-f", "-"), "spec: 1\n", "standard input, document 1, line 1: it has no kind: leave it out"),
    "a field by its path": (
        ("-f", "-"),
        json.dumps(model_server({"engine": "tgi"})),
        "ModelServer ranker: spec.engine: 'tgi' is not triton or vllm",
    ),
    "an option": (("-f", "-"), json.dumps(model_server({"args": ["--grpc-prt=1"]})), "spec.args[0]: '--grpc-prt=1'"),
    "a list": (("-f", "-"), "- a\n", "it is not a mapping"),
    "nothing": (("-f", "-"), "", "it is empty"),
    "a command for a server": (("-f", "-", "run"), "{}", "give --job, or no command"),
    "a number for a server": (("-f", "-", "--completions", "3"), "{}", "give --job"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    words, text, want = WRONG[case]
    with pytest.raises(TesseraError) as caught:
        run(*words, stdin=text)
    assert want in str(caught.value)
