#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace lockstep::checkpoint {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

// In the order of the reference writer: widest first.
constexpr std::array<std::pair<DType, const char*>, 7> kDTypes = {{{DType::i64, "I64"},
                                                                   {DType::f64, "F64"},
                                                                   {DType::f32, "F32"},
                                                                   {DType::i32, "I32"},
                                                                   {DType::bf16, "BF16"},
                                                                   {DType::f16, "F16"},
                                                                   {DType::u8, "U8"}}};

int dtype_place(DType dtype) {
  const auto same = [dtype](const auto& entry) { return entry.first == dtype; };
  return static_cast<int>(std::find_if(kDTypes.begin(), kDTypes.end(), same) - kDTypes.begin());
}

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, std::string where) : file_(file), where_(std::move(where)) {}

  // The entries in order of their bytes. Afterwards data() is what follows the header.
  std::vector<Entry> read(std::map<std::string, std::string>& metadata) {
    const Json header = parse_json(header_text(), where_);
    std::vector<Entry> entries;
    for (const auto& [name, value] : JsonObject(header, where_).json().items()) {
      if (name == kMetadataKey)
        read_metadata(value, metadata);
      else
        entries.push_back(read_entry(name, value));
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_layout(entries);
    return entries;
  }
  std::span<const std::byte> data() const { return data_; }

 private:
  [[noreturn]] void fail(std::string what, std::string got, std::string wanted) const {
    throw FormatError({.what = std::move(what),
                       .where = where_,
                       .got = std::move(got),
                       .wanted = std::move(wanted),
                       .attempt = "the file may be cut off or damaged: copy or download it again"});
  }

  std::string_view header_text() {
    if (file_.size() < sizeof(uint64_t))
      fail("no safetensors file", fmt::format("{} bytes", file_.size()), "a header of at least 8 bytes");
    uint64_t size = 0;
    for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(file_[static_cast<size_t>(i)]);
    const uint64_t available = file_.size() - sizeof(uint64_t);
    if (size > kMaxHeaderBytes || size > available)
      fail("impossible safetensors header length", fmt::format("{} bytes of {}", size, available),
           fmt::format("at most {}", std::min(kMaxHeaderBytes, available)));
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + sizeof(uint64_t), size);
    if (!text.starts_with('{')) fail("invalid safetensors header", "no { at its start", "a JSON object");
    data_ = file_.subspan(sizeof(uint64_t) + size);
    return text;
  }

  void read_metadata(const Json& value, std::map<std::string, std::string>& metadata) const {
    const JsonObject object(value, where_ + ": " + kMetadataKey);
    for (const auto& item : value.items()) metadata[item.key()] = object.string(item.key());
  }

  std::vector<uint64_t> read_counts(const JsonObject& entry, const char* key) const {
    const Json& list = entry.value(key);
    std::vector<uint64_t> counts;
    if (!list.is_array())
      throw FormatError({.what = "a value has the wrong type",
                         .where = entry.where() + ": " + key,
                         .got = list.dump().substr(0, 100),
                         .wanted = "a list of counts"});
    for (const Json& item : list) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int64_t>::max())
        throw FormatError({.what = "a list holds something that is no count",
                           .where = entry.where() + ": " + key,
                           .got = item.dump().substr(0, 100),
                           .wanted = "integers from 0 to 2^63 - 1"});
      counts.push_back(item.get<uint64_t>());
    }
    return counts;
  }

  Entry read_entry(const std::string& name, const Json& value) const {
    const JsonObject object(value, where_ + ": " + name);
    Entry entry{.name = name, .shape = read_counts(object, "shape")};
    const std::string dtype = object.string("dtype");
    const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return dtype == d.second; });
    if (known == kDTypes.end())
      throw FormatError({.what = "unsupported tensor dtype",
                         .where = object.where(),
                         .got = dtype,
                         .wanted = "F32, BF16, F16, F64, I64, I32 or U8"});
    entry.dtype = known->first;
    if (entry.shape.empty()) entry.shape = {1};
    if (entry.shape.size() > 4)
      throw FormatError({.what = "too many tensor dimensions",
                         .where = object.where(),
                         .got = std::to_string(entry.shape.size()),
                         .wanted = "at most 4"});
    const std::vector<uint64_t> offsets = read_counts(object, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      throw FormatError({.what = "invalid data_offsets",
                         .where = object.where(),
                         .got = object.value("data_offsets").dump().substr(0, 100),
                         .wanted = "[begin, end]"});
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check_size(entry);
    return entry;
  }

  void check_size(const Entry& entry) const {
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(entry.dtype));
    for (uint64_t dim : entry.shape)
      if (__builtin_mul_overflow(bytes, dim, &bytes))
        fail("tensor " + entry.name + " is impossibly large", fmt::format("{}", fmt::join(entry.shape, " x ")),
             "less than 2^64 bytes");
    if (bytes != entry.end - entry.begin)
      fail("tensor " + entry.name + " has a size that is not its shape",
           std::to_string(entry.end - entry.begin) + " bytes", std::to_string(bytes) + " bytes");
  }

  void check_layout(const std::vector<Entry>& entries) const {
    uint64_t place = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != place)
        fail("tensor " + entry.name + " leaves a hole or overlaps another", "begin " + std::to_string(entry.begin),
             "begin " + std::to_string(place));
      place = entry.end;
    }
    if (place != data_.size())
      fail("the tensors do not fill the file", std::to_string(data_.size()) + " bytes after the header",
           std::to_string(place) + " bytes");
  }

  std::span<const std::byte> file_;
  std::span<const std::byte> data_;
  std::string where_;
};

ConstTensor view(const Entry& entry, const std::byte* memory) {
  ConstTensor tensor;
  tensor.data = memory;
  tensor.dtype = entry.dtype;
  tensor.rank = static_cast<int>(entry.shape.size());
  std::transform(entry.shape.begin(), entry.shape.end(), tensor.shape.begin(),
                 [](uint64_t dim) { return static_cast<int64_t>(dim); });
  tensor.row_stride = tensor.row_elements();
  return tensor;
}

void append_bytes(std::string& out, const ConstTensor& tensor) {
  const auto append = [&](int64_t row, int64_t elements) {
    const int64_t size = dtype_bytes(tensor.dtype);
    out.append(static_cast<const char*>(tensor.data) + row * tensor.row_stride * size,
               static_cast<size_t>(elements * size));
  };
  if (tensor.elements() == 0) return;
  if (tensor.contiguous()) return append(0, tensor.elements());
  for (int64_t row = 0; row < tensor[0]; ++row) append(row, tensor.row_elements());
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::Path& path, Read read) : path_(path) {
  if (read == Read::mapped)
    map_ = std::make_shared<const fs::MappedFile>(path);
  else
    copy_ = fs::read_buffer(path);
  HeaderReader reader(bytes(), path.string());
  const std::vector<Entry> entries = reader.read(metadata_);
  tensors_.reserve(entries.size());
  for (const Entry& entry : entries) {
    const std::byte* memory = reader.data().data() + entry.begin;
    const fs::MappedFile* file = map_.get();
    if (entry.end > entry.begin &&
        reinterpret_cast<uintptr_t>(memory) % static_cast<uint64_t>(dtype_bytes(entry.dtype)) != 0) {
      realigned_.emplace_back(entry.end - entry.begin, Buffer::Fill::none);
      std::memcpy(realigned_.back().data(), memory, entry.end - entry.begin);
      memory = static_cast<const std::byte*>(realigned_.back().data());
      file = nullptr;
    }
    index_[entry.name] = tensors_.size();
    tensors_.push_back({entry.name, view(entry, memory), file});
  }
}

const ConstTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second].tensor;
}

std::string safetensors_bytes(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int place_a = dtype_place(a->tensor.dtype), place_b = dtype_place(b->tensor.dtype);
    return std::tie(place_a, a->name) < std::tie(place_b, b->name);
  });
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t place = 0;
  for (const NamedTensor* named : sorted) {
    const ConstTensor& tensor = named->tensor;
    if (tensor.rank == 0 || header.contains(named->name) || named->name == kMetadataKey)
      throw FormatError({.what = "a tensor cannot be written",
                         .where = named->name,
                         .got = tensor.rank == 0 ? "no dimensions" : "a name that is taken"});
    const uint64_t end = place + static_cast<uint64_t>(tensor.elements() * dtype_bytes(tensor.dtype));
    header[named->name] = {{"dtype", kDTypes[static_cast<size_t>(dtype_place(tensor.dtype))].second},
                           {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)},
                           {"data_offsets", {place, end}}};
    place = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out;
  out.reserve(8 + text.size() + place);
  for (int i = 0; i < 8; ++i) out += static_cast<char>(text.size() >> (8 * i) & 255);
  out += text;
  for (const NamedTensor* named : sorted) append_bytes(out, named->tensor);
  return out;
}

}  // namespace lockstep::checkpoint
