/* Calls about what a GPU is: finding it, its names, its place in the machine, and modes that are only kept. */
#include <stdio.h>
#include <string.h>

#include "call.h"

#define VENDOR_BASE_CLASS 0x3u /* display controller */
#define VENDOR_SUB_CLASS 0x2u  /* 3D controller */

/* ---- finding ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    CALL();
    return leave(put_number(count, machine()->gpu_count));
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t put_gpu(uint32_t index, nvmlDevice_t *device)
{
    if (machine()->gpus[index].lost)
        return NVML_ERROR_GPU_IS_LOST;
    *device = gpu_handle(index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CALL();
    if (!device || index >= machine()->gpu_count)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(put_gpu(index, device));
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    CALL();
    if (!serial || !device)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t n = 0; n < machine()->gpu_count; n++) {
        if (strcmp(machine()->gpus[n].serial, serial) == 0)
            return leave(put_gpu(n, device));
    }
    return leave(NVML_ERROR_NOT_FOUND);
}

static nvmlReturn_t find_mig(const char *uuid, nvmlDevice_t *device)
{
    for (uint32_t n = 0; n < machine()->gpu_count; n++) {
        target_t at = {&machine()->gpus[n], n, NULL, NULL};
        for (int slot = 0; slot < MAX_INSTANCES; slot++) {
            at.instance = &at.gpu->instances[slot];
            for (int c = 0; is_used(&at.instance->used) && c < MAX_COMPUTE; c++) {
                at.compute = &at.instance->compute[c];
                if (!is_used(&at.compute->used) || strcmp(at.compute->uuid, uuid) != 0)
                    continue;
                if (at.gpu->lost)
                    return NVML_ERROR_GPU_IS_LOST;
                *device = mig_handle(&at);
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t find_uuid(const char *uuid, nvmlDevice_t *device)
{
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t n = 0; n < machine()->gpu_count; n++) {
        if (strcmp(machine()->gpus[n].uuid, uuid) == 0)
            return put_gpu(n, device);
    }
    return find_mig(uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    CALL();
    return leave(find_uuid(uuid, device));
}

static void spell(const unsigned char bytes[16], char text[UUID_SIZE])
{
    snprintf(text, UUID_SIZE, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", bytes[0],
             bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[9], bytes[10],
             bytes[11], bytes[12], bytes[13], bytes[14], bytes[15]);
}

static nvmlReturn_t find_versioned_uuid(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    char text[UUID_SIZE];
    if (!uuid)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (uuid->version != NVML_VERSION_OF(nvmlUUID_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_UUID_TYPE_BINARY)
        spell(uuid->value.bytes, text);
    else if (uuid->type == NVML_UUID_TYPE_ASCII)
        snprintf(text, sizeof text, "%.*s", (int)sizeof uuid->value.str, uuid->value.str);
    else
        return NVML_ERROR_INVALID_ARGUMENT;
    return find_uuid(text, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    CALL();
    return leave(find_versioned_uuid(uuid, device));
}

static nvmlReturn_t find_bus(const char *bus_id, nvmlDevice_t *device)
{
    unsigned int domain = 0, bus = 0, slot = 0;
    if (!bus_id || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(bus_id, "%8x:%2x:%2x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%2x:%2x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (uint32_t n = 0; n < machine()->gpu_count; n++) {
        const gpu_t *gpu = &machine()->gpus[n];
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot)
            return put_gpu(n, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    CALL();
    return leave(find_bus(bus_id, device));
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* ---- names ---- */

/* "NVIDIA A100-SXM4-40GB MIG 3g.20gb", or "... MIG 1c.3g.20gb" where the compute instance is smaller. */
static nvmlReturn_t device_name(const target_t *at, char *name, unsigned int length)
{
    if (!is_mig(at))
        return put_text(name, length, at->gpu->name);
    char text[2 * NAME_SIZE + 16];
    const profile_t *profile = &at->gpu->profiles[at->instance->profile];
    if (at->compute->slices == profile->slices)
        snprintf(text, sizeof text, "%s MIG %s", at->gpu->name, profile->name);
    else
        snprintf(text, sizeof text, "%s MIG %uc.%s", at->gpu->name, at->compute->slices, profile->name);
    return put_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(device_name(&at, name, length));
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(put_text(uuid, length, is_mig(&at) ? at.compute->uuid : at.gpu->uuid));
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_text(serial, length, at.gpu->serial));
}

/* ---- numbers that a GPU only keeps ---- */

#define GPU_NUMBER(function, value)                                                                              \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *out)                                                \
    {                                                                                                            \
        target_t at;                                                                                             \
        CALL_GPU(device, &at);                                                                                   \
        return leave(put_number(out, value));                                                                    \
    }
#define DEVICE_NUMBER(function, value)                                                                           \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *out)                                                \
    {                                                                                                            \
        target_t at;                                                                                             \
        CALL_DEVICE(device, &at);                                                                                \
        return leave(put_number(out, value));                                                                    \
    }

GPU_NUMBER(nvmlDeviceGetMinorNumber, at.gpu->minor)
GPU_NUMBER(nvmlDeviceGetBoardId, at.gpu->pci_bus << 8)
GPU_NUMBER(nvmlDeviceGetBusType, NVML_BUS_TYPE_PCIE)
GPU_NUMBER(nvmlDeviceGetMemoryBusWidth, at.gpu->memory_bus_bits)
GPU_NUMBER(nvmlDeviceGetVirtualizationMode, 0)
GPU_NUMBER(nvmlDeviceGetPersistenceMode, at.gpu->persistence)
GPU_NUMBER(nvmlDeviceGetComputeMode, at.gpu->compute_mode)
DEVICE_NUMBER(nvmlDeviceGetBrand, at.gpu->brand)
DEVICE_NUMBER(nvmlDeviceGetArchitecture, at.gpu->architecture)
DEVICE_NUMBER(nvmlDeviceGetNumaNodeId, at.gpu->numa_node)

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(at.gpu->mig_current ? NVML_ERROR_NOT_SUPPORTED : put_number(cores, at.gpu->cores));
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!major || !minor)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)at.gpu->compute_major;
    *minor = (int)at.gpu->compute_minor;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    target_t at;
    CALL_GPU(device, &at);
    if (mode > NVML_FEATURE_ENABLED)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    at.gpu->persistence = mode;
    return leave(NVML_SUCCESS);
}

/* Under MIG a GPU has no compute mode to set. Source: MIG User Guide, "Application Considerations". */
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    target_t at;
    CALL_GPU(device, &at);
    if (mode >= NVML_COMPUTEMODE_COUNT)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || at.gpu->mig_current)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    at.gpu->compute_mode = mode;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!current || !pending)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!at.gpu->ecc)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    *current = *pending = NVML_FEATURE_ENABLED;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                         unsigned long long *count)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!count || error > 1 || counter > 1)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!at.gpu->ecc)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    *count = error == 0 ? at.gpu->ecc_corrected : at.gpu->ecc_uncorrected;
    return leave(NVML_SUCCESS);
}

/* ---- place in the machine ---- */

static void spell_bus(const gpu_t *gpu, unsigned int digits, char *out, size_t size)
{
    snprintf(out, size, "%0*X:%02X:%02X.0", (int)digits, gpu->pci_domain, gpu->pci_bus & 0xff, gpu->pci_device & 0xff);
}

/* What all versions of the record have, as initialisers; each spells the bus in its own way. */
#define PCI_FIELDS(gpu)                                                                                          \
    .domain = (gpu)->pci_domain, .bus = (gpu)->pci_bus, .device = (gpu)->pci_device,                             \
    .pciDeviceId = (gpu)->pci_device_id, .pciSubSystemId = (gpu)->pci_subsystem_id

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlPciInfo_t){PCI_FIELDS(at.gpu)};
    spell_bus(at.gpu, 4, info->busIdLegacy, sizeof info->busIdLegacy);
    spell_bus(at.gpu, 8, info->busId, sizeof info->busId);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlPciInfo_v2_t){PCI_FIELDS(at.gpu)};
    spell_bus(at.gpu, 4, info->busId, sizeof info->busId);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
    return nvmlDeviceGetPciInfo_v2(device, info);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (info->version != NVML_VERSION_OF(nvmlPciInfoExt_v1_t, 1))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    *info = (nvmlPciInfoExt_v1_t){
        .version = info->version,
        PCI_FIELDS(at.gpu),
        .baseClass = VENDOR_BASE_CLASS,
        .subClass = VENDOR_SUB_CLASS,
    };
    spell_bus(at.gpu, 8, info->busId, sizeof info->busId);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                         unsigned int scope)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!set || size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    memset(set, 0, size * sizeof *set);
    if (at.gpu->numa_node >= 64 * size)
        return leave(NVML_ERROR_INSUFFICIENT_SIZE);
    set[at.gpu->numa_node / 64] |= 1ul << (at.gpu->numa_node % 64);
    return leave(NVML_SUCCESS);
}

/* Every processor: what a machine with one node tells. */
nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                                 unsigned int scope)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!set || size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    memset(set, 0xff, size * sizeof *set);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    return nvmlDeviceGetCpuAffinityWithinScope(device, size, set, 0);
}

static nvmlReturn_t two(const char *function, nvmlDevice_t one, nvmlDevice_t other, target_t found[2])
{
    nvmlReturn_t result = enter_gpu(function, other, &found[1]);
    if (result != NVML_SUCCESS)
        return result;
    leave(NVML_SUCCESS);
    return enter_gpu(function, one, &found[0]);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level)
{
    target_t found[2];
    nvmlReturn_t result = two(__func__, one, other, found);
    if (result != NVML_SUCCESS)
        return result;
    bool near = found[0].gpu->numa_node == found[1].gpu->numa_node;
    return leave(put_number(level, found[0].index == found[1].index ? NVML_TOPOLOGY_INTERNAL
                                   : near                           ? NVML_TOPOLOGY_NODE
                                                                    : NVML_TOPOLOGY_SYSTEM));
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    target_t found[2];
    nvmlReturn_t result = two(__func__, one, other, found);
    if (result != NVML_SUCCESS)
        return result;
    if (!same)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *same = found[0].index == found[1].index;
    return leave(NVML_SUCCESS);
}
