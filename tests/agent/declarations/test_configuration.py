"""Configuration files: which one holds, what changes take effect, and what stays when they are refused."""

from pathlib import Path

import pytest

from builders.nodefacts import gpu
from tessera.agent.declarations.configuration import SHARE_LABEL, ConfigurationFiles, GivenPolicy, Sources
from tessera.core.node.nodelabels import PLUGIN_CONFIG

GPUS = (gpu(0), gpu(1))
POLICY = "apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\ngpus: [{devices: [0], sharing: auto}]\n"


def sharing(replicas: int) -> str:
    return f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"


def replicas(files: ConfigurationFiles, labels: dict[str, str] | None = None) -> list[int] | None:
    said = files.read(labels or {}, GPUS).node_sharing
    return None if said is None else [each.replicas for each in said.entries]


def test_nothing_anywhere_is_a_configuration(tmp_path: Path) -> None:
    for sources in (Sources(), Sources(sharing=tmp_path / "no", policy=tmp_path / "no")):
        got = ConfigurationFiles(sources).read({}, GPUS)
        assert got.node_sharing is not None
        assert (got.generation, got.problem) == ("", "")


def test_gpushare_nodes_need_no_file() -> None:
    said = ConfigurationFiles(Sources()).read({SHARE_LABEL: "true"}, GPUS).node_sharing
    assert said is not None
    assert said.memory_share


@pytest.mark.parametrize(
    ("names", "label", "default", "want"),
    [
        (["a", "b"], "b", "", [3]),
        (["a", "b"], "", "b", [3]),
        (["a", "b"], "a", "b", [2]),
        (["a", "b"], "", "", []),
        (["a"], "", "", [2]),
        (["a", "default"], "", "", [3]),
        ([], "", "", []),
    ],
)
def test_which_file_holds(tmp_path: Path, names: list[str], label: str, default: str, want: list[int]) -> None:
    for number, name in enumerate(names, 2):
        (tmp_path / name).write_text(sharing(number))
    (tmp_path / "..data").mkdir()
    files = ConfigurationFiles(Sources(sharing=tmp_path, default=default))
    assert replicas(files, {PLUGIN_CONFIG: label} if label else {}) == want


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(sharing(5))
    files = ConfigurationFiles(Sources(sharing=path))
    assert replicas(files, {PLUGIN_CONFIG: "other"}) == [5]
    assert files.read({}, GPUS).generation.startswith("config.yaml@")


def swap(folder: Path, version: int, text: str) -> None:
    """Change a ConfigMap as the kubelet does."""
    data = folder / f"..{version}"
    data.mkdir()
    (data / "a").write_text(text)
    link = folder / "..new"
    link.symlink_to(data.name)
    link.replace(folder / "..data")
    if not (folder / "a").is_symlink():
        (folder / "a").symlink_to("..data/a")


def test_a_change_of_content_takes_effect_and_has_a_generation_of_its_own(tmp_path: Path) -> None:
    files = ConfigurationFiles(Sources(sharing=tmp_path))
    swap(tmp_path, 1, sharing(2))
    first = files.read({}, GPUS)
    swap(tmp_path, 2, sharing(4))
    second = files.read({}, GPUS)
    assert second.node_sharing is not None
    assert second.node_sharing.entries[0].replicas == 4
    assert first.generation != second.generation
    swap(tmp_path, 3, sharing(2))
    assert files.read({}, GPUS) == first


def test_a_policy_counts_in_the_generation(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    got = ConfigurationFiles(Sources(policy=policy)).read({}, GPUS)
    assert got.node_sharing is not None
    assert [each.uuid for each in got.node_sharing.policies] == ["GPU-0"]
    assert got.generation.startswith("policy@")


BROKEN = {
    "not YAML": ("a: [", "a"),
    "not UTF-8": (b"\xff", "bytes that are not UTF-8"),
    "too large": (" " * (1 << 20) + "x", "more than 1 MiB"),
    "two documents": ("version: v1\n---\nversion: v1\n", "it has 2 documents: write one document"),
    "empty": ("", "it has 0 documents: write one document"),
    "refused": (sharing(1), "1 is not an integer from 2"),
}


@pytest.mark.parametrize(("content", "want"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_keeps_the_former_configuration_also_after_a_restart(
    tmp_path: Path, content: str | bytes, want: str
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    sources = Sources(sharing=folder, applied=tmp_path / "state" / "applied.json")
    path = folder / "a"
    path.write_text(sharing(2))
    files = ConfigurationFiles(sources)
    good = files.read({}, GPUS)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for each in (files, ConfigurationFiles(sources)):
        got = each.read({}, GPUS)
        assert (got.node_sharing, got.generation) == (good.node_sharing, good.generation)
        assert want in got.problem
    path.write_text(sharing(3))
    assert replicas(files) == [3]


def test_a_label_of_a_name_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(sharing(2))
    files = ConfigurationFiles(Sources(sharing=tmp_path))
    got = files.read({PLUGIN_CONFIG: "../../etc/passwd"}, GPUS)
    assert got.node_sharing is None
    assert "there is no '../../etc/passwd' in" in got.problem
    assert got.problem.endswith("choose one of a")
    assert replicas(files) == [2]
    assert replicas(files, {PLUGIN_CONFIG: "b"}) == [2]
    nothing = ConfigurationFiles(Sources(sharing=tmp_path / "no", default="a")).read({}, GPUS)
    assert nothing.problem.endswith("give a folder with that file")
    absent = ConfigurationFiles(Sources()).read({PLUGIN_CONFIG: "a"}, GPUS)
    assert "needs --sharing-config: give a folder with that file" in absent.problem


def test_a_former_policy_that_fits_the_gpus_no_more_offers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("auto", "{mig: all-1g.5gb}"))
    files = ConfigurationFiles(Sources(policy=path))
    assert files.read({}, (gpu(0, "A100-40GB"),)).node_sharing is not None
    got = files.read({}, GPUS)
    assert got.node_sharing is None
    assert "the former configuration: node policy" in got.problem


def test_what_cannot_be_read_or_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    got = ConfigurationFiles(Sources(policy=tmp_path / "folder")).read({}, GPUS)
    assert got.node_sharing is None
    assert "Is a directory" in got.problem
    (tmp_path / "file").touch()
    files = ConfigurationFiles(Sources(sharing=tmp_path / "file" / "x", applied=tmp_path / "file" / "applied.json"))
    assert replicas(files) == []
    (tmp_path / "applied.json").write_text("{")
    broken = ConfigurationFiles(Sources(default="a", applied=tmp_path / "applied.json")).read({}, GPUS)
    assert broken.node_sharing is None
    assert (
        f"what was applied before cannot be read from {tmp_path / 'applied.json'}: it is not complete JSON"
        in broken.problem
    )
    taken = ConfigurationFiles(Sources(default="a", applied=tmp_path / "folder")).read({}, GPUS)
    assert taken.problem.endswith("Is a directory")


def test_a_name_that_no_system_call_takes(tmp_path: Path) -> None:
    got = ConfigurationFiles(Sources(sharing=tmp_path / ("x" * 300))).read({}, GPUS)
    assert got.node_sharing is None
    assert "File name too long" in got.problem


GIVEN = GivenPolicy(name="batch", text=POLICY.replace("auto", "memory-share"))


def test_a_gpu_policy_says_what_the_file_would(tmp_path: Path) -> None:
    files = ConfigurationFiles(Sources(policy=tmp_path / "no", applied=tmp_path / "applied"))
    got = files.read({}, GPUS, GIVEN)
    assert got.node_sharing is not None
    assert [each.uuid for each in got.node_sharing.policies] == ["GPU-0"]
    assert (got.generation.partition("@")[0], got.problem, got.overridden) == ("gpupolicy/batch", "", ())
    bad = files.read({}, GPUS, GivenPolicy(name="batch", text="kind: Nothing"))
    assert (bad.node_sharing, bad.generation) == (got.node_sharing, got.generation)
    assert bad.problem.startswith("GPUPolicy batch")
    again = ConfigurationFiles(Sources(applied=tmp_path / "applied"))
    assert again.read({}, GPUS, GivenPolicy(name="batch", text="kind: Nothing")).node_sharing == got.node_sharing
    assert files.read({}, GPUS).generation == ""


def test_the_file_of_the_command_line_wins_over_a_gpu_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    files = ConfigurationFiles(Sources(policy=path))
    got = files.read({}, GPUS, GIVEN)
    assert (got.node_sharing, got.generation) == (files.read({}, GPUS).node_sharing, files.read({}, GPUS).generation)
    (said,) = got.overridden
    assert str(said).startswith(f"GPUPolicy batch has no effect on this node: node policy file {path} decides; remove")
    path.unlink()
    assert files.read({}, GPUS, GIVEN).overridden == ()
    files.read({}, GPUS, GIVEN)
    path.write_text("kind: Nothing")
    former = files.read({}, GPUS, GIVEN)
    assert (former.generation.partition("@")[0], former.overridden) == ("gpupolicy/batch", ())
    assert "node policy" in former.problem


def test_a_label_that_yields_to_a_gpu_policy_is_said_and_not_in_force(tmp_path: Path) -> None:
    (tmp_path / "time-sliced").write_text(sharing(4))
    files = ConfigurationFiles(Sources(sharing=tmp_path))
    labels = {PLUGIN_CONFIG: "time-sliced"}
    catch_all = GivenPolicy(name="all", text=POLICY.replace("devices: [0], ", ""))
    got = files.read(labels, GPUS, catch_all)
    assert got.generation.partition("@")[0] == "gpupolicy/all"
    (said,) = got.overridden
    assert (said.source, said.by) == ("label nvidia.com/device-plugin.config=time-sliced", "GPUPolicy all")
    assert "has no effect on the sharing of GPUs 0, 1: GPUPolicy all decides" in str(said)
    half = files.read(labels, GPUS, GIVEN)
    assert half.generation.partition("@")[0] == "time-sliced+gpupolicy/batch"
    assert "the sharing of GPU 0:" in str(half.overridden[0])
    assert files.read(labels, GPUS).overridden == ()


def test_a_label_that_chooses_of_a_single_file_is_said_to_have_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(sharing(5))
    (said,) = ConfigurationFiles(Sources(sharing=path)).read({PLUGIN_CONFIG: "other"}, GPUS).overridden
    assert (said.source, said.by) == (
        "label nvidia.com/device-plugin.config=other",
        "sharing configuration config.yaml",
    )


def test_a_policy_whose_path_no_system_call_takes(tmp_path: Path) -> None:
    got = ConfigurationFiles(Sources(policy=tmp_path / ("x" * 300))).read({}, GPUS, GIVEN)
    assert got.node_sharing is None
    assert "File name too long" in got.problem
