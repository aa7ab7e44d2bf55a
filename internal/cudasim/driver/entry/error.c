// Names and texts of the driver's error codes.
#include "entry/gate.h"

static CUresult look_up(CUresult error, const char **result, bool words)
{
	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)error) {
#define X(code, driver, runtime, text) \
	case code: *result = words ? text : #driver; return CUDA_SUCCESS;
		ERRORS(X)
#undef X
	}
	*result = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

ERROR_FUNCTIONS(DEFINE)
