// What a test says and asks of the simulated GPU.

#include <cuda_runtime_api.h>

#include <cstdint>

extern int64_t simulated_copy_ns;     // a copy into a buffer, or out of it
extern int64_t simulated_transfer_ns; // a collective

extern "C" {

// Keep a stream busy, after what it does already.
void simulated_work(cudaStream_t stream, int64_t nanoseconds);

// Let each event be reached late, as that of a stream which shares a full hardware queue.
void simulated_queue_delay(int64_t nanoseconds);

// Return the time of the host's clock at which a recorded event is reached.
int64_t simulated_reached(cudaEvent_t event);

// Return how often an event was recorded.
int64_t simulated_recorded();

} // extern "C"
