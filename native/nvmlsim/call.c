/* Entry and exit of calls: initialisation count, faults, latency, locks; handles to rows. */
#define _GNU_SOURCE
#include "call.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t local = PTHREAD_MUTEX_INITIALIZER; /* the file's lock is between processes alone */
static state_t state = {NULL, -1, 0};
static unsigned int initialised;

static void before_fork(void)
{
    pthread_mutex_lock(&local);
}
static void after_fork(void)
{
    pthread_mutex_unlock(&local);
}
static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

machine_t *machine(void)
{
    return state.machine;
}

/* ---- initialisation ---- */

static nvmlReturn_t initialise(unsigned int flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (flags & ~NVML_INIT_FLAGS_KNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&local);
    nvmlReturn_t result = NVML_SUCCESS;
    if (initialised == 0) {
        const char *path = getenv("TESSERA_NVMLSIM_STATE");
        result = path && *path ? state_open(&state, path, false) : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (result == NVML_SUCCESS)
        initialised++;
    pthread_mutex_unlock(&local);
    return result;
}

/* A fault may be set on initialisation too; it is found once the file is open. */
static nvmlReturn_t initialise_or_fault(const char *function, unsigned int flags)
{
    nvmlReturn_t result = initialise(flags);
    if (result != NVML_SUCCESS)
        return result;
    result = enter(function);
    if (result == NVML_SUCCESS)
        return leave(NVML_SUCCESS);
    nvmlShutdown();
    return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    return initialise_or_fault("nvmlInit", flags);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return initialise_or_fault("nvmlInit", 0);
}

nvmlReturn_t nvmlInit(void)
{
    return initialise_or_fault("nvmlInit", 0);
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&local);
    nvmlReturn_t result = initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (initialised && --initialised == 0) {
        events_reset();
        state_close(&state);
    }
    pthread_mutex_unlock(&local);
    return result;
}

/* ---- faults ---- */

/* The length of a function's name without its version: nvmlInit of nvmlInit_v2. */
static size_t stem(const char *name)
{
    size_t length = strlen(name);
    bool versioned = length > 3 && name[length - 3] == '_' && name[length - 2] == 'v';
    return versioned ? length - 3 : length;
}

/* A pattern is a name, which stands for all its versions unless it has one, or the beginning of names and a '*'. */
static bool names(const char *pattern, const char *function)
{
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*')
        return strncmp(pattern, function, length - 1) == 0;
    return strcmp(pattern, function) == 0 ||
           (stem(pattern) == length && stem(function) == length && strncmp(pattern, function, length) == 0);
}

/* What is due for a call now: the code it returns, and how long it takes. Counts down. */
static nvmlReturn_t due(const char *function, uint32_t gpu, uint32_t *latency_us)
{
    nvmlReturn_t code = NVML_SUCCESS;
    for (int n = 0; *function && n < MAX_FAULTS; n++) {
        fault_t *each = &state.machine->faults[n];
        if (!is_used(&each->used) || !names(each->function, function) || (each->gpu != ANY_GPU && each->gpu != gpu))
            continue;
        if (each->skip) {
            each->skip--;
            continue;
        }
        if (each->latency_us > *latency_us)
            *latency_us = each->latency_us;
        if (code == NVML_SUCCESS)
            code = (nvmlReturn_t)each->code;
        if (each->times != UINT32_MAX && --each->times == 0)
            set_used(&each->used, 0);
    }
    return code;
}

static void wait_us(uint32_t us)
{
    struct timespec left = {us / 1000000, (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0)
        ;
}

/* ---- entry and exit ---- */

static nvmlReturn_t take(void)
{
    pthread_mutex_lock(&local);
    nvmlReturn_t result = initialised ? state_lock(&state) : NVML_ERROR_UNINITIALIZED;
    if (result != NVML_SUCCESS)
        pthread_mutex_unlock(&local);
    return result;
}

static nvmlReturn_t enter_for(const char *function, uint32_t gpu)
{
    nvmlReturn_t result = take();
    if (result != NVML_SUCCESS)
        return result;
    uint32_t latency_us = 0;
    result = due(function, gpu, &latency_us);
    if (latency_us) {
        leave(NVML_SUCCESS); /* others go on meanwhile */
        wait_us(latency_us);
        if (result != NVML_SUCCESS)
            return result;
        return take();
    }
    return result == NVML_SUCCESS ? result : leave(result);
}

nvmlReturn_t enter(const char *function)
{
    return enter_for(function, ANY_GPU);
}

nvmlReturn_t leave(nvmlReturn_t result)
{
    state_unlock(&state);
    pthread_mutex_unlock(&local);
    return result;
}

/* ---- handles ---- */

enum { KIND_GPU = 1, KIND_MIG, KIND_INSTANCE, KIND_COMPUTE };
#define MARK 0x5E5ull

static uint64_t number(unsigned kind, const target_t *at)
{
    uint64_t instance = at->instance ? (uint64_t)(at->instance - at->gpu->instances) : 0;
    uint64_t compute = at->compute ? (uint64_t)(at->compute - at->instance->compute) : 0;
    uint64_t generation = at->compute ? at->compute->generation : at->instance ? at->instance->generation : 0;
    return MARK << 52 | (uint64_t)kind << 48 | (uint64_t)at->index << 40 | instance << 36 | compute << 32 | generation;
}

static void *as_handle(unsigned kind, const target_t *at)
{
    return (void *)(uintptr_t)number(kind, at); // NOLINT: a handle is a number
}

nvmlDevice_t gpu_handle(uint32_t gpu)
{
    target_t at = {NULL, gpu, NULL, NULL};
    return as_handle(KIND_GPU, &at);
}
nvmlDevice_t mig_handle(const target_t *at)
{
    return as_handle(KIND_MIG, at);
}
nvmlGpuInstance_t instance_handle(const target_t *at)
{
    target_t alone = {at->gpu, at->index, at->instance, NULL};
    return as_handle(KIND_INSTANCE, &alone);
}
nvmlComputeInstance_t compute_handle(const target_t *at)
{
    return as_handle(KIND_COMPUTE, at);
}

static uint32_t gpu_of(const void *handle)
{
    return ((uintptr_t)handle >> 40) & 0xff;
}

/* Finds what a handle names; its kind, or 0 for a stale or invented one. */
static unsigned look_up(const void *handle, target_t *at)
{
    uint64_t value = (uintptr_t)handle;
    unsigned kind = (value >> 48) & 0xf;
    *at = (target_t){NULL, gpu_of(handle), NULL, NULL};
    if (value >> 52 != MARK || kind < KIND_GPU || kind > KIND_COMPUTE || at->index >= state.machine->gpu_count)
        return 0;
    at->gpu = &state.machine->gpus[at->index];
    if (kind == KIND_GPU)
        return value == number(kind, at) ? kind : 0;
    at->instance = &at->gpu->instances[(value >> 36) & 0xf];
    if (!is_used(&at->instance->used))
        return 0;
    if (kind != KIND_INSTANCE) {
        uint32_t slot = (value >> 32) & 0xf;
        if (slot >= MAX_COMPUTE || !is_used(&at->instance->compute[slot].used))
            return 0;
        at->compute = &at->instance->compute[slot];
    }
    return value == number(kind, at) ? kind : 0;
}

static nvmlReturn_t enter_kind(const char *function, const void *handle, target_t *at, unsigned kinds)
{
    nvmlReturn_t result = enter_for(function, gpu_of(handle));
    if (result != NVML_SUCCESS)
        return result;
    unsigned kind = look_up(handle, at);
    if (!(kinds & 1u << kind))
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return at->gpu->lost ? leave(NVML_ERROR_GPU_IS_LOST) : NVML_SUCCESS;
}

nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, target_t *at)
{
    return enter_kind(function, device, at, 1u << KIND_GPU | 1u << KIND_MIG);
}
nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, target_t *at)
{
    nvmlReturn_t result = enter_device(function, device, at);
    if (result != NVML_SUCCESS)
        return result;
    return is_mig(at) ? leave(NVML_ERROR_NOT_SUPPORTED) : NVML_SUCCESS;
}
nvmlReturn_t enter_instance(const char *function, nvmlGpuInstance_t instance, target_t *at)
{
    return enter_kind(function, instance, at, 1u << KIND_INSTANCE);
}
nvmlReturn_t enter_compute(const char *function, nvmlComputeInstance_t compute, target_t *at)
{
    return enter_kind(function, compute, at, 1u << KIND_COMPUTE);
}

/* ---- results ---- */

nvmlReturn_t put_text(char *out, unsigned int size, const char *text)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    size_t length = strlen(text);
    if (length >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t put_number(unsigned int *out, unsigned int value)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return NVML_SUCCESS;
}
