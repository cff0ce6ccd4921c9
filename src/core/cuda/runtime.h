// What core uses of the CUDA runtime. In a build without CUDA core/absent implements it: then only unusable() is ever
// called, because no Stream on a GPU can be created.
#pragma once

#include <cstddef>
#include <string>

#include "core/device.h"

namespace lockstep::cuda {

std::string unusable();  // empty if a GPU can be used
DeviceInfo info();

// Device memory from the driver's pool, which keeps freed memory, so that allocating takes microseconds. nullptr if
// there is none. allocate() waits, release() does not: the memory is reused when everything that is queued by then, on
// any stream, has run. May be called from any thread, whatever other threads capture (queues.h).
void* allocate(size_t bytes);
void release(void* memory) noexcept;

void* make_stream(bool goes_first);
void destroy_stream(void* stream) noexcept;
void synchronize(void* stream);
// After an error: waits for both streams and clears the error. False: the GPU is lost to this process, and every
// further call fails.
bool recover(void* stream, void* second) noexcept;

void* make_event();
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void wait_event(void* event, void* stream);  // what is queued on the stream later runs after the event

void zero(void* to, size_t bytes);                                  // of new memory; waits
void zero(void* to, size_t bytes, void* stream);                    // queued
void copy(void* to, const void* from, size_t bytes, void* stream);  // any direction; queued (pageable `from` is taken
                                                                    // before the call returns)
// `count` pieces that lie `stride` bytes apart, within the device; queued
void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, void* stream);

// core/graph.h. Captures what is queued on `stream`, and on `second` once it has waited for the first.
void begin_recording(void* stream, void* second);
void* end_recording(void* stream, void* second);
void abandon_recording(void* stream, void* second) noexcept;
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

// Locks pages of host memory, so that copies to and from a GPU do not pass through the driver's buffers. False: the
// system does not allow it.
bool lock_pages(void* memory, size_t bytes) noexcept;
void unlock_pages(void* memory) noexcept;

}  // namespace lockstep::cuda
