// Kernels and NCCL on the GPU of cudart.cc: each call keeps the stream busy.

#include "ops/cuda/cuda_kernels.h"

#include "simulation.h"

namespace horovod {
namespace common {

void BatchedScaledD2DMemcpyCudaImpl(BatchedD2DParams&, int, double, DataType, cudaStream_t stream) {
  simulated_work(stream, simulated_copy_ns);
}

void BatchedD2DMemcpyCudaImpl(BatchedD2DParams&, int, cudaStream_t stream) {
  simulated_work(stream, simulated_copy_ns);
}

void ScaleBufferCudaImpl(const void*, void*, const int64_t, double, DataType, cudaStream_t) {
  throw std::logic_error("not simulated");
}

} // namespace common
} // namespace horovod

#define NOT_SIMULATED \
  { return ncclInternalError; }

int64_t simulated_copy_ns = 0;
int64_t simulated_transfer_ns = 0;

ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t stream) {
  simulated_work(stream, simulated_transfer_ns);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
  *result = ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "not simulated"; }

ncclResult_t ncclCommAbort(ncclComm_t) NOT_SIMULATED
ncclResult_t ncclCommDestroy(ncclComm_t) NOT_SIMULATED
ncclResult_t ncclGetUniqueId(ncclUniqueId*) NOT_SIMULATED
ncclResult_t ncclCommInitRank(ncclComm_t*, int, ncclUniqueId, int) NOT_SIMULATED
ncclResult_t ncclGroupStart() NOT_SIMULATED
ncclResult_t ncclGroupEnd() NOT_SIMULATED
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)
    NOT_SIMULATED
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) NOT_SIMULATED
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                           cudaStream_t) NOT_SIMULATED
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)
    NOT_SIMULATED
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                        cudaStream_t) NOT_SIMULATED
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t) NOT_SIMULATED
