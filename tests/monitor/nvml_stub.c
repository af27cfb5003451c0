/* Stands in for NVIDIA's driver library: GPU 0 answers everything, GPU 1 next to nothing.
   Structures and numbers as in nvml.h; built by the tests as libnvidia-ml.so.1. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10 };
typedef struct { int index; } Device;
static Device devices[2] = {{0}, {1}};
static int waits, samples, asked, live;

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **out) { *out = &devices[i]; return SUCCESS; }
int nvmlDeviceGetIndex(Device *d, unsigned *out) { *out = d->index; return SUCCESS; }
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { snprintf(out, size, "GPU-%d", d->index); return SUCCESS; }
int nvmlDeviceGetName(Device *d, char *out, unsigned size) { snprintf(out, size, "Stub H100"); return SUCCESS; }

#define ONLY_FIRST if (d->index) return NOT_SUPPORTED
int nvmlDeviceGetUtilizationRates(Device *d, unsigned *out) { ONLY_FIRST; out[0] = 97; out[1] = 50; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(Device *d, unsigned long long *out) {
  out[0] = 80ull << 30; out[1] = 30ull << 30; out[2] = 50ull << 30; return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { ONLY_FIRST; *out = 650500; return SUCCESS; }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *out) { ONLY_FIRST; *out = 71; return SUCCESS; }
int nvmlDeviceGetClockInfo(Device *d, int kind, unsigned *out) { ONLY_FIRST; *out = 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *out) { ONLY_FIRST; *out = 4; return SUCCESS; }
int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int counter, unsigned long long *out) {
  ONLY_FIRST; *out = 2; return SUCCESS;
}

typedef struct { Device *device; unsigned long long type, data; unsigned gpu, compute; } Event;
int nvmlEventSetCreate(void **out) { *out = &waits; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set) { ONLY_FIRST; return SUCCESS; }
int nvmlEventSetWait_v2(void *set, Event *out, unsigned ms) { /* one XID 79 before the second reading */
  if (waits++ != 1) return TIMEOUT;
  memset(out, 0, sizeof *out); out->device = &devices[0]; out->type = 8; out->data = 79; return SUCCESS;
}

typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int result; double value; struct { char *a, *b, *c; } info; } Metric;
typedef struct { unsigned version, count; void *first, *second; Metric metrics[98]; } Get;
int nvmlGpmQueryDeviceSupport(Device *d, Support *out) { out->supported = !d->index; return SUCCESS; }
int nvmlGpmSampleAlloc(void **out) { *out = &samples + ++samples; live++; return SUCCESS; }
int nvmlGpmSampleFree(void *sample) { live--; return SUCCESS; }
int nvmlGpmSampleGet(Device *d, void *sample) { return ++asked > 2 ? NOT_SUPPORTED : SUCCESS; } /* two, then no more */
int stub_live_samples(void) { return live; }
int nvmlGpmMetricsGet(Get *get) {
  for (unsigned i = 0; i < get->count; i++) {
    get->metrics[i].value = get->first < get->second ? 40.0 + get->metrics[i].id : 0.0;
    get->metrics[i].result = get->metrics[i].id == 10 ? NOT_SUPPORTED : SUCCESS;
  }
  return SUCCESS;
}
