/* Calls about MIG mode and GPU instances. */
#include "call.h"

#include <stdio.h>
#include <string.h>

/* ---- what the layout allows ---- */

static uint32_t units_of(uint32_t start, uint32_t size)
{
    return ((1u << size) - 1) << start;
}

uint32_t taken_units(const gpu_t *gpu)
{
    uint32_t units = 0;
    for (int n = 0; n < MAX_INSTANCES; n++) {
        const instance_t *each = &gpu->instances[n];
        if (is_used(&each->used))
            units |= units_of(each->start, gpu->profiles[each->profile].size);
    }
    return units;
}

bool has_instances(const gpu_t *gpu)
{
    return taken_units(gpu) != 0;
}

/* Whether an instance is there that excludes this profile, by the media engines both would hold. */
static bool excluded(const gpu_t *gpu, const profile_t *profile)
{
    for (int n = 0; n < MAX_INSTANCES; n++) {
        const instance_t *each = &gpu->instances[n];
        if (is_used(&each->used) && profile->excludes & 1u << each->profile)
            return true;
    }
    return false;
}

static bool is_a_start(const profile_t *profile, uint32_t start)
{
    for (uint32_t n = 0; n < profile->start_count; n++) {
        if (profile->starts[n] == start)
            return true;
    }
    return false;
}

static bool fits(uint32_t taken, const profile_t *profile, uint32_t start)
{
    return !(taken & units_of(start, profile->size));
}

bool can_place(const gpu_t *gpu, const profile_t *profile, uint32_t start)
{
    return is_a_start(profile, start) && !excluded(gpu, profile) && fits(taken_units(gpu), profile, start);
}

/* The lowest free start first is optimal, because all instances of a profile are of one size. */
uint32_t remaining_instances(const gpu_t *gpu, const profile_t *profile)
{
    if (excluded(gpu, profile))
        return 0;
    uint32_t taken = taken_units(gpu), count = 0;
    for (uint32_t n = 0; n < profile->start_count; n++) {
        if (fits(taken, profile, profile->starts[n])) {
            taken |= units_of(profile->starts[n], profile->size);
            count++;
        }
    }
    bool alone = profile->excludes & 1u << (profile - gpu->profiles);
    return alone && count > 1 ? 1 : count;
}

/* How many placements of all profiles are open when so many units are taken. */
static uint32_t open_placements(const gpu_t *gpu, uint32_t taken)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < gpu->profile_count; p++) {
        for (uint32_t n = 0; n < gpu->profiles[p].start_count; n++)
            count += fits(taken, &gpu->profiles[p], gpu->profiles[p].starts[n]);
    }
    return count;
}

/* The start that leaves most placements open, of several the highest; false when none is free. */
static bool choose_start(const gpu_t *gpu, const profile_t *profile, uint32_t *start)
{
    uint32_t taken = taken_units(gpu), most = 0;
    bool found = false;
    for (uint32_t n = 0; n < profile->start_count; n++) {
        uint32_t each = profile->starts[n];
        if (!can_place(gpu, profile, each))
            continue;
        uint32_t open = open_placements(gpu, taken | units_of(each, profile->size));
        if (!found || open > most || (open == most && each > *start)) {
            found = true;
            most = open;
            *start = each;
        }
    }
    return found;
}

/* ---- mode ---- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!current || !pending)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!at.gpu->mig_units)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    *current = at.gpu->mig_current;
    *pending = at.gpu->mig_pending;
    return leave(NVML_SUCCESS);
}

static void post_change(uint32_t gpu)
{
    event_t event = {NVML_EVENT_MIG_CONFIG_CHANGE, 0, gpu, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
    events_post(machine(), &event);
}

/* The call succeeds even when the change has to wait: `activation` tells. */
static nvmlReturn_t set_mode(const target_t *at, unsigned int mode, nvmlReturn_t *activation)
{
    gpu_t *gpu = at->gpu;
    *activation = NVML_SUCCESS;
    atomic_store(&gpu->mig_pending, mode);
    if (gpu->mig_current == mode)
        return NVML_SUCCESS;
    if (has_instances(gpu) || count_processes(machine(), at->index, NVML_NO_INSTANCE, NVML_NO_INSTANCE))
        *activation = NVML_ERROR_IN_USE;
    else if (gpu->mig_needs_reset)
        *activation = NVML_ERROR_RESET_REQUIRED;
    else {
        atomic_store(&gpu->mig_current, mode);
        gpu->compute_mode = 0; /* with MIG on it is the default, and cannot be set */
        post_change(at->index);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!activation || mode > NVML_FEATURE_ENABLED)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(at.gpu->mig_units ? set_mode(&at, mode, activation) : NVML_ERROR_NOT_SUPPORTED);
}

/* ---- profiles ---- */

typedef bool (*chooses_t)(const profile_t *profile, uint32_t wanted);

static bool by_index(const profile_t *profile, uint32_t wanted)
{
    return profile->api_index == wanted;
}
static bool by_id(const profile_t *profile, uint32_t wanted)
{
    return profile->id == wanted;
}

static const profile_t *find_profile(const gpu_t *gpu, chooses_t chooses, uint32_t wanted)
{
    for (uint32_t n = 0; n < gpu->profile_count; n++) {
        if (chooses(&gpu->profiles[n], wanted))
            return &gpu->profiles[n];
    }
    return NULL;
}

/* What all versions of the record of a profile begin with, as initialisers. */
#define PROFILE_FIELDS(profile)                                                                                  \
    .id = (profile)->id, .sliceCount = (profile)->slices, .instanceCount = (profile)->max_instances,             \
    .multiprocessorCount = (profile)->multiprocessors, .copyEngineCount = (profile)->copy_engines,               \
    .decoderCount = (profile)->decoders, .encoderCount = (profile)->encoders, .jpegCount = (profile)->jpegs,     \
    .ofaCount = (profile)->ofas, .memorySizeMB = (profile)->memory_mib

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    const profile_t *found = find_profile(at.gpu, by_index, profile);
    if (!found)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    *info = (nvmlGpuInstanceProfileInfo_t){PROFILE_FIELDS(found)};
    return leave(NVML_SUCCESS);
}

static void fill_v2(const profile_t *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = info->version,
        PROFILE_FIELDS(profile),
    };
    snprintf(info->name, sizeof info->name, "MIG %.*s", NAME_SIZE - 8, profile->name);
}

static void fill_v3(const profile_t *profile, nvmlGpuInstanceProfileInfo_v3_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_v3_t){
        .version = info->version,
        PROFILE_FIELDS(profile),
        .capabilities = profile->graphics ? NVML_GPU_INSTANCE_PROFILE_CAPS_GFX : 0,
    };
    snprintf(info->name, sizeof info->name, "MIG %.*s", NAME_SIZE - 8, profile->name);
}

/* Both layouts have the same size; the version word tells which one the caller has. */
static nvmlReturn_t fill(const profile_t *profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    if (info->version == NVML_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        if (profile)
            fill_v2(profile, info);
    } else if (info->version == NVML_VERSION_OF(nvmlGpuInstanceProfileInfo_v3_t, 3)) {
        if (profile)
            fill_v3(profile, (nvmlGpuInstanceProfileInfo_v3_t *)(void *)info);
    } else {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    return profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(fill(find_profile(at.gpu, by_index, profile), info));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(fill(find_profile(at.gpu, by_id, id), info));
}

static nvmlReturn_t list_placements(const gpu_t *gpu, uint32_t id, nvmlGpuInstancePlacement_t *out, unsigned int *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->mig_units)
        return NVML_ERROR_NOT_SUPPORTED;
    const profile_t *profile = find_profile(gpu, by_id, id);
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t n = 0; out && n < profile->start_count; n++)
        out[n] = (nvmlGpuInstancePlacement_t){profile->starts[n], profile->size};
    *count = profile->start_count;
    return NVML_SUCCESS;
}

/* All starts the GPU knows, taken ones too. Without an array only their number, which is how callers size it. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(list_placements(at.gpu, id, placements, count));
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

/* A GPU with MIG on, and one of its profiles. */
static nvmlReturn_t with_profile(const gpu_t *gpu, uint32_t id, const profile_t **profile)
{
    if (!gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    *profile = find_profile(gpu, by_id, id);
    return *profile ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
    target_t at;
    CALL_GPU(device, &at);
    const profile_t *profile = NULL;
    nvmlReturn_t result = with_profile(at.gpu, id, &profile);
    return leave(result == NVML_SUCCESS ? put_number(count, remaining_instances(at.gpu, profile)) : result);
}

/* ---- instances ---- */

/*
 * The id that stands for a place: 0 for the whole axis, then its halves, quarters and so on. On an A100: 7g is 0, 3g
 * and 4g are 1 and 2, 2g 3 to 5, 1g 7 to 13, as nvidia-smi lists them.
 */
static uint32_t instance_id(const gpu_t *gpu, const profile_t *profile, uint32_t start)
{
    return gpu->mig_units / profile->size - 1 + start / profile->size;
}

static nvmlReturn_t make_instance(const target_t *gpu, const profile_t *profile, uint32_t start,
                                  nvmlGpuInstance_t *out)
{
    target_t at = *gpu;
    for (int n = 0; n < MAX_INSTANCES; n++) {
        at.instance = &at.gpu->instances[n];
        if (is_used(&at.instance->used))
            continue;
        for (int c = 0; c < MAX_COMPUTE; c++)
            set_used(&at.instance->compute[c].used, 0);
        at.instance->generation = state_next_generation(machine());
        at.instance->id = instance_id(at.gpu, profile, start);
        at.instance->profile = (uint32_t)(profile - at.gpu->profiles);
        at.instance->start = start;
        set_used(&at.instance->used, 1);
        post_change(at.index);
        *out = instance_handle(&at);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    target_t at;
    CALL_GPU(device, &at);
    const profile_t *profile = NULL;
    uint32_t start = 0;
    nvmlReturn_t result = instance ? with_profile(at.gpu, id, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return leave(result);
    if (!choose_start(at.gpu, profile, &start))
        return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
    return leave(make_instance(&at, profile, start, instance));
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance)
{
    target_t at;
    CALL_GPU(device, &at);
    const profile_t *profile = NULL;
    nvmlReturn_t result = instance && placement ? with_profile(at.gpu, id, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return leave(result);
    if (placement->size != profile->size || !is_a_start(profile, placement->start))
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!can_place(at.gpu, profile, placement->start))
        return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
    return leave(make_instance(&at, profile, placement->start, instance));
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    for (int n = 0; n < MAX_COMPUTE; n++) {
        if (is_used(&at.instance->compute[n].used))
            return leave(NVML_ERROR_IN_USE);
    }
    set_used(&at.instance->used, 0);
    post_change(at.index);
    return leave(NVML_SUCCESS);
}

/* The caller's array has room for the profile's `instanceCount`; `count` says nothing before the call. */
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                       unsigned int *count)
{
    target_t at;
    CALL_GPU(device, &at);
    const profile_t *profile = NULL;
    nvmlReturn_t result = instances && count ? with_profile(at.gpu, id, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return leave(result);
    *count = 0;
    for (int n = 0; n < MAX_INSTANCES && *count < profile->max_instances; n++) {
        at.instance = &at.gpu->instances[n];
        if (is_used(&at.instance->used) && &at.gpu->profiles[at.instance->profile] == profile)
            instances[(*count)++] = instance_handle(&at);
    }
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!instance)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!at.gpu->mig_current)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    for (int n = 0; n < MAX_INSTANCES; n++) {
        at.instance = &at.gpu->instances[n];
        if (is_used(&at.instance->used) && at.instance->id == id) {
            *instance = instance_handle(&at);
            return leave(NVML_SUCCESS);
        }
    }
    return leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    target_t at;
    CALL_INSTANCE(instance, &at);
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    const profile_t *profile = &at.gpu->profiles[at.instance->profile];
    *info = (nvmlGpuInstanceInfo_t){gpu_handle(at.index), at.instance->id, profile->id,
                                    {at.instance->start, profile->size}};
    return leave(NVML_SUCCESS);
}
