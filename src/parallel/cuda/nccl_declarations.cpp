// nccl_library.h says of NCCL what its header says.
#if __has_include(<nccl.h>)
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "parallel/nccl/nccl_library.h"

namespace lockstep::parallel::nccl {

static_assert(kSuccess == ncclSuccess && kRemoteError == ncclRemoteError && kInProgress == ncclInProgress);
static_assert(kInt8 == ncclInt8 && kFloat32 == ncclFloat32 && kSum == ncclSum);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
static_assert(sizeof(Config) == sizeof(ncclConfig_t));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(Config, nvlink_centric_sched) == offsetof(ncclConfig_t, nvlinkCentricSched));
#endif

}  // namespace lockstep::parallel::nccl
#endif
