/*
 * Events. All processes share one ring in the state file; an event set is a place in that ring with a wish for each
 * GPU. Who waits sleeps on the ring's counter, which lies in the file, so any process can wake it.
 */
#define _GNU_SOURCE
#include "call.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SETS = 64 };
#define SET_MARK 0x5E7ull

typedef struct {
    bool used;
    uint32_t generation;
    uint32_t next; /* number of the event to look at next */
    uint64_t types[MAX_GPUS];
} set_t;

static set_t sets[MAX_SETS]; /* guarded by the lock that `enter` takes */
static uint32_t set_generations;

void events_reset(void)
{
    memset(sets, 0, sizeof sets);
}

void events_post(machine_t *all, const event_t *event)
{
    uint32_t number = atomic_load(&all->event_count);
    all->events[number % MAX_EVENTS] = *event;
    atomic_store(&all->event_count, number + 1);
    syscall(SYS_futex, &all->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static nvmlEventSet_t as_handle(uint32_t slot)
{
    return (nvmlEventSet_t)(uintptr_t)(SET_MARK << 52 | (uint64_t)slot << 32 | sets[slot].generation); // NOLINT
}

static set_t *look_up(nvmlEventSet_t handle)
{
    uint64_t value = (uintptr_t)handle;
    uint32_t slot = (uint32_t)(value >> 32) & 0xff;
    bool known = slot < MAX_SETS && sets[slot].used && as_handle(slot) == handle;
    return known ? &sets[slot] : NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    CALL();
    if (!set)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t n = 0; n < MAX_SETS; n++) {
        if (sets[n].used)
            continue;
        sets[n] = (set_t){.used = true, .generation = ++set_generations, .next = atomic_load(&machine()->event_count)};
        *set = as_handle(n);
        return leave(NVML_SUCCESS);
    }
    return leave(NVML_ERROR_INSUFFICIENT_RESOURCES);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    CALL();
    set_t *found = look_up(set);
    if (!found)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    found->used = false;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!types)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *types = NVML_EVENTS_SUPPORTED;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    target_t at;
    CALL_GPU(device, &at);
    set_t *found = look_up(set);
    if (!found)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (types & ~NVML_EVENTS_SUPPORTED)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    found->types[at.index] |= types;
    return leave(NVML_SUCCESS);
}

/* The next event that the set wants; false when it has seen all. */
static bool take_event(set_t *set, event_t *event)
{
    uint32_t posted = atomic_load(&machine()->event_count);
    if (posted - set->next > MAX_EVENTS)
        set->next = posted - MAX_EVENTS; /* those between are lost, as where a driver's buffer runs over */
    while (set->next != posted) {
        *event = machine()->events[set->next++ % MAX_EVENTS];
        if (event->gpu < machine()->gpu_count && set->types[event->gpu] & event->type)
            return true;
    }
    return false;
}

static bool watches_lost_gpu(const set_t *set)
{
    for (uint32_t n = 0; n < machine()->gpu_count; n++) {
        if (set->types[n] && machine()->gpus[n].lost)
            return true;
    }
    return false;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Sleeps until the counter is not `seen`, a second at most, so that a lost GPU and a freed set are noticed. */
static void sleep_on(_Atomic uint32_t *counter, uint32_t seen, uint64_t left_ms)
{
    uint64_t ms = left_ms < 1000 ? left_ms : 1000;
    struct timespec timeout = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, counter, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

static nvmlReturn_t wait_for(nvmlEventSet_t handle, event_t *event, uint32_t timeout_ms)
{
    uint64_t deadline = now_ms() + timeout_ms;
    for (const char *function = "nvmlEventSetWait_v2";; function = "") {
        nvmlReturn_t entered = enter(function);
        if (entered != NVML_SUCCESS)
            return entered;
        set_t *set = look_up(handle);
        if (!set)
            return leave(NVML_ERROR_INVALID_ARGUMENT);
        if (take_event(set, event))
            return leave(NVML_SUCCESS);
        if (watches_lost_gpu(set))
            return leave(NVML_ERROR_GPU_IS_LOST);
        _Atomic uint32_t *counter = &machine()->event_count;
        uint32_t seen = atomic_load(counter);
        leave(NVML_SUCCESS);
        uint64_t now = now_ms();
        if (now >= deadline)
            return NVML_ERROR_TIMEOUT;
        sleep_on(counter, seen, deadline - now);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    event_t event = {0};
    nvmlReturn_t result = data ? wait_for(set, &event, timeout_ms) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *data = (nvmlEventData_t){gpu_handle(event.gpu), event.type, event.data, event.gpu_instance,
                                  event.compute_instance};
    return result;
}

/* The first version of the call does not know of instances. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    nvmlReturn_t result = nvmlEventSetWait_v2(set, data, timeout_ms);
    if (result == NVML_SUCCESS)
        data->gpuInstanceId = data->computeInstanceId = NVML_NO_INSTANCE;
    return result;
}
