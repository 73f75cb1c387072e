/* The state file: made, opened, checked, locked. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static nvmlReturn_t from_errno(void)
{
    switch (errno) {
    case EACCES:
    case EPERM:
    case EROFS:
        return NVML_ERROR_NO_PERMISSION;
    case ENOENT:
    case ENOTDIR:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case EEXIST:
        return NVML_ERROR_IN_USE;
    default:
        return NVML_ERROR_OPERATING_SYSTEM;
    }
}

static nvmlReturn_t map(state_t *state)
{
    void *at = mmap(NULL, sizeof(machine_t), PROT_READ | PROT_WRITE, MAP_SHARED, state->fd, 0);
    if (at == MAP_FAILED)
        return from_errno();
    state->machine = at;
    return NVML_SUCCESS;
}

nvmlReturn_t state_create(const char *path)
{
    state_t state = {NULL, open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666), 0};
    if (state.fd < 0)
        return from_errno();
    nvmlReturn_t result = ftruncate(state.fd, sizeof(machine_t)) == 0 ? map(&state) : from_errno();
    if (result == NVML_SUCCESS) {
        state.machine->layout = STATE_LAYOUT;
        state.machine->size = sizeof(machine_t);
        state.machine->magic = STATE_MAGIC;
    }
    state_close(&state);
    return result;
}

static nvmlReturn_t check_size(int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return from_errno();
    if (status.st_nlink == 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return status.st_size == (off_t)sizeof(machine_t) ? NVML_SUCCESS : NVML_ERROR_CORRUPTED_INFOROM;
}

/* The first words alone, so that a file of another layout is told from a broken one. */
static nvmlReturn_t check_head(int fd)
{
    struct {
        uint64_t magic;
        uint32_t layout;
        uint32_t size;
    } head;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != STATE_MAGIC)
        return NVML_ERROR_CORRUPTED_INFOROM;
    return head.layout == STATE_LAYOUT && head.size == sizeof(machine_t) ? NVML_SUCCESS
                                                                         : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

nvmlReturn_t state_open(state_t *state, const char *path, bool in_the_making)
{
    *state = (state_t){NULL, open(path, O_RDWR | O_CLOEXEC), (int)getpid()};
    if (state->fd < 0)
        return from_errno();
    nvmlReturn_t result = check_head(state->fd);
    if (result == NVML_SUCCESS)
        result = check_size(state->fd);
    if (result == NVML_SUCCESS)
        result = map(state);
    if (result == NVML_SUCCESS)
        result = state_lock(state);
    if (result == NVML_SUCCESS) {
        if (!in_the_making && !(state->machine->sealed == 1 && state_is_sound(state->machine)))
            result = NVML_ERROR_CORRUPTED_INFOROM;
        state_unlock(state);
    }
    if (result != NVML_SUCCESS)
        state_close(state);
    return result;
}

void state_close(state_t *state)
{
    if (state->machine)
        munmap(state->machine, sizeof(machine_t));
    if (state->fd >= 0)
        close(state->fd);
    *state = (state_t){NULL, -1, 0};
}

/* A child shares its parent's open file, and with it the lock; it must have its own. */
static nvmlReturn_t reopen_after_fork(state_t *state)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", state->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return from_errno();
    close(state->fd);
    state->fd = fd;
    state->pid = (int)getpid();
    return NVML_SUCCESS;
}

nvmlReturn_t state_lock(state_t *state)
{
    nvmlReturn_t result = state->pid == (int)getpid() ? NVML_SUCCESS : reopen_after_fork(state);
    if (result != NVML_SUCCESS)
        return result;
    /* The kernel gives this lock back when its holder dies, in whatever way. */
    while (flock(state->fd, LOCK_EX) != 0) {
        if (errno != EINTR)
            return from_errno();
    }
    result = check_size(state->fd); /* a shortened file would end this process with SIGBUS */
    if (result != NVML_SUCCESS)
        state_unlock(state);
    return result;
}

void state_unlock(state_t *state)
{
    flock(state->fd, LOCK_UN);
}

uint32_t state_next_generation(machine_t *machine)
{
    return ++machine->generations;
}

/* Source: the finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

void state_make_uuid(const machine_t *machine, uint32_t generation, const char *prefix, char uuid[UUID_SIZE])
{
    uint64_t high = mixed(machine->seed ^ mixed(generation));
    uint64_t low = mixed(high ^ generation);
    snprintf(uuid, UUID_SIZE, "%s%08x-%04x-5%03x-%04x-%012llx", prefix, (unsigned)(high >> 32),
             (unsigned)(high >> 16) & 0xffffu, (unsigned)high & 0xfffu, 0x8000u | ((unsigned)(low >> 48) & 0x3fffu),
             (unsigned long long)(low & 0xffffffffffffull));
}
