#include "checkpoint/torch/zip_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

constexpr uint32_t kLocalMark = 0x04034b50, kCentralMark = 0x02014b50, kEndMark = 0x06054b50;
constexpr uint32_t kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint64_t kMaxDirectoryBytes = uint64_t{64} << 20, kMaxMembers = uint64_t{1} << 20;
constexpr uint32_t kIn64Bits = 0xffffffff;  // the value stands in another field, of 64 bits
constexpr uint16_t kEncrypted = 1;

uint64_t number(std::string_view bytes, size_t place, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[place + i]);
  return value;
}

struct ZipEntry {
  std::string name;
  uint64_t header = 0, bytes = 0;  // where its local header lies
};

class ZipReader {
 public:
  explicit ZipReader(const ByteSource& file) : file_(file), where_(file.where) {}

  std::map<std::string, ZipMember> read() {
    find_directory();
    std::map<std::string, ZipMember> members;
    uint64_t free = 0;  // where the members before end
    std::vector<ZipEntry> entries = read_entries();
    std::ranges::sort(entries, {}, &ZipEntry::header);
    for (const ZipEntry& entry : entries) {
      if (entry.header < free)
        damaged_torch_file(where_ + ": " + entry.name, "members of a ZIP archive overlap", entry.name);
      const ZipMember member = locate(entry);
      free = member.place + member.bytes;
      if (!members.emplace(entry.name, member).second)
        damaged_torch_file(where_, "a ZIP archive has two members of one name", entry.name);
    }
    return members;
  }

 private:
  std::string bytes_at(uint64_t place, uint64_t count, const char* what) const {
    if (place > file_.size || count > file_.size - place)
      damaged_torch_file(where_, fmt::format("{} of a ZIP archive lies outside the file", what),
                         fmt::format("bytes {} to {}", place, place + count), fmt::format("at most {}", file_.size));
    return file_.text(place, count);
  }

  void find_directory() {
    constexpr uint64_t kLongestComment = 0xffff;
    const uint64_t tail_bytes = std::min<uint64_t>(file_.size, kEndBytes + kLongestComment);
    const uint64_t tail_place = file_.size - tail_bytes;
    const std::string tail = bytes_at(tail_place, tail_bytes, "the end");
    for (size_t i = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; i-- > 0;) {
      if (number(tail, i, 4) != kEndMark || i + kEndBytes + number(tail, i + 20, 2) != tail.size()) continue;
      count_ = number(tail, i + 10, 2), bytes_ = number(tail, i + 12, 4), place_ = number(tail, i + 16, 4);
      const uint64_t end = tail_place + i;
      if (end >= kLocator64Bytes) read_end64(end);
      if (count_ > kMaxMembers || bytes_ > kMaxDirectoryBytes)
        damaged_torch_file(where_, "the directory of a ZIP archive is impossibly large",
                           fmt::format("{} members in {} bytes", count_, bytes_));
      return;
    }
    damaged_torch_file(where_, "a ZIP archive has no directory", "no end record");
  }

  void read_end64(uint64_t end) {
    const std::string locator = bytes_at(end - kLocator64Bytes, kLocator64Bytes, "the locator");
    if (number(locator, 0, 4) != kLocator64Mark) return;
    const std::string record = bytes_at(number(locator, 8, 8), kEnd64Bytes, "the end record");
    if (number(record, 0, 4) != kEnd64Mark) damaged_torch_file(where_, "a damaged ZIP archive", "no 64-bit end record");
    count_ = number(record, 32, 8), bytes_ = number(record, 40, 8), place_ = number(record, 48, 8);
  }

  std::vector<ZipEntry> read_entries() const {
    const std::string directory = bytes_at(place_, bytes_, "the directory");
    std::vector<ZipEntry> entries;
    size_t at = 0;
    for (uint64_t i = 0; i < count_; ++i) {
      if (directory.size() - at < kCentralBytes || number(directory, at, 4) != kCentralMark)
        damaged_torch_file(where_, "a damaged directory of a ZIP archive", fmt::format("member {}", i));
      const size_t name_bytes = number(directory, at + 28, 2), extra_bytes = number(directory, at + 30, 2);
      const size_t whole = kCentralBytes + name_bytes + extra_bytes + number(directory, at + 32, 2);
      if (directory.size() - at < whole)
        damaged_torch_file(where_, "a damaged directory of a ZIP archive", fmt::format("member {}", i));
      entries.push_back(read_entry(std::string_view(directory).substr(at, whole), name_bytes, extra_bytes));
      at += whole;
    }
    return entries;
  }

  ZipEntry read_entry(std::string_view record, size_t name_bytes, size_t extra_bytes) const {
    ZipEntry entry{.name = std::string(record.substr(kCentralBytes, name_bytes))};
    const std::string where = where_ + ": " + entry.name;
    check_name(entry.name);
    if ((number(record, 8, 2) & kEncrypted) != 0)
      damaged_torch_file(where, "a member of a ZIP archive is encrypted", entry.name);
    if (const uint64_t method = number(record, 10, 2); method != 0)
      damaged_torch_file(where, "a member of a ZIP archive is compressed", fmt::format("method {}", method),
                         "0 (stored), as torch.save writes it");
    uint64_t packed = number(record, 20, 4);
    entry.bytes = number(record, 24, 4), entry.header = number(record, 42, 4);
    read_extra64(record.substr(kCentralBytes + name_bytes, extra_bytes), {&entry.bytes, &packed, &entry.header}, where);
    if (packed != entry.bytes)
      damaged_torch_file(where, "sizes of a stored member differ", fmt::format("{} and {}", packed, entry.bytes));
    return entry;
  }

  // The 64-bit values of those fields that have no room for them, in this order.
  void read_extra64(std::string_view extra, std::initializer_list<uint64_t*> fields, const std::string& where) const {
    constexpr uint64_t kTag = 1;
    std::string_view values;
    for (size_t at = 0; at + 4 <= extra.size();) {
      const size_t bytes = number(extra, at + 2, 2);
      if (bytes > extra.size() - at - 4)
        damaged_torch_file(where, "a damaged field of a ZIP archive", fmt::format("{} bytes", bytes));
      if (number(extra, at, 2) == kTag) values = extra.substr(at + 4, bytes);
      at += 4 + bytes;
    }
    for (uint64_t* field : fields) {
      if (*field != kIn64Bits) continue;
      if (values.size() < 8) damaged_torch_file(where, "a size is missing in a ZIP archive", "no 64-bit field");
      *field = number(values, 0, 8);
      values.remove_prefix(8);
    }
  }

  void check_name(const std::string& name) const {
    const bool leads_out = name.starts_with('/') || name == ".." || name.starts_with("../") ||
                           name.find("/../") != std::string::npos || name.ends_with("/..");
    if (name.empty() || leads_out || name.find_first_of(std::string_view("\\\0:", 3)) != std::string::npos)
      damaged_torch_file(where_, "a member of a ZIP archive has a name that is no place in it", name);
  }

  ZipMember locate(const ZipEntry& entry) const {
    const std::string where = where_ + ": " + entry.name;
    const std::string header = bytes_at(entry.header, kLocalBytes, "a header");
    const uint64_t name_bytes = number(header, 26, 2), extra_bytes = number(header, 28, 2);
    if (number(header, 0, 4) != kLocalMark || name_bytes != entry.name.size() ||
        bytes_at(entry.header + kLocalBytes, name_bytes, "a name") != entry.name)
      damaged_torch_file(where, "the directory of a ZIP archive contradicts a member's header", entry.name);
    const ZipMember member{.place = entry.header + kLocalBytes + name_bytes + extra_bytes, .bytes = entry.bytes};
    if (member.place > place_ || member.bytes > place_ - member.place)
      damaged_torch_file(where, "a member of a ZIP archive is larger than the file",
                         fmt::format("{} bytes", member.bytes),
                         fmt::format("at most {}", place_ - std::min(place_, member.place)));
    return member;
  }

  const ByteSource& file_;
  const std::string& where_;
  uint64_t count_ = 0, bytes_ = 0, place_ = 0;  // of the directory
};

}  // namespace

void damaged_torch_file(const std::string& where, const std::string& what, const std::string& got,
                        const std::string& wanted) {
  throw FormatError({.what = what,
                     .where = where,
                     .got = got,
                     .wanted = wanted,
                     .attempt = "the file may be cut off or damaged: copy or download it again"});
}

std::string ByteSource::text(uint64_t place, uint64_t count) const {
  std::string bytes(count, '\0');
  read(bytes.data(), place, count);
  return bytes;
}

std::map<std::string, ZipMember> read_zip_directory(const ByteSource& file) {
  return ZipReader(file).read();
}

}  // namespace lockstep::checkpoint
