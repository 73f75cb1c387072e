/* Calls about memory: what is used, and the limits that a driver from r615 on holds for each cgroup. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define MIB (1ull << 20)
#define FIRST_DRIVER_WITH_LIMITS 615

/* ---- what is used ---- */

/* Total, kept back, and used by processes, in bytes; a MIG device has the memory of its GPU instance. */
static nvmlMemory_v2_t measured(const target_t *at)
{
    nvmlMemory_v2_t memory = {.version = 0};
    if (is_mig(at)) {
        memory.total = at->gpu->profiles[at->instance->profile].memory_mib * MIB;
        memory.used = (EMPTY_INSTANCE_MIB + used_mib(machine(), at->index, at->instance->id)) * MIB;
    } else {
        uint64_t instances = 0;
        for (int n = 0; n < MAX_INSTANCES; n++)
            instances += is_used(&at->gpu->instances[n].used);
        memory.total = at->gpu->memory_mib * MIB;
        memory.reserved = at->gpu->reserved_mib * MIB;
        memory.used = (instances * EMPTY_INSTANCE_MIB + used_mib(machine(), at->index, NVML_NO_INSTANCE)) * MIB;
    }
    memory.free = memory.total - memory.reserved > memory.used ? memory.total - memory.reserved - memory.used : 0;
    return memory;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!memory)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    nvmlMemory_v2_t all = measured(&at);
    *memory = (nvmlMemory_t){.total = all.total, .free = all.free, .used = all.reserved + all.used};
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!memory)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (memory->version != NVML_VERSION_OF(nvmlMemory_v2_t, 2))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned int version = memory->version;
    *memory = measured(&at);
    memory->version = version;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!memory)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    memory->bar1Total = at.gpu->bar1_mib * MIB;
    memory->bar1Used = MIB;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return leave(NVML_SUCCESS);
}

/* ---- limits ---- */

static bool is_cgroup(const char *text)
{
    return text && *text && strnlen(text, PATH_SIZE) < PATH_SIZE;
}

/* Older drivers lack the functions; as ours are always in the library, they say what a missing one would. */
static nvmlReturn_t limits_offered(const target_t *at)
{
    if (strtol(machine()->driver_version, NULL, 10) < FIRST_DRIVER_WITH_LIMITS)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return is_mig(at) || at->gpu->mig_current ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

/* The limit of a cgroup on a GPU, or NULL; `room` is then a free record, or NULL. */
static limit_t *find(uint32_t gpu, const char *cgroup, limit_t **room)
{
    *room = NULL;
    for (int n = 0; n < MAX_LIMITS; n++) {
        limit_t *each = &machine()->limits[n];
        if (!is_used(&each->used))
            *room = *room ? *room : each;
        else if (each->gpu == gpu && strcmp(each->cgroup, cgroup) == 0)
            return each;
    }
    return NULL;
}

/* Two limits of `no limit` take the record away. */
static nvmlReturn_t set_limits(const target_t *at, const nvmlSetMemoryLimits_v1_t *limits)
{
    if (!limits || !is_cgroup(limits->nameSpace))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = limits_offered(at);
    if (result != NVML_SUCCESS)
        return result;
    bool soft = limits->softLimit != NVML_DEVICE_MEMORY_LIMIT_MAX;
    if (soft && limits->softLimit > limits->hardLimit)
        return NVML_ERROR_INVALID_ARGUMENT;
    limit_t *room, *record = find(at->index, limits->nameSpace, &room);
    if (!soft && limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX) {
        if (record)
            set_used(&record->used, 0);
        return NVML_SUCCESS;
    }
    if (!record && !room)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (!record) {
        record = room;
        record->gpu = at->index;
        strcpy(record->cgroup, limits->nameSpace); // NOLINT: measured by is_cgroup
    }
    record->soft = limits->softLimit;
    record->hard = limits->hardLimit;
    set_used(&record->used, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *limits)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(set_limits(&at, limits));
}

/* Whether one cgroup is another or lies below it. */
static bool is_within(const char *cgroup, const char *above)
{
    size_t length = strlen(above);
    return strncmp(cgroup, above, length) == 0 && (cgroup[length] == '\0' || cgroup[length] == '/');
}

/* A cgroup has the memory of the processes in it and below it. */
static uint64_t used_in(const machine_t *all, uint32_t gpu, const char *cgroup)
{
    uint64_t mib = 0;
    for (int n = 0; n < MAX_PROCESSES; n++) {
        const process_t *each = &all->processes[n];
        if (is_used(&each->used) && each->gpu == gpu && is_within(each->cgroup, cgroup))
            mib += each->memory_mib;
    }
    return mib * MIB;
}

bool exceeds_limit(const machine_t *all, const process_t *process)
{
    for (int n = 0; n < MAX_LIMITS; n++) {
        const limit_t *each = &all->limits[n];
        if (is_used(&each->used) && each->gpu == process->gpu && is_within(process->cgroup, each->cgroup) &&
            used_in(all, each->gpu, each->cgroup) + process->memory_mib * MIB > each->hard)
            return true;
    }
    return false;
}

static nvmlReturn_t get_limits(const target_t *at, nvmlGetMemoryLimits_v1_t *limits)
{
    if (!limits || !is_cgroup(limits->nameSpace))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = limits_offered(at);
    if (result != NVML_SUCCESS)
        return result;
    limit_t *room;
    const limit_t *record = find(at->index, limits->nameSpace, &room);
    limits->softLimit = record ? record->soft : NVML_DEVICE_MEMORY_LIMIT_MAX;
    limits->hardLimit = record ? record->hard : NVML_DEVICE_MEMORY_LIMIT_MAX;
    limits->currentUsed = used_in(machine(), at->index, limits->nameSpace);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(get_limits(&at, limits));
}
