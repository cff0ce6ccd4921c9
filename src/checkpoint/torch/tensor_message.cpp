#include "checkpoint/torch/tensor_message.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/torch/pickle.h"
#include "checkpoint/torch/torch_contents.h"

namespace lockstep::checkpoint {

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2", kStorage = "torch.storage._load_from_bytes";
constexpr std::string_view kSize = "torch.Size", kParameterCall = "torch._utils._rebuild_parameter";
constexpr std::string_view kBucketEntry = "sglang.srt.weight_sync.tensor_bucket.FlattenedTensorMetadata";

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"torch.float32", DType::f32},          {"torch.float16", DType::f16},
    {"torch.bfloat16", DType::bf16},        {"torch.uint8", DType::u8},
    {"torch.FloatStorage", DType::f32},     {"torch.HalfStorage", DType::f16},
    {"torch.BFloat16Storage", DType::bf16}, {"torch.ByteStorage", DType::u8}};

std::vector<std::string_view> globals() {
  std::vector<std::string_view> names = {
      "collections.OrderedDict", kTensor, kStorage, kSize, kParameterCall, kBucketEntry};
  for (const auto& [name, type] : kTypes) names.push_back(name);
  return names;
}

// What torch.multiprocessing and SGLang's CUDA path put in place of bytes.
bool is_handle(std::string_view name) {
  for (const std::string_view begin : {"torch.multiprocessing.", "multiprocessing.", "torch.cuda.", "builtins.getattr",
                                       "sglang.srt.model_executor.model_runner."})
    if (name.starts_with(begin)) return true;
  return false;
}

struct Stored {
  char* data = nullptr;  // in the message
  DType dtype = DType::f32;
  int64_t elements = 0;
};

class MessageReader {
 public:
  MessageReader(std::span<char> message, const std::string& where)
      : message_(message), where_(where), pickle_(parsed({message.data(), message.size()})) {}

  NamedTensors read() {
    const PickleValue& root = pickle_.root();
    if (root.kind == Kind::dict) {
      if (const PickleValue* flat = entry(root, "flattened_tensor")) return bucket(*flat, entry(root, "metadata"));
      for (size_t i = 0; i + 1 < root.items.size(); i += 2)
        add(pickle_.at(root.items[i]), pickle_.at(root.items[i + 1]));
    } else if (root.kind == Kind::list || root.kind == Kind::tuple) {
      for (const uint32_t item : root.items) {
        const PickleValue& pair = pickle_.at(item);
        if (pair.kind != Kind::tuple || pair.items.size() != 2) refuse("an item that is no pair");
        add(pickle_.at(pair.items[0]), pickle_.at(pair.items[1]));
      }
    } else {
      refuse("a value of another kind");
    }
    return std::move(tensors_);
  }

 private:
  Pickle parsed(std::string_view bytes) const {
    try {
      return Pickle(bytes, globals(), where_, {.messages = true});
    } catch (const FormatError& error) {
      if (!is_handle(error.fault().got)) throw;
      throw TensorHandles({.what = "the tensors are handles of another process' memory, which this server cannot open",
                           .where = where_,
                           .got = error.fault().got,
                           .wanted = "the tensors' bytes",
                           .attempt = "pickle.dumps({name: tensor.cpu()}), or files"});
    }
  }

  [[noreturn]] void refuse(const std::string& got, const std::string& wanted = "names and tensors") const {
    throw FormatError({.what = "a message holds something else than tensors",
                       .where = name_.empty() ? where_ : where_ + ": " + name_,
                       .got = got,
                       .wanted = wanted});
  }

  const PickleValue* entry(const PickleValue& dict, std::string_view key) const {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2)
      if (const PickleValue& name = pickle_.at(dict.items[i]); name.kind == Kind::text && name.text == key)
        return &pickle_.at(dict.items[i + 1]);
    return nullptr;
  }

  void add(const PickleValue& name, const PickleValue& value) {
    if (name.kind != Kind::text) refuse("a name that is no text");
    name_ = name.text;
    keep({.name = name_, .tensor = tensor(value)});
  }
  void keep(NamedTensor tensor) {
    if (!names_.insert(tensor.name).second) refuse("a name that is there twice");
    tensors_.push_back(std::move(tensor));
  }

  // [shape] of bytes that are there in full.
  ConstTensor shaped(const Stored& stored, int64_t offset, std::vector<int64_t> shape) const {
    int64_t elements = 1;
    for (const int64_t size : shape)
      if (__builtin_mul_overflow(elements, size, &elements)) refuse("an impossible shape");
    if (shape.empty()) shape = {1};
    if (shape.size() > 4) refuse("a tensor of more than four dimensions");
    if (offset > stored.elements || elements > stored.elements - offset) refuse("a tensor beyond its bytes");
    ConstTensor tensor;
    tensor.dtype = stored.dtype;
    tensor.rank = static_cast<int>(shape.size());
    std::ranges::copy(shape, tensor.shape.begin());
    tensor.data = stored.data + offset * dtype_bytes(stored.dtype);
    tensor.row_stride = tensor.row_elements();
    return tensor;
  }

  ConstTensor tensor(const PickleValue& value) {
    if (value.kind != Kind::call) refuse("a value that is no tensor");
    const std::vector<uint32_t>& arguments = pickle_.at(value.items[0]).items;
    if (value.text == kParameterCall && arguments.size() == 3 && pickle_.at(arguments[0]).text == kTensor)
      return tensor(pickle_.at(arguments[0]));
    // storage, offset, shape, strides, requires_grad, hooks
    if (value.text != kTensor || arguments.size() < 6) refuse("a tensor of another kind", std::string(kTensor));
    const std::vector<int64_t> shape = counts(pickle_.at(arguments[2])), strides = counts(pickle_.at(arguments[3]));
    if (shape.size() != strides.size()) refuse("a shape and strides of different lengths");
    int64_t expected = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != expected) refuse("a tensor that is not contiguous", "tensor.contiguous()");
      if (__builtin_mul_overflow(expected, std::max<int64_t>(1, shape[i]), &expected)) refuse("an impossible shape");
    }
    return shaped(storage(pickle_.at(arguments[0])), count(pickle_.at(arguments[1])), shape);
  }

  int64_t count(const PickleValue& value) const {
    if (value.kind != Kind::integer || value.integer < 0) refuse("a number that is no count");
    return value.integer;
  }
  std::vector<int64_t> counts(const PickleValue& value) const {
    if (value.kind == Kind::call && value.text == kSize && pickle_.at(value.items[0]).items.size() == 1)
      return counts(pickle_.at(pickle_.at(value.items[0]).items[0]));
    if (value.kind != Kind::tuple && value.kind != Kind::list) refuse("a shape that is no tuple");
    std::vector<int64_t> numbers;
    for (const uint32_t item : value.items) numbers.push_back(count(pickle_.at(item)));
    return numbers;
  }

  DType type(std::string_view name) const {
    const auto* known = std::ranges::find(kTypes, name, [](const auto& entry) { return entry.first; });
    if (known == std::end(kTypes)) refuse("another type: " + std::string(name), "f32, bf16 or f16");
    return known->second;
  }

  // Bytes of a storage, as torch.save wrote it before PyTorch 1.6: magic number, protocol, system, the storage, its
  // key, the number of its elements, its elements.
  const Stored& storage(const PickleValue& value) {
    if (value.kind != Kind::call || value.text != kStorage || pickle_.at(value.items[0]).items.size() != 1)
      refuse("a tensor without its bytes", std::string(kStorage));
    const PickleValue& bytes = pickle_.at(pickle_.at(value.items[0]).items[0]);
    if (bytes.kind != Kind::bytes) refuse("a storage that is not bytes");
    const auto [found, fresh] = storages_.try_emplace(bytes.integer);
    if (fresh)
      found->second = opened(message_.subspan(static_cast<size_t>(bytes.integer), static_cast<size_t>(bytes.count)));
    return found->second;
  }

  Stored opened(std::span<char> bytes) const {
    std::string_view rest(bytes.data(), bytes.size());
    const auto next = [&] {
      Pickle pickle(rest, torch_globals(), where_);
      rest.remove_prefix(pickle.bytes());
      return pickle;
    };
    if (!rest.starts_with('\x80')) refuse("a storage in another format", "torch.save without a ZIP archive");
    next(), next();
    const Pickle system = next();
    bool little = false;
    for (size_t i = 0; system.root().kind == Kind::dict && i + 1 < system.root().items.size(); i += 2)
      little |= system.at(system.root().items[i]).text == "little_endian" &&
                system.at(system.root().items[i + 1]).integer == 1;
    if (!little) refuse("another byte order", "little endian");
    const Pickle object = next();
    next();
    if (object.root().kind != Kind::persistent) refuse("bytes that are no storage");
    // 'storage', type, key, location, elements
    const std::vector<uint32_t>& id = object.at(object.root().items[0]).items;
    if (id.size() < 5) refuse("a damaged storage");
    Stored stored{.dtype = type(object.at(id[1]).text), .elements = count(object.at(id[4]))};
    int64_t elements = 0;
    if (rest.size() < sizeof(elements)) refuse("a storage that is cut off");
    std::memcpy(&elements, rest.data(), sizeof(elements));
    rest.remove_prefix(sizeof(elements));
    const auto each = static_cast<size_t>(dtype_bytes(stored.dtype));
    if (elements != stored.elements || rest.size() / each < static_cast<size_t>(elements) ||
        rest.size() != static_cast<size_t>(elements) * each)
      refuse("a storage of another size than it says");
    stored.data = aligned(bytes.data() + (bytes.size() - rest.size()), rest.size(), kAlignment);
    return stored;
  }

  // What stands before the bytes has been read: the number of elements at least.
  static constexpr size_t kAlignment = sizeof(int64_t);
  static char* aligned(char* data, size_t bytes, size_t each) {
    char* const to = data - reinterpret_cast<uintptr_t>(data) % each;
    if (to != data) std::memmove(to, data, bytes);
    return to;
  }

  NamedTensors bucket(const PickleValue& flat, const PickleValue* metadata) {
    const ConstTensor all = tensor(flat);
    if (all.dtype != DType::u8) refuse("a bucket that is not of bytes", "uint8");
    if (!metadata || metadata->kind != Kind::list) refuse("a bucket without a list of metadata");
    const int64_t size = all.elements();
    int64_t behind = 0;  // of the tensors so far: they come in order, so that moving one touches no other
    for (const uint32_t item : metadata->items) {
      const PickleValue& object = pickle_.at(item);
      if (object.kind != Kind::call || object.text != kBucketEntry || object.items.size() != 2 ||
          pickle_.at(object.items[1]).kind != Kind::dict)
        refuse("metadata of another kind", std::string(kBucketEntry));
      const PickleValue& state = pickle_.at(object.items[1]);
      const auto field = [&](std::string_view key) -> const PickleValue& {
        const PickleValue* const value = entry(state, key);
        if (!value) refuse("metadata without " + std::string(key));
        return *value;
      };
      if (field("name").kind != Kind::text) refuse("a name that is no text");
      name_ = field("name").text;
      const int64_t begin = count(field("start_idx")), end = count(field("end_idx"));
      if (begin < behind || end < begin || end > size) refuse("a place outside the bucket");
      behind = end;
      Stored stored{.dtype = type(field("dtype").text)};
      const auto each = static_cast<size_t>(dtype_bytes(stored.dtype));
      stored.elements = (end - begin) / static_cast<int64_t>(each);
      char* const data = const_cast<char*>(static_cast<const char*>(all.data)) + begin;
      // Down to where its type may begin: at most each - 1 bytes, which are the gap in front of it or nobody's.
      const bool moves = reinterpret_cast<uintptr_t>(data) % each != 0;
      if (moves && begin - last_end_ < static_cast<int64_t>(each)) refuse("a tensor at an odd place of the bucket");
      stored.data = aligned(data, static_cast<size_t>(end - begin), each);
      last_end_ = end;
      ConstTensor tensor = shaped(stored, 0, counts(field("shape")));
      if (tensor.elements() != stored.elements || (end - begin) % static_cast<int64_t>(each) != 0)
        refuse("a shape that is not its bytes'");
      keep({.name = name_, .tensor = tensor});
    }
    return std::move(tensors_);
  }

  const std::span<char> message_;
  const std::string& where_;
  const Pickle pickle_;
  std::string name_;
  std::map<int64_t, Stored> storages_;  // by their place in the message
  std::set<std::string> names_;
  NamedTensors tensors_;
  int64_t last_end_ = 0;
};

}  // namespace

NamedTensors read_tensor_message(std::span<char> message, const std::string& where) {
  return MessageReader(message, where).read();
}

}  // namespace lockstep::checkpoint
