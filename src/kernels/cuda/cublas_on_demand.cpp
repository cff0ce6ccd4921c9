// cuBLASLt's functions, forwarded to the shared library at their first call. Linked normally, the library (half a
// gigabyte) would be mapped and relocated at the start of every process, even one that never uses a GPU: 0.1 s each.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "core/error.h"

namespace {

constexpr const char* kToolkitFolder = LOCKSTEP_CUDA_LIBRARY_DIR;

void* open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // The system's search path first; then where the build found the toolkit.
  for (const std::string& path : {name, std::string(kToolkitFolder) + "/" + name})
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* reason = dlerror();
  throw lockstep::DeviceError({.what = "cuBLASLt cannot be loaded",
                               .where = name,
                               .got = reason ? reason : "no reason given",
                               .attempt = "install the CUDA toolkit's cuBLAS, or name its folder in LD_LIBRARY_PATH"});
}

void* address_of(const char* function) {
  static void* const library = open_library();
  if (void* address = dlsym(library, function)) return address;
  throw lockstep::DeviceError({.what = "cuBLASLt lacks a function", .got = function});
}

}  // namespace

#define FORWARD(result, name, parameters, arguments)                                   \
  extern "C" result name parameters {                                                  \
    static const auto function = reinterpret_cast<decltype(&name)>(address_of(#name)); \
    return function arguments;                                                         \
  }

FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
         const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
         const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream),
        (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
         workspace_bytes, stream))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
         cublasLtMatmulHeuristicResult_t results[], int* found),
        (handle, desc, a, b, c, d, preference, wanted, results, found))
FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale), (desc, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
FORWARD(cublasStatus_t, cublasLtMatmulDescInit_internal,
        (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
        (desc, size, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
        (desc, attribute, value, bytes))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride),
        (layout, type, rows, cols, stride))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutInit_internal,
        (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride),
        (layout, size, type, rows, cols, stride))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceInit_internal, (cublasLtMatmulPreference_t preference, size_t size),
        (preference, size))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
         size_t bytes),
        (preference, attribute, value, bytes))
