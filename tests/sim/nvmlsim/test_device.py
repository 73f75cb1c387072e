"""Calls about the driver and about what a GPU is, each through unmodified pynvml."""

from ctypes import POINTER, byref, c_uint, cast
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole, mig_devices
from tessera.core.gpu.gpumodels import CATALOG, GpuModel
from tessera.sim.nvmlsim import Machine, Process


def test_the_driver_tells_its_versions(machine: Machine) -> None:
    assert pynvml.nvmlSystemGetDriverVersion() == machine.describe()["driver_version"] == "615.71.09"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.615.71.09"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13040
    assert pynvml.nvmlSystemGetDriverBranch().branch == "r615_00"


def test_another_driver_can_be_played(start: Any) -> None:
    start(driver="595.91.07")
    assert pynvml.nvmlSystemGetDriverVersion() == "595.91.07"
    assert pynvml.nvmlSystemGetDriverBranch().branch == "r595_00"


def test_every_code_has_a_text(machine: Machine) -> None:
    del machine
    codes = [code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")]
    assert all(pynvml.nvmlErrorString(code) for code in codes)
    assert pynvml.nvmlErrorString(pynvml.NVML_ERROR_IN_USE) == "In use by another client"
    assert pynvml.nvmlErrorString(12345) == "Unknown Error"


def test_gpus_are_found_by_all_their_names(start: Any) -> None:
    start("2xA100-40GB", "T4")
    assert pynvml.nvmlDeviceGetCount() == 3
    for index in range(3):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, bus = pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetPciInfo(gpu).busId
        same = [
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByUUIDV(uuid.encode(), pynvml.NVML_UUID_TYPE_ASCII),
            pynvml.nvmlDeviceGetHandleByUUIDV(bytes.fromhex(uuid[4:].replace("-", "")), pynvml.NVML_UUID_TYPE_BINARY),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus[4:]),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus[9:]),
            pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(gpu).encode()),
        ]
        assert {pynvml.nvmlDeviceGetIndex(each) for each in same} == {index}
        assert pynvml.nvmlDeviceGetMinorNumber(gpu) == index


def test_names_of_no_gpu_are_refused(machine: Machine) -> None:
    del machine
    not_found = pynvml.NVMLError_NotFound
    invalid = pynvml.NVMLError_InvalidArgument
    for error, call, value in (
        (invalid, pynvml.nvmlDeviceGetHandleByIndex, 2),
        (not_found, pynvml.nvmlDeviceGetHandleByUUID, "GPU-0"),
        (not_found, pynvml.nvmlDeviceGetHandleBySerial, b"0"),
        (not_found, pynvml.nvmlDeviceGetHandleByPciBusId, "0000:ff:1f.0"),
        (invalid, pynvml.nvmlDeviceGetHandleByPciBusId, "nowhere"),
    ):
        with pytest.raises(error):
            call(value)
    with pytest.raises(invalid):
        pynvml.nvmlDeviceGetHandleByUUIDV(b"GPU-0", 7)


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda each: each.name)
def test_every_model_of_the_catalog_can_be_simulated(start: Any, gpu: GpuModel) -> None:
    start(f"2 x {gpu.name}")
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == gpu.memory_mib << 20
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert not gpu.pci or pci.pciDeviceId == int(gpu.pci[0], 16)
    assert pci.pciDeviceId & 0xFFFF == 0x10DE
    name = pynvml.nvmlDeviceGetName(device)
    assert name.startswith(("NVIDIA ", "Tesla "))
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(device)
    want = {"Pascal": (6,), "Volta": (7,), "Turing": (7,), "Ampere": (8,), "Ada Lovelace": (8,), "Hopper": (9,)}
    assert major in want.get(gpu.arch, (10, 12))
    assert 0 <= minor <= 9
    assert pynvml.nvmlDeviceGetArchitecture(device) in range(pynvml.NVML_DEVICE_ARCH_PASCAL, 11)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        ("NVIDIA-A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB"),
        ("nvidia-tesla-a100", "NVIDIA A100-SXM4-40GB"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-16GB"),
        ("nvidia-tesla-t4", "Tesla T4"),
        ("A30", "NVIDIA A30"),
        ("H20", "NVIDIA H20"),
        ("H20-96GB", "NVIDIA GH200 480GB"),
    ],
)
def test_a_product_keeps_its_own_name(start: Any, text: str, want: str) -> None:
    start(text)
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) == want


def test_an_a100_tells_its_numbers(start: Any) -> None:
    start()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetBrand(gpu) == pynvml.NVML_BRAND_NVIDIA
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == (8, 0)
    assert pynvml.nvmlDeviceGetNumGpuCores(gpu) == 6912
    assert pynvml.nvmlDeviceGetMemoryBusWidth(gpu) == 5120
    assert pynvml.nvmlDeviceGetBusType(gpu) == pynvml.NVML_BUS_TYPE_PCIE
    assert pynvml.nvmlDeviceGetVirtualizationMode(gpu) == 0
    assert pynvml.nvmlDeviceGetEccMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0) == 0
    assert pynvml.nvmlDeviceGetBoardId(gpu) == 0x700
    extended = pynvml.nvmlPciInfoExt_v1_t()
    extended.version = pynvml.nvmlPciInfoExt_v1
    pynvml.nvmlDeviceGetPciInfoExt(gpu, byref(extended))
    assert (extended.busId, extended.bus, extended.baseClass) == ("00000000:07:00.0", 7, 3)
    extended.version = 1
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetPciInfoExt(gpu, byref(extended))


def test_the_older_pci_layout_is_filled(a100: Any) -> None:
    info = pynvml.nvmlPciInfo_v2_t()
    for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
        assert pynvml._nvmlGetFunctionPointer(name)(a100, byref(info)) == pynvml.NVML_SUCCESS
        assert (info.busId, info.bus, info.pciDeviceId) == ("0000:07:00.0", 7, 0x20B010DE)


def test_a_gpu_without_ecc_says_so(start: Any) -> None:
    start("RTX-4090")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetEccMode(gpu)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0)
    assert pynvml.nvmlDeviceGetBrand(gpu) == pynvml.NVML_BRAND_GEFORCE


def test_the_place_in_the_machine(a100: Any, t4: Any) -> None:
    assert pynvml.nvmlDeviceGetNumaNodeId(a100) == 0
    assert list(pynvml.nvmlDeviceGetMemoryAffinity(a100, 1, 0)) == [1]
    assert list(pynvml.nvmlDeviceGetCpuAffinity(a100, 2)) == [2**64 - 1] * 2
    assert list(pynvml.nvmlDeviceGetCpuAffinityWithinScope(a100, 1, 1)) == [2**64 - 1]
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(a100, t4) == pynvml.NVML_TOPOLOGY_NODE
    assert pynvml.nvmlDeviceGetTopologyCommonAncestor(a100, a100) == pynvml.NVML_TOPOLOGY_INTERNAL
    assert pynvml.nvmlDeviceOnSameBoard(a100, a100)
    assert not pynvml.nvmlDeviceOnSameBoard(a100, t4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryAffinity(a100, 1, 2)


def test_modes_are_kept_for_all_to_see(t4: Any) -> None:
    assert pynvml.nvmlDeviceGetComputeMode(t4) == pynvml.NVML_COMPUTEMODE_DEFAULT
    pynvml.nvmlDeviceSetComputeMode(t4, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert pynvml.nvmlDeviceGetComputeMode(t4) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetComputeMode(t4, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetComputeMode(t4, 4)
    pynvml.nvmlDeviceSetPersistenceMode(t4, 1)
    assert pynvml.nvmlDeviceGetPersistenceMode(t4) == 1
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPersistenceMode(t4, 2)


def test_a_mig_device_tells_what_it_shares_with_its_gpu(a100: Any) -> None:
    cut_whole(a100, 9, 0, 4)
    (device,) = mig_devices(a100)
    for call in (
        pynvml.nvmlDeviceGetBrand,
        pynvml.nvmlDeviceGetArchitecture,
        pynvml.nvmlDeviceGetCudaComputeCapability,
        pynvml.nvmlDeviceGetNumaNodeId,
    ):
        assert call(device) == call(a100)


def test_texts_need_room(a100: Any) -> None:
    room = pynvml.create_string_buffer(8)
    for name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial"):
        call = pynvml._nvmlGetFunctionPointer(name)
        assert call(a100, room, c_uint(8)) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert call(a100, None, c_uint(8)) == pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("handle", [0, 1, 0x5E5 << 52, 0x5E51FF0000000000, 0x5E51000100000000, 2**64 - 1])
def test_an_invented_handle_is_refused(machine: Machine, handle: int) -> None:
    del machine
    invented = cast(handle, POINTER(pynvml.struct_c_nvmlDevice_t))
    for call in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetMigMode, pynvml.nvmlGpuInstanceGetInfo):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(invented)


def test_process_names(machine: Machine) -> None:
    machine.add_process(1, Process(pid=77, name="/usr/bin/python3"))
    assert pynvml.nvmlSystemGetProcessName(77) == "/usr/bin/python3"
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlSystemGetProcessName(78)
