/* Whether indices and texts of a machine can be trusted: a broken file is refused, never followed. */
#include <string.h>

#include "state.h"

static bool ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static bool flag(const _Atomic uint32_t *used)
{
    return atomic_load(used) <= 1;
}

static bool profile_is_sound(const gpu_t *gpu, const profile_t *profile)
{
    if (!ends(profile->name, sizeof profile->name) || profile->api_index >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return false;
    if (profile->start_count == 0 || profile->start_count > MAX_STARTS || profile->slices == 0)
        return false;
    if (profile->size == 0 || profile->size > gpu->mig_units || profile->slices > gpu->mig_slices)
        return false;
    for (uint32_t n = 0; n < profile->start_count; n++) {
        if (profile->starts[n] > gpu->mig_units - profile->size)
            return false;
    }
    return true;
}

static bool instance_is_sound(const gpu_t *gpu, const instance_t *instance)
{
    if (!flag(&instance->used))
        return false;
    if (!is_used(&instance->used))
        return true;
    if (instance->profile >= gpu->profile_count)
        return false;
    const profile_t *profile = &gpu->profiles[instance->profile];
    if (instance->start > gpu->mig_units - profile->size)
        return false;
    for (int n = 0; n < MAX_COMPUTE; n++) {
        const compute_t *compute = &instance->compute[n];
        if (!flag(&compute->used))
            return false;
        if (!is_used(&compute->used))
            continue;
        if (compute->slices == 0 || compute->slices > profile->slices || !ends(compute->uuid, sizeof compute->uuid) ||
            compute->start > profile->slices - compute->slices)
            return false;
    }
    return true;
}

static bool gpu_is_sound(const gpu_t *gpu)
{
    if (!ends(gpu->name, sizeof gpu->name) || !ends(gpu->uuid, sizeof gpu->uuid) ||
        !ends(gpu->serial, sizeof gpu->serial) || !ends(gpu->model, sizeof gpu->model))
        return false;
    /* Placement units are bits of a mask. */
    if (gpu->profile_count > MAX_PROFILES || gpu->mig_units > MAX_STARTS || gpu->mig_slices > MAX_COMPUTE)
        return false;
    if (atomic_load(&gpu->mig_current) > 1 || atomic_load(&gpu->mig_pending) > 1 || gpu->reserved_mib > gpu->memory_mib)
        return false;
    for (uint32_t n = 0; n < gpu->profile_count; n++) {
        if (!profile_is_sound(gpu, &gpu->profiles[n]))
            return false;
    }
    for (int n = 0; n < MAX_INSTANCES; n++) {
        if (!instance_is_sound(gpu, &gpu->instances[n]))
            return false;
    }
    return true;
}

static bool tables_are_sound(const machine_t *machine)
{
    for (int n = 0; n < MAX_PROCESSES; n++) {
        const process_t *each = &machine->processes[n];
        if (!flag(&each->used) || !ends(each->name, sizeof each->name) || !ends(each->cgroup, sizeof each->cgroup) ||
            (is_used(&each->used) && each->gpu >= machine->gpu_count))
            return false;
    }
    for (int n = 0; n < MAX_LIMITS; n++) {
        const limit_t *each = &machine->limits[n];
        if (!flag(&each->used) || !ends(each->cgroup, sizeof each->cgroup))
            return false;
    }
    for (int n = 0; n < MAX_FAULTS; n++) {
        const fault_t *each = &machine->faults[n];
        if (!flag(&each->used) || !ends(each->function, sizeof each->function))
            return false;
    }
    for (int n = 0; n < MAX_EVENTS; n++) {
        if (machine->events[n].gpu >= MAX_GPUS)
            return false;
    }
    return true;
}

bool state_is_sound(const machine_t *machine)
{
    if (machine->gpu_count > MAX_GPUS || !ends(machine->driver_version, sizeof machine->driver_version) ||
        !ends(machine->nvml_version, sizeof machine->nvml_version))
        return false;
    for (uint32_t n = 0; n < machine->gpu_count; n++) {
        if (!gpu_is_sound(&machine->gpus[n]))
            return false;
    }
    return tables_are_sound(machine);
}
