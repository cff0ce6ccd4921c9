// Bodies of the routes that bring weights, or ask about them. No engine is known here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/named_tensor.h"
#include "server/protocol/fields.h"
#include "server/protocol/payloads.h"

namespace lockstep::server {

// SGLang's /update_weights_from_disk.
struct DiskUpdate {
  std::string path, label;
  bool abort_all = false;
};
DiskUpdate parse_disk_update(const OrderedJson& body);

// SGLang's serialized_named_tensors: a list with one text, since this server is one rank. The tensors lie in
// `payloads`. ApiError 400; 501: another load_format, tensors that are handles of another process' memory.
NamedTensors read_named_tensors(Payloads& payloads);

// SGLang's /load_lora_adapter_from_tensors, but for the tensors.
struct TensorAdapter {
  std::string name, config;
  std::vector<std::pair<std::string, std::string>> checksums;  // expected_checksums: name, SHA-256
};
TensorAdapter parse_tensor_adapter(const OrderedJson& body);
// ApiError 400 naming the tensor.
void check_checksums(const TensorAdapter& adapter, const NamedTensors& tensors);

// SGLang's /get_weights_by_name.
struct NamedWeight {
  std::string name;
  int64_t rows = 100;
};
NamedWeight parse_named_weight(const OrderedJson& body);
std::string weight_json(const ConstTensor& tensor);  // nested lists of numbers

// vLLM's /collective_rpc.
struct Rpc {
  std::string method;
  std::string weights_path;  // of reload_weights; empty: where the served weights come from
};
Rpc parse_rpc(const OrderedJson& body);  // ApiError 501: another method

// SGLang's tags of memory; absent: all. ApiError 400.
struct MemoryTags {
  bool weights = true, keys = true;
};
MemoryTags parse_memory_tags(const std::vector<std::string>& tags);

// What AReaL says before it sends weights by NCCL: names, types and shapes, of as many entries each. ApiError 400.
void check_weight_meta(const OrderedJson& body);

// The answer to what only a collective transfer could do. ApiError 501.
[[noreturn]] void refuse_transfer(std::string_view what);

}  // namespace lockstep::server
