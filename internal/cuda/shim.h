/* What shim.c gives beside the driver's symbols. */
#ifndef MOEGRAPH_SHIM_H
#define MOEGRAPH_SHIM_H

#define SHIM_NO_DRIVER 34  /* CUDA_ERROR_STUB_LIBRARY */
#define SHIM_OLD_DRIVER 36 /* CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER */

/* Loads the driver the first time and returns what the real cuInit said, or SHIM_NO_DRIVER. */
__attribute__((visibility("hidden"))) int shim_load(void);

/* Why the library did not load; empty where it did. */
const char *shim_reason(void);

#endif
