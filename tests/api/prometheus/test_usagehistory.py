"""What Prometheus answers about the use of GPUs, however it is broken."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.usage import GPU, WHOLE, allocation
from tessera.api.prometheus import usagehistory
from tessera.api.prometheus.usagehistory import history_queries, read_history
from tessera.core.gpu.readings import GpuReading
from tessera.core.usage.attribution import ContainerDevice, attribute_usage
from tessera.core.usage.nodemetrics import node_families
from tessera.core.usage.observation import DeviceStatus, NodeUsage
from tessera.core.usage.rightsizing import recommendations
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import InvalidInput

BUSY = {
    "hostname": "n1", "gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA A100-SXM4-40GB",
    "namespace": "team", "pod": "busy", "container": "main", "exclusive": "false", "part": "memory",
}  # fmt: skip
CUT = BUSY | {
    "gpu": "1",
    "UUID": "GPU-1",
    "GPU_I_ID": "7",
    "GPU_I_PROFILE": "1g.5gb",
    "pod": "cut",
    "exclusive": "true",
    "part": "",
}


_OF_DEVICE = {"hostname", "Hostname", "gpu", "UUID", "modelName", "GPU_I_ID", "GPU_I_PROFILE"}


def vector(*series: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def answers(**given: bytes) -> dict[str, bytes]:
    return dict.fromkeys(history_queries("1d"), vector()) | given


def test_history_goes_on_when_agents_are_replaced(tmp_path: Path) -> None:
    """Three agents one after the other, for 120, 60 and 10 minutes; only the last saw the container busy.

    The first did not know the memory that it used for 10 minutes, which count for its load alone. For 20 minutes of
    the second processes used the device that had ended: what the container used then is unknown.
    """
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, by which Prometheus answers queries, is not on PATH")
    labels = CUT | {"pod_uid": "u", "Hostname": "n1"}
    owner = {name: value for name, value in labels.items() if name not in {"exclusive", "part", "Hostname"}}
    series, began = [], 0
    for agent, (minutes, percent) in enumerate(((120, 2), (60, 2), (10, 100))):
        for name, value in (
            ("tessera_container_memory_allocated_bytes", 4864 << 20),
            ("DCGM_FI_DEV_GPU_UTIL", percent),
            ("DCGM_FI_DEV_FB_USED", 4000 - percent),
        ):
            unknown = 10 if name.endswith("FB_USED") and not agent else 0
            before = f"_x{began + unknown} " if began + unknown else ""
            of_agent = written(name, labels | {"instance": f"10.0.0.{agent}:9400"})
            series.append({"series": of_agent, "values": f"{before}{value}x{minutes - unknown - 1} stale"})
        began += minutes
    kind = {"exclusive": "true", "part": ""}
    series.append(
        {
            "series": written(
                "tessera_device_ended_processes_load", {k: v for k, v in labels.items() if k in _OF_DEVICE}
            ),
            "values": "0x129 0.5x19 0x40",
        }
    )
    wanted = {
        "allocated_mib": (owner | kind, 4864),
        "peak_mib": (owner, 3998),
        "mean_percent": (owner, (180 * 2 + 10 * 100) / 190),
        "observed_s": (owner, 32 * 300),
        "load_observed_s": (owner, 34 * 300),
    }
    queries = history_queries("7d")
    assert queries.keys() == wanted.keys()
    asked = [
        {"expr": query, "eval_time": "189m", "exp_samples": [{"labels": written("", labels), "value": value}]}
        for query, (labels, value) in ((queries[name], each) for name, each in wanted.items())
    ]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    command = [promtool, "test", "rules", "case.yaml"]
    result = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def written(name: str, labels: dict[str, str]) -> str:
    """Return a series as Prometheus writes it; an empty label is none."""
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items() if value) + "}"


def container(**given: Any) -> ContainerReport:
    (report,) = read_history(answers(allocated_mib=vector((BUSY, "2048")), **given), "Prometheus")
    return report.gpus[0].devices[0].containers[0]


def test_reports_are_of_nodes_gpus_and_devices() -> None:
    found = read_history(
        answers(
            allocated_mib=vector((CUT, "4864"), (BUSY, "2048"), (BUSY | {"hostname": "n0", "gpu": "9" * 5000}, "1")),
            peak_mib=vector((BUSY, "1900.4")),
            mean_percent=vector((BUSY, "20.5")),
            observed_s=vector((BUSY, "600")),
            load_observed_s=vector((BUSY, "300")),
        ),
        "Prometheus",
    )
    busy = ContainerReport(
        namespace="team", pod="busy", container="main", allocated_mib=2048, peak_mib=1900, mean_percent=20.5,
        observed_s=600, load_observed_s=300,
    )  # fmt: skip
    cut = ContainerReport(
        namespace="team", pod="cut", container="main", exclusive=True, allocated_mib=4864, load_observed_s=0
    )
    assert [each.node for each in found] == ["n0", "n1"]
    assert found[0].gpus[0].index == 0
    assert found[1] == UsageReport(
        node="n1",
        gpus=(
            GpuReport(index=0, uuid="GPU-0", model="A100-40GB", devices=(DeviceReport(containers=(busy,)),)),
            GpuReport(
                index=1, uuid="GPU-1", model="A100-40GB", devices=(DeviceReport(profile="1g.5gb", containers=(cut,)),)
            ),
        ),
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "18446744073709551615", "x", ""])
def test_what_cannot_be_is_not_known(value: str) -> None:
    assert container(peak_mib=vector((BUSY, value))).peak_mib is None


def test_no_load_is_more_than_all() -> None:
    assert container(mean_percent=vector((BUSY, "100.0001"))).mean_percent == 100
    assert container(mean_percent=vector((BUSY, "250"))).mean_percent is None


def test_a_product_that_is_not_known_stays_as_it_is() -> None:
    (report,) = read_history(answers(allocated_mib=vector((BUSY | {"modelName": "X9"}, "1"))), "Prometheus")
    assert report.gpus[0].model == "X9"


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b'{"data": {"result": [{"value": [1]}]}}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_vector_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="an answer of Prometheus"):
        read_history(answers(peak_mib=content), "Prometheus")


ALL_MODES = tuple(DeviceStatus(device=WHOLE, mode=each) for each in ("whole", "mps", "memory-share"))


def recommended(statuses: tuple[DeviceStatus, ...], own: ContainerDevice) -> tuple[str, str]:
    """Return what is recommended for a container whose peak is 5,000 MiB and whose load is 100 %, and what fits."""
    usage = NodeUsage(node="n1", gpus=(attribute_usage(GPU, GpuReading(), [own], {}),), statuses=statuses)
    families = {each.metric.name: each for each in node_families(usage)}
    assert len(families["tessera_device_sharing_info"].samples) == len(statuses)
    (sample,) = families["tessera_container_memory_allocated_bytes"].samples
    labels = dict(sample.labels)
    values = {
        "allocated_mib": str(sample.value / 2**20),
        "peak_mib": "5000",
        "mean_percent": "100",
        "observed_s": "900",
        "load_observed_s": "900",
    }
    reports = read_history({name: vector((labels, value)) for name, value in values.items()}, "Prometheus")
    (found,) = recommendations(reports)
    return found.verdict.value, found.fits


@pytest.mark.parametrize("statuses", [ALL_MODES, ALL_MODES[::-1]])
def test_on_a_gpu_that_offers_all_modes_what_the_container_has_counts(statuses: tuple[DeviceStatus, ...]) -> None:
    assert recommended(statuses, allocation("p", exclusive=True, allocated_mib=40960)) == ("fits", "")
    assert recommended(statuses, allocation("p", allocated_mib=20480)) == ("too-much", "6 GiB")


def test_a_replica_is_no_amount_of_memory() -> None:
    series = (BUSY | {"part": "replica"}, "10240")
    ((found,),) = (
        device.containers
        for report in read_history(answers(allocated_mib=vector(series)), "Prometheus")
        for gpu in report.gpus
        for device in gpu.devices
    )
    assert (found.exclusive, found.replica, found.allocated_mib) == (False, True, 10240)


UNKNOWN_KINDS = ([("", "")], [("yes", "")], [("false", "")], [("true", ""), ("false", "memory")])


@pytest.mark.parametrize("kinds", UNKNOWN_KINDS)
def test_an_allocation_that_does_not_say_how_its_device_is_shared_is_left_out(kinds: list[tuple[str, str]]) -> None:
    series = [(BUSY | {"exclusive": exclusive, "part": part}, "2048") for exclusive, part in kinds]
    assert read_history(answers(allocated_mib=vector(*series)), "Prometheus") == ()


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usagehistory, "_MOST_SAMPLES", 1)
    with pytest.raises(InvalidInput, match="2 series are more than 1"):
        read_history(answers(peak_mib=vector((BUSY, "1"), (CUT, "1"))), "Prometheus")
