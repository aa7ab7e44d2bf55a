// Names and texts of the driver's error codes.
#include "abi/errors.h"
#include "entry/gate.h"

static const char *name_of(CUresult error)
{
	switch ((int)error) {
#define X(code, driver, runtime, text)                                                                       \
	case code: return #driver;
		ERRORS(X)
#undef X
	}
	return NULL;
}

static const char *text_of(CUresult error)
{
	switch ((int)error) {
#define X(code, driver, runtime, text)                                                                       \
	case code: return text;
		ERRORS(X)
#undef X
	}
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
	ENTER(cuGetErrorName);
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = name_of(error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	ENTER(cuGetErrorString);
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = text_of(error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
