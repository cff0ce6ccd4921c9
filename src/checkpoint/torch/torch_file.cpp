#include "checkpoint/torch/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/torch/torch_contents.h"
#include "checkpoint/torch/zip_directory.h"
#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

constexpr std::string_view kPickleMember = "/data.pkl";

// The contents and where the bytes of every storage lie.
struct OpenTorchFile {
  explicit OpenTorchFile(ByteSource source) : file(std::move(source)), where(file.where) {
    const std::string mark = read(0, std::min<uint64_t>(4, file.size));
    if (mark == "PK\3\4")
      open_zip();
    else if (mark.starts_with('\x80'))
      open_row_of_pickles();
    else
      damaged_torch_file(where, "no file of torch.save", fmt::format("{} bytes of something else", file.size),
                         "a ZIP archive or a pickle");
  }

  std::string read(uint64_t place, uint64_t count) const { return file.text(place, count); }

  Pickle pickle_of(std::string_view bytes, const std::string& name) const {
    return Pickle(bytes, torch_globals(), name);
  }

  void open_zip() {
    const std::map<std::string, ZipMember> members = read_zip_directory(file);
    const auto is_pickle = [](const auto& member) { return member.first.ends_with(kPickleMember); };
    const auto found = std::ranges::find_if(members, is_pickle);
    if (found == members.end() || std::ranges::count_if(members, is_pickle) != 1)
      damaged_torch_file(where, "no file of torch.save", "a ZIP archive without its pickle", "one member data.pkl");
    const auto& [name, pickle] = *found;
    const std::string folder = name.substr(0, name.size() - kPickleMember.size());
    if (const auto order = members.find(folder + "/byteorder"); order != members.end())
      if (order->second.bytes != 6 || read(order->second.place, 6) != "little")
        damaged_torch_file(where, "a file of another byte order", "byteorder is not little", "little");
    if (pickle.bytes > Pickle::kMaxBytes)
      damaged_torch_file(where, "a pickle is impossibly large", fmt::format("{} bytes", pickle.bytes),
                         fmt::format("at most {}", Pickle::kMaxBytes));
    contents = torch_contents(pickle_of(read(pickle.place, pickle.bytes), where + ": " + name), where);
    for (const auto& [key, storage] : contents.storages) {
      const auto member = members.find(folder + "/data/" + key);
      if (member == members.end()) damaged_torch_file(where, "a storage is missing in a file of torch.save", key);
      place(key, storage, member->second.place, member->second.bytes);
    }
  }

  // A storage that the file has `bytes` for.
  void place(const std::string& key, const TorchStorage& storage, uint64_t at, uint64_t bytes) {
    uint64_t wanted = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(storage.elements),
                               static_cast<uint64_t>(dtype_bytes(storage.dtype)), &wanted) ||
        wanted != bytes)
      damaged_torch_file(where, "a storage has another size than its tensors say",
                         fmt::format("{} bytes of storage {}", bytes, key),
                         fmt::format("{} elements of {}", storage.elements, dtype_name(storage.dtype)));
    places[key] = at;
  }

  // Magic number, protocol, system, the dictionary, the keys of the storages; then each storage behind its size.
  void open_row_of_pickles() {
    constexpr int64_t kProtocol = 1001;
    const std::string_view magic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
    const uint64_t head_bytes = std::min<uint64_t>(file.size, Pickle::kMaxBytes);
    const std::string head = read(0, head_bytes);
    std::string_view rest = head;
    const auto next = [&](const char* name) {
      Pickle pickle = pickle_of(rest, where + ": " + name);
      rest.remove_prefix(pickle.bytes());
      return pickle;
    };
    if (next("magic number").root().text != magic)
      damaged_torch_file(where, "no file of torch.save", "another magic number");
    if (next("protocol").root().integer != kProtocol)
      damaged_torch_file(where, "a file of torch.save of another protocol", "another number",
                         std::to_string(kProtocol));
    check_system(next("system"));
    const Pickle dictionary = next("dictionary");
    contents = torch_contents(dictionary, where);
    const Pickle keys = next("keys");
    if (keys.root().kind != PickleValue::Kind::list)
      damaged_torch_file(where, "a damaged file of torch.save", "no list of keys");
    place_storages(keys, head.size() - rest.size());
  }

  void check_system(const Pickle& system) const {
    const std::vector<uint32_t>& items = system.root().items;
    for (size_t i = 0; system.root().kind == PickleValue::Kind::dict && i + 1 < items.size(); i += 2)
      if (system.at(items[i]).text == "little_endian" && system.at(items[i + 1]).integer == 1) return;
    damaged_torch_file(where, "a file of another byte order", "little_endian is not true", "true");
  }

  void place_storages(const Pickle& keys, uint64_t at) {
    for (const uint32_t item : keys.root().items) {
      const std::string& key = keys.at(item).text;
      const auto storage = contents.storages.find(key);
      if (storage == contents.storages.end() || places.contains(key))
        damaged_torch_file(where, "a storage that no tensor has, or that is there twice", key);
      if (file.size - at < sizeof(uint64_t)) damaged_torch_file(where, "a storage is cut off", key);
      uint64_t elements = 0;
      file.read(&elements, at, sizeof(elements));
      at += sizeof(elements);
      const uint64_t each = static_cast<uint64_t>(dtype_bytes(storage->second.dtype));
      if (elements > (file.size - at) / each) damaged_torch_file(where, "a storage is cut off", key);
      place(key, storage->second, at, elements * each);
      at += elements * each;
    }
    if (places.size() != contents.storages.size())
      damaged_torch_file(where, "a storage is missing", "fewer keys than storages");
    if (at != file.size)
      damaged_torch_file(where, "the storages do not fill the file", fmt::format("{} bytes", file.size),
                         fmt::format("{}", at));
  }

  const ByteSource file;
  const std::string where;
  TorchContents contents;
  std::map<std::string, uint64_t> places;
};

ConstTensor tensor_of(const TorchView& view, const void* data) {
  ConstTensor tensor;
  tensor.data = data;
  tensor.dtype = view.dtype;
  tensor.rank = view.rank;
  tensor.shape = view.shape;
  tensor.row_stride = tensor.row_elements();
  return tensor;
}

// The elements of a view one behind the other.
void gather(std::byte* out, const TorchView& view, const std::byte* storage) {
  const auto bytes = static_cast<size_t>(dtype_bytes(view.dtype));
  std::array<int64_t, 4> at{};
  for (int64_t i = 0, count = view.elements(); i < count; ++i, out += bytes) {
    int64_t place = view.offset;
    for (size_t d = 0; d < at.size(); ++d) place += at[d] * view.strides[d];
    std::memcpy(out, storage + static_cast<size_t>(place) * bytes, bytes);
    for (int d = view.rank - 1; d >= 0; --d) {
      if (++at[static_cast<size_t>(d)] < view.shape[static_cast<size_t>(d)]) break;
      at[static_cast<size_t>(d)] = 0;
    }
  }
}

// The elements of a view as a tensor in `result.file`, or in a copy where they are scattered or begin at an address
// that their type cannot have.
ConstTensor place_view(const TorchView& view, uint64_t storage_place, TorchTensors& result) {
  const auto each = static_cast<size_t>(dtype_bytes(view.dtype));
  const auto* storage = static_cast<const std::byte*>(result.file.data()) + storage_place;
  const std::byte* data = storage + static_cast<size_t>(view.offset) * each;
  if (view.elements() == 0) return tensor_of(view, nullptr);
  if (view.contiguous() && reinterpret_cast<uintptr_t>(data) % each == 0) return tensor_of(view, data);
  const Buffer& copy = result.copies.emplace_back(static_cast<size_t>(view.elements()) * each, Buffer::Fill::none);
  gather(static_cast<std::byte*>(copy.data()), view, storage);
  return tensor_of(view, copy.data());
}

}  // namespace

NamedTensors torch_file_header(const fs::Path& path, const fs::ReadRoot& root) {
  const fs::File file(path, root);
  const OpenTorchFile open({.where = path.string(),
                            .size = file.size(),
                            .read = [&](void* to, uint64_t place, uint64_t count) { file.read(to, place, count); }});
  NamedTensors tensors;
  for (const TorchView& view : open.contents.views) tensors.push_back({view.name, tensor_of(view, nullptr)});
  return tensors;
}

TorchTensors read_torch_file(const fs::Path& path, const fs::ReadRoot& root) {
  constexpr uint64_t kMaxCopies = 16;  // of a storage, by tensors that share it: q, k and v may share one
  TorchTensors result{.file = fs::read_buffer(path, root), .copies = {}, .tensors = {}};
  const auto* bytes = static_cast<const std::byte*>(result.file.data());
  const OpenTorchFile open(
      {.where = path.string(), .size = result.file.bytes(), .read = [bytes](void* to, uint64_t place, uint64_t count) {
         std::copy_n(bytes + place, count, static_cast<std::byte*>(to));
       }});
  uint64_t total = 0;
  for (const TorchView& view : open.contents.views) {
    total += static_cast<uint64_t>(view.elements() * dtype_bytes(view.dtype));
    if (total / kMaxCopies > open.file.size)
      damaged_torch_file(open.where, "tensors are many times as large as the file",
                         fmt::format("more than {} bytes", total),
                         fmt::format("at most {} times {}", kMaxCopies, open.file.size));
  }
  for (const TorchView& view : open.contents.views)
    result.tensors.push_back({view.name, place_view(view, open.places.at(view.storage), result)});
  return result;
}

}  // namespace lockstep::checkpoint
