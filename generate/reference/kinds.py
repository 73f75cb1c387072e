"""The reference of Tessera's kinds, from their CustomResourceDefinitions."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from generate.reference.tables import plain, table

__all__ = ["page"]

_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


def page(definitions: Mapping[str, Any]) -> str:
    """Return all kinds with their fields.

    Args:
        definitions: CustomResourceDefinitions by file.

    """
    specs = [each["spec"] for each in definitions.values()]
    rows = (
        (f"[{kind}](#{kind.lower()})", f"`{spec['names']['shortNames'][0]}`", spec["scope"], plain(_description(spec)))
        for spec in specs
        for kind in (spec["names"]["kind"],)
    )
    version = f"{specs[0]['group']}/{specs[0]['versions'][0]['name']}"
    head = f"# Kinds\n\nOf API version `{version}`. `kubectl explain KIND.spec` prints the same in a cluster.\n\n"
    summary = table(("kind", "short name", "scope", "what it is"), rows)
    return head + summary + "".join(part for spec in specs for part in _kind(spec))


def _description(spec: Mapping[str, Any]) -> str:
    return str(spec["versions"][0]["schema"]["openAPIV3Schema"]["description"])


def _kind(spec: Mapping[str, Any]) -> Iterator[str]:
    version = spec["versions"][0]
    yield f"\n## {spec['names']['kind']}\n\n{plain(_description(spec))}\n"
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    for part in [each for each in ("spec", "status") if each in properties]:
        yield f"\n### {spec['names']['kind']} {part}\n\n{plain(properties[part]['description'])}\n\n"
        rows = ((f"`{name}`", kind, plain(text)) for name, kind, text in _fields(properties[part], ""))
        yield table(("field", "type", "meaning"), rows)
    columns = version["additionalPrinterColumns"]
    yield f"\n### {spec['names']['kind']} columns\n\nOf `kubectl get {spec['names']['plural']}`.\n\n"
    described = ((each["name"] + " (wide)" * each.get("priority", 0), plain(each["description"])) for each in columns)
    yield table(("column", "meaning"), described)


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of each field, depth first."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        inner, path, kind = field, f"{prefix}{name}", ""
        while "items" in inner:
            inner, path, kind = inner["items"], f"{path}[]", f"{kind}list of "
        yield path, kind + _type(inner), _meaning(field, inner, required=name in required)
        yield from _fields(inner, f"{path}.")
        if isinstance(inner.get("additionalProperties"), dict):
            yield from _fields(inner["additionalProperties"], f"{path}.NAME.")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "integer or string"))


def _meaning(field: Mapping[str, Any], inner: Mapping[str, Any], *, required: bool) -> str:
    sentences = [field.get("description") or inner.get("description") or ""]
    sentences += ["Required."] * required
    if "default" in field and field["default"] not in ("", {}):
        sentences.append(f"Default `{msgspec.json.encode(field['default']).decode()}`.")
    bounds = [f"{key} `{schema[key]}`" for schema in _once(field, inner) for key in _BOUNDS if key in schema]
    sentences += [f"{', '.join(bounds)}."] if bounds else []
    sentences += [f"Rule: {each['message']}." for each in inner.get("x-kubernetes-validations", ())]
    return " ".join(each for each in sentences if each)


def _once(field: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return (field,) if inner is field else (field, inner)
