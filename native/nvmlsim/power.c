/* Calls about load, temperature, power and clocks. Load comes from the processes; the rest follows from it. */
#include "call.h"

#define IDLE_PERCENT 15u /* of the power limit */
#define SLOWDOWN_C 90u

/* ---- load ---- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!utilization)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (at.gpu->mig_current)
        return leave(NVML_ERROR_NOT_SUPPORTED);
    utilization->gpu = busy_percent(machine(), at.index);
    utilization->memory = utilization->gpu / 2;
    return leave(NVML_SUCCESS);
}

static nvmlReturn_t engine_idle(const target_t *at, unsigned int *percent, unsigned int *period_us)
{
    if (!percent || !period_us)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (at->gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    *percent = 0;
    *period_us = 167000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(engine_idle(&at, percent, period_us));
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(engine_idle(&at, percent, period_us));
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_number(state, busy_percent(machine(), at.index) ? NVML_PSTATE_0 : NVML_PSTATE_8));
}

/* ---- temperature ---- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    target_t at;
    CALL_GPU(device, &at);
    if (sensor != NVML_TEMPERATURE_GPU)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(put_number(celsius, at.gpu->temperature_c));
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!temperature)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (temperature->version != NVML_VERSION_OF(nvmlTemperature_v1_t, 1))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (temperature->sensorType != NVML_TEMPERATURE_GPU)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    temperature->temperature = (int)at.gpu->temperature_c;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius)
{
    static const unsigned int known[] = {SLOWDOWN_C + 5, SLOWDOWN_C, SLOWDOWN_C + 5, SLOWDOWN_C - 5};
    target_t at;
    CALL_GPU(device, &at);
    if (threshold >= NVML_TEMPERATURE_THRESHOLD_COUNT)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (threshold >= sizeof known / sizeof known[0])
        return leave(NVML_ERROR_NOT_SUPPORTED);
    return leave(put_number(celsius, known[threshold]));
}

/* ---- power ---- */

static nvmlReturn_t put_power(const target_t *at, unsigned int *out, uint32_t milliwatts)
{
    return at->gpu->power_max_mw ? put_number(out, milliwatts) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    target_t at;
    CALL_GPU(device, &at);
    uint32_t limit = at.gpu->power_limit_mw, busy = busy_percent(machine(), at.index);
    return leave(put_power(&at, milliwatts, limit / 100 * (IDLE_PERCENT + busy * (100 - IDLE_PERCENT) / 100)));
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned int *mode)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_number(mode, at.gpu->power_max_mw ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED));
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_power(&at, milliwatts, at.gpu->power_limit_mw));
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_power(&at, milliwatts, at.gpu->power_limit_mw));
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_power(&at, milliwatts, at.gpu->power_default_mw));
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *lowest,
                                                          unsigned int *highest)
{
    target_t at;
    CALL_GPU(device, &at);
    nvmlReturn_t result = put_power(&at, lowest, at.gpu->power_min_mw);
    return leave(result == NVML_SUCCESS ? put_power(&at, highest, at.gpu->power_max_mw) : result);
}

static nvmlReturn_t limit_power(const target_t *at, uint32_t milliwatts)
{
    if (!at->gpu->power_max_mw)
        return NVML_ERROR_NOT_SUPPORTED;
    if (milliwatts < at->gpu->power_min_mw || milliwatts > at->gpu->power_max_mw)
        return NVML_ERROR_INVALID_ARGUMENT;
    at->gpu->power_limit_mw = milliwatts;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(limit_power(&at, milliwatts));
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, const nvmlPowerValue_v2_t *value)
{
    target_t at;
    CALL_GPU(device, &at);
    if (!value)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (value->version != NVML_VERSION_OF(nvmlPowerValue_v2_t, 2))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return leave(value->powerScope == 0 ? limit_power(&at, value->powerValueMw) : NVML_ERROR_NOT_SUPPORTED);
}

/* ---- clocks ---- */

static uint32_t highest_clock(const gpu_t *gpu, unsigned int type)
{
    return type == NVML_CLOCK_MEM ? gpu->memory_clock_mhz : gpu->sm_clock_mhz;
}

static nvmlReturn_t reasons_of(const target_t *at, unsigned long long *reasons)
{
    if (!reasons)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool idle = !at->gpu->throttle_reasons && !busy_percent(machine(), at->index);
    *reasons = idle ? NVML_CLOCKS_IDLE : at->gpu->throttle_reasons;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(reasons_of(&at, reasons));
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(reasons_of(&at, reasons));
}

/* A busy GPU runs at its highest clock, an idle one at a fifth, both within what is locked. */
static uint32_t current_clock(const target_t *at, unsigned int type)
{
    const uint32_t *locked = type == NVML_CLOCK_MEM ? at->gpu->locked_memory_mhz : at->gpu->locked_sm_mhz;
    uint32_t highest = highest_clock(at->gpu, type);
    uint32_t wanted = busy_percent(machine(), at->index) || type == NVML_CLOCK_MEM ? highest : highest / 5;
    if (locked[1] && wanted > locked[1])
        return locked[1];
    return locked[1] && wanted < locked[0] ? locked[0] : wanted;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(type < NVML_CLOCK_COUNT ? put_number(mhz, current_clock(&at, type)) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(type < NVML_CLOCK_COUNT ? put_number(mhz, highest_clock(at.gpu, type)) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz)
{
    target_t at;
    CALL_GPU(device, &at);
    if (type >= NVML_CLOCK_COUNT || id >= NVML_CLOCK_ID_COUNT)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    return leave(put_number(mhz, id == 0 ? current_clock(&at, type) : highest_clock(at.gpu, type)));
}

static nvmlReturn_t put_one(unsigned int value, unsigned int *count, unsigned int *out)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int room = out ? *count : 0;
    *count = 1;
    if (room < 1)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *out = value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *mhz)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(put_one(at.gpu->memory_clock_mhz, count, mhz));
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int *count,
                                                  unsigned int *mhz)
{
    target_t at;
    CALL_GPU(device, &at);
    if (memory_mhz != at.gpu->memory_clock_mhz)
        return leave(NVML_ERROR_NOT_FOUND);
    return leave(put_one(at.gpu->sm_clock_mhz, count, mhz));
}

/* Zero for the lowest and the two named limits for the highest are what nvidia-smi sends for "from" and "up to". */
static nvmlReturn_t lock(uint32_t locked[2], uint32_t most, unsigned int lowest, unsigned int highest)
{
    if (highest == NVML_CLOCK_LIMIT_ID_TDP || highest == NVML_CLOCK_LIMIT_ID_UNLIMITED)
        highest = most;
    if (lowest > highest || highest == 0 || highest > most)
        return NVML_ERROR_INVALID_ARGUMENT;
    locked[0] = lowest;
    locked[1] = highest;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int lowest, unsigned int highest)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(lock(at.gpu->locked_sm_mhz, at.gpu->sm_clock_mhz, lowest, highest));
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int lowest, unsigned int highest)
{
    target_t at;
    CALL_GPU(device, &at);
    return leave(lock(at.gpu->locked_memory_mhz, at.gpu->memory_clock_mhz, lowest, highest));
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    target_t at;
    CALL_GPU(device, &at);
    at.gpu->locked_sm_mhz[0] = at.gpu->locked_sm_mhz[1] = 0;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    target_t at;
    CALL_GPU(device, &at);
    at.gpu->locked_memory_mhz[0] = at.gpu->locked_memory_mhz[1] = 0;
    return leave(NVML_SUCCESS);
}
