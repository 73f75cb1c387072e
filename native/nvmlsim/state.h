/*
 * The machine: what the state file holds. Only this library knows the layout; others read it through `nvmlsim_describe`
 * and change it through the functions of control.c.
 *
 * A record is there when its `used` word says so. Writers fill the record first and set the word last, so a process
 * that is killed at any instruction leaves a machine in which each record is there wholly or not at all.
 */
#ifndef NVMLSIM_STATE_H
#define NVMLSIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml.h"

#define STATE_MAGIC 0x3153474d4953564eull /* "NVSIMGS1" */
#define STATE_LAYOUT 3u

enum {
    MAX_GPUS = 32,
    MAX_PROFILES = 16,
    MAX_STARTS = 16,
    MAX_INSTANCES = 16, /* GPU instances of one GPU; no model has more than 12 placement units */
    MAX_COMPUTE = 8,    /* compute instances of one GPU instance */
    EMPTY_INSTANCE_MIB = 14, /* in use on a GPU instance without a process, as an H100's driver reports it */
    MAX_PROCESSES = 512,
    MAX_LIMITS = 512,
    MAX_FAULTS = 64,
    MAX_EVENTS = 1024, /* the newest so many are kept */
    NAME_SIZE = 96,
    UUID_SIZE = 48,
    PATH_SIZE = 256
};

#define ANY_GPU 0xffffffffu

/* A GPU instance profile of one GPU, as the creator of the file gave it. */
typedef struct {
    char name[NAME_SIZE]; /* 3g.20gb */
    uint32_t id;
    uint32_t api_index; /* one of NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t slices;    /* compute slices */
    uint32_t size;      /* placement units */
    uint32_t max_instances;
    uint32_t excludes; /* bits of the GPU's profiles of which no instance can be beside one of this, wherever */
    uint32_t graphics;
    uint32_t memory_mib;
    uint32_t multiprocessors;
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t encoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t start_count;
    uint32_t starts[MAX_STARTS];
} profile_t;

typedef struct {
    _Atomic uint32_t used;
    uint32_t generation; /* unlike that of any other instance ever made on this machine */
    uint32_t slices;
    uint32_t start; /* in slices of its GPU instance */
    char uuid[UUID_SIZE];
} compute_t;

typedef struct {
    _Atomic uint32_t used;
    uint32_t generation;
    uint32_t id;
    uint32_t profile; /* index into the GPU's profiles */
    uint32_t start;
    compute_t compute[MAX_COMPUTE];
} instance_t;

typedef struct {
    /* Set once, when the file is made. */
    char name[NAME_SIZE];
    char uuid[UUID_SIZE];
    char serial[32];
    char model[NAME_SIZE]; /* the catalogue's name, for people */
    uint32_t minor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t architecture;
    uint32_t brand;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t multiprocessors;
    uint32_t cores;
    uint32_t memory_mib;
    uint32_t reserved_mib;
    uint32_t bar1_mib;
    uint32_t memory_bus_bits;
    uint32_t ecc;
    uint32_t numa_node;
    uint32_t sm_clock_mhz; /* the highest */
    uint32_t memory_clock_mhz;
    uint32_t power_min_mw;
    uint32_t power_max_mw;
    uint32_t power_default_mw;
    uint32_t mig_units; /* length of the placement axis; 0 without MIG */
    uint32_t mig_slices;
    uint32_t mig_persistent; /* the mode survives a reboot */
    uint32_t profile_count;
    profile_t profiles[MAX_PROFILES];
    /* Changed by NVML calls and by control. */
    _Atomic uint32_t mig_current;
    _Atomic uint32_t mig_pending;
    uint32_t mig_needs_reset; /* fault: a mode change waits for a reset */
    uint32_t lost;
    uint32_t compute_mode;
    uint32_t persistence;
    uint32_t power_limit_mw;
    uint32_t locked_sm_mhz[2]; /* lowest and highest; 0 and 0 when not locked */
    uint32_t locked_memory_mhz[2];
    uint32_t temperature_c;
    uint32_t throttle_reasons; /* bits of nvmlClocksEventReason* */
    uint32_t ecc_corrected;
    uint32_t ecc_uncorrected;
    instance_t instances[MAX_INSTANCES];
} gpu_t;

typedef struct {
    _Atomic uint32_t used;
    uint32_t pid;
    uint32_t mode; /* NVML_PROCESS_MODE_COMPUTE, _GRAPHICS or _MPS */
    uint32_t gpu;
    uint32_t gpu_instance; /* ids, NVML_NO_INSTANCE without MIG */
    uint32_t compute_instance;
    uint32_t memory_mib;
    uint32_t sm_percent;
    char name[PATH_SIZE];
    char cgroup[PATH_SIZE];
} process_t;

typedef struct {
    _Atomic uint32_t used;
    uint32_t gpu;
    uint64_t soft;
    uint64_t hard;
    char cgroup[PATH_SIZE];
} limit_t;

/* What the next calls of a function do instead of their work. */
typedef struct {
    _Atomic uint32_t used;
    uint32_t gpu;   /* or ANY_GPU */
    uint32_t skip;  /* so many calls pass first */
    uint32_t times; /* then so many are struck; UINT32_MAX is for ever */
    uint32_t code;  /* returned; NVML_SUCCESS is latency alone */
    uint32_t latency_us;
    char function[NAME_SIZE]; /* may end in '*' */
} fault_t;

typedef struct {
    uint64_t type;
    uint64_t data;
    uint32_t gpu;
    uint32_t gpu_instance;
    uint32_t compute_instance;
} event_t;

typedef struct {
    uint64_t magic;
    uint32_t layout;
    uint32_t size;
    uint32_t sealed; /* 1 once the creator has told all */
    char driver_version[80];
    char nvml_version[80];
    uint32_t cuda_version; /* 13040 is 13.4 */
    uint32_t gpu_count;
    _Atomic uint32_t event_count; /* ever posted; waiters sleep on it */
    uint32_t generations;         /* ever given out */
    uint64_t seed;                /* of the UUIDs of instances */
    event_t events[MAX_EVENTS];
    gpu_t gpus[MAX_GPUS];
    process_t processes[MAX_PROCESSES];
    limit_t limits[MAX_LIMITS];
    fault_t faults[MAX_FAULTS];
} machine_t;

/* A state file in use by this process. All but `machine` belongs to state.c. */
typedef struct {
    machine_t *machine;
    int fd;
    int pid;
} state_t;

/* Makes a file with an empty machine; fails with NVML_ERROR_IN_USE when there is one. */
nvmlReturn_t state_create(const char *path);
/* Opens a file, and checks it unless it is still being made; `state` is closed when it fails. */
nvmlReturn_t state_open(state_t *state, const char *path, bool in_the_making);
void state_close(state_t *state);
/* Waits for the machine and takes it; tells when the file was taken away meanwhile. */
nvmlReturn_t state_lock(state_t *state);
void state_unlock(state_t *state);
/* Whether every number that this library uses as an index or a count is in range, and every text ends. */
bool state_is_sound(const machine_t *machine);
/* Gives a new number, and a UUID that no instance had before. */
uint32_t state_next_generation(machine_t *machine);
void state_make_uuid(const machine_t *machine, uint32_t generation, const char *prefix, char uuid[UUID_SIZE]);

/* What `used` records count. */
static inline bool is_used(const _Atomic uint32_t *used)
{
    return atomic_load_explicit(used, memory_order_acquire) == 1;
}
static inline void set_used(_Atomic uint32_t *used, uint32_t value)
{
    atomic_store_explicit(used, value, memory_order_release);
}

#endif
