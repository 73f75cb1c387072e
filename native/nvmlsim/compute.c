/* Calls about compute instances, and about MIG devices, each of which is one compute instance. */
#include "call.h"

#include <stdio.h>

/* ---- profiles: how many slices an NVML_COMPUTE_INSTANCE_PROFILE_* takes ---- */

static const uint32_t slices_of[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 0, 0};

static const profile_t *parent(const target_t *at)
{
    return &at->gpu->profiles[at->instance->profile];
}

/*
 * What divides an instance: 1 and 2 slices always, 3 and 4 only seven of them, and what fills it.
 * Source: nvidia-smi mig -lcip on A100, in NVIDIA's MIG User Guide.
 */
static bool divides(uint32_t slices, uint32_t whole)
{
    return slices == whole || (slices < whole && (slices <= 2 || (slices <= 4 && whole == 7)));
}

/* Starts are multiples of the next power of two: in seven slices 2 may start at 0, 2 and 4, and 3 at 0 and 4. */
static uint32_t step(uint32_t slices)
{
    uint32_t power = 1;
    while (power < slices)
        power *= 2;
    return power;
}

static uint32_t most(const profile_t *in, uint32_t slices)
{
    uint32_t count = 0;
    for (uint32_t start = 0; divides(slices, in->slices) && start + slices <= in->slices; start += step(slices))
        count++;
    return count;
}

static uint32_t taken_slices(const instance_t *instance)
{
    uint32_t taken = 0;
    for (int n = 0; n < MAX_COMPUTE; n++) {
        const compute_t *each = &instance->compute[n];
        if (is_used(&each->used))
            taken |= ((1u << each->slices) - 1) << each->start;
    }
    return taken;
}

static bool is_free(const target_t *at, uint32_t slices, uint32_t start)
{
    return !(taken_slices(at->instance) & ((1u << slices) - 1) << start);
}

/* Slices of a profile that the instance offers; 0 where it does not. */
static uint32_t offered(const target_t *at, uint32_t profile)
{
    uint32_t slices = profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT ? slices_of[profile] : 0;
    return slices && most(parent(at), slices) ? slices : 0;
}

static uint32_t profile_of(uint32_t slices)
{
    for (uint32_t n = 0; n < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; n++) {
        if (slices_of[n] == slices)
            return n;
    }
    return 0;
}

static uint32_t multiprocessors(const profile_t *in, uint32_t slices)
{
    return in->multiprocessors / in->slices * slices;
}

static nvmlReturn_t check(const target_t *at, uint32_t profile, uint32_t engine, const void *info)
{
    if (!info || profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
        engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return offered(at, profile) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                          unsigned int engine, nvmlComputeInstanceProfileInfo_t *info)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    nvmlReturn_t result = check(&at, profile, engine, info);
    if (result != NVML_SUCCESS)
        return leave(result);
    const profile_t *in = parent(&at);
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile,
        .sliceCount = slices_of[profile],
        .instanceCount = most(in, slices_of[profile]),
        .multiprocessorCount = multiprocessors(in, slices_of[profile]),
        .sharedCopyEngineCount = in->copy_engines,
        .sharedDecoderCount = in->decoders,
        .sharedEncoderCount = in->encoders,
        .sharedJpegCount = in->jpegs,
        .sharedOfaCount = in->ofas,
    };
    return leave(NVML_SUCCESS);
}

static void spell(const profile_t *in, uint32_t slices, char *out, size_t size)
{
    if (slices == in->slices)
        snprintf(out, size, "MIG %.*s", NAME_SIZE - 16, in->name);
    else
        snprintf(out, size, "MIG %uc.%.*s", slices, NAME_SIZE - 20, in->name);
}

static void fill_v2(const profile_t *in, uint32_t profile, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = info->version,
        .id = profile,
        .sliceCount = slices_of[profile],
        .instanceCount = most(in, slices_of[profile]),
        .multiprocessorCount = multiprocessors(in, slices_of[profile]),
        .sharedCopyEngineCount = in->copy_engines,
        .sharedDecoderCount = in->decoders,
        .sharedEncoderCount = in->encoders,
        .sharedJpegCount = in->jpegs,
        .sharedOfaCount = in->ofas,
    };
    spell(in, slices_of[profile], info->name, sizeof info->name);
}

/* The v3 layout is the v2 one with a word more. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                           unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    _Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, capabilities) == sizeof *info, "v3 begins as v2");
    target_t at;
    CALL_INSTANCE(instance, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    bool third = info->version == NVML_VERSION_OF(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!third && info->version != NVML_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t result = check(&at, profile, engine, info);
    if (result != NVML_SUCCESS)
        return leave(result);
    fill_v2(parent(&at), profile, info);
    if (third)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities =
            parent(&at)->graphics ? NVML_COMPUTE_INSTANCE_PROFILE_CAPS_GFX : 0;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int id,
                                                                unsigned int *count)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    uint32_t slices = offered(&at, id), free = 0;
    if (!slices)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t start = 0; start + slices <= parent(&at)->slices; start += step(slices))
        free += is_free(&at, slices, start);
    return leave(put_number(count, free));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int id,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    uint32_t slices = offered(&at, id);
    if (!slices || !count)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *count = most(parent(&at), slices);
    for (uint32_t n = 0; placements && n < *count; n++)
        placements[n] = (nvmlComputeInstancePlacement_t){n * step(slices), slices};
    return leave(NVML_SUCCESS);
}

/* ---- instances ---- */

static nvmlReturn_t make_compute(const target_t *in, uint32_t slices, uint32_t start, nvmlComputeInstance_t *out)
{
    target_t at = *in;
    for (int n = 0; n < MAX_COMPUTE; n++) {
        at.compute = &at.instance->compute[n];
        if (is_used(&at.compute->used))
            continue;
        at.compute->generation = state_next_generation(machine());
        at.compute->slices = slices;
        at.compute->start = start;
        state_make_uuid(machine(), at.compute->generation, "MIG-", at.compute->uuid);
        set_used(&at.compute->used, 1);
        event_t event = {NVML_EVENT_MIG_CONFIG_CHANGE, 0, at.index, at.instance->id, (uint32_t)n};
        events_post(machine(), &event);
        *out = compute_handle(&at);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int id,
                                                  nvmlComputeInstance_t *compute)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    uint32_t slices = offered(&at, id);
    if (!slices || !compute)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t start = 0; start + slices <= parent(&at)->slices; start += step(slices)) {
        if (is_free(&at, slices, start))
            return leave(make_compute(&at, slices, start, compute));
    }
    return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int id,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    uint32_t slices = offered(&at, id);
    if (!slices || !compute || !placement || placement->size != slices || placement->start >= parent(&at)->slices ||
        placement->start + slices > parent(&at)->slices || placement->start % step(slices))
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!is_free(&at, slices, placement->start))
        return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
    return leave(make_compute(&at, slices, placement->start, compute));
}

static uint32_t compute_id(const target_t *at)
{
    return (uint32_t)(at->compute - at->instance->compute);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    target_t at;
    CALL_COMPUTE(compute, &at);
    if (count_processes(machine(), at.index, at.instance->id, compute_id(&at)))
        return leave(NVML_ERROR_IN_USE);
    set_used(&at.compute->used, 0);
    event_t event = {NVML_EVENT_MIG_CONFIG_CHANGE, 0, at.index, at.instance->id, compute_id(&at)};
    events_post(machine(), &event);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                nvmlComputeInstance_t *computes, unsigned int *count)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    uint32_t slices = offered(&at, id);
    if (!slices || !computes || !count)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (int n = 0; n < MAX_COMPUTE; n++) {
        at.compute = &at.instance->compute[n];
        if (is_used(&at.compute->used) && at.compute->slices == slices)
            computes[(*count)++] = compute_handle(&at);
    }
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    if (!compute)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (id >= MAX_COMPUTE || !is_used(&at.instance->compute[id].used))
        return leave(NVML_ERROR_NOT_FOUND);
    at.compute = &at.instance->compute[id];
    *compute = compute_handle(&at);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    target_t at;
    CALL_COMPUTE(compute, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlComputeInstanceInfo_t){gpu_handle(at.index), instance_handle(&at), compute_id(&at),
                                        profile_of(at.compute->slices), {at.compute->start, at.compute->slices}};
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    return nvmlComputeInstanceGetInfo_v2(compute, info);
}

/* ---- MIG devices ---- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig_device)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(put_number(is_mig_device, is_mig(&at)));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(is_mig(&at) ? put_number(id, at.instance->id) : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(is_mig(&at) ? put_number(id, compute_id(&at)) : NVML_ERROR_NOT_SUPPORTED);
}

uint32_t max_mig_devices(const gpu_t *gpu)
{
    return gpu->mig_current ? gpu->mig_slices : 0;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_number(count, max_mig_devices(at.gpu)));
}

/* MIG devices are numbered by GPU instance id, then compute instance id. */
static uint32_t rank(const target_t *at)
{
    uint32_t before = 0;
    for (int n = 0; n < MAX_INSTANCES; n++) {
        const instance_t *each = &at->gpu->instances[n];
        for (int c = 0; is_used(&each->used) && c < MAX_COMPUTE; c++) {
            bool earlier = each->id < at->instance->id || (each == at->instance && &each->compute[c] < at->compute);
            before += earlier && is_used(&each->compute[c].used);
        }
    }
    return before;
}

static bool find_rank(target_t *at, uint32_t wanted)
{
    for (int n = 0; n < MAX_INSTANCES; n++) {
        at->instance = &at->gpu->instances[n];
        for (int c = 0; is_used(&at->instance->used) && c < MAX_COMPUTE; c++) {
            at->compute = &at->instance->compute[c];
            if (is_used(&at->compute->used) && rank(at) == wanted)
                return true;
        }
    }
    return false;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig_device)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!mig_device)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!at.gpu->mig_units)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    if (at.gpu->mig_current && index >= max_mig_devices(at.gpu))
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!find_rank(&at, index))
        return leave(NVML_ERROR_NOT_FOUND);
    *mig_device = mig_handle(&at);
    return leave(NVML_SUCCESS);
}

/* The index of a MIG device is that under its GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    target_t at;
    CALL_DEVICE(device, &at);
    return leave(put_number(index, is_mig(&at) ? rank(&at) : at.index));
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t *device)
{
    target_t at;
    CALL_DEVICE(mig_device, &at);
    if (!device || !is_mig(&at))
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *device = gpu_handle(at.index);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    target_t at;
    CALL_DEVICE(device, &at);
    if (!attributes)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!is_mig(&at))
        return leave(NVML_ERROR_NOT_SUPPORTED);
    const profile_t *in = parent(&at);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = multiprocessors(in, at.compute->slices),
        .sharedCopyEngineCount = in->copy_engines,
        .sharedDecoderCount = in->decoders,
        .sharedEncoderCount = in->encoders,
        .sharedJpegCount = in->jpegs,
        .sharedOfaCount = in->ofas,
        .gpuInstanceSliceCount = in->slices,
        .computeInstanceSliceCount = at.compute->slices,
        .memorySizeMB = in->memory_mib,
    };
    return leave(NVML_SUCCESS);
}
