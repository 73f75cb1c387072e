/*
 * What every NVML call does first and last: is the library initialised, is a fault due, take the machine, give it back;
 * and what handles mean.
 *
 *     nvmlReturn_t nvmlDeviceGetX(nvmlDevice_t device, T *x)
 *     {
 *         target_t at;
 *         CALL_DEVICE(device, &at);       returns from the function when it fails
 *         return leave(device_x(&at, x)); gives the machine back
 *     }
 */
#ifndef NVMLSIM_CALL_H
#define NVMLSIM_CALL_H

#include "state.h"

/* What a handle names. `instance` and `compute` are set for MIG devices, GPU instances and compute instances. */
typedef struct {
    gpu_t *gpu;
    uint32_t index; /* of the GPU */
    instance_t *instance;
    compute_t *compute;
} target_t;

/* Take the machine for a call named so. After success the caller has to `leave`. */
nvmlReturn_t enter(const char *function);
/* The same, with a handle: of a GPU or MIG device, of a GPU alone, of a GPU instance, of a compute instance. */
nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, target_t *at);
nvmlReturn_t enter_gpu(const char *function, nvmlDevice_t device, target_t *at);
nvmlReturn_t enter_instance(const char *function, nvmlGpuInstance_t instance, target_t *at);
nvmlReturn_t enter_compute(const char *function, nvmlComputeInstance_t compute, target_t *at);
/* Gives the machine back and returns `result`. */
nvmlReturn_t leave(nvmlReturn_t result);

#define CALL_TO(how, ...)                                                                                        \
    do {                                                                                                         \
        nvmlReturn_t entered_ = how(__func__, __VA_ARGS__);                                                      \
        if (entered_ != NVML_SUCCESS)                                                                            \
            return entered_;                                                                                     \
    } while (0)
#define CALL()                                                                                                   \
    do {                                                                                                         \
        nvmlReturn_t entered_ = enter(__func__);                                                                 \
        if (entered_ != NVML_SUCCESS)                                                                            \
            return entered_;                                                                                     \
    } while (0)
#define CALL_DEVICE(handle, at) CALL_TO(enter_device, handle, at)
#define CALL_GPU(handle, at) CALL_TO(enter_gpu, handle, at)
#define CALL_INSTANCE(handle, at) CALL_TO(enter_instance, handle, at)
#define CALL_COMPUTE(handle, at) CALL_TO(enter_compute, handle, at)

/* The machine, between `enter` and `leave`. */
machine_t *machine(void);

/*
 * Handles are numbers, so that a stale or invented one is refused instead of followed: a mark, the kind, the slots, and
 * the generation of the instance, which differs for each instance ever made.
 */
nvmlDevice_t gpu_handle(uint32_t gpu);
nvmlDevice_t mig_handle(const target_t *at);
nvmlGpuInstance_t instance_handle(const target_t *at);
nvmlComputeInstance_t compute_handle(const target_t *at);

static inline bool is_mig(const target_t *at)
{
    return at->instance != NULL;
}

/* Copies a text with its end; NVML_ERROR_INSUFFICIENT_SIZE when it does not fit. */
nvmlReturn_t put_text(char *out, unsigned int size, const char *text);
nvmlReturn_t put_number(unsigned int *out, unsigned int value);

/* The calls of events.c that start and end with the library. */
void events_reset(void);
/* Adds an event and wakes those who wait. */
void events_post(machine_t *machine, const event_t *event);

/* mig.c: what the layout allows. */
bool can_place(const gpu_t *gpu, const profile_t *profile, uint32_t start);
uint32_t taken_units(const gpu_t *gpu);
uint32_t remaining_instances(const gpu_t *gpu, const profile_t *profile);
bool has_instances(const gpu_t *gpu);
uint32_t max_mig_devices(const gpu_t *gpu);
/* processes.c: processes on a GPU, or on one of its instances; NVML_NO_INSTANCE is any. */
uint32_t count_processes(const machine_t *machine, uint32_t gpu, uint32_t instance, uint32_t compute);
uint64_t used_mib(const machine_t *machine, uint32_t gpu, uint32_t instance);
uint32_t busy_percent(const machine_t *machine, uint32_t gpu);
uint32_t busy_percent_of(const machine_t *machine, uint32_t gpu, uint32_t instance);
/* memory.c: whether a process more would take its cgroup, or one above it, over a limit. */
bool exceeds_limit(const machine_t *machine, const process_t *process);

#endif
