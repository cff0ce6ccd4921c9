#include "core/cuda/runtime.h"

#include "core/absent/without_cuda.h"

namespace lockstep::cuda {

std::string unusable() {
  return kWithoutCuda;
}
DeviceInfo info() {
  refuse_without_cuda();
}
void* allocate(size_t) {
  refuse_without_cuda();
}
void release(void*) noexcept {}
void* make_stream(bool) {
  refuse_without_cuda();
}
void destroy_stream(void*) noexcept {}
void synchronize(void*) {
  refuse_without_cuda();
}
bool recover(void*, void*) noexcept {
  return true;
}
void* make_event() {
  refuse_without_cuda();
}
void destroy_event(void*) noexcept {}
void record_event(void*, void*) {
  refuse_without_cuda();
}
void wait_event(void*, void*) {
  refuse_without_cuda();
}
void zero(void*, size_t) {
  refuse_without_cuda();
}
void zero(void*, size_t, void*) {
  refuse_without_cuda();
}
void copy(void*, const void*, size_t, void*) {
  refuse_without_cuda();
}
void copy_pieces(void*, const void*, size_t, size_t, size_t, void*) {
  refuse_without_cuda();
}

void begin_recording(void*, void*) {
  refuse_without_cuda();
}
void* end_recording(void*, void*) {
  refuse_without_cuda();
}
void abandon_recording(void*, void*) noexcept {}
void launch_graph(void*, void*) {
  refuse_without_cuda();
}
void destroy_graph(void*) noexcept {}

bool lock_pages(void*, size_t) noexcept {
  return false;
}
void unlock_pages(void*) noexcept {}

}  // namespace lockstep::cuda
