/* The machine as JSON, for those who list it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "control.h"

/* Text that counts on past the end of its room, so that the caller learns how much is needed. */
typedef struct {
    char *out;
    size_t size;
    size_t length;
} text_t;

__attribute__((format(printf, 2, 3))) static void add(text_t *text, const char *format, ...)
{
    va_list values;
    size_t room = text->length < text->size ? text->size - text->length : 0;
    va_start(values, format);
    int more = vsnprintf(room ? text->out + text->length : NULL, room, format, values);
    va_end(values);
    text->length += more > 0 ? (size_t)more : 0;
}

static void add_text(text_t *text, const char *name, const char *value)
{
    add(text, "\"%s\":\"", name);
    for (const unsigned char *at = (const unsigned char *)value; *at; at++) {
        if (*at == '"' || *at == '\\')
            add(text, "\\%c", *at);
        else if (*at < 0x20 || *at > 0x7e) /* bytes that are no ASCII are told one by one */
            add(text, "\\u%04x", *at);
        else
            add(text, "%c", *at);
    }
    add(text, "\"");
}

static void add_instances(text_t *text, const gpu_t *gpu)
{
    const char *comma = "";
    for (int n = 0; n < MAX_INSTANCES; n++) {
        const instance_t *each = &gpu->instances[n];
        if (!is_used(&each->used))
            continue;
        const profile_t *profile = &gpu->profiles[each->profile];
        add(text, "%s{\"id\":%u,", comma, each->id);
        add_text(text, "profile", profile->name);
        add(text, ",\"start\":%u,\"size\":%u,\"memory_mib\":%u,\"compute_instances\":[", each->start, profile->size,
            profile->memory_mib);
        const char *inner = "";
        for (int c = 0; c < MAX_COMPUTE; c++) {
            const compute_t *compute = &each->compute[c];
            if (!is_used(&compute->used))
                continue;
            add(text, "%s{\"id\":%d,\"start\":%u,\"slices\":%u,", inner, c, compute->start, compute->slices);
            add_text(text, "uuid", compute->uuid);
            add(text, "}");
            inner = ",";
        }
        add(text, "]}");
        comma = ",";
    }
}

static void add_gpu(text_t *text, const machine_t *all, uint32_t index)
{
    const gpu_t *gpu = &all->gpus[index];
    add(text, "{\"index\":%u,\"minor\":%u,", index, gpu->minor);
    add_text(text, "model", gpu->model);
    add(text, ",");
    add_text(text, "name", gpu->name);
    add(text, ",");
    add_text(text, "uuid", gpu->uuid);
    add(text, ",\"bus\":\"%08X:%02X:%02X.0\",\"pci_device_id\":%u,\"pci_subsystem_id\":%u", gpu->pci_domain,
        gpu->pci_bus & 0xff, gpu->pci_device & 0xff, gpu->pci_device_id, gpu->pci_subsystem_id);
    add(text, ",\"memory_mib\":%u,\"reserved_mib\":%u", gpu->memory_mib, gpu->reserved_mib);
    add(text, ",\"used_mib\":%llu", (unsigned long long)used_mib(all, index, NVML_NO_INSTANCE));
    add(text, ",\"mig\":{\"capable\":%s,\"current\":%u,\"pending\":%u,\"needs_reset\":%s}",
        gpu->mig_units ? "true" : "false", gpu->mig_current, gpu->mig_pending, gpu->mig_needs_reset ? "true" : "false");
    add(text, ",\"lost\":%s,\"compute_mode\":%u,\"temperature_c\":%u", gpu->lost ? "true" : "false", gpu->compute_mode,
        gpu->temperature_c);
    add(text, ",\"throttle_reasons\":%u,\"ecc_errors\":[%u,%u]", gpu->throttle_reasons, gpu->ecc_corrected,
        gpu->ecc_uncorrected);
    add(text, ",\"power_limit_mw\":%u,\"locked_sm_mhz\":[%u,%u],\"instances\":[", gpu->power_limit_mw,
        gpu->locked_sm_mhz[0], gpu->locked_sm_mhz[1]);
    add_instances(text, gpu);
    add(text, "]}");
}

static void add_id(text_t *text, const char *name, uint32_t id)
{
    if (id == NVML_NO_INSTANCE)
        add(text, ",\"%s\":null", name);
    else
        add(text, ",\"%s\":%u", name, id);
}

static void add_processes(text_t *text, const machine_t *all)
{
    const char *comma = "";
    for (int n = 0; n < MAX_PROCESSES; n++) {
        const process_t *each = &all->processes[n];
        if (!is_used(&each->used))
            continue;
        add(text, "%s{\"pid\":%u,\"gpu\":%u", comma, each->pid, each->gpu);
        add_id(text, "gpu_instance", each->gpu_instance);
        add_id(text, "compute_instance", each->compute_instance);
        add(text, ",\"mode\":%u,\"memory_mib\":%u,\"sm_percent\":%u,", each->mode, each->memory_mib, each->sm_percent);
        add_text(text, "name", each->name);
        add(text, ",");
        add_text(text, "cgroup", each->cgroup);
        add(text, "}");
        comma = ",";
    }
}

static void add_limits(text_t *text, const machine_t *all)
{
    const char *comma = "";
    for (int n = 0; n < MAX_LIMITS; n++) {
        const limit_t *each = &all->limits[n];
        if (!is_used(&each->used))
            continue;
        add(text, "%s{\"gpu\":%u,\"soft\":%llu,\"hard\":%llu,", comma, each->gpu, (unsigned long long)each->soft,
            (unsigned long long)each->hard);
        add_text(text, "cgroup", each->cgroup);
        add(text, "}");
        comma = ",";
    }
}

static void add_faults(text_t *text, const machine_t *all)
{
    const char *comma = "";
    for (int n = 0; n < MAX_FAULTS; n++) {
        const fault_t *each = &all->faults[n];
        if (!is_used(&each->used))
            continue;
        add(text, "%s{", comma);
        add_text(text, "function", each->function);
        add_id(text, "gpu", each->gpu);
        add(text, ",\"skip\":%u", each->skip);
        add_id(text, "times", each->times);
        add(text, ",\"code\":%u,\"latency_us\":%u}", each->code, each->latency_us);
        comma = ",";
    }
}

static void add_machine(text_t *text, const machine_t *all)
{
    add(text, "{");
    add_text(text, "driver_version", all->driver_version);
    add(text, ",");
    add_text(text, "nvml_version", all->nvml_version);
    add(text, ",\"cuda_version\":%u,\"gpus\":[", all->cuda_version);
    for (uint32_t n = 0; n < all->gpu_count; n++) {
        add(text, "%s", n ? "," : "");
        add_gpu(text, all, n);
    }
    add(text, "],\"processes\":[");
    add_processes(text, all);
    add(text, "],\"limits\":[");
    add_limits(text, all);
    add(text, "],\"faults\":[");
    add_faults(text, all);
    add(text, "]}");
}

nvmlReturn_t nvmlsim_describe(state_t *opened, char *out, unsigned int *size)
{
    if (!opened || !size)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = state_lock(opened);
    if (result != NVML_SUCCESS)
        return result;
    text_t text = {out, out ? *size : 0, 0};
    add_machine(&text, opened->machine);
    state_unlock(opened);
    bool whole = text.length < text.size;
    *size = (unsigned int)text.length + 1;
    return whole ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
