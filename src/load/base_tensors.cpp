#include "load/base_tensors.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "core/nearest_name.h"

namespace lockstep::load {

namespace {

// nullptr: there is none.
const NamedTensor* find_tensor(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &NamedTensor::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

}  // namespace

bool is_tied(const checkpoint::HfDirectory& base) {
  return JsonObject(base.config(), (base.path() / "config.json").string()).boolean("tie_word_embeddings", false);
}

const NamedTensor& base_tensor(const NamedTensors& tensors, const std::string& name, const fs::Path& where) {
  if (const NamedTensor* const found = find_tensor(tensors, name)) return *found;
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  throw FormatError(
      {.what = "the base has no tensor for a module of the adapter",
       .where = where.string(),
       .got = name,
       .wanted = "a tensor of this name",
       .attempt = "the base that the adapter was made for; the nearest name is " + nearest_name(name, names)});
}

BaseRows base_rows(const checkpoint::HfDirectory& base) {
  const auto find = [&base](const std::string& module) {
    const NamedTensor* const own = find_tensor(base.tensors(), module + ".weight");
    if (own != nullptr || module != "lm_head" || !is_tied(base)) return own;
    return find_tensor(base.tensors(), "model.embed_tokens.weight");
  };
  const auto memory = std::make_shared<Buffer>();
  return {.shape =
              [=](const std::string& module) {
                const NamedTensor* const tensor = find(module);
                return tensor == nullptr ? ConstTensor() : tensor->tensor;
              },
          .read =
              [=](const std::string& module, int64_t begin, int64_t end) {
                const NamedTensor& tensor = *find(module);
                const int64_t width = tensor.tensor[1];
                const auto row_bytes = static_cast<size_t>(width * dtype_bytes(tensor.tensor.dtype));
                *memory = Buffer(static_cast<size_t>(end - begin) * row_bytes, Buffer::Fill::none);
                tensor.read(memory->data(), static_cast<size_t>(begin) * row_bytes, memory->bytes());
                return ConstTensor(memory->data(), tensor.tensor.dtype, {end - begin, width});
              }};
}

}  // namespace lockstep::load
