/* The control functions: making a machine, playing its processes and faults, resets. */
#include "control.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"

nvmlReturn_t nvmlsim_create(const char *path)
{
    return path ? state_create(path) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlsim_open(const char *path, unsigned int in_the_making, state_t **opened)
{
    state_t *state = path && opened ? malloc(sizeof *state) : NULL;
    if (!state)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = state_open(state, path, in_the_making != 0);
    if (result != NVML_SUCCESS) {
        free(state);
        return result;
    }
    *opened = state;
    return NVML_SUCCESS;
}

void nvmlsim_close(state_t *opened)
{
    if (opened)
        state_close(opened);
    free(opened);
}

/* ---- fields by name ---- */

typedef struct {
    const char *name;
    size_t offset;
    size_t text; /* size of a text; 0 is a number of 32 bits, 8 one of 64 */
    bool live;   /* may change after the machine is made */
} field_t;

#define NUMBER(type, field) {#field, offsetof(type, field), 0, false}
#define LIVE(type, field) {#field, offsetof(type, field), 0, true}
#define TEXT(type, field) {#field, offsetof(type, field), sizeof(((type *)0)->field), false}

static const field_t machine_fields[] = {
    TEXT(machine_t, driver_version),
    TEXT(machine_t, nvml_version),
    NUMBER(machine_t, cuda_version),
    {"seed", offsetof(machine_t, seed), sizeof(uint64_t), false},
};
static const field_t gpu_fields[] = {
    TEXT(gpu_t, name),
    TEXT(gpu_t, uuid),
    TEXT(gpu_t, serial),
    TEXT(gpu_t, model),
    NUMBER(gpu_t, minor),
    NUMBER(gpu_t, pci_domain),
    NUMBER(gpu_t, pci_bus),
    NUMBER(gpu_t, pci_device),
    NUMBER(gpu_t, pci_device_id),
    NUMBER(gpu_t, pci_subsystem_id),
    NUMBER(gpu_t, architecture),
    NUMBER(gpu_t, brand),
    NUMBER(gpu_t, compute_major),
    NUMBER(gpu_t, compute_minor),
    NUMBER(gpu_t, multiprocessors),
    NUMBER(gpu_t, cores),
    NUMBER(gpu_t, memory_mib),
    NUMBER(gpu_t, reserved_mib),
    NUMBER(gpu_t, bar1_mib),
    NUMBER(gpu_t, memory_bus_bits),
    NUMBER(gpu_t, ecc),
    NUMBER(gpu_t, numa_node),
    NUMBER(gpu_t, sm_clock_mhz),
    NUMBER(gpu_t, memory_clock_mhz),
    NUMBER(gpu_t, power_min_mw),
    NUMBER(gpu_t, power_max_mw),
    NUMBER(gpu_t, power_default_mw),
    NUMBER(gpu_t, mig_units),
    NUMBER(gpu_t, mig_slices),
    NUMBER(gpu_t, mig_persistent),
    LIVE(gpu_t, mig_needs_reset),
    LIVE(gpu_t, lost),
    LIVE(gpu_t, temperature_c),
    LIVE(gpu_t, throttle_reasons),
    LIVE(gpu_t, ecc_corrected),
    LIVE(gpu_t, ecc_uncorrected),
};
static const field_t profile_fields[] = {
    TEXT(profile_t, name),
    NUMBER(profile_t, id),
    NUMBER(profile_t, api_index),
    NUMBER(profile_t, slices),
    NUMBER(profile_t, size),
    NUMBER(profile_t, max_instances),
    NUMBER(profile_t, excludes),
    NUMBER(profile_t, graphics),
    NUMBER(profile_t, memory_mib),
    NUMBER(profile_t, multiprocessors),
    NUMBER(profile_t, copy_engines),
    NUMBER(profile_t, decoders),
    NUMBER(profile_t, encoders),
    NUMBER(profile_t, jpegs),
    NUMBER(profile_t, ofas),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const field_t *find_field(const field_t *table, size_t count, const char *name)
{
    for (size_t n = 0; n < count; n++) {
        if (strcmp(table[n].name, name) == 0)
            return &table[n];
    }
    return NULL;
}

static nvmlReturn_t put(const field_t *field, char *record, const char *value)
{
    char *end, *at = record + field->offset;
    if (field->text > sizeof(uint64_t))
        return put_text(at, (unsigned int)field->text, value);
    unsigned long long number = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || (!field->text && number > UINT32_MAX))
        return NVML_ERROR_INVALID_ARGUMENT;
    uint32_t word = (uint32_t)number;
    if (field->text)
        memcpy(at, &number, sizeof(uint64_t));
    else
        memcpy(at, &word, sizeof word);
    return NVML_SUCCESS;
}

static nvmlReturn_t set_field(machine_t *all, int gpu, int profile, const char *name, const char *value)
{
    const field_t *field = NULL;
    char *record = NULL;
    if (gpu >= (int)all->gpu_count || (gpu >= 0 && profile >= (int)all->gpus[gpu].profile_count))
        return NVML_ERROR_NOT_FOUND;
    if (gpu < 0) {
        record = (char *)all;
        field = find_field(machine_fields, COUNT(machine_fields), name);
    } else if (profile < 0) {
        record = (char *)&all->gpus[gpu];
        field = find_field(gpu_fields, COUNT(gpu_fields), name);
    } else {
        record = (char *)&all->gpus[gpu].profiles[profile];
        field = find_field(profile_fields, COUNT(profile_fields), name);
    }
    if (!field || (all->sealed && !field->live))
        return NVML_ERROR_INVALID_ARGUMENT;
    return put(field, record, value);
}

/* ---- every control function takes the machine and gives it back ---- */

#define TAKE(opened)                                                                                             \
    do {                                                                                                         \
        nvmlReturn_t taken_ = (opened) ? state_lock(opened) : NVML_ERROR_INVALID_ARGUMENT;                       \
        if (taken_ != NVML_SUCCESS)                                                                              \
            return taken_;                                                                                       \
    } while (0)

static nvmlReturn_t give(state_t *opened, nvmlReturn_t result)
{
    state_unlock(opened);
    return result;
}

nvmlReturn_t nvmlsim_set(state_t *opened, int gpu, int profile, const char *field, const char *value)
{
    if (!field || !value)
        return NVML_ERROR_INVALID_ARGUMENT;
    TAKE(opened);
    return give(opened, set_field(opened->machine, gpu, profile, field, value));
}

/* ---- making ---- */

nvmlReturn_t nvmlsim_add_gpu(state_t *opened)
{
    TAKE(opened);
    machine_t *all = opened->machine;
    if (all->sealed || all->gpu_count >= MAX_GPUS)
        return give(opened, NVML_ERROR_INSUFFICIENT_RESOURCES);
    all->gpu_count++;
    return give(opened, NVML_SUCCESS);
}

nvmlReturn_t nvmlsim_add_profile(state_t *opened, unsigned int gpu)
{
    TAKE(opened);
    machine_t *all = opened->machine;
    if (all->sealed || gpu >= all->gpu_count || all->gpus[gpu].profile_count >= MAX_PROFILES)
        return give(opened, NVML_ERROR_INSUFFICIENT_RESOURCES);
    all->gpus[gpu].profile_count++;
    return give(opened, NVML_SUCCESS);
}

/* A start of the GPU's last profile. */
nvmlReturn_t nvmlsim_add_start(state_t *opened, unsigned int gpu, unsigned int start)
{
    TAKE(opened);
    machine_t *all = opened->machine;
    if (all->sealed || gpu >= all->gpu_count || all->gpus[gpu].profile_count == 0)
        return give(opened, NVML_ERROR_INVALID_ARGUMENT);
    profile_t *profile = &all->gpus[gpu].profiles[all->gpus[gpu].profile_count - 1];
    if (profile->start_count >= MAX_STARTS)
        return give(opened, NVML_ERROR_INSUFFICIENT_RESOURCES);
    profile->starts[profile->start_count++] = start;
    return give(opened, NVML_SUCCESS);
}

static void settle(gpu_t *gpu)
{
    gpu->lost = 0;
    gpu->compute_mode = 0;
    gpu->persistence = 0;
    gpu->power_limit_mw = gpu->power_default_mw;
    memset(gpu->locked_sm_mhz, 0, sizeof gpu->locked_sm_mhz);
    memset(gpu->locked_memory_mhz, 0, sizeof gpu->locked_memory_mhz);
    for (int n = 0; n < MAX_INSTANCES; n++)
        set_used(&gpu->instances[n].used, 0);
}

nvmlReturn_t nvmlsim_seal(state_t *opened)
{
    TAKE(opened);
    machine_t *all = opened->machine;
    if (!state_is_sound(all))
        return give(opened, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t n = 0; n < all->gpu_count; n++)
        settle(&all->gpus[n]);
    all->sealed = 1;
    return give(opened, NVML_SUCCESS);
}

/* ---- processes ---- */

static const instance_t *find_instance(const gpu_t *gpu, uint32_t id)
{
    for (int n = 0; n < MAX_INSTANCES; n++) {
        if (is_used(&gpu->instances[n].used) && gpu->instances[n].id == id)
            return &gpu->instances[n];
    }
    return NULL;
}

/* With MIG on a process runs on an instance that is there, with MIG off on the GPU. */
static nvmlReturn_t check_seat(const machine_t *all, const process_t *process)
{
    const gpu_t *gpu = &all->gpus[process->gpu];
    if (!gpu->mig_current)
        return process->gpu_instance == NVML_NO_INSTANCE && process->compute_instance == NVML_NO_INSTANCE
                   ? NVML_SUCCESS
                   : NVML_ERROR_NOT_FOUND;
    const instance_t *instance = find_instance(gpu, process->gpu_instance);
    bool there = instance && process->compute_instance < MAX_COMPUTE &&
                 is_used(&instance->compute[process->compute_instance].used);
    return there ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t check_memory(const machine_t *all, const process_t *process)
{
    const gpu_t *gpu = &all->gpus[process->gpu];
    const instance_t *instance = find_instance(gpu, process->gpu_instance);
    uint64_t room = instance ? gpu->profiles[instance->profile].memory_mib - EMPTY_INSTANCE_MIB
                             : gpu->memory_mib - gpu->reserved_mib;
    uint64_t used = used_mib(all, process->gpu, process->gpu_instance);
    if (used + process->memory_mib > room)
        return NVML_ERROR_MEMORY;
    return exceeds_limit(all, process) ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

/* NVML_COMPUTEMODE_PROHIBITED takes no compute process, _EXCLUSIVE_PROCESS one that is not a client of MPS. */
static nvmlReturn_t check_mode(const machine_t *all, const process_t *process)
{
    uint32_t mode = all->gpus[process->gpu].compute_mode;
    if (process->mode == NVML_PROCESS_MODE_GRAPHICS || mode == 0)
        return NVML_SUCCESS;
    if (mode == NVML_COMPUTEMODE_PROHIBITED)
        return NVML_ERROR_NO_PERMISSION;
    for (int n = 0; process->mode == NVML_PROCESS_MODE_COMPUTE && n < MAX_PROCESSES; n++) {
        const process_t *each = &all->processes[n];
        if (is_used(&each->used) && each->gpu == process->gpu && each->mode == NVML_PROCESS_MODE_COMPUTE)
            return NVML_ERROR_IN_USE;
    }
    return NVML_SUCCESS;
}

static process_t *find_process(machine_t *all, uint32_t gpu, uint32_t pid)
{
    for (int n = 0; n < MAX_PROCESSES; n++) {
        process_t *each = &all->processes[n];
        if (is_used(&each->used) && each->pid == pid && (gpu == ANY_GPU || each->gpu == gpu))
            return each;
    }
    return NULL;
}

static nvmlReturn_t add_process(machine_t *all, const process_t *wanted)
{
    if (wanted->gpu >= all->gpu_count || wanted->mode > NVML_PROCESS_MODE_MPS || wanted->pid == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (all->gpus[wanted->gpu].lost)
        return NVML_ERROR_GPU_IS_LOST;
    if (find_process(all, wanted->gpu, wanted->pid))
        return NVML_ERROR_IN_USE;
    nvmlReturn_t result = check_seat(all, wanted);
    if (result == NVML_SUCCESS)
        result = check_mode(all, wanted);
    if (result == NVML_SUCCESS)
        result = check_memory(all, wanted);
    for (int n = 0; result == NVML_SUCCESS && n < MAX_PROCESSES; n++) {
        process_t *each = &all->processes[n];
        if (is_used(&each->used))
            continue;
        memcpy((char *)each + offsetof(process_t, pid), (const char *)wanted + offsetof(process_t, pid),
               sizeof *each - offsetof(process_t, pid));
        set_used(&each->used, 1);
        return NVML_SUCCESS;
    }
    return result == NVML_SUCCESS ? NVML_ERROR_INSUFFICIENT_RESOURCES : result;
}

nvmlReturn_t nvmlsim_add_process(state_t *opened, unsigned int gpu, unsigned int gpu_instance,
                                 unsigned int compute_instance, unsigned int pid, unsigned int mode,
                                 unsigned int memory_mib, unsigned int sm_percent, const char *name,
                                 const char *cgroup)
{
    process_t wanted = {.pid = pid, .mode = mode, .gpu = gpu, .gpu_instance = gpu_instance,
                        .compute_instance = compute_instance, .memory_mib = memory_mib, .sm_percent = sm_percent};
    if (sm_percent > 100 || put_text(wanted.name, sizeof wanted.name, name ? name : "") != NVML_SUCCESS ||
        put_text(wanted.cgroup, sizeof wanted.cgroup, cgroup ? cgroup : "") != NVML_SUCCESS)
        return NVML_ERROR_INVALID_ARGUMENT;
    TAKE(opened);
    return give(opened, add_process(opened->machine, &wanted));
}

nvmlReturn_t nvmlsim_remove_process(state_t *opened, unsigned int gpu, unsigned int pid)
{
    TAKE(opened);
    process_t *found = find_process(opened->machine, gpu, pid);
    if (!found)
        return give(opened, NVML_ERROR_NOT_FOUND);
    for (; found; found = find_process(opened->machine, gpu, pid))
        set_used(&found->used, 0);
    return give(opened, NVML_SUCCESS);
}

/* ---- events and faults ---- */

nvmlReturn_t nvmlsim_post_event(state_t *opened, unsigned int gpu, unsigned long long type, unsigned long long data,
                                unsigned int gpu_instance, unsigned int compute_instance)
{
    TAKE(opened);
    if (gpu >= opened->machine->gpu_count || !(type & NVML_EVENTS_SUPPORTED))
        return give(opened, NVML_ERROR_INVALID_ARGUMENT);
    event_t event = {type, data, gpu, gpu_instance, compute_instance};
    events_post(opened->machine, &event);
    return give(opened, NVML_SUCCESS);
}

nvmlReturn_t nvmlsim_add_fault(state_t *opened, const char *function, unsigned int gpu, unsigned int skip,
                               unsigned int times, unsigned int code, unsigned int latency_us)
{
    if (!function || !*function || times == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    TAKE(opened);
    if (gpu != ANY_GPU && gpu >= opened->machine->gpu_count)
        return give(opened, NVML_ERROR_INVALID_ARGUMENT);
    for (int n = 0; n < MAX_FAULTS; n++) {
        fault_t *each = &opened->machine->faults[n];
        if (is_used(&each->used))
            continue;
        if (put_text(each->function, sizeof each->function, function) != NVML_SUCCESS)
            return give(opened, NVML_ERROR_INVALID_ARGUMENT);
        each->gpu = gpu;
        each->skip = skip;
        each->times = times;
        each->code = code;
        each->latency_us = latency_us;
        set_used(&each->used, 1);
        return give(opened, NVML_SUCCESS);
    }
    return give(opened, NVML_ERROR_INSUFFICIENT_RESOURCES);
}

static void clear_faults(machine_t *all)
{
    for (int n = 0; n < MAX_FAULTS; n++)
        set_used(&all->faults[n].used, 0);
    for (uint32_t n = 0; n < all->gpu_count; n++) {
        all->gpus[n].mig_needs_reset = 0;
        all->gpus[n].lost = 0;
    }
}

nvmlReturn_t nvmlsim_clear_faults(state_t *opened)
{
    TAKE(opened);
    clear_faults(opened->machine);
    return give(opened, NVML_SUCCESS);
}

/* ---- resets ---- */

nvmlReturn_t nvmlsim_reset_gpu(state_t *opened, unsigned int gpu)
{
    TAKE(opened);
    machine_t *all = opened->machine;
    if (gpu >= all->gpu_count)
        return give(opened, NVML_ERROR_INVALID_ARGUMENT);
    if (all->gpus[gpu].lost)
        return give(opened, NVML_ERROR_GPU_IS_LOST);
    if (count_processes(all, gpu, NVML_NO_INSTANCE, NVML_NO_INSTANCE))
        return give(opened, NVML_ERROR_IN_USE);
    for (int n = 0; n < MAX_INSTANCES; n++)
        set_used(&all->gpus[gpu].instances[n].used, 0);
    atomic_store(&all->gpus[gpu].mig_current, atomic_load(&all->gpus[gpu].mig_pending));
    return give(opened, NVML_SUCCESS);
}

static void reboot(machine_t *all)
{
    for (int n = 0; n < MAX_PROCESSES; n++)
        set_used(&all->processes[n].used, 0);
    for (int n = 0; n < MAX_LIMITS; n++)
        set_used(&all->limits[n].used, 0);
    for (uint32_t n = 0; n < all->gpu_count; n++) {
        gpu_t *gpu = &all->gpus[n];
        settle(gpu);
        if (!gpu->mig_persistent)
            atomic_store(&gpu->mig_pending, 0);
        atomic_store(&gpu->mig_current, atomic_load(&gpu->mig_pending));
    }
}

nvmlReturn_t nvmlsim_reboot(state_t *opened)
{
    TAKE(opened);
    reboot(opened->machine);
    return give(opened, NVML_SUCCESS);
}

nvmlReturn_t nvmlsim_renew(state_t *opened)
{
    TAKE(opened);
    clear_faults(opened->machine);
    for (uint32_t n = 0; n < opened->machine->gpu_count; n++)
        atomic_store(&opened->machine->gpus[n].mig_pending, 0);
    reboot(opened->machine);
    return give(opened, NVML_SUCCESS);
}
