/* GPU performance monitoring, from Hopper on: how busy a GPU, or one GPU instance of it, was between two samples. */
#include <stdlib.h>

#include "call.h"

#define HOPPER 9u
#define GRAPHICS_UTIL 1u
#define SM_UTIL 2u
#define ANY_TENSOR_UTIL 5u
#define DRAM_BW_UTIL 10u

struct nvmlGpmSample_st {
    uint32_t percent;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!support)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (support->version != 1)
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    support->isSupportedDevice = at.gpu->architecture >= HOPPER;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    CALL();
    if (!sample)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *sample = calloc(1, sizeof **sample);
    return leave(*sample ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    CALL();
    free(sample);
    return leave(sample ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

static nvmlReturn_t take(const target_t *at, uint32_t instance, nvmlGpmSample_t sample)
{
    if (!sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (at->gpu->architecture < HOPPER)
        return NVML_ERROR_NOT_SUPPORTED;
    sample->percent = busy_percent_of(machine(), at->index, instance);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(at.gpu->mig_current ? NVML_ERROR_NOT_SUPPORTED : take(&at, NVML_NO_INSTANCE, sample));
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
    target_t at;
    CALL_GPU(device, &at);
    for (int n = 0; n < MAX_INSTANCES; n++) {
        const instance_t *each = &at.gpu->instances[n];
        if (is_used(&each->used) && each->id == gpu_instance)
            return leave(take(&at, gpu_instance, sample));
    }
    return leave(NVML_ERROR_INVALID_ARGUMENT);
}

/* The load at the later sample stands for that between both. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics)
{
    CALL();
    if (!metrics || !metrics->sample1 || !metrics->sample2)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (metrics->version != 1)
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    for (unsigned int n = 0; n < metrics->numMetrics; n++) {
        nvmlGpmMetric_t *each = &metrics->metrics[n];
        bool half = each->metricId == ANY_TENSOR_UTIL || each->metricId == DRAM_BW_UTIL;
        bool whole = each->metricId == GRAPHICS_UTIL || each->metricId == SM_UTIL;
        each->nvmlReturn = half || whole ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        each->value = metrics->sample2->percent / (half ? 2.0 : 1.0);
    }
    return leave(NVML_SUCCESS);
}
