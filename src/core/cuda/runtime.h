// What core asks of the CUDA runtime. core/absent implements it when the build has no CUDA: nothing but unusable() is
// then ever called, because no Stream on a GPU can be made.
#pragma once

#include <cstddef>
#include <string>

#include "core/device.h"

namespace lockstep::cuda {

std::string unusable();  // empty: a GPU can be used
DeviceInfo info();

// Device memory from the driver's pool, which keeps what is released: to allocate again costs microseconds. nullptr
// when there is none. allocate() waits, release() does not: the memory is handed out again when all that is queued by
// now, on any stream, has run. From any thread, whatever others record (queues.h).
void* allocate(size_t bytes);
void release(void* memory) noexcept;

void* make_stream();
void destroy_stream(void* stream) noexcept;
void synchronize(void* stream);
// After an error: waits for both streams and forgets the error. False: the GPU is lost to this process, and every
// further call fails.
bool recover(void* stream, void* second) noexcept;

void* make_event();
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void wait_event(void* event, void* stream);  // what is queued on the stream from now on runs after the event

void zero(void* to, size_t bytes);                                  // of new memory; waits
void zero(void* to, size_t bytes, void* stream);                    // queued
void copy(void* to, const void* from, size_t bytes, void* stream);  // any direction; queued (pageable `from` is taken
                                                                    // before the call returns)
// `count` pieces that lie `stride` bytes apart, within the device; queued
void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, void* stream);

// core/graph.h. What is queued on `stream`, and on `second` once it has waited for the first, is recorded.
void begin_recording(void* stream, void* second);
void* end_recording(void* stream, void* second);
void abandon_recording(void* stream, void* second) noexcept;
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

}  // namespace lockstep::cuda
