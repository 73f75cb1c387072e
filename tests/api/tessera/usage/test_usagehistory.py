"""What Prometheus answers about the use of GPUs, however it is broken."""

import json
from typing import Any

import pytest

from tessera.api.tessera.usage import usagehistory
from tessera.api.tessera.usage.usagehistory import history_queries, read_history
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.errors import InvalidInput

BUSY = {
    "hostname": "n1", "gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA A100-SXM4-40GB",
    "namespace": "team", "pod": "busy", "container": "main",
}  # fmt: skip
CUT = BUSY | {"gpu": "1", "UUID": "GPU-1", "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.5gb", "pod": "cut"}
MODES = [({"UUID": "GPU-1", "GPU_I_ID": "7", "mode": "mig"}, "1"), ({"UUID": "GPU-0", "mode": "mps"}, "1")]


def vector(*series: tuple[dict[str, str], str]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def answers(**given: bytes) -> dict[str, bytes]:
    return dict.fromkeys(history_queries("1d"), vector()) | {"modes": vector(*MODES)} | given


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
        ),
        "Prometheus",
    )
    busy = ContainerReport(
        namespace="team", pod="busy", container="main", allocated_mib=2048, peak_mib=1900, mean_percent=20.5,
        observed_s=600,
    )  # fmt: skip
    cut = ContainerReport(namespace="team", pod="cut", container="main", exclusive=True, allocated_mib=4864)
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
    assert container(mean_percent=vector((BUSY, "250"))).mean_percent == 100


def test_a_product_that_is_not_known_stays_as_it_is() -> None:
    (report,) = read_history(answers(allocated_mib=vector((BUSY | {"modelName": "X9"}, "1"))), "Prometheus")
    assert report.gpus[0].model == "X9"


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b'{"data": {"result": [{"value": [1]}]}}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_vector_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="an answer of Prometheus"):
        read_history(answers(peak_mib=content), "Prometheus")


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usagehistory, "_MOST_SAMPLES", 1)
    with pytest.raises(InvalidInput, match="2 series are more than 1"):
        read_history(answers(), "Prometheus")
