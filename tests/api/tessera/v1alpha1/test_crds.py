"""CustomResourceDefinitions: they say what the records say, in the part of OpenAPI that the API server takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.api.tessera.v1alpha1 import crds
from tessera.api.tessera.v1alpha1.gpupolicies import read_gpu_policy

SAID = crds.descriptions({each.__name__: Path(each.__file__ or "").read_text() for each in crds.SOURCES})
DEFINITIONS: dict[str, Any] = crds.definitions(SAID)
FILES = tuple(DEFINITIONS)


def schema(file: str) -> dict[str, Any]:
    found: dict[str, Any] = DEFINITIONS[file]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def schemas(each: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and all in it, each with its path."""
    yield path, each
    for name, inner in each.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(each.get(key), dict):
            yield from schemas(each[key], f"{path}[]")


def test_there_is_a_file_for_each_kind() -> None:
    kinds = (
        "gpupolicies",
        "gpunodes",
        "imagewarmups",
        "environments",
        "modelservers",
        "nodeimages",
        "modelcaches",
        "nodemodels",
    )
    assert tuple(f"tessera.dev_{kind}.yaml" for kind in kinds) == FILES


@pytest.mark.parametrize("file", FILES)
def test_every_value_has_a_type(file: str) -> None:
    untyped = [
        path
        for path, each in schemas(schema(file), "")
        if "type" not in each and not each.get("x-kubernetes-int-or-string")
    ]
    assert untyped == []


@pytest.mark.parametrize("file", FILES)
def test_lists_and_texts_have_bounds_and_lists_say_how_they_are_merged(file: str) -> None:
    lists = {path: each for path, each in schemas(schema(file), "") if each.get("type") == "array"}
    assert [path for path, each in lists.items() if "maxItems" not in each] == []
    keys = {
        path: each["x-kubernetes-list-map-keys"]
        for path, each in lists.items()
        if each["x-kubernetes-list-type"] == "map"
    }
    want = {
        "tessera.dev_gpunodes.yaml": {".spec.desired": ["gpu"]},
        "tessera.dev_gpupolicies.yaml": {".status.conditions": ["type"]},
        "tessera.dev_imagewarmups.yaml": {".status.conditions": ["type"]},
        "tessera.dev_environments.yaml": {},
        "tessera.dev_modelservers.yaml": {".status.conditions": ["type"]},
        "tessera.dev_nodeimages.yaml": {},
        "tessera.dev_modelcaches.yaml": {".status.conditions": ["type"]},
        "tessera.dev_nodemodels.yaml": {},
    }[file]
    assert keys == want
    for path, each in lists.items():
        assert set(keys.get(path, ())) <= set(each["items"].get("required", ())), path


@pytest.mark.parametrize("file", FILES)
def test_integers_and_texts_have_bounds(file: str) -> None:
    own = {".apiVersion", ".kind"}
    bounds = {"integer": {"minimum"}, "string": {"maxLength", "enum"}}
    loose = [
        path
        for path, each in schemas(schema(file), "")
        if path not in own and each.get("type") in bounds and not bounds[each["type"]] & each.keys()
    ]
    assert loose == []


def test_every_bound_is_held_by_the_readers_too() -> None:
    """What stands only in the schema is what records cannot hold: how lists are merged, and types of two kinds."""

    def only_in_the_schema(info: Any) -> Iterator[str]:
        match info:
            case msgspec.inspect.Metadata(type=inner, extra_json_schema=more):
                yield from more or {}
                yield from only_in_the_schema(inner)
            case msgspec.inspect.StructType(fields=fields):
                for each in fields:
                    yield from only_in_the_schema(each.type)
            case msgspec.inspect.UnionType(types=types):
                for part in types:
                    yield from only_in_the_schema(part)
            case msgspec.inspect.VarTupleType(item_type=inner) | msgspec.inspect.DictType(value_type=inner):
                yield from only_in_the_schema(inner)

    records = {part for each in crds.RESOURCES for part in (each.spec, each.status)}
    found = {key for each in records for key in only_in_the_schema(msgspec.inspect.type_info(each))}
    assert found == {"x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}


def test_fields_of_a_policy_are_described() -> None:
    spec = schema("tessera.dev_gpupolicies.yaml")["properties"]["spec"]
    bare = [path for path, each in schemas(spec, "spec") if not path.endswith("[]") and not each.get("description")]
    assert bare == []


def test_defaults_of_a_policy_are_those_of_its_record() -> None:
    def filled(each: dict[str, Any], value: Any) -> Any:
        """Write defaults into a value as the API server does."""
        if each.get("type") != "object" or not isinstance(value, dict):
            return value
        for name, inner in each.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = msgspec.json.decode(msgspec.json.encode(inner["default"]))
            if name in value:
                value[name] = filled(inner, value[name])
        return value

    entry = {"sharing": {}, "models": ["A100-40GB"]}
    spec = {"gpus": [entry]}
    full = filled(schema("tessera.dev_gpupolicies.yaml"), {"metadata": {"name": "test"}})
    assert full["spec"]["repartition"]["idleSeconds"] == 1
    assert read_gpu_policy(full).spec == read_gpu_policy({"metadata": {"name": "test"}}).spec
    items = schema("tessera.dev_gpupolicies.yaml")["properties"]["spec"]["properties"]["gpus"]["items"]
    assert filled(items, entry)["sharing"]["mode"] == "auto"
    assert spec["gpus"][0] is entry


@pytest.mark.parametrize("kind", ["gpunodes", "nodeimages", "nodemodels"])
def test_what_tessera_alone_writes_has_no_defaults(kind: str) -> None:
    assert [path for path, each in schemas(schema(f"tessera.dev_{kind}.yaml"), "") if "default" in each] == []


def test_a_spec_that_cannot_be_left_out_has_no_default() -> None:
    """The API server refuses a default that does not have what the schema requires, or breaks a rule."""
    assert "default" in schema("tessera.dev_gpupolicies.yaml")["properties"]["spec"]
    spec = schema("tessera.dev_environments.yaml")["properties"]["spec"]
    assert ("default" in spec, spec["required"]) == (False, ["image"])
    assert "default" not in schema("tessera.dev_imagewarmups.yaml")["properties"]["spec"]


def test_descriptions_are_those_of_classes_and_of_the_line_below_a_field() -> None:
    source = '''
class A(Struct):
    """An A,

    in full."""

    one: int
    """The
    one."""
    two: int
    three: int = 3
    print("no docstring of three")
    def method(self): ...

class B: ...
TEXT = 3
'''
    assert crds.descriptions({"m": source}) == {("m.A", ""): "An A, in full.", ("m.A", "one"): "The one."}


def test_a_type_that_no_schema_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(msgspec.Struct):
        seconds: float

    odd = msgspec.structs.replace(crds.RESOURCES[0], spec=Odd)
    monkeypatch.setattr(crds, "RESOURCES", (odd,))
    with pytest.raises(TypeError, match="FloatType"):
        crds.definitions({})
