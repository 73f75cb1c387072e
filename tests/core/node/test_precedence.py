"""What yields to what, and that the tables in the documentation have the same order."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.nodefacts import gpu
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, PluginOptions, SharingEntry, Strategy, effective
from tessera.core.node.precedence import ORDER, DeclaredSources, Statement, decide

DOCS = Path(__file__).parents[3] / "docs"
GPUS = (gpu(0), gpu(1), gpu(2, "A100-40GB", "all-1g.5gb"))
LABEL = "label nvidia.com/device-plugin.config=sliced"
SLICED = SharingEntry(resource="nvidia.com/gpu", mode=Mode.TIME_SLICING, replicas=4)
WHOLE = Sharing(modes=(Mode.WHOLE,))
SAME = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
HALVES = gpu(2, "A100-40GB", "all-3g.20gb").layout


def config(*entries: SharingEntry, strategy: Strategy | None = None) -> Statement:
    return Statement(source=LABEL, node_sharing=NodeSharing(entries=entries, strategy=strategy))


def policy(*sharings: Sharing | None, strategy: Strategy | None = None) -> Statement:
    policies = tuple(GpuSettings(uuid=f"GPU-{index}", sharing=each) for index, each in enumerate(sharings))
    return Statement(source="GPUPolicy all", node_sharing=NodeSharing(policies=policies, strategy=strategy))


FILE = Statement(
    source="node policy file p", node_sharing=NodeSharing(policies=(GpuSettings(uuid="GPU-0", sharing=WHOLE),))
)

# sentence: (what is declared, what is overridden: source, by and words of the sentence; whether the configuration acts)
CASES: dict[str, tuple[DeclaredSources, list[tuple[str, str, str]], bool]] = {
    "nothing": (DeclaredSources(), [], False),
    "a sharing configuration alone": (DeclaredSources(sharing_config=config(SLICED)), [], True),
    "a catch-all policy over a configuration that a label chose": (
        DeclaredSources(sharing_config=config(SLICED), gpu_policy=policy(AUTO, AUTO, AUTO)),
        [(LABEL, "GPUPolicy all", "the sharing of GPUs 0, 1: GPUPolicy all decides; remove it, or leave sharing out")],
        False,
    ),
    "a policy over some GPUs": (
        DeclaredSources(sharing_config=config(SLICED), gpu_policy=policy(AUTO)),
        [(LABEL, "GPUPolicy all", "the sharing of GPU 0: ")],
        True,
    ),
    "a policy that leaves the sharing to others": (
        DeclaredSources(sharing_config=config(SLICED), gpu_policy=policy(None, None, None)),
        [],
        True,
    ),
    "a policy that says the same": (
        DeclaredSources(sharing_config=config(SLICED), gpu_policy=policy(SAME, SAME, AUTO)),
        [],
        True,
    ),
    "a configuration of which only the handing over is in force": (
        DeclaredSources(
            sharing_config=msgspec.structs.replace(
                config(), node_sharing=NodeSharing(entries=(SLICED,), plugin=PluginOptions(pass_device_specs=True))
            ),
            gpu_policy=policy(AUTO, AUTO, AUTO),
        ),
        [(LABEL, "GPUPolicy all", "the sharing of GPUs 0, 1")],
        True,
    ),
    "a configuration of which only the MIG strategy is in force": (
        DeclaredSources(sharing_config=config(SLICED, strategy="single"), gpu_policy=policy(AUTO, AUTO, AUTO)),
        [(LABEL, "GPUPolicy all", "the sharing of GPUs 0, 1")],
        True,
    ),
    "the file of the node over a GPUPolicy": (
        DeclaredSources(node_policy=FILE, gpu_policy=policy(AUTO)),
        [("GPUPolicy all", "node policy file p", "has no effect on this node: node policy file p decides; remove")],
        False,
    ),
    "the label of a layout over a policy's": (
        DeclaredSources(
            layout_label="all-1g.5gb", gpu_policy=policy(None, None, Sharing(layout=HALVES, allow_repartition=False))
        ),
        [("GPUPolicy all", "label nvidia.com/mig.config=all-1g.5gb", "no effect on the MIG layout of GPU 2: ")],
        False,
    ),
    "the label of the layout that a policy wants too": (
        DeclaredSources(
            layout_label="all-1g.5gb",
            gpu_policy=policy(None, None, Sharing(layout=GPUS[2].layout, allow_repartition=False)),
        ),
        [],
        False,
    ),
    "the label of a layout and managed GPUs": (
        DeclaredSources(layout_label="all-1g.5gb", gpu_policy=policy(AUTO, AUTO, WHOLE)),
        [
            ("GPUPolicy all", "label nvidia.com/mig.config=all-1g.5gb", "the MIG layout of GPU 2: "),
            (
                "GPUPolicy all",
                "label nvidia.com/mig.config=all-1g.5gb",
                "the devices of GPUs 0, 1, which Tessera does not manage: ",
            ),
        ],
        False,
    ),
    "the label of a layout and managed GPUs, all of whose instances are alike": (
        DeclaredSources(layout_label="all-1g.5gb", gpu_policy=policy(AUTO, AUTO, AUTO, strategy="single")),
        [],
        False,
    ),
    "gpushare's label and a policy": (
        DeclaredSources(memory_share=True, gpu_policy=policy(WHOLE, Sharing(modes=(Mode.MEMORY_SHARE,)))),
        [("label gpushare=true", "GPUPolicy all", "the sharing of GPU 0: ")],
        False,
    ),
    "gpushare's label and a configuration": (
        DeclaredSources(memory_share=True, sharing_config=config(SLICED), gpu_policy=policy(AUTO)),
        [
            (LABEL, "GPUPolicy all", "the sharing of GPU 0"),
            ("label gpushare=true", "GPUPolicy all", "the sharing of GPU 0"),
            ("label gpushare=true", LABEL, "the sharing of GPU 1"),
        ],
        True,
    ),
    "gpushare's label alone": (DeclaredSources(memory_share=True), [], False),
    "MIG strategies": (
        DeclaredSources(gpu_policy=policy(strategy="mixed"), sharing_config=config(strategy="none"), strategy="single"),
        [
            (
                LABEL,
                "GPUPolicy all",
                "no effect on the MIG strategy, which is mixed and not none: GPUPolicy all decides",
            ),
            ("option --strategy single", "GPUPolicy all", "which is mixed and not single"),
        ],
        True,
    ),
    "MIG strategies that agree": (
        DeclaredSources(
            gpu_policy=policy(strategy="single"), sharing_config=config(strategy="single"), strategy="single"
        ),
        [],
        True,
    ),
    "a label that cannot choose": (
        DeclaredSources(sharing_config=config(), unread_label="label x=y"),
        [("label x=y", LABEL, "which sharing configuration is in force")],
        True,
    ),
}


@pytest.mark.parametrize(("declared", "want", "acts"), CASES.values(), ids=CASES)
def test_what_is_overridden(declared: DeclaredSources, want: list[tuple[str, str, str]], *, acts: bool) -> None:
    got = decide(declared, GPUS)
    assert [(each.source, each.by) for each in got.overridden] == [each[:2] for each in want]
    assert [words for (_, _, words), each in zip(want, got.overridden, strict=True) if words not in str(each)] == []
    assert got.sharing_config is acts


_STRATEGIES = st.sampled_from((None, "none", "single", "mixed"))


@given(_STRATEGIES, _STRATEGIES, _STRATEGIES)
def test_the_first_that_says_the_mig_strategy_decides_it(
    policies: Strategy | None, file: Strategy | None, option: Strategy | None
) -> None:
    declared = DeclaredSources(
        gpu_policy=policy(strategy=policies), sharing_config=config(strategy=file), strategy=option
    )
    got = decide(declared, GPUS)
    assert got.node_sharing.strategy == next((each for each in (policies, file, option) if each), "mixed")
    differing = [each for each in (policies, file, option) if each not in {None, got.node_sharing.strategy}]
    assert len(got.overridden) == len(differing)


_SHARINGS = st.sampled_from((None, AUTO, WHOLE, SAME, Sharing(modes=(Mode.MEMORY_SHARE,))))


@given(st.lists(_SHARINGS, max_size=3), st.booleans(), st.booleans())
def test_a_gpu_is_shared_as_the_first_says_that_speaks_of_it(
    sharings: list[Sharing | None], sliced: bool, memory_share: bool
) -> None:
    declared = DeclaredSources(
        gpu_policy=policy(*sharings), sharing_config=config(SLICED) if sliced else None, memory_share=memory_share
    )
    node_sharing = decide(declared, GPUS).node_sharing
    rest = SAME if sliced else Sharing(modes=(Mode.MEMORY_SHARE,)) if memory_share else WHOLE
    want = [each or rest for each in (*sharings, None, None)][:2]
    inventory = Inventory(gpus=GPUS)
    assert [each.sharing for each in effective(inventory, node_sharing)][:2] == want


def test_the_documented_order_is_this_one() -> None:
    table = (DOCS / "sharing.md").read_text().split("## Precedence")[1].split("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert cells[2:] == list(ORDER)
