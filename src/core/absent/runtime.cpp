#include "core/cuda/runtime.h"

#include "core/error.h"

namespace lockstep::cuda {

namespace {
[[noreturn]] void absent() {
  throw DeviceError(
      {.what = "this lockstep was built without CUDA", .attempt = "StreamOptions::device cpu, or build with nvcc"});
}
}  // namespace

std::string unusable() {
  return "this lockstep was built without CUDA";
}
DeviceInfo info() {
  absent();
}
void* allocate(size_t) {
  absent();
}
void release(void*) noexcept {}
void* make_stream(bool) {
  absent();
}
void destroy_stream(void*) noexcept {}
void synchronize(void*) {
  absent();
}
bool recover(void*, void*) noexcept {
  return true;
}
void* make_event() {
  absent();
}
void destroy_event(void*) noexcept {}
void record_event(void*, void*) {
  absent();
}
void wait_event(void*, void*) {
  absent();
}
void zero(void*, size_t) {
  absent();
}
void zero(void*, size_t, void*) {
  absent();
}
void copy(void*, const void*, size_t, void*) {
  absent();
}
void copy_pieces(void*, const void*, size_t, size_t, size_t, void*) {
  absent();
}

void begin_recording(void*, void*) {
  absent();
}
void* end_recording(void*, void*) {
  absent();
}
void abandon_recording(void*, void*) noexcept {}
void launch_graph(void*, void*) {
  absent();
}
void destroy_graph(void*) noexcept {}

}  // namespace lockstep::cuda
