/*
 * The control functions: what stands outside of NVML, in the hands of the person or test that plays the machine. Each
 * takes a machine opened with `nvmlsim_open` and returns an NVML code.
 */
#ifndef NVMLSIM_CONTROL_H
#define NVMLSIM_CONTROL_H

#include "state.h"

NVML_API nvmlReturn_t nvmlsim_create(const char *path);
NVML_API nvmlReturn_t nvmlsim_open(const char *path, unsigned int in_the_making, state_t **opened);
NVML_API void nvmlsim_close(state_t *opened);

/* Sets a field by its name; `gpu` or `profile` of -1 is the machine or the GPU itself. The tables are in control.c. */
NVML_API nvmlReturn_t nvmlsim_set(state_t *opened, int gpu, int profile, const char *field, const char *value);
NVML_API nvmlReturn_t nvmlsim_add_gpu(state_t *opened);
NVML_API nvmlReturn_t nvmlsim_add_profile(state_t *opened, unsigned int gpu);
NVML_API nvmlReturn_t nvmlsim_add_start(state_t *opened, unsigned int gpu, unsigned int start);
/* Ends the making: checks the machine, after which only what changes in real machines can be set. */
NVML_API nvmlReturn_t nvmlsim_seal(state_t *opened);

NVML_API nvmlReturn_t nvmlsim_add_process(state_t *opened, unsigned int gpu, unsigned int gpu_instance,
                                          unsigned int compute_instance, unsigned int pid, unsigned int mode,
                                          unsigned int memory_mib, unsigned int sm_percent, const char *name,
                                          const char *cgroup);
NVML_API nvmlReturn_t nvmlsim_remove_process(state_t *opened, unsigned int gpu, unsigned int pid);
NVML_API nvmlReturn_t nvmlsim_post_event(state_t *opened, unsigned int gpu, unsigned long long type,
                                         unsigned long long data, unsigned int gpu_instance,
                                         unsigned int compute_instance);
NVML_API nvmlReturn_t nvmlsim_add_fault(state_t *opened, const char *function, unsigned int gpu, unsigned int skip,
                                        unsigned int times, unsigned int code, unsigned int latency_us);
NVML_API nvmlReturn_t nvmlsim_clear_faults(state_t *opened);
/* What `nvidia-smi --gpu-reset`, a reboot, and a reinstallation do. */
NVML_API nvmlReturn_t nvmlsim_reset_gpu(state_t *opened, unsigned int gpu);
NVML_API nvmlReturn_t nvmlsim_reboot(state_t *opened);
NVML_API nvmlReturn_t nvmlsim_renew(state_t *opened);
/* Writes the machine as JSON; `size` comes back as what is needed. */
NVML_API nvmlReturn_t nvmlsim_describe(state_t *opened, char *out, unsigned int *size);

#endif
