/* A stand-in for libnvidia-ml.so.1 whose GPUs are a struct in a file.
 *
 * Why it exists: the exporter's real path, ctypes and binding included, has to run where there is no GPU. The test
 * writes the struct through its Python twin (state.py); a change is visible at the next call. Values are answered as
 * they stand there, nothing is computed from anything. Which symbols a build exports decides how old a driver it is.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x4c4d564e454b4146ULL
#define LAYOUT 1
#define DEVICES 16
#define PROCESSES 32

/* functions.inc is written at build time from state.FUNCTIONS: one X(name) a line */
#define X(name) FN_##name,
enum {
#include "functions.inc"
    FUNCTIONS
};
#undef X

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

typedef struct {
    uint32_t pid;
    uint32_t kinds; /* 1 computes, 2 draws */
    uint64_t memory_used;
    uint32_t sm_percent;
    uint32_t memory_percent;
    uint64_t sampled_us; /* 0: sampled at the moment of the call */
} Process;

typedef struct {
    uint32_t error[FUNCTIONS];
    uint32_t hang[FUNCTIONS];
    uint32_t latency_us[FUNCTIONS];
    uint32_t too_small[FUNCTIONS]; /* how many more sized calls find their buffer too small */
    uint64_t calls[FUNCTIONS];
} Knobs;

typedef struct {
    uint32_t present;
    uint32_t error;
    uint32_t hang;
    uint32_t latency_us;
    uint32_t minor;
    uint32_t mig_mode;
    uint32_t process_count;
    uint32_t inside;
    uint64_t overlaps;
    char uuid[96];
    char name[96];
    char bus_id[32];
    uint64_t memory_total;
    uint64_t memory_reserved;
    uint64_t memory_free;
    uint64_t memory_used;
    uint32_t gpu_percent;
    uint32_t memory_percent;
    int32_t temperature;
    uint32_t power_mw;
    uint32_t power_limit_mw;
    uint32_t unused;
    Process processes[PROCESSES];
    Knobs knobs;
} Device;

typedef struct {
    uint64_t magic;
    uint32_t layout;
    uint32_t size;
    uint32_t init_error;
    uint32_t system_error;
    uint32_t shutdowns_while_busy;
    uint32_t unused;
    char driver_version[80];
    char nvml_version[80];
    Knobs knobs;
    Device devices[DEVICES];
} State;

typedef Device *Handle;

static State *state;
static int opened;
static pthread_once_t mapped = PTHREAD_ONCE_INIT;

static int refuse(const char *why) {
    fprintf(stderr, "fakenvml: %s\n", why);
    return -1;
}

static int map_file(const char *path) {
    struct stat status;
    int file = open(path, O_RDWR);
    if (file < 0 || fstat(file, &status) < 0) return refuse("the file named by FAKENVML_STATE cannot be opened");
    if (status.st_size != sizeof(State)) return refuse("the state file has another size than this build's struct");
    void *at = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return refuse("the state file cannot be mapped");
    state = at;
    if (state->magic == MAGIC && state->layout == LAYOUT && state->size == sizeof(State)) return 0;
    state = NULL;
    return refuse("the state file has another magic, layout or size");
}

static void map_state(void) {
    const char *path = getenv("FAKENVML_STATE");
    if (path == NULL) refuse("FAKENVML_STATE is not set: this is a driver that is not loaded");
    else map_file(path);
}

static void rest(uint32_t microseconds) {
    struct timespec pause = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
    if (microseconds) nanosleep(&pause, NULL);
}

static uint32_t now_or(const volatile uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

/* Counts, waits and fails as the knobs say; device is NULL for a call to the driver as a whole. */
static int obey(Knobs *knobs, const Device *device, int function) {
    __atomic_add_fetch(&knobs->calls[function], 1, __ATOMIC_RELAXED);
    rest(knobs->latency_us[function] + (device ? device->latency_us : 0));
    while (now_or(&knobs->hang[function]) || (device && now_or(&device->hang))) rest(1000);
    if (state->system_error) return (int)state->system_error;
    if (knobs->error[function]) return (int)knobs->error[function];
    if (device && device->error) return (int)device->error;
    return device && !device->present ? GPU_IS_LOST : OK;
}

static int enter_system(int function) {
    if (state == NULL || !__atomic_load_n(&opened, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    return obey(&state->knobs, NULL, function);
}

static int is_device(const Device *device) {
    return state != NULL && device >= state->devices && device < state->devices + DEVICES;
}

static int enter(Handle device, int function) {
    if (!is_device(device)) return state ? INVALID_ARGUMENT : UNINITIALIZED;
    if (__atomic_fetch_add(&device->inside, 1, __ATOMIC_SEQ_CST))
        __atomic_add_fetch(&device->overlaps, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&opened, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    return obey(&device->knobs, device, function);
}

static int leave(Handle device, int code) {
    if (is_device(device)) __atomic_sub_fetch(&device->inside, 1, __ATOMIC_SEQ_CST);
    return code;
}

static int put_text(char *to, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

/* A call that takes a handle: `answer` runs only where the knobs let it. */
#define ON_DEVICE(function, parameters, answer)    \
    int function parameters {                      \
        int code = enter(device, FN_##function);   \
        if (code == OK) answer;                    \
        return leave(device, code);                \
    }
#define ON_SYSTEM(function, parameters, answer)    \
    int function parameters {                      \
        int code = enter_system(FN_##function);    \
        if (code == OK) answer;                    \
        return code;                               \
    }

/* ---- opening, closing ---- */

static int open_driver(int function) {
    pthread_once(&mapped, map_state);
    if (state == NULL) return DRIVER_NOT_LOADED;
    __atomic_add_fetch(&state->knobs.calls[function], 1, __ATOMIC_RELAXED);
    rest(state->knobs.latency_us[function]);
    while (now_or(&state->knobs.hang[function])) rest(1000);
    if (state->init_error) return (int)state->init_error;
    __atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
    return OK;
}

int nvmlInit_v2(void) { return open_driver(FN_nvmlInit_v2); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return open_driver(FN_nvmlInitWithFlags);
}

int nvmlShutdown(void) {
    if (state == NULL || opened == 0) return UNINITIALIZED;
    __atomic_add_fetch(&state->knobs.calls[FN_nvmlShutdown], 1, __ATOMIC_RELAXED);
    for (int i = 0; i < DEVICES; i++)
        if (state->devices[i].inside) {
            __atomic_add_fetch(&state->shutdowns_while_busy, 1, __ATOMIC_RELAXED);
            break;
        }
    while (now_or(&state->knobs.hang[FN_nvmlShutdown])) rest(1000);
    __atomic_sub_fetch(&opened, 1, __ATOMIC_SEQ_CST);
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case 3: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case GPU_IS_LOST: return "GPU is lost";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

/* ---- the driver as a whole ---- */

ON_SYSTEM(nvmlSystemGetDriverVersion, (char *text, unsigned size), code = put_text(text, size, state->driver_version))
ON_SYSTEM(nvmlSystemGetNVMLVersion, (char *text, unsigned size), code = put_text(text, size, state->nvml_version))
ON_SYSTEM(nvmlSystemGetCudaDriverVersion_v2, (int *version), *version = 12040)

static unsigned present_devices(void) {
    unsigned count = 0;
    for (int i = 0; i < DEVICES; i++) count += state->devices[i].present != 0;
    return count;
}

static int find_by_index(unsigned index, Handle *device) {
    for (int i = 0; i < DEVICES; i++)
        if (state->devices[i].present && index-- == 0) {
            *device = &state->devices[i];
            return OK;
        }
    return INVALID_ARGUMENT;
}

static int find_by_uuid(const char *uuid, Handle *device) {
    for (int i = 0; i < DEVICES; i++)
        if (state->devices[i].present && strcmp(state->devices[i].uuid, uuid) == 0) {
            *device = &state->devices[i];
            return OK;
        }
    return NOT_FOUND;
}

/* Looking a handle up is not a call on it; it can fail or hang for one GPU all the same. */
static int looked_up(int code, Handle *device, int function) {
    if (code != OK) return code;
    __atomic_add_fetch(&(*device)->knobs.calls[function], 1, __ATOMIC_RELAXED);
    while (now_or(&(*device)->knobs.hang[function])) rest(1000);
    return (int)(*device)->knobs.error[function];
}

ON_SYSTEM(nvmlDeviceGetCount_v2, (unsigned *count), *count = present_devices())
ON_SYSTEM(nvmlDeviceGetHandleByIndex_v2, (unsigned index, Handle *device),
          code = looked_up(find_by_index(index, device), device, FN_nvmlDeviceGetHandleByIndex_v2))
ON_SYSTEM(nvmlDeviceGetHandleByUUID, (const char *uuid, Handle *device),
          code = looked_up(find_by_uuid(uuid, device), device, FN_nvmlDeviceGetHandleByUUID))

/* ---- what a GPU is ---- */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

static int index_of(Handle device) {
    int index = 0;
    for (Handle other = state->devices; other < device; other++) index += other->present != 0;
    return index;
}

static void put_pci(Handle device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    sscanf(device->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%.31s", device->bus_id);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04x:%02x:%02x.0", info->domain & 0xffff,
             info->bus & 0xff, info->device & 0xff);
    info->device_id = 0x233510de;
}

ON_DEVICE(nvmlDeviceGetUUID, (Handle device, char *text, unsigned size), code = put_text(text, size, device->uuid))
ON_DEVICE(nvmlDeviceGetName, (Handle device, char *text, unsigned size), code = put_text(text, size, device->name))
ON_DEVICE(nvmlDeviceGetIndex, (Handle device, unsigned *index), *index = (unsigned)index_of(device))
ON_DEVICE(nvmlDeviceGetMinorNumber, (Handle device, unsigned *minor), *minor = device->minor)
ON_DEVICE(nvmlDeviceGetPciInfo_v3, (Handle device, PciInfo *info), put_pci(device, info))
ON_DEVICE(nvmlDeviceGetMigMode, (Handle device, unsigned *current, unsigned *pending),
          *current = *pending = device->mig_mode)

/* ---- what a GPU does ---- */

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} Memory_v2;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    unsigned version, sensor;
    int temperature;
} Temperature_v1;

#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000cu

/* the old call counts what the driver keeps for itself as used */
static void put_memory(Handle device, Memory *memory) {
    memory->total = device->memory_total;
    memory->free = device->memory_free;
    memory->used = device->memory_used + device->memory_reserved;
}

static int put_memory_v2(Handle device, Memory_v2 *memory) {
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    memory->total = device->memory_total;
    memory->reserved = device->memory_reserved;
    memory->free = device->memory_free;
    memory->used = device->memory_used;
    return OK;
}

static int put_temperature(Handle device, Temperature_v1 *answer) {
    if (answer->version != TEMPERATURE_V1) return VERSION_MISMATCH;
    answer->temperature = device->temperature;
    return OK;
}

ON_DEVICE(nvmlDeviceGetMemoryInfo, (Handle device, Memory *memory), put_memory(device, memory))
ON_DEVICE(nvmlDeviceGetMemoryInfo_v2, (Handle device, Memory_v2 *memory), code = put_memory_v2(device, memory))
ON_DEVICE(nvmlDeviceGetUtilizationRates, (Handle device, Utilization *answer),
          (answer->gpu = device->gpu_percent, answer->memory = device->memory_percent))
ON_DEVICE(nvmlDeviceGetTemperature, (Handle device, unsigned sensor, unsigned *answer),
          ((void)sensor, *answer = (unsigned)device->temperature))
ON_DEVICE(nvmlDeviceGetTemperatureV, (Handle device, Temperature_v1 *answer), code = put_temperature(device, answer))
ON_DEVICE(nvmlDeviceGetPowerUsage, (Handle device, unsigned *milliwatts), *milliwatts = device->power_mw)
ON_DEVICE(nvmlDeviceGetEnforcedPowerLimit, (Handle device, unsigned *milliwatts), *milliwatts = device->power_limit_mw)

/* ---- its processes ---- */

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

/* what early 535 drivers fill in for the _v3 calls, without saying so by any version */
typedef struct {
    ProcessInfo usual;
    unsigned long long protected_memory;
} WideProcessInfo;

#ifdef WIDE_V3
enum { V3_WIDTH = sizeof(WideProcessInfo) };
#else
enum { V3_WIDTH = sizeof(ProcessInfo) };
#endif

typedef struct {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

/* The two-call protocol of every list: how many are there, then the list, or "too small" if there are more now. */
static int sized(Handle device, int function, unsigned *count, unsigned found, const void *buffer) {
    unsigned room = *count;
    *count = found;
    if (buffer && device->knobs.too_small[function]) {
        device->knobs.too_small[function]--;
        return INSUFFICIENT_SIZE;
    }
    return found > 0 && (buffer == NULL || room < found) ? INSUFFICIENT_SIZE : OK;
}

static int put_processes(Handle device, int function, unsigned kind, unsigned *count, char *list, size_t width) {
    unsigned found = 0;
    for (unsigned i = 0; i < device->process_count; i++) found += (device->processes[i].kinds & kind) != 0;
    int code = sized(device, function, count, found, list);
    if (code != OK || list == NULL) return code;
    for (unsigned i = 0, at = 0; i < device->process_count && at < found; i++) {
        const Process *process = &device->processes[i];
        if ((process->kinds & kind) == 0) continue;
        WideProcessInfo entry = {{process->pid, process->memory_used, ~0u, ~0u}, 0};
        memcpy(list + width * at++, &entry, width);
    }
    return OK;
}

static unsigned long long sampled_at(const Process *process) {
    struct timespec now;
    if (process->sampled_us) return process->sampled_us;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ull + (unsigned long long)now.tv_nsec / 1000ull;
}

/* as the driver does: a process that was not busy has no sample, and no sample at all is NOT_FOUND */
static int is_sampled(const Process *process, unsigned long long since) {
    return process->sm_percent > 0 && sampled_at(process) > since;
}

static int put_samples(Handle device, ProcessSample *list, unsigned *count, unsigned long long since) {
    unsigned found = 0;
    for (unsigned i = 0; i < device->process_count; i++) found += (unsigned)is_sampled(&device->processes[i], since);
    if (found == 0) return NOT_FOUND;
    int code = sized(device, FN_nvmlDeviceGetProcessUtilization, count, found, list);
    if (code != OK || list == NULL) return code;
    for (unsigned i = 0, at = 0; i < device->process_count && at < found; i++) {
        const Process *process = &device->processes[i];
        if (is_sampled(process, since))
            list[at++] = (ProcessSample){process->pid, sampled_at(process), process->sm_percent,
                                         process->memory_percent, 0, 0};
    }
    return OK;
}

#define PROCESS_LIST(function, kind, width)                                \
    ON_DEVICE(function, (Handle device, unsigned *count, char *list),      \
              code = put_processes(device, FN_##function, kind, count, list, width))

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 1, sizeof(ProcessInfo))
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 1, V3_WIDTH)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, sizeof(ProcessInfo))
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 2, V3_WIDTH)
ON_DEVICE(nvmlDeviceGetProcessUtilization,
          (Handle device, ProcessSample *list, unsigned *count, unsigned long long since),
          code = put_samples(device, list, count, since))

/* ---- what the tests compare ---- */

typedef struct {
    const char *name;
    size_t value;
} Fact;

static const Fact facts[] = {
    {"state", sizeof(State)},
    {"device", sizeof(Device)},
    {"c_nvmlMemory_t", sizeof(Memory)},
    {"c_nvmlMemory_t.total", offsetof(Memory, total)},
    {"c_nvmlMemory_t.free", offsetof(Memory, free)},
    {"c_nvmlMemory_t.used", offsetof(Memory, used)},
    {"c_nvmlMemory_v2_t", sizeof(Memory_v2)},
    {"c_nvmlMemory_v2_t.version", offsetof(Memory_v2, version)},
    {"c_nvmlMemory_v2_t.total", offsetof(Memory_v2, total)},
    {"c_nvmlMemory_v2_t.reserved", offsetof(Memory_v2, reserved)},
    {"c_nvmlMemory_v2_t.free", offsetof(Memory_v2, free)},
    {"c_nvmlMemory_v2_t.used", offsetof(Memory_v2, used)},
    {"nvmlMemory_v2", MEMORY_V2},
    {"c_nvmlUtilization_t", sizeof(Utilization)},
    {"c_nvmlUtilization_t.gpu", offsetof(Utilization, gpu)},
    {"c_nvmlUtilization_t.memory", offsetof(Utilization, memory)},
    {"c_nvmlTemperature_v1_t", sizeof(Temperature_v1)},
    {"c_nvmlTemperature_v1_t.sensorType", offsetof(Temperature_v1, sensor)},
    {"c_nvmlTemperature_v1_t.temperature", offsetof(Temperature_v1, temperature)},
    {"nvmlTemperature_v1", TEMPERATURE_V1},
    {"c_nvmlProcessInfo_v2_t", sizeof(ProcessInfo)},
    {"c_nvmlProcessInfo_v2_t.pid", offsetof(ProcessInfo, pid)},
    {"c_nvmlProcessInfo_v2_t.usedGpuMemory", offsetof(ProcessInfo, used_memory)},
    {"c_nvmlProcessInfo_v2_t.gpuInstanceId", offsetof(ProcessInfo, gpu_instance)},
    {"c_nvmlProcessInfo_v2_t.computeInstanceId", offsetof(ProcessInfo, compute_instance)},
    {"c_nvmlProcessInfo_v3_t", sizeof(ProcessInfo)},
    {"c_nvmlProcessUtilizationSample_t", sizeof(ProcessSample)},
    {"c_nvmlProcessUtilizationSample_t.pid", offsetof(ProcessSample, pid)},
    {"c_nvmlProcessUtilizationSample_t.timeStamp", offsetof(ProcessSample, timestamp)},
    {"c_nvmlProcessUtilizationSample_t.smUtil", offsetof(ProcessSample, sm)},
    {"c_nvmlProcessUtilizationSample_t.memUtil", offsetof(ProcessSample, memory)},
    {"c_nvmlProcessUtilizationSample_t.encUtil", offsetof(ProcessSample, encoder)},
    {"c_nvmlProcessUtilizationSample_t.decUtil", offsetof(ProcessSample, decoder)},
    {"nvmlPciInfo_t", sizeof(PciInfo)},
    {"nvmlPciInfo_t.domain", offsetof(PciInfo, domain)},
    {"nvmlPciInfo_t.pciDeviceId", offsetof(PciInfo, device_id)},
    {"nvmlPciInfo_t.busId", offsetof(PciInfo, bus_id)},
    {NULL, 0},
};

const char *fakenvml_fact_name(unsigned at) { return facts[at].name; }
size_t fakenvml_fact_value(unsigned at) { return facts[at].value; }
size_t fakenvml_sizeof_state(void) { return sizeof(State); }
