/* Calls about the driver: versions, error texts, process names. */
#include <stdio.h>
#include <string.h>

#include "call.h"

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "The operating system has blocked the request";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Version mismatch between NVML and the argument";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    CALL();
    return leave(put_text(version, length, machine()->driver_version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    CALL();
    return leave(put_text(version, length, machine()->nvml_version));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    CALL();
    if (!version)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    *version = (int)machine()->cuda_version;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The branch is the driver's first number: r615. */
nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned int length)
{
    CALL();
    if (!info)
        return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (info->version != NVML_VERSION_OF(nvmlSystemDriverBranchInfo_v1_t, 1))
        return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    char branch[sizeof info->branch];
    size_t digits = strspn(machine()->driver_version, "0123456789");
    snprintf(branch, sizeof branch, "r%.*s_00", (int)digits, machine()->driver_version);
    return leave(put_text(info->branch, length < sizeof info->branch ? length : sizeof info->branch, branch));
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    CALL();
    for (int n = 0; n < MAX_PROCESSES; n++) {
        const process_t *each = &machine()->processes[n];
        if (is_used(&each->used) && each->pid == pid)
            return leave(put_text(name, length, each->name));
    }
    return leave(name ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT);
}
