"""Data and Secrets of a Job, by the options that name them."""

from pathlib import Path

import pytest

from harness.dryruns import dry_pod
from tessera.cli.work.submit.mounts import check_folders, data_of
from tessera.errors import InvalidInput


def test_secrets_are_variables_or_files() -> None:
    twice = ("--secret", "hub", "--secret", "ssh:/etc/ssh", "--secret", "hub", "--secret", "ssh:/etc/ssh/")
    assert dry_pod(*twice) == (found := dry_pod(*twice[:4]))
    assert found["containers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert found["volumes"] == [{"name": "folder-0", "secret": {"secretName": "ssh"}}]
    mount = {"name": "folder-0", "mountPath": "/etc/ssh", "readOnly": True}
    assert found["containers"][0]["volumeMounts"] == [mount]


def test_data_is_a_model_cache_or_a_claim_that_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    found = dry_pod("--data", "image-net", "--data", "pvc/team.a", "--model", "llama", "--code", str(tmp_path))
    main = found["containers"][0]
    assert main["resources"]["limits"] == {"models.tessera.dev/image-net": "1", "models.tessera.dev/llama": "1"}
    assert {each["name"]: each["value"] for each in main["env"]} == {
        "TESSERA_DATA_IMAGE_NET_PATH": "/models/image-net",
        "TESSERA_DATA_TEAM_A_PATH": "/data/team.a",
    }
    assert found["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "team.a", "readOnly": True}
    assert [(each["mountPath"], each.get("readOnly", False)) for each in main["volumeMounts"]] == [
        ("/code", False),
        ("/data/team.a", True),
    ]
    assert "env" not in found["initContainers"][0]


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["a", "pvc/b"], {"TESSERA_DATA_A_PATH": "/models/a", "TESSERA_DATA_B_PATH": "/data/b"}),
        (["pvc/x-y.z"], {"TESSERA_DATA_X_Y_Z_PATH": "/data/x-y.z"}),
        ([], {}),
    ],
)
def test_each_data_set_has_a_variable_with_its_folder(words: list[str], want: dict[str, str]) -> None:
    assert dict(data_of(words).env) == want


def test_two_mounts_at_one_folder_are_refused_with_both_options() -> None:
    check_folders([("--secret a:/x", "/x"), ("--secret b:/y", "/y"), ("--secret a:/x", "/x")])
    with pytest.raises(InvalidInput, match="--secret b:/x: '/x' is already the folder of --code"):
        check_folders([("--code", "/x"), ("--secret b:/x", "/x")])
