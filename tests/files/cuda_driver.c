/* A CUDA driver without a GPU: the public functions of the driver interface that trt-bisect calls, itself or through
   PyCUDA. Device memory is host memory, streams run at once, and one GPU of compute capability 8.7 is there.
   Source of names and signatures: NVIDIA, "CUDA Driver API". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };
static int pushed = 0;
static long long taken = 0, most = 1LL << 30;

static int hidden(void) { return getenv("NO_GPU") != 0; }

result cuInit(unsigned flags) { return hidden() ? NO_DEVICE : OK; }
result cuDriverGetVersion(int *version) { *version = 12040; return OK; }
result cuDeviceGetCount(int *count) { *count = 1; return OK; }
result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : OK; }
result cuDeviceGetName(char *name, int room, int device) { snprintf(name, room, "Stand-in GPU"); return OK; }
result cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 7 : 0;
  return OK;
}
result cuGetErrorName(result code, const char **name) {
  *name = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "other";
  return OK;
}
result cuGetErrorString(result code, const char **text) { return cuGetErrorName(code, text); }

static int context = 1;
result cuDevicePrimaryCtxRetain(void **made, int device) { *made = &context; return OK; }
result cuDevicePrimaryCtxRelease(int device) { return OK; }
result cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return OK; }
result cuCtxPushCurrent_v2(void *which) { pushed++; return OK; }
result cuCtxPopCurrent_v2(void **which) { pushed--; if (which) *which = &context; return pushed < 0 ? INVALID_VALUE : OK; }
result cuCtxGetCurrent(void **which) { *which = pushed > 0 ? &context : 0; return OK; }
result cuCtxGetDevice(int *device) { *device = 0; return pushed > 0 ? OK : INVALID_VALUE; }
result cuCtxSynchronize(void) { return OK; }
result cuCtxDetach(void *which) { return OK; }

result cuMemAlloc_v2(unsigned long long *address, size_t size) {
  if (pushed <= 0) return 201; /* CUDA_ERROR_INVALID_CONTEXT */
  if (taken + (long long)size > most) return OUT_OF_MEMORY;
  long long *memory = malloc(size + 16);
  memory[0] = (long long)size;
  taken += size;
  *address = (unsigned long long)(memory + 2);
  return OK;
}
result cuMemFree_v2(unsigned long long address) {
  long long *memory = (long long *)address - 2;
  taken -= memory[0];
  free(memory);
  return OK;
}
result cuMemGetInfo_v2(size_t *left, size_t *total) { *left = most - taken; *total = most; return OK; }
result cuMemHostAlloc(void **memory, size_t size, unsigned flags) { *memory = malloc(size); return OK; }
result cuMemAllocHost_v2(void **memory, size_t size) { *memory = malloc(size); return OK; }
result cuMemFreeHost(void *memory) { free(memory); return OK; }
result cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) { memcpy((void *)to, from, size); return OK; }
result cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream) {
  return cuMemcpyHtoD_v2(to, from, size);
}
result cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream) {
  memcpy(to, (void *)from, size);
  return OK;
}

result cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); return OK; }
result cuStreamDestroy_v2(void *stream) { free(stream); return OK; }
result cuStreamSynchronize(void *stream) { return OK; }
result cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return OK; }
result cuEventDestroy_v2(void *event) { free(event); return OK; }
result cuEventRecord(void *event, void *stream) { return OK; }
result cuEventSynchronize(void *event) { return OK; }
result cuEventElapsedTime(float *milliseconds, void *from, void *to) { *milliseconds = 2.5f; return OK; }
result cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { *milliseconds = 2.5f; return OK; }
