"""The public Python API: what docs/python.md shows runs and prints that; types, records, errors, lazy imports."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import tessera
from builders.modelservers import model_server
from tessera._planning import with_pods
from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.api.tessera.v1alpha1.modelservers import read_model_server
from tessera.cli import main
from tessera.core.serving.render import render
from tessera.core.workload.need import Isolation
from tessera.errors import InvalidInput

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE, re.DOTALL)
JOB = ROOT / "examples/1-job-of-60-slices/job.yaml"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, want = EXAMPLES[number]
    monkeypatch.chdir(ROOT)
    exec(compile(program, f"docs/python.md, example {number + 1}", "exec"), {})
    printed = capsys.readouterr().out
    assert not want or printed == want


def test_the_record_is_what_the_command_prints() -> None:
    made = tessera.plan("8xH100-80GB", JOB)
    printed = CliRunner().invoke(main, ["plan", "--gpus", "8xH100-80GB", "-f", str(JOB), "-o", "json"]).stdout
    assert json.loads(msgspec.json.encode(made)) == json.loads(printed)
    assert msgspec.json.decode(printed, type=tessera.PlanDocument) == made


def test_every_public_name_is_there_and_described() -> None:
    names = set(tessera.__all__) - {"__version__"}
    assert [name for name in names if f"{name}" not in PAGE] == []
    assert [name for name in names if getattr(tessera, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tessera.nothing


def test_the_page_has_every_field_of_every_record() -> None:
    records = {each for name in tessera.__all__ if isinstance(each := getattr(tessera, name), type)}
    public = {each.__name__: each for each in records if issubclass(each, msgspec.Struct)}
    rows = dict(re.findall(r"^\| `(\w+Document)` \| (.*) \|$", PAGE, re.MULTILINE))
    said = {name: set(re.findall(r"`(\w+)`", rows.get(name, ""))) for name in public}
    assert said == {name: set(record.__struct_fields__) for name, record in public.items()}


def test_every_record_that_a_public_one_holds_is_public() -> None:
    held = msgspec.json.schema(tessera.PlanDocument)["$defs"]
    assert held.keys() - set(tessera.__all__) == set()


def test_inputs_may_be_mixed() -> None:
    fleet: list[tessera.FleetInput] = ["T4", {"nodes": [{"name": "a", "gpus": "T4"}]}, "2xT4"]
    manifests: list[tessera.ManifestInput] = [POD, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}]
    made = tessera.plan(fleet, manifests)
    assert (made.summary.gpus, made.summary.placed) == (4, 1)
    assert ["ConfigMap" in note for note in made.notes] == [True]


BAD = {
    "no fleet": ([], POD, {}, "no node"),
    "an unknown model": ("T5", POD, {}, "T5"),
    "broken YAML": ("T4", "kind: [Pod", {}, "text 1"),
    "a missing file": ("T4", Path("missing.yaml"), {}, "missing.yaml"),
    "an object that is none": ("T4", {"kind": "Pod"}, {}, "object 1"),
    "an unknown policy": ("T4", POD, {"policy": "best"}, "best-fit"),
    "an address": ("T4", Path("https://example.com/a.yaml"), {}, "https:"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_where(case: str) -> None:
    fleet, manifests, options, named = BAD[case]
    with pytest.raises(tessera.InvalidInput) as caught:
        tessera.plan(fleet, manifests, **options)  # type: ignore[arg-type]  # a table of all kinds of mistakes
    assert named in str(caught.value)


def test_a_share_unit_may_be_given() -> None:
    pod = POD.replace("nvidia.com/gpu: 1", "aliyun.com/gpu-mem: 2048")
    (placed,) = tessera.plan("T4", pod, share_unit="MiB", exact=True, limit_s=5).assignments
    assert placed.devices[0].memory_mib == 2048


def test_importing_tessera_loads_nothing_outside_the_standard_library() -> None:
    program = "import sys, tessera; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert {"msgspec", "numpy", "yaml", "click"}.isdisjoint(loaded)


PLANNED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one replica": ({}, ["serving/ranker-0"]),
    "several": ({"replicas": {"min": 2}}, ["serving/ranker-0", "serving/ranker-1"]),
    "scaled": ({"replicas": {"min": 2, "max": 9}}, ["serving/ranker-0", "serving/ranker-1"]),
    "scaled from zero": ({"replicas": {"min": 0, "max": 9}}, ["serving/ranker-0"]),
    "zero or one": ({"replicas": {"min": 0}}, ["serving/ranker-0"]),
}


def planned(*objects: dict[str, Any]) -> workloads.ReadWorkloads:
    """Return what is read of objects, in a file of one list."""
    text = documents.write({"apiVersion": "v1", "kind": "List", "items": [*objects]})
    return workloads.read(with_pods(documents.read("all.yaml", text)))


@pytest.mark.parametrize("case", PLANNED)
def test_the_pods_of_a_server_are_those_that_the_controller_would_create(case: str) -> None:
    spec, want = PLANNED[case]
    found = planned(model_server({**spec, "model": {"cache": "tiny"}}, namespace="serving"))
    assert [each.key for each in found.pods] == want
    for pod in found.pods:
        assert [(request.resource, request.isolation) for request in pod.need.requests] == [
            ("nvidia.com/mig-1g.10gb", Isolation.HARDWARE)
        ]
        assert (pod.need.cached_models, pod.owner) == (("tiny",), "ModelServer/serving/ranker")


def test_the_deployment_of_a_server_is_not_counted_beside_it() -> None:
    one = model_server(namespace="serving", uid="u")
    made, *_ = render(read_model_server(one), "server")
    found = planned(one, made)
    assert [each.key for each in found.pods] == ["serving/ranker-0"]
    assert [each.reason for each in found.left_out] == ["made by ModelServer ranker, which is counted"]


def test_a_server_that_the_controller_would_refuse_is_an_error_with_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"all.yaml, document 1, line .*ModelServer ranker: .*did you mean"):
        planned(model_server({"args": ["--grpc-prt=1"]}))
    with pytest.raises(InvalidInput, match=r"ModelServer ranker.*exactly one way"):
        planned(model_server({"model": {}}))


def test_other_documents_stay_as_they_are() -> None:
    read = documents.read("other.yaml", "a: 1\n---\n- 1\n---\nitems: [{kind: Pod}]\n")
    assert with_pods(read) == tuple(read)
