/* Calls about the processes on a GPU or MIG device. On a GPU with MIG the list is that of all its instances. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "call.h"

#define MIB (1ull << 20)

static bool is_on(const process_t *process, uint32_t gpu, uint32_t instance, uint32_t compute)
{
    return is_used(&process->used) && process->gpu == gpu &&
           (instance == NVML_NO_INSTANCE || process->gpu_instance == instance) &&
           (compute == NVML_NO_INSTANCE || process->compute_instance == compute);
}

uint32_t count_processes(const machine_t *all, uint32_t gpu, uint32_t instance, uint32_t compute)
{
    uint32_t count = 0;
    for (int n = 0; n < MAX_PROCESSES; n++)
        count += is_on(&all->processes[n], gpu, instance, compute);
    return count;
}

uint64_t used_mib(const machine_t *all, uint32_t gpu, uint32_t instance)
{
    uint64_t mib = 0;
    for (int n = 0; n < MAX_PROCESSES; n++) {
        if (is_on(&all->processes[n], gpu, instance, NVML_NO_INSTANCE))
            mib += all->processes[n].memory_mib;
    }
    return mib;
}

uint32_t busy_percent_of(const machine_t *all, uint32_t gpu, uint32_t instance)
{
    uint64_t percent = 0;
    for (int n = 0; n < MAX_PROCESSES; n++) {
        if (is_on(&all->processes[n], gpu, instance, NVML_NO_INSTANCE))
            percent += all->processes[n].sm_percent;
    }
    return percent > 100 ? 100 : (uint32_t)percent;
}

uint32_t busy_percent(const machine_t *all, uint32_t gpu)
{
    return busy_percent_of(all, gpu, NVML_NO_INSTANCE);
}

/* ---- lists ---- */

/* A client of an MPS server is on the list of compute too, as on an H100 with driver 580. */
static bool is_listed(const process_t *process, const target_t *at, uint32_t mode)
{
    uint32_t instance = is_mig(at) ? at->instance->id : NVML_NO_INSTANCE;
    uint32_t compute = is_mig(at) ? (uint32_t)(at->compute - at->instance->compute) : NVML_NO_INSTANCE;
    bool is_client = mode == NVML_PROCESS_MODE_COMPUTE && process->mode == NVML_PROCESS_MODE_MPS;
    return is_on(process, at->index, instance, compute) &&
           (mode == NVML_PROCESS_MODE_ALL || process->mode == mode || is_client);
}

static uint32_t count_listed(const target_t *at, uint32_t mode)
{
    uint32_t found = 0;
    for (int n = 0; n < MAX_PROCESSES; n++)
        found += is_listed(&machine()->processes[n], at, mode);
    return found;
}

/* Sets `count` to what there is; whether the caller has room for it. No process needs no room. */
static nvmlReturn_t fit(uint32_t found, unsigned int *count, const void *out)
{
    unsigned int room = *count;
    *count = found;
    if (found == 0)
        return NVML_SUCCESS;
    if (room < found)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t list_v1(const target_t *at, uint32_t mode, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = fit(count_listed(at, mode), count, infos);
    for (int n = 0; result == NVML_SUCCESS && *count && n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_listed(each, at, mode))
            *infos++ = (nvmlProcessInfo_v1_t){each->pid, each->memory_mib * MIB};
    }
    return result;
}

static nvmlReturn_t list_v2(const target_t *at, uint32_t mode, unsigned int *count, nvmlProcessInfo_t *infos)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = fit(count_listed(at, mode), count, infos);
    for (int n = 0; result == NVML_SUCCESS && *count && n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_listed(each, at, mode))
            *infos++ = (nvmlProcessInfo_t){each->pid, each->memory_mib * MIB, each->gpu_instance,
                                           each->compute_instance};
    }
    return result;
}

#define LIST(name, info_t, list, mode)                                                                           \
    nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, unsigned int *count, info_t *infos)                    \
    {                                                                                                            \
        target_t at;                                                                                             \
        CALL_DEVICE(device, &at);                                                                                \
        return leave(list(&at, mode, count, infos));                                                             \
    }
#define LISTS(name, mode)                                                                                        \
    LIST(name, nvmlProcessInfo_v1_t, list_v1, mode)                                                              \
    LIST(name##_v2, nvmlProcessInfo_t, list_v2, mode)                                                            \
    LIST(name##_v3, nvmlProcessInfo_t, list_v2, mode)

LISTS(ComputeRunningProcesses, NVML_PROCESS_MODE_COMPUTE)
LISTS(GraphicsRunningProcesses, NVML_PROCESS_MODE_GRAPHICS)
LISTS(MPSComputeRunningProcesses, NVML_PROCESS_MODE_MPS)

static nvmlReturn_t detail_list(const target_t *at, nvmlProcessDetailList_v1_t *list)
{
    if (!list)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != NVML_VERSION_OF(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode > NVML_PROCESS_MODE_ALL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = fit(count_listed(at, list->mode), &list->numProcArrayEntries, list->procArray);
    nvmlProcessDetail_v1_t *out = list->procArray;
    for (int n = 0; result == NVML_SUCCESS && list->numProcArrayEntries && n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_listed(each, at, list->mode))
            *out++ = (nvmlProcessDetail_v1_t){each->pid, each->memory_mib * MIB, each->gpu_instance,
                                              each->compute_instance, 0};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(detail_list(&at, list));
}

/* ---- utilization of each process ---- */

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

static const char SERVER[] = "nvidia-cuda-mps-server";

/* The MPS server of a GPU: the first process that runs its program; NULL without one. */
static const process_t *server_at(const target_t *at)
{
    for (int n = 0; n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_listed(each, at, NVML_PROCESS_MODE_COMPUTE) && !strcmp(each->name, SERVER))
            return each;
    }
    return NULL;
}

/* What a client of MPS computes is counted as its server's, as on an H100 with driver 580. */
static uint32_t sampled_percent(const process_t *process, const process_t *server, const target_t *at)
{
    if (!is_listed(process, at, NVML_PROCESS_MODE_ALL) || process->mode == NVML_PROCESS_MODE_MPS)
        return 0;
    uint32_t percent = process->sm_percent;
    for (int n = 0; process == server && n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_listed(each, at, NVML_PROCESS_MODE_MPS))
            percent += each->sm_percent;
    }
    return percent > 100 ? 100 : percent;
}

static nvmlReturn_t samples_of(const target_t *at, nvmlProcessUtilizationSample_t *samples, unsigned int *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    const process_t *server = server_at(at);
    uint32_t found = 0;
    for (int n = 0; n < MAX_PROCESSES; n++)
        found += sampled_percent(&machine()->processes[n], server, at) > 0;
    if (found == 0)
        return NVML_ERROR_NOT_FOUND;
    nvmlReturn_t result = fit(found, count, samples);
    for (int n = 0; result == NVML_SUCCESS && n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        uint32_t percent = sampled_percent(each, server, at);
        if (percent > 0)
            *samples++ = (nvmlProcessUtilizationSample_t){.pid = each->pid, .timeStamp = now_us(),
                                                          .smUtil = percent, .memUtil = percent / 2};
    }
    return result;
}

/* There is one sample, taken now, of each process with a utilization other than 0. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long newer_than)
{
    target_t at;
    CALL_GPU(device, &at);
    if (at.gpu->mig_current)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    return leave(newer_than > now_us() ? NVML_ERROR_NOT_FOUND : samples_of(&at, samples, count));
}
