"""ModelCache and NodeModels: what is read, what is refused, what is written."""

import base64
import datetime as dt
from typing import Any

import msgspec
import pytest

from tessera.api.tessera.v1alpha1.modelcaches import (
    ModelCacheStatus,
    cache_status,
    new_node_models,
    node_spec,
    node_status,
    read_credentials,
    read_model_cache,
    read_node_models,
)
from tessera.api.tessera.v1alpha1.objects import refused_status
from tessera.core.storage.models.nodemodels import (
    DesiredCache,
    DesiredModel,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
)
from tessera.errors import InvalidInput

NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
ONE = "1" * 64


def cache(name: str = "llama", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    fields = {"source": "s3://models/llama", **spec}
    return {"metadata": {"name": name, "generation": 3}, "spec": fields, "status": status or {}}


def test_a_model_is_read_with_all_of_its_fields() -> None:
    said: dict[str, Any] = {
        "endpoint": "https://rgw.example.com",
        "region": "eu-1",
        "secret": "bucket",
        "nodeSelector": {"matchLabels": {"pool": "gpu"}},
        "revision": ONE,
        "intervalSeconds": 600,
        "include": ["*.safetensors"],
        "exclude": ["original/*"],
        "priority": 5,
        "pinned": True,
        "keep": 3,
        "pack": "Auto",
        "verification": "Required",
        "verifyIntervalSeconds": 0,
    }
    _, found = read_model_cache(cache(**said), frozenset({"n1"}))
    want = DesiredModel(
        name="llama",
        source="s3://models/llama",
        endpoint="https://rgw.example.com",
        region="eu-1",
        secret="bucket",
        revision=ONE,
        interval_s=600,
        include=("*.safetensors",),
        exclude=("original/*",),
        priority=5,
        pinned=True,
        keep=3,
        pack="Auto",
        verification="Required",
    )
    assert found == DesiredCache(want, frozenset({"n1"}))
    default = DesiredModel(name="llama", source="s3://models/llama", verify_interval_s=7 * 24 * 3600)
    assert read_model_cache(cache())[1] == DesiredCache(default)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"metadata": {"name": "a"}, "spec": {}}, "source"),
    "an unknown field": (cache(sources=[]), "sources"),
    "no address": (cache(source="models"), "source"),
    "a source with a line break": (cache(source="s3://a\nb"), "source"),
    "a password in the source": (cache(source="https://me:secret@h/x/"), "spec.source: credentials in an address"),
    "a password in the endpoint": (cache(endpoint="https://me:p@h"), "spec.endpoint: credentials in an address"),
    "a path to a Secret elsewhere": (cache(secret="../other"), "secret"),
    "a name with dots": (cache("llama.3"), "its name is not a label of RFC 1123: use at most 63"),
    "a name that is too long": (cache("a" * 64), "its name is not a label of RFC 1123: use at most 63"),
    "a name with a line break": (cache("a\n"), "its name is not a label of RFC 1123: use at most 63"),
    "a rule of checksums that there is not": (cache(verification="Never"), "verification"),
    "half a revision": (cache(revision="1234"), "revision"),
    "an object of another kind": ({"metadata": None}, "metadata"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_spec_is_refused(case: str) -> None:
    each, want = REFUSED[case]
    with pytest.raises(InvalidInput) as refused:
        read_model_cache(each)
    assert want in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_an_at_sign_in_a_key_is_no_credential() -> None:
    assert read_model_cache(cache(source="s3://models/a@b"))[1].model.source == "s3://models/a@b"


def test_the_form_of_desired_models_stays_as_it_is() -> None:
    """Agents and the controller are upgraded one after the other."""
    model = DesiredModel(
        name="a",
        source="s3://b/a",
        endpoint="https://store.example",
        region="r",
        secret="s",
        revision=ONE,
        interval_s=9,
        include=("x",),
        exclude=("y",),
        priority=1,
        pinned=True,
        keep=1,
        pack="Always",
        verification="Required",
        verify_interval_s=8,
        has_pending_pods=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(node_spec((model,)))) == {
        "models": [
            {
                "name": "a",
                "source": "s3://b/a",
                "endpoint": "https://store.example",
                "region": "r",
                "secret": "s",
                "revision": ONE,
                "intervalSeconds": 9,
                "include": ["x"],
                "exclude": ["y"],
                "priority": 1,
                "pinned": True,
                "keep": 1,
                "pack": "Always",
                "verification": "Required",
                "verifyIntervalSeconds": 8,
                "hasPendingPods": True,
            }
        ]
    }


def test_desired_and_reported_models_are_read_as_they_were_written() -> None:
    desired = (
        DesiredModel(name="a", source="s3://b/a", interval_s=9, include=("x",), keep=1, verify_interval_s=8),
        DesiredModel(name="c", source="s3://b/c", verification="Required"),
        DesiredModel(name="b", source="file:///b"),
    )
    observed = (
        ObservedModel(
            name="a",
            state="Fetching",
            revision=ONE,
            bytes=7,
            files=2,
            unverified_bytes=5,
            verified_s=50.0,
            fetched_bytes=3,
            total_bytes=9,
            containers=1,
            identity="0" * 16,
            checked_s=100.0,
            failed_s=200.0,
            failures=2,
            reason="no rights",
        ),
        ObservedModel(name="b"),
    )
    each = {
        **new_node_models("n1", "uid-1"),
        "spec": node_spec(desired),
        "status": node_status(observed, folder="/m", free_bytes=5, reason=""),
    }
    assert read_node_models(msgspec.json.decode(msgspec.json.encode(each))) == NodeModels(
        name="n1", desired=desired, observed=observed
    )
    gives = {**each, "status": node_status(observed, folder="/m", free_bytes=5, reason="", peer="[fd00::1]:9443")}
    assert read_node_models(gives).peer == "[fd00::1]:9443"
    for wrong in ("example.com:80", "10.0.0.1", "10.0.0.1:80/x", "user@10.0.0.1:80"):
        with pytest.raises(InvalidInput, match=r"status\.peer"):
            read_node_models({**each, "status": {"peer": wrong}})
    assert read_node_models(new_node_models("n1", "uid-1")).desired is None, "nothing was said: nothing is removed"
    assert read_node_models({**each, "spec": node_spec(())}).desired == ()


def test_the_text_of_a_server_is_bounded_and_printable() -> None:
    odd = ObservedModel(name="a", reason="x\x1b[31m" + "y" * 600)
    (found,) = node_status([odd], folder="/m" * 1000, free_bytes=0, reason="a\nb")["models"]
    assert found["reason"] == "x [31m" + "y" * 506
    status = node_status([], folder="/m" * 1000, free_bytes=0, reason="", removing=("b", "a"))
    assert (len(status["folder"]), status["removing"]) == (1024, ["a", "b"])


@pytest.mark.parametrize("part", ["spec", "status"])
@pytest.mark.parametrize("row", [{"state": "Ready"}, {"name": "A B"}, "text"])
def test_what_names_no_model_is_refused(part: str, row: object) -> None:
    with pytest.raises(InvalidInput, match="NodeModels n1"):
        read_node_models({"metadata": {"name": "n1"}, part: {"models": [row]}})


@pytest.mark.parametrize(
    "row", [{"state": "Odd"}, {"state": "Ready", "checkedAt": "noon"}, {"state": "Ready", "bytes": -1}]
)
def test_a_report_that_another_version_wrote_otherwise_affects_its_model_alone(row: dict[str, Any]) -> None:
    models = [{"name": "a", **row}, {"name": "b", "state": "Ready"}]
    found = read_node_models({"metadata": {"name": "n1"}, "status": {"models": models}})
    assert [(each.name, each.state) for each in found.observed] == [("b", "Ready"), ("a", "Failed")]
    assert found.observed[1].reason.startswith("model a")


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "pack": (
        {"pack": "Zstd"},
        "model a: pack: 'Zstd' is not a value that is accepted there: upgrade Tessera on this node, or take",
    ),
    "verification": ({"verification": "Signed"}, "model a: verification: 'Signed' is not"),
    "keep": ({"keep": 99}, "model a: keep: "),
    "priority": ({"priority": 10**9}, "model a: priority: "),
    "source": ({"source": 5}, "model a: source: "),
    "a field of another type": ({"include": {"x": 1}}, "model a: include: "),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_desired_model_with_a_value_of_another_version_affects_itself_alone(case: str) -> None:
    more, want = UNKNOWN[case]
    models = [{"name": "a", "source": "s3://b/a", **more}, {"name": "b", "source": "s3://b/b", "newField": {"x": 1}}]
    found = read_node_models({"metadata": {"name": "n1"}, "spec": {"models": models}})
    assert found.desired == (DesiredModel(name="b", source="s3://b/b"),)
    assert [*found.unknown] == ["a"]
    assert found.unknown["a"].startswith(want)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def test_credentials_are_the_known_keys_of_a_secret() -> None:
    data = {"AWS_ACCESS_KEY_ID": encoded(b"a"), "AWS_SECRET_ACCESS_KEY": encoded(b"s"), "LD_PRELOAD": encoded(b"x")}
    assert read_credentials({"data": data}) == {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
    account = encoded(b'{\n  "type": "service_account"\n}\n')
    assert read_credentials({"data": {"GOOGLE_CREDENTIALS": account}})["GOOGLE_CREDENTIALS"].startswith("{\n")


def test_an_endpoint_is_read_beside_its_token() -> None:
    data = {"HF_TOKEN": encoded(b"t"), "HF_ENDPOINT": encoded(b"https://hub.example.com")}
    assert read_credentials({"data": data}) == {"HF_TOKEN": "t", "HF_ENDPOINT": "https://hub.example.com"}


BAD = {
    "no data": {},
    "an endpoint without credentials": {"HF_ENDPOINT": encoded(b"https://hub.example.com")},
    "other keys": {"password": encoded(b"p")},
    "no base64": {"AWS_ACCESS_KEY_ID": "%"},
    "no text": {"AWS_ACCESS_KEY_ID": encoded(b"\xff")},
    "a line break, which would be a header": {"AWS_ACCESS_KEY_ID": encoded(b"a\r\nX: y")},
}


@pytest.mark.parametrize("case", BAD)
def test_a_secret_without_credentials_is_refused_and_not_shown(case: str) -> None:
    with pytest.raises(InvalidInput, match="Secret bucket") as refused:
        read_credentials({"metadata": {"name": "bucket"}, "data": BAD[case]})
    assert "X: y" not in str(refused.value)


STATES = {
    "no nodes": (ModelSummary(), ("False", "NoNodes")),
    "some lack it": (ModelSummary(nodes=2, ready=1), ("False", "Fetching")),
    "all have it": (ModelSummary(nodes=2, ready=2), ("True", "Present")),
}


@pytest.mark.parametrize("case", STATES)
def test_the_condition_reports_whether_all_nodes_have_it(case: str) -> None:
    found, want = STATES[case]
    each, _ = read_model_cache(cache())
    accepted, ready = cache_status(each, found, NOW).conditions
    assert (accepted.status, (ready.status, ready.reason)) == ("True", want)


def test_a_status_has_the_summary_and_is_the_same_for_the_same() -> None:
    each, _ = read_model_cache(cache())
    found = ModelSummary(
        nodes=2,
        ready=1,
        fetching=1,
        revision=ONE,
        on_revision=1,
        bytes=7,
        unverified_bytes=5,
        containers=3,
        pending_pods=4,
        problems=(ModelProblem(node="n2", reason="r" * 600),),
    )
    status = cache_status(each, found, NOW)
    fields = msgspec.to_builtins(status)
    assert fields.pop("conditions")
    assert fields == {
        "observedGeneration": 3,
        "nodes": 2,
        "ready": 1,
        "fetching": 1,
        "revision": ONE,
        "onRevision": 1,
        "bytes": 7,
        "unverifiedBytes": 5,
        "containers": 3,
        "pendingPods": 4,
        "problems": ({"node": "n2", "reason": "r" * 512},),
    }
    again, _ = read_model_cache(cache(status=msgspec.json.decode(msgspec.json.encode(status))))
    assert cache_status(again, found, NOW + dt.timedelta(hours=1)) == status


def test_a_refusal_leaves_what_was_there() -> None:
    status = refused_status(ModelCacheStatus(nodes=2, ready=2), 4, "no source", NOW)
    assert (status.nodes, status.observed_generation, status.conditions[0].message) == (2, 4, "no source")
