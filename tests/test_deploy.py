"""What is deployed: generated files are as committed, and no part may do more than it does."""

from pathlib import Path

import pytest

from testbed.deploy import FOLDER, NAMESPACE, objects, write

RIGHTS = sorted(path.name for path in (FOLDER / "rbac").glob("*.yaml"))
PARTS = [name for name in RIGHTS if name != "people.yaml"]


def test_generated_files_are_as_committed(tmp_path: Path) -> None:
    write(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.yaml")}
    stale = [str(path) for path, text in made.items() if (FOLDER / path).read_text() != text]
    assert stale == [], "run scripts/generate, look at the result, commit it"
    assert {path.name for path in (FOLDER / "crds").iterdir()} == {
        path.name for path in made if path.parent.name == "crds"
    }


@pytest.mark.parametrize("file", RIGHTS)
def test_rights_are_listed_one_by_one(file: str) -> None:
    for each in objects(f"rbac/{file}"):
        for rule in each.get("rules", ()):
            words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
            assert "*" not in words
            assert not {"clusterroles", "roles", "serviceaccounts/token"} & set(rule["resources"])
            if "secrets" in rule["resources"]:
                assert (file, each["kind"], rule["resourceNames"]) == (
                    "server.yaml",
                    "Role",
                    ["tessera-assignment-key"],
                )


@pytest.mark.parametrize("file", PARTS)
def test_a_part_has_one_account_in_our_namespace_and_rights_for_it_alone(file: str) -> None:
    account = f"tessera-{file.removesuffix('.yaml')}"
    found = objects(f"rbac/{file}")
    want = [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert [each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"] == [account]
    assert all(each["subjects"] == want for each in found if each["kind"].endswith("RoleBinding"))


def test_tessera_itself_is_bound_to_no_role_of_kubernetes() -> None:
    for file in set(PARTS) - {"scheduler.yaml"}:
        roles = {
            each["metadata"]["name"] for each in objects(f"rbac/{file}") if each["kind"] in {"ClusterRole", "Role"}
        }
        named = {each["roleRef"]["name"] for each in objects(f"rbac/{file}") if each["kind"].endswith("RoleBinding")}
        assert named == roles
