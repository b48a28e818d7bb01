/* SPDX-License-Identifier: Apache-2.0
 * Names of the errors that the stand-in gives. */
#include "standin.h"

const char *cudaGetErrorName(cudaError_t e)
{
#define NAME(x) \
    case x: return #x
    switch (e) {
        NAME(cudaSuccess);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorIllegalState);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
        NAME(cudaErrorStreamCaptureUnjoined);
        NAME(cudaErrorStreamCaptureUnmatched);
        NAME(cudaErrorStreamCaptureIsolation);
        NAME(cudaErrorCapturedEvent);
        NAME(cudaErrorUnknown);
    default: return "another error";
    }
#undef NAME
}

const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
