/* How the functions of driver.h set the context and pass a status on. */

#define ENTER(ctx)                                   \
	do {                                         \
		CUresult entered = cuCtxSetCurrent(ctx); \
		if (entered != CUDA_SUCCESS)         \
			return -(int)entered;        \
	} while (0)

#define TRY(call)                             \
	do {                                  \
		CUresult try_status = (call); \
		if (try_status != CUDA_SUCCESS) \
			return (int)try_status; \
	} while (0)
