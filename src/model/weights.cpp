#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/device_facts.h"
#include "core/error.h"
#include "core/transfer.h"
#include "kernels/pack.h"
#include "model/weight_slots.h"

namespace lockstep::model {

namespace {

bool is_storage(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bool same_bytes(const NamedTensor& a, const NamedTensor& b) {
  if (a.tensor.dtype != b.tensor.dtype || a.tensor.rank != b.tensor.rank || a.tensor.shape != b.tensor.shape)
    return false;
  constexpr size_t kPieceBytes = size_t{1} << 20;
  std::vector<char> of_a(std::min(kPieceBytes, a.bytes())), of_b(of_a.size());
  for (size_t done = 0; done < a.bytes(); done += of_a.size()) {
    const size_t bytes = std::min(of_a.size(), a.bytes() - done);
    a.read(of_a.data(), done, bytes);
    b.read(of_b.data(), done, bytes);
    if (std::memcmp(of_a.data(), of_b.data(), bytes) != 0) return false;
  }
  return true;
}

// Appends the f32 values of a vector in its storage type.
void append_f32(float* out, const NamedTensor& named) {
  const ConstTensor& tensor = named.tensor;
  if (tensor.dtype == DType::f32) return named.read(out, 0, named.bytes());
  std::vector<uint16_t> bits(static_cast<size_t>(tensor.elements()));
  named.read(bits.data(), 0, named.bytes());
  std::ranges::transform(bits, out, [&](uint16_t half) {
    return tensor.dtype == DType::bf16 ? to_f32(BFloat16{half}) : to_f32(Float16{half});
  });
}

// Device memory, given in order. The driver takes its time for fresh memory: a tenth of a load, were it not for a
// thread that asks ahead while weights travel.
class MemoryAhead {
 public:
  MemoryAhead(std::vector<size_t> sizes, Device device) : memory_(sizes.size()) {
    thread_ = std::jthread([this, device, sizes = std::move(sizes)](const std::stop_token& stop) {
      for (size_t i = 0; i < sizes.size() && !stop.stop_requested(); ++i) try {
          memory_[i].set_value(Buffer(sizes[i], Buffer::Fill::none, device));
        } catch (...) {
          memory_[i].set_exception(std::current_exception());
          return;
        }
    });
  }
  Buffer next() { return memory_[next_++].get_future().get(); }

 private:
  std::vector<std::promise<Buffer>> memory_;
  size_t next_ = 0;
  std::jthread thread_;  // last, so that it ends first
};

class Loader {
 public:
  Loader(const ModelSpec& config, const NamedTensors& tensors, Stream& stream, const std::string& where)
      : config_(config), places_(tensor_places(config)), stream_(stream), where_(where) {
    for (const NamedTensor& tensor : tensors)
      if (!given_.emplace(tensor.name, &tensor).second)
        throw FormatError({.what = "a tensor appears twice", .where = at(tensor.name)});
  }

  std::shared_ptr<const Weights> load(const std::function<void(double)>& progress) {
    for (const TensorPlace& place : places_) check(place);
    take_surplus();
    weights_->layers.resize(static_cast<size_t>(config_.layers));
    if (is_slow_to_allocate(stream_.device())) memory_.emplace(matrix_bytes(), stream_.device());
    size_t done = 0;
    for_each_group(places_, [&](std::span<const TensorPlace> group) {
      place_group(group);
      done += group.size();
      if (progress) progress(static_cast<double>(done) / static_cast<double>(places_.size()));
    });
    return weights_;
  }

 private:
  std::string at(const std::string& tensor) const { return where_.empty() ? tensor : where_ + ": " + tensor; }

  void check(const TensorPlace& place) {
    std::string wanted = "f32, bf16 or f16 [";
    for (size_t i = 0; i < place.shape.size(); ++i) wanted += (i ? ", " : "") + std::to_string(place.shape[i]);
    wanted += "]";
    const auto found = given_.find(place.name);
    if (found == given_.end())
      throw FormatError({.what = "the model lacks a tensor that config.json asks for",
                         .where = at(place.name),
                         .got = "no such tensor",
                         .wanted = wanted});
    const ConstTensor& tensor = found->second->tensor;
    bool same = tensor.rank == static_cast<int>(place.shape.size());
    for (int i = 0; same && i < tensor.rank; ++i)
      same = tensor.shape[static_cast<size_t>(i)] == place.shape[static_cast<size_t>(i)];
    if (!same || !is_storage(tensor.dtype))
      throw FormatError(
          {.what = same ? "a tensor of the model has the wrong type" : "a tensor of the model has the wrong shape",
           .where = at(place.name),
           .got = shape_text(tensor),
           .wanted = wanted});
  }

  void take_surplus() {
    std::set<std::string> expected;
    for (const TensorPlace& place : places_) expected.insert(place.name);
    for (const auto& [name, named] : given_) {
      if (expected.count(name)) continue;
      const ConstTensor& tensor = named->tensor;
      if (name.ends_with(".rotary_emb.inv_freq")) {
        Weights::Extra& extra = weights_->extras.emplace_back(Weights::Extra{name, Buffer(named->bytes()), tensor});
        named->read(extra.bytes.data(), 0, named->bytes());
        extra.view.data = extra.bytes.data();
      } else if (config_.tied_head && name == "lm_head.weight") {
        if (!same_bytes(*named, *given_.at("model.embed_tokens.weight")))
          throw FormatError(
              {.what = "config.json ties the output head to the embedding, but the file holds another one",
               .where = at(name),
               .got = shape_text(tensor) + " with other bytes",
               .wanted = "the bytes of model.embed_tokens.weight",
               .attempt = "\"tie_word_embeddings\": false in config.json if the head is meant"});
        weights_->tied_copy = true;
      } else {
        throw FormatError({.what = "the model has a tensor that config.json does not ask for",
                           .where = at(name),
                           .got = shape_text(tensor)});
      }
    }
  }

  // Of the stacked matrices, in order.
  std::vector<size_t> matrix_bytes() const {
    std::vector<size_t> bytes;
    for_each_group(places_, [&](std::span<const TensorPlace> group) {
      if (!group.front().is_matrix()) return;
      int64_t rows = 0;
      for (const TensorPlace& place : group) rows += place.shape[0];
      bytes.push_back(kernels::packed_bytes(format(group.front()), rows, group.front().shape[1], stream_.device()));
    });
    return bytes;
  }

  kernels::WeightFormat format(const TensorPlace& place) const {
    return format_of(config_, place, given_.at(place.name)->tensor.dtype, stream_.device());
  }

  void place_group(std::span<const TensorPlace> group) {
    const TensorPlace& head = group.front();
    std::vector<const NamedTensor*> parts;
    for (const TensorPlace& place : group) {
      parts.push_back(given_.at(place.name));
      const ConstTensor &first = parts.front()->tensor, &part = parts.back()->tensor;
      if (part.dtype != first.dtype)
        throw FormatError({.what = "projections that are computed together have different types",
                           .where = at(place.name),
                           .got = shape_text(part),
                           .wanted = std::string(dtype_name(first.dtype)) + " as in " + head.name});
    }
    if (head.is_matrix()) {
      Linear& layer = *linear_slot(*weights_, head);
      layer.weight = kernels::pack_weight(parts, format(head), stream_, &region_, memory_ ? memory_->next() : Buffer());
      layer.site = head.site;
      return;
    }
    Vector& vector = vector_slot(*weights_, head);
    vector.dtype = parts.front()->tensor.dtype;
    for (const NamedTensor* part : parts) vector.size += part->tensor.elements();
    std::vector<float> values(static_cast<size_t>(vector.size));
    for (size_t i = 0; i < group.size(); ++i) append_f32(values.data() + group[i].row_begin, *parts[i]);
    vector.values = device_copy(values.data(), values.size() * sizeof(float), stream_);
  }

  const ModelSpec& config_;
  std::vector<TensorPlace> places_;
  Stream& stream_;
  Region region_;                      // on the CPU
  std::optional<MemoryAhead> memory_;  // where allocating is slow
  const std::string& where_;
  std::map<std::string, const NamedTensor*> given_;
  std::shared_ptr<Weights> weights_ = std::make_shared<Weights>();
};

}  // namespace

std::shared_ptr<const Weights> Weights::load(const ModelSpec& config, const NamedTensors& tensors, Stream& stream,
                                             const std::function<void(double)>& progress, const std::string& where) {
  return Loader(config, tensors, stream, where).load(progress);
}

int64_t Weights::num_sites() const {
  int64_t last = 0;
  for (const auto& linear : kLayerLinears) last = std::max(last, (layers.back().*linear.member).site);
  return last + 1;
}

int64_t Weights::bytes() const {
  const auto linear_bytes = [](const Linear& layer) { return layer.weight.panels.bytes() + layer.bias.values.bytes(); };
  size_t total = linear_bytes(embedding) + linear_bytes(head) + final_norm.values.bytes();
  for (const LayerWeights& layer : layers) {
    for (const auto& linear : kLayerLinears) total += linear_bytes(layer.*linear.member);
    for (const auto vector : kLayerVectors) total += (layer.*vector).values.bytes();
  }
  return static_cast<int64_t>(total);
}

}  // namespace lockstep::model
