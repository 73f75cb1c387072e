"""mig-parted files: read as that program reads them, refused as it refuses them, and written so that it reads them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.nvidia import migparted
from tessera.api.nvidia.migparted import Group
from tessera.errors import InvalidInput


def read(text: str) -> dict[str, tuple[Group, ...]]:
    return migparted.read(documents.read("config.yaml", text)[0])


def config(group: str) -> str:
    return f"version: v1\nmig-configs:\n  a:\n  - {group}\n"


READ = {
    "all GPUs without MIG": ("{devices: all, mig-enabled: false}", Group(enabled=False)),
    "empty MIG devices without MIG": ("{devices: all, mig-enabled: false, mig-devices: {}}", Group(enabled=False)),
    "MIG without instances": ("{devices: all, mig-enabled: true, mig-devices: {}}", Group(enabled=True)),
    "some GPUs": (
        "{devices: [0, 2], mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb+me: 2}}",
        Group(devices=(0, 2), enabled=True, instances=(("3g.20gb", 1), ("1g.5gb+me", 2))),
    ),
    "a device filter": (
        "{device-filter: '0x20B010DE', devices: all, mig-enabled: true, mig-devices: {1c.2g.10gb: 1}}",
        Group(enabled=True, filters=("0x20B010DE",), instances=(("1c.2g.10gb", 1),)),
    ),
    "an empty device filter, which is none": (
        "{device-filter: '', devices: all, mig-enabled: false}",
        Group(enabled=False),
    ),
    "several device filters": (
        "{device-filter: ['0x20B010DE', '0x20B110DE'], devices: [], mig-enabled: false}",
        Group(devices=(), enabled=False, filters=("0x20B010DE", "0x20B110DE")),
    ),
}


@pytest.mark.parametrize(("group", "want"), READ.values(), ids=READ)
def test_groups(group: str, want: Group) -> None:
    assert read(config(group)) == {"a": (want,)}


def test_configurations_keep_their_order() -> None:
    group = "[{devices: all, mig-enabled: false}]"
    assert list(read(f"version: v1\nmig-configs: {{b: {group}, a: {group}}}\n")) == ["b", "a"]


def config_map(data: str) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: default-mig-parted-config}}\n{data}"


OPERATORS = """data:
  config.yaml: |
    version: v1
    mig-configs:
      all-disabled:
        - devices: all
          mig-enabled: false

      # A comment, as the published one has them.
      all-1g.24gb-me:
        - devices: all
          mig-enabled: true
          mig-devices:
            "1g.24gb-me": 4
      all-balanced:
        - device-filter: ["0x20B010DE", "0x20B110DE"]
          devices: all
          mig-enabled: true
          mig-devices:
            "1g.5gb": 2
            "2g.10gb": 1
            "3g.20gb": 1
"""


def test_the_gpu_operators_config_map_is_read_as_it_is() -> None:
    found = read(config_map(OPERATORS))
    assert list(found) == ["all-disabled", "all-1g.24gb-me", "all-balanced"]
    assert found["all-balanced"] == (
        Group(
            enabled=True,
            filters=("0x20B010DE", "0x20B110DE"),
            instances=(("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1)),
        ),
    )


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ("data: {other.yaml: ''}", "data[config.yaml]: it is missing: write a"),
        ("data: {config.yaml: 'version: v2'}", "config.yaml, data[config.yaml], document 1, line 1: version: 'v2'"),
        (
            "data: {config.yaml: 'kind: ConfigMap'}",
            "config.yaml, data[config.yaml], document 1, line 1: kind: it is an unknown",
        ),
    ],
    ids=["another key", "another version", "a ConfigMap in it"],
)
def test_a_config_map_without_such_a_file_is_refused(data: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(config_map(data))
    assert want in str(caught.value)


REFUSED = {
    "no version": ("mig-configs: {}\n", "version: it is missing: write a"),
    "another version": ("version: v2\nmig-configs: {}\n", "'v2' is not a version this reader knows"),
    "an unknown field": ("version: v1\nmig-config: {}\n", "mig-config: it is an unknown field"),
    "no configuration": ("version: v1\nmig-configs: {}\n", "mig-configs: a mapping is not at least one config"),
    "no configurations": ("version: v1\n", "mig-configs: it is missing: write at least one configuration"),
    "an empty configuration": (
        "version: v1\nmig-configs: {a: []}\n",
        "mig-configs.a: a list is not",
    ),
    "an unknown field in a group": (
        config("{devices: all, mig-enabled: false, x: 1}"),
        "x: it is an unknown field",
    ),
    "no devices": (
        config("{mig-enabled: false}"),
        "mig-configs.a[0].devices: it is missing: write all, or a list of GPU indices",
    ),
    "devices by another word": (config("{devices: some, mig-enabled: false}"), "'some' is not all, or a list"),
    "a device below zero": (config("{devices: [-1], mig-enabled: false}"), "devices[0]: -1 is not an integer"),
    "no word about MIG": (config("{devices: all}"), "mig-enabled: it is missing: write true or false"),
    "MIG without a word about instances": (
        config("{devices: all, mig-enabled: true}"),
        "write the instances, {}",
    ),
    "instances without MIG": (
        config("{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}"),
        "where mig-enabled is false",
    ),
    "a profile that is none": (
        config("{devices: all, mig-enabled: true, mig-devices: {big: 1}}"),
        "big is not a MIG profile",
    ),
    "counts of zero alone": (
        config("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}"),
        "all counts are 0: write at least one instance",
    ),
    "a negative count": (config("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}"), "-1 is not an"),
    "a filter of numbers": (
        config("{device-filter: [5], devices: all, mig-enabled: false}"),
        "5 is not a",
    ),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_what_mig_parted_refuses_is_refused_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert want in str(caught.value)
    assert str(caught.value).startswith("config.yaml, document 1, line ")


_PROFILES = st.sampled_from(["1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "7g.40gb"])
_GROUPS = st.builds(
    lambda devices, instances, filters: Group(
        devices=devices, enabled=instances is not None, instances=tuple((instances or {}).items()), filters=filters
    ),
    st.none() | st.lists(st.integers(0, 15)).map(tuple),
    st.none() | st.dictionaries(_PROFILES, st.integers(1, 7)),
    st.lists(st.sampled_from(["0x20B010DE", "0x20B110DE"]), max_size=2).map(tuple),
)


@given(st.dictionaries(st.text("abc.-1", min_size=1), st.lists(_GROUPS, min_size=1).map(tuple), min_size=1))
def test_what_is_written_is_read_back(configs: dict[str, tuple[Group, ...]]) -> None:
    assert read(migparted.write(configs)) == configs


@given(st.text())
def test_any_group_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        read(config(text))
