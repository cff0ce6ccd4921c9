#include "parallel/nccl/nccl_library.h"

#include <dlfcn.h>

#include "core/error.h"

namespace lockstep::parallel::nccl {

namespace {

#ifdef LOCKSTEP_CUDA_LIBRARY_DIR
constexpr const char* kToolkitFolder = LOCKSTEP_CUDA_LIBRARY_DIR;
#else
constexpr const char* kToolkitFolder = "";
#endif

constexpr const char* kAttempt =
    "install NCCL 2.28 or newer (libnccl2, or the folder of the Python package nvidia-nccl in LD_LIBRARY_PATH)";

void* open_library(const std::string& file) {
  std::string reason;
  for (const std::string& path : {file, std::string(kToolkitFolder) + "/" + file}) {
    if (path.starts_with("/lib")) continue;  // no toolkit
    if (void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (reason.empty()) {
      const char* const said = ::dlerror();
      reason = said != nullptr ? said : "no reason given";
    }
  }
  throw ConfigError({.what = "NCCL, which moves data between GPUs, cannot be loaded",
                     .where = file,
                     .got = reason,
                     .attempt = kAttempt});
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw ConfigError({.what = "this NCCL lacks a function", .where = name, .attempt = kAttempt});
}

}  // namespace

std::string Library::version_text() const {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Library load(const std::string& file) {
  void* const opened = open_library(file);
  Library library{};
  find(opened, "ncclGetVersion", library.get_version);
  if (library.get_version(&library.version) != kSuccess || library.version < kLeastVersion)
    throw ConfigError({.what = "this NCCL is too old",
                       .where = file,
                       .got = library.version_text(),
                       .wanted = "2.28 or newer",
                       .attempt = kAttempt});
  find(opened, "ncclGetErrorString", library.error_string);
  find(opened, "ncclGetLastError", library.last_error);
  find(opened, "ncclGetUniqueId", library.unique_id);
  find(opened, "ncclCommInitRankConfig", library.init);
  find(opened, "ncclCommGetAsyncError", library.async_error);
  find(opened, "ncclCommAbort", library.abort);
  find(opened, "ncclCommDestroy", library.destroy);
  find(opened, "ncclGroupStart", library.group_start);
  find(opened, "ncclGroupEnd", library.group_end);
  find(opened, "ncclSend", library.send);
  find(opened, "ncclRecv", library.receive);
  find(opened, "ncclAllReduce", library.all_reduce);
  return library;
}

}  // namespace lockstep::parallel::nccl
