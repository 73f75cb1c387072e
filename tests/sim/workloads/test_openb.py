"""The openb reader: what a row means, and one clear error for each way a file can be wrong."""

import os
from pathlib import Path

import pytest

from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput
from tessera.sim.workloads import openb

NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,96000,393216,2,G2\na,64000,262144,1,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def folder_with(path: Path, pods: str, nodes: str = NODES) -> Path:
    (path / openb.NODE_FILE).write_text(nodes)
    (path / "openb_pod_list_tiny.csv").write_text(PODS + pods)
    return path


ROWS = {
    "a pod without GPU": ("p,1000,2048,0,0,", Need(cpu_milli=1000, memory_mib=2048)),
    "a part of a GPU": (
        "p,1000,2048,1,460,",
        Need(
            cpu_milli=1000,
            memory_mib=2048,
            requests=(DeviceRequest(resource="alibabacloud.com/gpu-milli", form=Form.SHARE, compute_percent=46),),
        ),
    ),
    "whole GPUs of some models": (
        "p,1000,2048,8,1000,G2|T4",
        Need(
            cpu_milli=1000,
            memory_mib=2048,
            requests=(DeviceRequest(resource="nvidia.com/gpu", count=8),),
            models=("G2", "T4"),
        ),
    ),
}


@pytest.mark.parametrize(("row", "want"), ROWS.values(), ids=ROWS.keys())
def test_a_row_becomes_a_need(tmp_path: Path, row: str, want: Need) -> None:
    trace = openb.read(folder_with(tmp_path, row), "tiny")
    assert (trace.names, trace.kinds) == (("p",), (want,))


def test_a_trace_is_sorted_by_name_and_counts_equal_needs_as_one_kind(tmp_path: Path) -> None:
    trace = openb.read(folder_with(tmp_path, "c,1,1,1,1000,\nb,1,1,1,500,\na,1,1,1,1000,\n"), "tiny")
    assert trace.names == ("a", "b", "c")
    assert trace.kind_of == (0, 1, 0)
    assert [count for _, count in trace.mix] == [2, 1]
    assert trace.capacity_milli == 3000
    assert [(demand.gpus, demand.milli) for demand in trace.demands] == [(1, 1000), (1, 500)]


def test_nodes_keep_the_order_of_the_file_and_their_model(tmp_path: Path) -> None:
    nodes = openb.read_nodes(folder_with(tmp_path, "p,1,1,0,0,") / openb.NODE_FILE)
    assert [(node.name, len(node.gpus), node.gpus[0].model.name) for node in nodes] == [("b", 2, "G2"), ("a", 1, "T4")]


def test_files_without_the_column_of_models_ask_for_any(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text("\ufeffname,cpu_milli,memory_mib,num_gpu,gpu_milli,qos\n\np,1,1,1,1000,LS\n")
    assert openb.read_pods(path)[0][1].models == ()


# sentence: (rows of the pod list, what the error says)
WRONG_PODS = {
    "no records": ("", ["openb_pod_list_tiny.csv: it has no records"]),
    "a negative number": ("p,-1,1,0,0,", ["line 2, column cpu_milli", '"-1"', "0 to 10,000,000 milli"]),
    "a fraction": ("p,1,1.5,0,0,", ["line 2, column memory_mib", '"1.5"', "a whole number"]),
    "an empty number": ("p,1,,0,0,", ["line 2, column memory_mib", "it is empty"]),
    "digits of another script": ("p,1,\u0661,0,0,", ["line 2, column memory_mib"]),
    "an absurd number": ("p,1,1,1000,1000,", ["line 2, column num_gpu", '"1000"', "0 to 64 GPUs"]),
    "a number of a thousand digits": (f"p,{'9' * 1000},1,1,1000,", ["line 2, column cpu_milli", '9..."']),
    "more than a GPU on one GPU": ("p,1,1,1,1010,", ["line 2, column gpu_milli", "0 to 1,000 milli"]),
    "a part of several GPUs": ("p,1,1,2,500,", ["line 2, column gpu_milli", "1000 for 2 GPUs"]),
    "a share that is no whole percent": ("p,1,1,1,465,", ["line 2, column gpu_milli", "a multiple of 10"]),
    "a share of no GPU": ("p,1,1,0,500,", ["line 2, column gpu_milli", "0 for 0 GPUs"]),
    "nothing of a GPU": ("p,1,1,1,0,", ["line 2, column gpu_milli", "at least 10 for 1 GPUs"]),
    "an empty model": ("p,1,1,1,1000,T4|", ["line 2, column gpu_spec", '"T4|"', "joined by |"]),
    "a model without a GPU": ("p,1,1,0,0,T4", ["line 2, column gpu_spec"]),
    "two pods of one name": ("p,1,1,0,0,\np,1,1,0,0,", ["line 3, column name", '"p"']),
    "no name": (",1,1,0,0,", ["line 2, column name", "it is empty"]),
    "too few fields": ("p,1,1", ["line 2: it has 3 fields, not 6 fields"]),
    "a quote that is never closed": ('"p,1,1,0,0,', ["line 2: unexpected end of data"]),
}


@pytest.mark.parametrize(("rows", "want"), WRONG_PODS.values(), ids=WRONG_PODS.keys())
def test_a_wrong_pod_list_is_one_clear_error(tmp_path: Path, rows: str, want: list[str]) -> None:
    with pytest.raises(InvalidInput) as raised:
        openb.read(folder_with(tmp_path, rows), "tiny")
    for part in want:
        assert part in str(raised.value)


WRONG_NODES = {
    "a column is missing": ("sn,cpu_milli,memory_mib,gpu\na,1,1,1\n", "line 1: no column model"),
    "a column comes twice": ("sn,cpu_milli,memory_mib,gpu,model,sn\n", "line 1: column sn is there"),
    "no GPU at all": ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\n", "no GPUs"),
    "a GPU without a model": ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,\n", "line 2, column model"),
    "two nodes of one name": ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\na,1,1,1,T4\n", "line 3, column sn"),
    "an empty file": ("", "no records"),
}


@pytest.mark.parametrize(("nodes", "want"), WRONG_NODES.values(), ids=WRONG_NODES.keys())
def test_a_wrong_node_list_is_one_clear_error(tmp_path: Path, nodes: str, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        openb.read(folder_with(tmp_path, "p,1,1,0,0,", nodes), "tiny")


def test_a_missing_folder_file_or_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere: there is no such folder"):
        openb.read(tmp_path / "nowhere", "tiny")
    with pytest.raises(InvalidInput, match=r"name a folder with openb_pod_list_\*\.csv"):
        openb.read(tmp_path, "tiny")
    folder_with(tmp_path, "p,1,1,0,0,")
    with pytest.raises(InvalidInput, match='"huge": name one of tiny'):
        openb.read(tmp_path, "huge")
    (tmp_path / openb.NODE_FILE).unlink()
    with pytest.raises(InvalidInput, match=f"{openb.NODE_FILE}: No such file"):
        openb.read(tmp_path, "tiny")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes(b"name\xff\n")
    with pytest.raises(InvalidInput, match=r"byte 4 is not UTF-8"):
        openb.read_pods(path)


PUBLISHED = Path(os.environ.get("TESSERA_OPENB", Path(__file__).parents[4] / "shared" / "data" / "openb"))


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the openb CSVs are not here")
def test_the_published_trace_has_its_published_totals() -> None:
    """Totals of the trace's documentation: 6,212 GPUs, 8,152 pods, 98.0 % demand, 13.3 % of the pods without GPU."""
    trace = openb.read(PUBLISHED, "default")
    assert (len(trace.nodes), trace.capacity_milli, len(trace.names)) == (1213, 6_212_000, 8152)
    demands = trace.demands
    demand = sum(demands[kind].milli for kind in trace.kind_of)
    without = sum(demands[kind].gpus == 0 for kind in trace.kind_of)
    assert round(100 * demand / trace.capacity_milli, 1) == 98.0
    assert round(100 * without / len(trace.names), 1) == 13.3
