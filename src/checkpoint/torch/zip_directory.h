// The files inside a ZIP archive as torch.save writes it: stored, never compressed. Internal to checkpoint; see
// torch/torch_file.h. Source: PKWARE's APPNOTE.TXT.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace lockstep::checkpoint {

// FormatError of a file of torch.save, saying that it may be cut off or damaged.
[[noreturn]] void damaged_torch_file(const std::string& where, const std::string& what, const std::string& got,
                                     const std::string& wanted = {});

// A file that is read at any place, or a copy of it in memory.
struct ByteSource {
  std::string where;
  uint64_t size = 0;
  std::function<void(void* to, uint64_t place, uint64_t count)> read;  // what lies inside

  std::string text(uint64_t place, uint64_t count) const;  // likewise
};

struct ZipMember {
  uint64_t place = 0;  // of its bytes in the archive
  uint64_t bytes = 0;
};

// Every member by its name. The bytes of members lie inside the file and share none. FormatError naming the file and
// the member: what is compressed or encrypted (so no member is larger than it looks), sizes that contradict one another
// or the file, a name that is there twice or that leads out of a directory. Checksums are not compared: torch does
// neither, and need not write them.
std::map<std::string, ZipMember> read_zip_directory(const ByteSource& file);

}  // namespace lockstep::checkpoint
