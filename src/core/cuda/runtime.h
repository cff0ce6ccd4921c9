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
// when there is none. release() waits for all work queued on the GPU.
void* allocate(size_t bytes);
void release(void* memory);

void* make_stream();
void destroy_stream(void* stream);
void synchronize(void* stream);

void* make_event();
void destroy_event(void* event);
void record_event(void* event, void* stream);
void wait_event(void* event, void* stream);  // what is queued on the stream from now on runs after the event

void zero(void* to, size_t bytes, void* stream);                    // nullptr: and wait
void copy(void* to, const void* from, size_t bytes, void* stream);  // any direction; queued (pageable `from` is taken
                                                                    // before the call returns)
// `count` pieces that lie `stride` bytes apart, within the device; queued
void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, void* stream);

// core/graph.h
void begin_recording(void* stream);
void* end_recording(void* stream);
void abandon_recording(void* stream);
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph);

}  // namespace lockstep::cuda
