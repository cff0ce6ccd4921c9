#include "versions/tensor_payload.h"

#include <algorithm>
#include <limits>
#include <span>

#include "core/base64.h"
#include "core/hash.h"
#include "core/json.h"

namespace lockstep::versions {

namespace {

// Instructions of pickle (Python's pickletools): of protocol 2, but for bytes. torch.load of weights alone knows no
// more.
constexpr char kProto = '\x80', kEmptyDict = '}', kEmptyList = ']', kEmptyTuple = ')', kMark = '(', kText = 'X',
               kGlobal = 'c', kBytes8 = '\x8e', kInt = 'J', kLong = '\x8a', kFalse = '\x89', kTrue = '\x88',
               kNone = 'N', kTuple1 = '\x85', kTuple = 't', kReduce = 'R', kSetItems = 'u', kAppend = 'a',
               kPersistent = 'Q', kPut = 'q', kGet = 'h', kPop = '0', kStop = '.';
constexpr char kStorage = 0;  // its place in the memo

template <class Number>
void put(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put_text(std::string& out, std::string_view text) {
  out += kText;
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

void put_number(std::string& out, int64_t number) {
  if (number <= std::numeric_limits<int32_t>::max()) {
    out += kInt;
    put(out, static_cast<int32_t>(number));
  } else {
    out += kLong;
    out += static_cast<char>(sizeof number);
    put(out, number);
  }
}

void put_global(std::string& out, std::string_view module, std::string_view name) {
  out += kGlobal;
  out += module;
  out += '\n';
  out += name;
  out += '\n';
}

std::span<const std::byte> bytes_of(const NamedTensor& named) {
  const auto bytes = static_cast<size_t>(named.tensor.elements() * dtype_bytes(named.tensor.dtype));
  return {static_cast<const std::byte*>(named.tensor.data), bytes};
}

void begin_pickle(std::string& out, char protocol) {
  out += kProto;
  out += protocol;
}

// What torch.save writes of a storage without a zip file around it (torch/serialization.py, _legacy_save).
std::string saved_storage(const NamedTensors& tensors, int64_t elements) {
  constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";  // 0x1950a86a20f9469cfc6c
  constexpr int64_t kVersion = 1001;
  std::string out;
  out.reserve(static_cast<size_t>(elements) * sizeof(float) + 256);
  begin_pickle(out, 2);
  out += kLong;
  out += static_cast<char>(kMagic.size());
  out += kMagic;
  out += kStop;
  begin_pickle(out, 2);
  put_number(out, kVersion);
  out += kStop;
  begin_pickle(out, 2);
  out += kEmptyDict;
  out += kMark;
  put_text(out, "protocol_version");
  put_number(out, kVersion);
  put_text(out, "little_endian");
  out += kTrue;
  put_text(out, "type_sizes");
  out += kEmptyDict;
  out += kSetItems;
  out += kStop;
  begin_pickle(out, 2);
  out += kMark;
  put_text(out, "storage");
  put_global(out, "torch", "FloatStorage");
  put_text(out, "0");
  put_text(out, "cpu");
  put_number(out, elements);
  out += kNone;
  out += kTuple;
  out += kPersistent;
  out += kStop;
  begin_pickle(out, 2);
  out += kEmptyList;
  put_text(out, "0");
  out += kAppend;
  out += kStop;
  put(out, elements);
  for (const NamedTensor& named : tensors) {
    const std::span<const std::byte> bytes = bytes_of(named);
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

void put_tensor(std::string& out, const ConstTensor& tensor, int64_t offset) {
  put_global(out, "torch._utils", "_rebuild_tensor_v2");
  out += kMark;
  out += kGet;
  out += kStorage;
  put_number(out, offset);
  out += kMark;
  for (int64_t i = 0; i < tensor.rank; ++i) put_number(out, tensor[i]);
  out += kTuple;
  out += kMark;
  for (int64_t i = 0; i < tensor.rank; ++i) {
    int64_t stride = 1;
    for (int64_t j = i + 1; j < tensor.rank; ++j) stride *= tensor[j];
    put_number(out, stride);
  }
  out += kTuple;
  out += kFalse;
  put_global(out, "collections", "OrderedDict");
  out += kEmptyTuple;
  out += kReduce;
  out += kTuple;
  out += kReduce;
}

}  // namespace

std::string tensor_pickle(const NamedTensors& tensors) {
  int64_t elements = 0;
  for (const NamedTensor& named : tensors) {
    if (named.tensor.dtype != DType::f32)
      throw DTypeError({.what = "a tensor of this type is not sent to servers",
                        .where = named.name,
                        .got = dtype_name(named.tensor.dtype),
                        .wanted = "f32"});
    elements += named.tensor.elements();
  }
  const std::string storage = saved_storage(tensors, elements);
  std::string out;
  out.reserve(storage.size() + tensors.size() * 256);
  begin_pickle(out, 4);
  put_global(out, "torch.storage", "_load_from_bytes");
  out += kBytes8;
  put(out, static_cast<uint64_t>(storage.size()));
  out += storage;
  out += kTuple1;
  out += kReduce;
  out += kPut;
  out += kStorage;
  out += kPop;
  out += kEmptyDict;
  out += kMark;
  int64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    put_text(out, named.name);
    put_tensor(out, named.tensor, offset);
    offset += named.tensor.elements();
  }
  out += kSetItems;
  out += kStop;
  return out;
}

std::string tensor_payload(const checkpoint::PeftDirectory& adapter) {
  const checkpoint::AdapterWeights weights = adapter.read_weights();
  OrderedJson checksums = OrderedJson::object();
  for (const NamedTensor& named : weights.tensors()) {
    Sha256 hash;
    hash.update(bytes_of(named));
    checksums[named.name] = hash.hex();
  }
  const std::string config = fs::read_file(adapter.path() / checkpoint::kAdapterConfigFile);
  return OrderedJson{{"config_dict", OrderedJson::parse(config)},
                     {"serialized_named_tensors", {base64(tensor_pickle(weights.tensors()))}},
                     {"pinned", false},
                     {"expected_checksums", checksums}}
      .dump();
}

}  // namespace lockstep::versions
