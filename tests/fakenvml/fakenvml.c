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
#define LAYOUT 3
#define DEVICES 16
#define PROCESSES 32
#define FIELDS 128
#define LINKS 18
#define SLOTS 8
#define EVENTS 64

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
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
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
    uint32_t gpu_instance;
    uint32_t compute_instance;
    char name[256];      /* empty: of a process that the driver does not see */
} Process;

typedef struct {
    uint32_t error[FUNCTIONS];
    uint32_t hang[FUNCTIONS];
    uint32_t latency_us[FUNCTIONS];
    uint32_t too_small[FUNCTIONS]; /* how many more sized calls find their buffer too small */
    uint64_t calls[FUNCTIONS];
} Knobs;

/* what one id of nvmlDeviceGetFieldValues answers; a link's has its number as scope */
typedef struct {
    uint32_t id;
    uint32_t scope;
    uint32_t type;
    uint32_t code;
    uint64_t value;
} Field;

/* one place in the list of MIG devices; the instance's memory stands at each of its compute instances */
typedef struct {
    uint32_t present;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t device;
    char uuid[96];
    char name[96];
    uint64_t memory_total;
    uint64_t memory_reserved;
    uint64_t memory_free;
    uint64_t memory_used;
    double sm_percent;
    uint32_t profile_id;
    uint32_t placement[2]; /* start, size: in memory slices */
    uint32_t unused;
} Slot;

typedef struct {
    uint32_t device;
    uint32_t unused;
    uint64_t kind;
    uint64_t data;
} Event;

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
    uint32_t fan_percent;
    uint32_t encoder_percent;
    uint32_t decoder_percent;
    uint32_t clock_mhz[4]; /* graphics, sm, memory, video */
    uint32_t pcie[4];      /* generation, width, and both at most */
    uint32_t pcie_replays;
    uint32_t performance_state;
    uint32_t architecture;
    uint32_t gpm_supported;
    uint32_t field_count;
    uint32_t addressing_mode;
    uint32_t links[LINKS];
    uint64_t clocks_event_reasons;
    uint64_t bar1_total;
    uint64_t bar1_used;
    uint64_t errors[2][2][8]; /* kind, life, place */
    uint32_t errors_told[2][2][8];
    char serial[32];
    char vbios[32];
    double gpm[5]; /* percent: SM, occupancy, tensor, DRAM, graphics */
    uint64_t supported_reasons;
    uint64_t protected_memory[3]; /* total, free, used */
    uint32_t encoder_stats[3];    /* sessions, frames a second, microseconds */
    uint32_t jpeg_percent;
    uint32_t ofa_percent;
    int32_t margin;
    uint32_t banks[5];  /* with all, most, some, few, none of their spare rows */
    uint32_t fabric[2]; /* state, clique */
    uint32_t capability[2];
    uint32_t pci_ids[2]; /* device, subsystem */
    uint32_t pci_class[2];
    uint32_t gpu_pcie_generation;
    uint32_t max_clock_mhz[4];
    uint32_t limits_mw[4]; /* asked for, default, least, most */
    uint32_t accounting_buffer;
    uint32_t persistence;
    uint32_t accounting;
    uint32_t compute_mode;
    uint32_t display_attached;
    uint32_t display_active;
    uint32_t ecc_mode[2]; /* current, pending */
    uint32_t mig_pending;
    uint32_t gsp[2]; /* current, default */
    uint32_t c2c;
    uint32_t driver_model[2];
    uint64_t sram[10]; /* in the order of the driver's struct, without the corrected ones; last: threshold exceeded */
    char inforom[4][16];
    uint8_t platform[5]; /* slot, tray, host, peer type, module */
    uint8_t fabric_guid[11];
    Field fields[FIELDS];
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
    uint32_t wait_error; /* what waiting for events answers, once */
    uint32_t cuda_version;
    uint32_t event_step_ms; /* how often a wait looks for events; 0 = 50 */
    uint64_t events_put;
    uint64_t events_taken;
    char driver_version[80];
    char nvml_version[80];
    Knobs knobs;
    Device devices[DEVICES];
    Slot slots[DEVICES][SLOTS];
    Event events[EVENTS];
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

static Slot *as_slot(Handle device) {
    Slot *slot = (Slot *)device, *first = state ? &state->slots[0][0] : NULL;
    return state && slot >= first && slot < first + DEVICES * SLOTS ? slot : NULL;
}

/* A MIG device's call is one on its board, as far as knobs and overlaps go. */
static Handle board_of(Handle device) {
    const Slot *slot = as_slot(device);
    return slot ? &state->devices[slot->device] : device;
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
/* The same for a call that MIG devices answer too: `slot` is the MIG device, or NULL. */
#define ON_EITHER(function, parameters, answer)             \
    int function parameters {                               \
        Slot *slot = as_slot(device);                       \
        device = board_of(device);                          \
        int code = enter(device, FN_##function);            \
        if (code == OK && slot && !slot->present) code = NOT_FOUND; \
        if (code == OK) answer;                             \
        return leave(device, code);                         \
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
        case NOT_SUPPORTED: return "Not Supported";
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
ON_SYSTEM(nvmlSystemGetCudaDriverVersion_v2, (int *version), *version = (int)state->cuda_version)

static int put_name(unsigned pid, char *text, unsigned size) {
    for (int i = 0; i < DEVICES; i++)
        for (unsigned k = 0; state->devices[i].present && k < state->devices[i].process_count; k++) {
            const Process *process = &state->devices[i].processes[k];
            if (process->pid == pid && process->name[0]) return put_text(text, size, process->name);
        }
    return NOT_FOUND;
}

ON_SYSTEM(nvmlSystemGetProcessName, (unsigned pid, char *text, unsigned size), code = put_name(pid, text, size))

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
    info->device_id = device->pci_ids[0];
    info->subsystem_id = device->pci_ids[1];
}

ON_EITHER(nvmlDeviceGetUUID, (Handle device, char *text, unsigned size),
          code = put_text(text, size, slot ? slot->uuid : device->uuid))
ON_EITHER(nvmlDeviceGetName, (Handle device, char *text, unsigned size),
          code = put_text(text, size, slot ? slot->name : device->name))
ON_DEVICE(nvmlDeviceGetIndex, (Handle device, unsigned *index), *index = (unsigned)index_of(device))
ON_DEVICE(nvmlDeviceGetMinorNumber, (Handle device, unsigned *minor), *minor = device->minor)
ON_DEVICE(nvmlDeviceGetPciInfo_v3, (Handle device, PciInfo *info), put_pci(device, info))
ON_DEVICE(nvmlDeviceGetMigMode, (Handle device, unsigned *current, unsigned *pending),
          (*current = device->mig_mode, *pending = device->mig_pending))

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
static void put_memory(Handle device, const Slot *slot, Memory *memory) {
    memory->total = slot ? slot->memory_total : device->memory_total;
    memory->free = slot ? slot->memory_free : device->memory_free;
    memory->used = slot ? slot->memory_used + slot->memory_reserved : device->memory_used + device->memory_reserved;
}

static int put_memory_v2(Handle device, const Slot *slot, Memory_v2 *memory) {
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    memory->total = slot ? slot->memory_total : device->memory_total;
    memory->reserved = slot ? slot->memory_reserved : device->memory_reserved;
    memory->free = slot ? slot->memory_free : device->memory_free;
    memory->used = slot ? slot->memory_used : device->memory_used;
    return OK;
}

static int put_temperature(Handle device, Temperature_v1 *answer) {
    if (answer->version != TEMPERATURE_V1) return VERSION_MISMATCH;
    answer->temperature = device->temperature;
    return OK;
}

ON_EITHER(nvmlDeviceGetMemoryInfo, (Handle device, Memory *memory), put_memory(device, slot, memory))
ON_EITHER(nvmlDeviceGetMemoryInfo_v2, (Handle device, Memory_v2 *memory), code = put_memory_v2(device, slot, memory))
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
        WideProcessInfo entry = {{process->pid, process->memory_used, process->gpu_instance, process->compute_instance},
                                 0};
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

/* ---- what a board has beside ---- */

typedef struct {
    unsigned long long total, free, used;
} Bar1;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, code;
    uint64_t value;
} FieldValue;

typedef struct {
    unsigned version, value;
} AddressingMode;

static void put_bar1(Handle device, Bar1 *answer) {
    answer->total = device->bar1_total;
    answer->used = device->bar1_used;
    answer->free = device->bar1_total - device->bar1_used;
}

static int put_sampled(unsigned percent, unsigned *answer, unsigned *period) {
    *answer = percent;
    *period = 20000;
    return OK;
}

static void put_field(Handle device, FieldValue *asked) {
    asked->code = NOT_SUPPORTED;
    for (unsigned i = 0; i < device->field_count; i++) {
        const Field *field = &device->fields[i];
        if (field->id != asked->field || field->scope != asked->scope) continue;
        asked->type = (int)field->type;
        asked->code = (int)field->code;
        asked->value = field->value;
    }
}

static void put_fields(Handle device, int count, FieldValue *asked) {
    for (int i = 0; i < count; i++) put_field(device, &asked[i]);
}

static int put_link(Handle device, unsigned link, unsigned *up) {
    if (link >= LINKS) return INVALID_ARGUMENT;
    *up = device->links[link];
    return OK;
}

ON_DEVICE(nvmlDeviceGetBAR1MemoryInfo, (Handle device, Bar1 *answer), put_bar1(device, answer))
ON_DEVICE(nvmlDeviceGetEncoderUtilization, (Handle device, unsigned *answer, unsigned *period),
          code = put_sampled(device->encoder_percent, answer, period))
ON_DEVICE(nvmlDeviceGetDecoderUtilization, (Handle device, unsigned *answer, unsigned *period),
          code = put_sampled(device->decoder_percent, answer, period))
ON_DEVICE(nvmlDeviceGetClockInfo, (Handle device, unsigned domain, unsigned *mhz),
          *mhz = domain < 4 ? device->clock_mhz[domain] : 0)
ON_DEVICE(nvmlDeviceGetFanSpeed, (Handle device, unsigned *percent), *percent = device->fan_percent)
ON_DEVICE(nvmlDeviceGetCurrPcieLinkGeneration, (Handle device, unsigned *answer), *answer = device->pcie[0])
ON_DEVICE(nvmlDeviceGetCurrPcieLinkWidth, (Handle device, unsigned *answer), *answer = device->pcie[1])
ON_DEVICE(nvmlDeviceGetMaxPcieLinkGeneration, (Handle device, unsigned *answer), *answer = device->pcie[2])
ON_DEVICE(nvmlDeviceGetMaxPcieLinkWidth, (Handle device, unsigned *answer), *answer = device->pcie[3])
ON_DEVICE(nvmlDeviceGetPcieReplayCounter, (Handle device, unsigned *answer), *answer = device->pcie_replays)
ON_DEVICE(nvmlDeviceGetPerformanceState, (Handle device, unsigned *answer), *answer = device->performance_state)
ON_DEVICE(nvmlDeviceGetCurrentClocksEventReasons, (Handle device, unsigned long long *answer),
          *answer = device->clocks_event_reasons)
ON_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, (Handle device, unsigned long long *answer),
          *answer = device->clocks_event_reasons)
ON_DEVICE(nvmlDeviceGetSerial, (Handle device, char *text, unsigned size), code = put_text(text, size, device->serial))
ON_DEVICE(nvmlDeviceGetVbiosVersion, (Handle device, char *text, unsigned size),
          code = put_text(text, size, device->vbios))
ON_DEVICE(nvmlDeviceGetArchitecture, (Handle device, unsigned *answer), *answer = device->architecture)
ON_DEVICE(nvmlDeviceGetAddressingMode, (Handle device, AddressingMode *answer),
          answer->value = device->addressing_mode)
ON_DEVICE(nvmlDeviceGetFieldValues, (Handle device, int count, FieldValue *asked), put_fields(device, count, asked))
ON_DEVICE(nvmlDeviceGetNvLinkState, (Handle device, unsigned link, unsigned *up), code = put_link(device, link, up))

static int put_errors(Handle device, unsigned kind, unsigned life, unsigned place, unsigned long long *count) {
    if (kind > 1 || life > 1 || place > 7) return INVALID_ARGUMENT;
    if (!device->errors_told[kind][life][place]) return NOT_SUPPORTED;
    *count = device->errors[kind][life][place];
    return OK;
}

ON_DEVICE(nvmlDeviceGetMemoryErrorCounter,
          (Handle device, unsigned kind, unsigned life, unsigned place, unsigned long long *count),
          code = put_errors(device, kind, life, place, count))

/* ---- what only other exporters ask for ---- */

typedef struct {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
} PciInfoExt;

typedef struct {
    unsigned version;
    unsigned char guid[16], chassis[16], place[5];
} Platform;

typedef struct {
    unsigned version;
    int margin;
} Margin;

typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded,
        volatile_corrected, l2, sm, pcie, mcu, other;
    unsigned threshold_exceeded;
} Sram;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health;
} Fabric;

#define PCI_EXT_V1 0x01000040u
#define PLATFORM_V2 0x0200002cu
#define MARGIN_V1 0x01000008u
#define SRAM_V1 0x01000068u
#define FABRIC_V2 0x02000024u

static int put_pci_ext(Handle device, PciInfoExt *info) {
    PciInfo plain;
    if (info->version != PCI_EXT_V1) return VERSION_MISMATCH;
    put_pci(device, &plain);
    *info = (PciInfoExt){PCI_EXT_V1, plain.domain, plain.bus, plain.device, plain.device_id, plain.subsystem_id,
                         device->pci_class[0], device->pci_class[1], ""};
    memcpy(info->bus_id, plain.bus_id, sizeof info->bus_id);
    return OK;
}

static int put_platform(Handle device, Platform *answer) {
    if (answer->version != PLATFORM_V2) return VERSION_MISMATCH;
    memcpy(answer->guid, device->fabric_guid, 8);
    memcpy(answer->place, device->platform, sizeof answer->place);
    return OK;
}

static int put_margin(Handle device, Margin *answer) {
    if (answer->version != MARGIN_V1) return VERSION_MISMATCH;
    answer->margin = device->margin;
    return OK;
}

static int put_sram(Handle device, Sram *answer) {
    const uint64_t *told = device->sram;
    if (answer->version != SRAM_V1) return VERSION_MISMATCH;
    *answer = (Sram){SRAM_V1, told[0], told[1], 0, told[2], told[3], 0, told[4], told[5], told[6], told[7], told[8],
                     (unsigned)told[9]};
    return OK;
}

static int put_fabric(Handle device, Fabric *answer) {
    if (answer->version != FABRIC_V2) return VERSION_MISMATCH;
    answer->state = device->fabric[0];
    answer->clique = device->fabric[1];
    return OK;
}

static void put_protected(Handle device, Memory *memory) {
    memory->total = device->protected_memory[0];
    memory->free = device->protected_memory[1];
    memory->used = device->protected_memory[2];
}

static int put_inforom(Handle device, unsigned part, char *text, unsigned size) {
    if (part >= 4) return INVALID_ARGUMENT;
    return device->inforom[part][0] ? put_text(text, size, device->inforom[part]) : NOT_SUPPORTED;
}

static int put_two(const uint32_t *told, unsigned *first, unsigned *second) {
    *first = told[0];
    *second = told[1];
    return OK;
}

#define ONE_WORD(function, member) \
    ON_DEVICE(function, (Handle device, unsigned *answer), *answer = device->member)
#define TWO_WORDS(function, members) \
    ON_DEVICE(function, (Handle device, unsigned *first, unsigned *second), code = put_two(device->members, first, second))

ONE_WORD(nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu_pcie_generation)
ONE_WORD(nvmlDeviceGetAccountingBufferSize, accounting_buffer)
ONE_WORD(nvmlDeviceGetPowerManagementLimit, limits_mw[0])
ONE_WORD(nvmlDeviceGetPowerManagementDefaultLimit, limits_mw[1])
ONE_WORD(nvmlDeviceGetPersistenceMode, persistence)
ONE_WORD(nvmlDeviceGetAccountingMode, accounting)
ONE_WORD(nvmlDeviceGetComputeMode, compute_mode)
ONE_WORD(nvmlDeviceGetDisplayMode, display_attached)
ONE_WORD(nvmlDeviceGetDisplayActive, display_active)
ONE_WORD(nvmlDeviceGetC2cModeInfoV, c2c)
TWO_WORDS(nvmlDeviceGetPowerManagementLimitConstraints, limits_mw + 2)
TWO_WORDS(nvmlDeviceGetEccMode, ecc_mode)
TWO_WORDS(nvmlDeviceGetGspFirmwareMode, gsp)
TWO_WORDS(nvmlDeviceGetCudaComputeCapability, capability)
TWO_WORDS(nvmlDeviceGetDriverModel_v2, driver_model)

ON_DEVICE(nvmlDeviceGetPciInfoExt, (Handle device, PciInfoExt *info), code = put_pci_ext(device, info))
ON_DEVICE(nvmlDeviceGetPlatformInfo, (Handle device, Platform *answer), code = put_platform(device, answer))
ON_DEVICE(nvmlDeviceGetMarginTemperature, (Handle device, Margin *answer), code = put_margin(device, answer))
ON_DEVICE(nvmlDeviceGetSramEccErrorStatus, (Handle device, Sram *answer), code = put_sram(device, answer))
ON_DEVICE(nvmlDeviceGetGpuFabricInfoV, (Handle device, Fabric *answer), code = put_fabric(device, answer))
ON_DEVICE(nvmlDeviceGetConfComputeProtectedMemoryUsage, (Handle device, Memory *answer), put_protected(device, answer))
ON_DEVICE(nvmlDeviceGetInforomVersion, (Handle device, unsigned part, char *text, unsigned size),
          code = put_inforom(device, part, text, size))
ON_DEVICE(nvmlDeviceGetMaxClockInfo, (Handle device, unsigned domain, unsigned *mhz),
          *mhz = domain < 4 ? device->max_clock_mhz[domain] : 0)
ON_DEVICE(nvmlDeviceGetSupportedClocksEventReasons, (Handle device, unsigned long long *answer),
          *answer = device->supported_reasons)
ON_DEVICE(nvmlDeviceGetSupportedClocksThrottleReasons, (Handle device, unsigned long long *answer),
          *answer = device->supported_reasons)
ON_DEVICE(nvmlDeviceGetJpgUtilization, (Handle device, unsigned *answer, unsigned *period),
          code = put_sampled(device->jpeg_percent, answer, period))
ON_DEVICE(nvmlDeviceGetOfaUtilization, (Handle device, unsigned *answer, unsigned *period),
          code = put_sampled(device->ofa_percent, answer, period))
ON_DEVICE(nvmlDeviceGetEncoderStats, (Handle device, unsigned *sessions, unsigned *frames, unsigned *latency),
          (*sessions = device->encoder_stats[0], *frames = device->encoder_stats[1],
           *latency = device->encoder_stats[2]))
ON_DEVICE(nvmlDeviceGetRowRemapperHistogram, (Handle device, uint32_t *banks),
          memcpy(banks, device->banks, sizeof device->banks))

/* ---- MIG ---- */

static int find_slot(Handle device, unsigned index, Handle *found) {
    Slot *slots = state->slots[device - state->devices];
    if (index >= SLOTS) return INVALID_ARGUMENT;
    if (!device->mig_mode || !slots[index].present) return NOT_FOUND;
    *found = (Handle)&slots[index];
    return OK;
}

static int put_id(const Slot *slot, unsigned id, unsigned *answer) {
    *answer = id;
    return slot ? OK : INVALID_ARGUMENT;
}

ON_DEVICE(nvmlDeviceGetMaxMigDeviceCount, (Handle device, unsigned *count), *count = SLOTS)
ON_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, (Handle device, unsigned index, Handle *found),
          code = find_slot(device, index, found))
ON_EITHER(nvmlDeviceGetGpuInstanceId, (Handle device, unsigned *answer),
          code = put_id(slot, slot ? slot->gpu_instance : 0, answer))
ON_EITHER(nvmlDeviceGetComputeInstanceId, (Handle device, unsigned *answer),
          code = put_id(slot, slot ? slot->compute_instance : 0, answer))

/* a GPU instance's handle is that of its first compute instance */
typedef struct {
    Handle device;
    unsigned id, profile_id, start, size;
} InstanceInfo;

static int find_instance(Handle device, unsigned instance, Handle *found) {
    Slot *slots = state->slots[device - state->devices];
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].present && slots[i].gpu_instance == instance) {
            *found = (Handle)&slots[i];
            return OK;
        }
    return NOT_FOUND;
}

static int put_instance(Handle device, const Slot *slot, InstanceInfo *info) {
    if (slot == NULL) return INVALID_ARGUMENT;
    *info = (InstanceInfo){device, slot->gpu_instance, slot->profile_id, slot->placement[0], slot->placement[1]};
    return OK;
}

ON_DEVICE(nvmlDeviceGetGpuInstanceById, (Handle device, unsigned instance, Handle *found),
          code = find_instance(device, instance, found))
ON_EITHER(nvmlGpuInstanceGetInfo, (Handle device, InstanceInfo *info), code = put_instance(device, slot, info))

/* ---- GPM: what the SMs did between two samples ---- */

typedef struct {
    double percent[5];
} Sample;

typedef struct {
    unsigned id;
    int code;
    double value;
    const char *names[3];
} Metric;

typedef struct {
    unsigned version, count;
    Sample *first, *second;
    Metric metrics[];
} Metrics;

typedef struct {
    unsigned version, supported;
} Support;

static int put_instance_sample(Handle device, unsigned instance, Sample *sample) {
    const Slot *slots = state->slots[device - state->devices];
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].present && slots[i].gpu_instance == instance) {
            *sample = (Sample){{slots[i].sm_percent}};
            return OK;
        }
    return NOT_FOUND;
}

static int place_of(unsigned id) {
    switch (id) {
        case 2: return 0;
        case 3: return 1;
        case 5: return 2;
        case 10: return 3;
        case 1: return 4;
        default: return -1;
    }
}

static int put_metrics(Metrics *asked) {
    if (asked->version != 1) return VERSION_MISMATCH;
    if (asked->first == NULL || asked->second == NULL) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->count; i++) {
        int place = place_of(asked->metrics[i].id);
        asked->metrics[i].code = place < 0 ? NOT_SUPPORTED : OK;
        asked->metrics[i].value = place < 0 ? 0 : asked->second->percent[place];
    }
    return OK;
}

static int put_sample(Handle device, Sample *sample) {
    if (device->mig_mode) return NOT_SUPPORTED;
    memcpy(sample->percent, device->gpm, sizeof sample->percent);
    return OK;
}

ON_DEVICE(nvmlGpmQueryDeviceSupport, (Handle device, Support *answer), answer->supported = device->gpm_supported)
ON_SYSTEM(nvmlGpmSampleAlloc, (Sample **sample), *sample = calloc(1, sizeof(Sample)))
ON_SYSTEM(nvmlGpmSampleFree, (Sample *sample), free(sample))
ON_DEVICE(nvmlGpmSampleGet, (Handle device, Sample *sample), code = put_sample(device, sample))
ON_DEVICE(nvmlGpmMigSampleGet, (Handle device, unsigned instance, Sample *sample),
          code = put_instance_sample(device, instance, sample))
ON_SYSTEM(nvmlGpmMetricsGet, (Metrics *asked), code = put_metrics(asked))

/* ---- events ---- */

typedef struct {
    uint32_t registered[DEVICES];
} EventSet;

typedef struct {
    Handle device;
    unsigned long long kind, data;
    unsigned gpu_instance, compute_instance;
} EventData;

static int take_event(const EventSet *set, EventData *answer) {
    while (state->events_taken < __atomic_load_n(&state->events_put, __ATOMIC_ACQUIRE)) {
        const Event *event = &state->events[state->events_taken % EVENTS];
        EventData found = {&state->devices[event->device], event->kind, event->data, ~0u, ~0u};
        int wanted = set->registered[event->device] != 0;
        state->events_taken++;
        if (wanted) {
            *answer = found;
            return OK;
        }
    }
    return TIMEOUT;
}

static int wait_for_event(const EventSet *set, EventData *answer, unsigned milliseconds) {
    /* a driver wakes who waits; here the wait looks, and each look costs the process under test a part of a core */
    unsigned step = state->event_step_ms ? state->event_step_ms : 50;
    for (unsigned waited = 0; waited < milliseconds; waited += step) {
        uint32_t error = __atomic_exchange_n(&state->wait_error, 0, __ATOMIC_SEQ_CST);
        if (error) return (int)error;
        if (take_event(set, answer) == OK) return OK;
        rest(1000 * step);
    }
    return TIMEOUT;
}

ON_SYSTEM(nvmlEventSetCreate, (EventSet **set), *set = calloc(1, sizeof(EventSet)))
ON_SYSTEM(nvmlEventSetFree, (EventSet *set), free(set))
ON_SYSTEM(nvmlEventSetWait_v2, (EventSet *set, EventData *answer, unsigned milliseconds),
          code = wait_for_event(set, answer, milliseconds))
ON_DEVICE(nvmlDeviceGetSupportedEventTypes, (Handle device, unsigned long long *kinds), *kinds = 8)
ON_DEVICE(nvmlDeviceRegisterEvents, (Handle device, unsigned long long kinds, EventSet *set),
          set->registered[device - state->devices] = kinds != 0)

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
    {"c_nvmlBAR1Memory_t", sizeof(Bar1)},
    {"c_nvmlBAR1Memory_t.bar1Used", offsetof(Bar1, used)},
    {"c_nvmlFieldValue_t", sizeof(FieldValue)},
    {"c_nvmlFieldValue_t.scopeId", offsetof(FieldValue, scope)},
    {"c_nvmlFieldValue_t.valueType", offsetof(FieldValue, type)},
    {"c_nvmlFieldValue_t.nvmlReturn", offsetof(FieldValue, code)},
    {"c_nvmlFieldValue_t.value", offsetof(FieldValue, value)},
    {"c_nvmlGpuInstanceInfo_t", sizeof(InstanceInfo)},
    {"c_nvmlGpuInstanceInfo_t.profileId", offsetof(InstanceInfo, profile_id)},
    {"c_nvmlGpuInstanceInfo_t.placement", offsetof(InstanceInfo, start)},
    {"nvmlPciInfoExt_v1_t", sizeof(PciInfoExt)},
    {"nvmlPciInfoExt_v1_t.subClass", offsetof(PciInfoExt, sub_class)},
    {"nvmlPciInfoExt_v1", PCI_EXT_V1},
    {"c_nvmlPlatformInfo_v2_t", sizeof(Platform)},
    {"c_nvmlPlatformInfo_v2_t.slotNumber", offsetof(Platform, place)},
    {"nvmlPlatformInfo_v2", PLATFORM_V2},
    {"c_nvmlMarginTemperature_v1_t", sizeof(Margin)},
    {"nvmlMarginTemperature_v1", MARGIN_V1},
    {"c_nvmlEccSramErrorStatus_v1_t", sizeof(Sram)},
    {"c_nvmlEccSramErrorStatus_v1_t.volatileUncParity", offsetof(Sram, volatile_parity)},
    {"c_nvmlEccSramErrorStatus_v1_t.aggregateUncBucketMcu", offsetof(Sram, mcu)},
    {"c_nvmlEccSramErrorStatus_v1_t.bThresholdExceeded", offsetof(Sram, threshold_exceeded)},
    {"nvmlEccSramErrorStatus_v1", SRAM_V1},
    {"c_nvmlGpuFabricInfo_v2_t", sizeof(Fabric)},
    {"c_nvmlGpuFabricInfo_v2_t.cliqueId", offsetof(Fabric, clique)},
    {"c_nvmlGpuFabricInfo_v2_t.state", offsetof(Fabric, state)},
    {"nvmlGpuFabricInfo_v2", FABRIC_V2},
    {"c_nvmlGpmMetric_t", sizeof(Metric)},
    {"c_nvmlGpmMetric_t.value", offsetof(Metric, value)},
    {"c_nvmlGpmMetricsGet_t.sample1", offsetof(Metrics, first)},
    {"c_nvmlGpmMetricsGet_t.metrics", offsetof(Metrics, metrics)},
    {"c_nvmlDeviceAddressingMode_t", sizeof(AddressingMode)},
    {"c_nvmlDeviceAddressingMode_t.value", offsetof(AddressingMode, value)},
    {"c_nvmlGpmSupport_t", sizeof(Support)},
    {"c_nvmlEventData_t", sizeof(EventData)},
    {"c_nvmlEventData_t.eventData", offsetof(EventData, data)},
    {NULL, 0},
};

const char *fakenvml_fact_name(unsigned at) { return facts[at].name; }
size_t fakenvml_fact_value(unsigned at) { return facts[at].value; }
size_t fakenvml_sizeof_state(void) { return sizeof(State); }
