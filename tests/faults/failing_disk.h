// A disk that fails on demand. The test program is linked with --wrap for the calls below, so that everything that our
// code does with them comes by here; what libraries do is not touched.
#pragma once

#include <string>
#include <vector>

namespace lockstep::testing {

// The calls that may fail.
std::vector<std::string> disk_calls();

// While one lives, the calls of this name fail from number `first` on (0: the first one), with this error number;
// `forever`: not only that one. One at a time. Any thread's calls are counted.
class FailingDisk {
 public:
  FailingDisk(const std::string& call, int first, int error, bool forever = false);
  ~FailingDisk();
  int calls() const;  // of that name, until now
};

// While one lives, a write takes at most so many bytes.
class ShortWrites {
 public:
  explicit ShortWrites(int bytes);
  ~ShortWrites();
};

// While one lives, fsync takes so much longer.
class SlowDisk {
 public:
  explicit SlowDisk(int ms);
  ~SlowDisk();
};

}  // namespace lockstep::testing
