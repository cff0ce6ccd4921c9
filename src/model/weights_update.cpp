#include "model/weights_update.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "core/transfer.h"
#include "kernels/pack.h"
#include "model/weight_slots.h"

namespace lockstep::model {

namespace {

using Given = std::map<std::string, const NamedTensor*>;

std::string at(const std::string& where, const std::string& tensor) {
  return where.empty() ? tensor : where + ": " + tensor;
}

std::string shape_wanted(const TensorPlace& place) {
  std::string wanted = "f32, bf16 or f16 [";
  for (size_t i = 0; i < place.shape.size(); ++i) wanted += (i ? ", " : "") + std::to_string(place.shape[i]);
  return wanted + "]";
}

void check_shape(const TensorPlace& place, const ConstTensor& tensor, const std::string& where) {
  bool same = tensor.rank == static_cast<int>(place.shape.size());
  for (int i = 0; same && i < tensor.rank; ++i)
    same = tensor.shape[static_cast<size_t>(i)] == place.shape[static_cast<size_t>(i)];
  const bool storage = tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
  if (same && storage && tensor.contiguous()) return;
  throw FormatError(
      {.what = same ? "a new tensor of the model has the wrong type" : "a new tensor of the model has the wrong shape",
       .where = at(where, place.name),
       .got = shape_text(tensor),
       .wanted = shape_wanted(place)});
}

// The head of a tied model is its embedding.
void check_tied_copy(Given& given, const ModelSpec& config, const std::string& where) {
  const auto head = given.find("lm_head.weight"), embedding = given.find("model.embed_tokens.weight");
  if (!config.tied_head || head == given.end()) return;
  const bool same = embedding != given.end() && head->second->bytes() == embedding->second->bytes() &&
                    head->second->tensor.dtype == embedding->second->tensor.dtype && [&] {
                      std::vector<std::byte> a(head->second->bytes()), b(a.size());
                      head->second->read(a.data(), 0, a.size());
                      embedding->second->read(b.data(), 0, b.size());
                      return a == b;
                    }();
  if (!same)
    throw FormatError({.what = "the model ties its output head to the embedding, and another head came",
                       .where = at(where, "lm_head.weight"),
                       .got = "other bytes than model.embed_tokens.weight",
                       .wanted = "no lm_head.weight, or the embedding's bytes beside it"});
  given.erase(head);
}

Given checked(const std::vector<TensorPlace>& places, const ModelSpec& config, const NamedTensors& tensors,
              const std::string& where) {
  Given given;
  for (const NamedTensor& tensor : tensors)
    if (!tensor.name.ends_with(".rotary_emb.inv_freq") && !given.emplace(tensor.name, &tensor).second)
      throw FormatError({.what = "a tensor appears twice", .where = at(where, tensor.name)});
  check_tied_copy(given, config, where);
  size_t known = 0;
  for (const TensorPlace& place : places)
    if (const auto found = given.find(place.name); found != given.end()) {
      check_shape(place, found->second->tensor, where);
      ++known;
    }
  if (known == given.size()) return given;
  for (const auto& [name, tensor] : given)
    if (std::ranges::find(places, name, &TensorPlace::name) == places.end())
      throw FormatError({.what = "the model has no tensor of this name",
                         .where = at(where, name),
                         .got = shape_text(tensor->tensor),
                         .wanted = "names of the model's checkpoint, such as " + places.back().name});
  return given;
}

// Of values that came from this type.
void store_as(void* out, const float* values, int64_t count, DType dtype) {
  if (dtype == DType::f32) {
    std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* bits = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < count; ++i)
    bits[i] =
        dtype == DType::f16 ? to_f16(values[i]).bits : static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
}

// `rows` of a tensor, from its first row on.
HostTensor unpacked(const Weights& weights, const TensorPlace& place, int64_t rows, Stream& stream) {
  const bool matrix = place.is_matrix();
  const kernels::PackedWeight* const packed = matrix ? &linear_slot(weights, place)->weight : nullptr;
  const DType dtype = matrix ? packed->dtype : vector_slot(weights, place).dtype;
  const int64_t width = matrix ? place.shape[1] : 1;
  HostTensor out{.memory = Buffer(static_cast<size_t>(rows * width * dtype_bytes(dtype)), Buffer::Fill::none)};
  if (matrix) {
    const Tensor to(out.memory.data(), dtype, {rows, width});
    kernels::unpack_rows(to, *packed, place.row_begin, place.row_begin + rows, stream);
    out.tensor = {.name = place.name, .tensor = to};
  } else {
    store_as(out.memory.data(), host_copy(vector_slot(weights, place).values, stream).f32() + place.row_begin, rows,
             dtype);
    out.tensor = {.name = place.name, .tensor = ConstTensor(out.memory.data(), dtype, {rows})};
  }
  return out;
}

Vector shared(const Vector& from) {
  return {.values = from.values.share(), .size = from.size, .dtype = from.dtype};
}

std::vector<Weights::Extra> shared_extras(const Weights& from) {
  std::vector<Weights::Extra> extras;
  for (const Weights::Extra& extra : from.extras) extras.push_back({extra.name, extra.bytes.share(), extra.view});
  return extras;
}

class Updater {
 public:
  Updater(const ModelSpec& config, const Weights& old, const NamedTensors& tensors, Stream& stream,
          const std::string& where)
      : config_(config),
        places_(tensor_places(config)),
        old_(old),
        stream_(stream),
        where_(where),
        given_(checked(places_, config, tensors, where)) {}

  std::shared_ptr<const Weights> update() {
    made_->layers.resize(old_.layers.size());
    made_->tied_copy = old_.tied_copy;
    made_->extras = shared_extras(old_);
    for_each_group(places_, [&](std::span<const TensorPlace> group) {
      const auto is_new = [&](const TensorPlace& place) { return given_.contains(place.name); };
      std::ranges::any_of(group, is_new) ? make(group) : keep(group.front());
    });
    stream_.synchronize();
    return made_;
  }

 private:
  void keep(const TensorPlace& place) {
    if (!place.is_matrix()) {
      vector_slot(*made_, place) = shared(vector_slot(old_, place));
      return;
    }
    const Linear& from = *linear_slot(old_, place);
    Linear& to = *linear_slot(*made_, place);
    to.site = from.site;
    to.weight = {.rows = from.weight.rows,
                 .depth = from.weight.depth,
                 .dtype = from.weight.dtype,
                 .format = from.weight.format,
                 .panels = from.weight.panels.share()};
  }

  // Parts that did not come are those of the old weights.
  void make(std::span<const TensorPlace> group) {
    std::vector<HostTensor> unsent;
    unsent.reserve(group.size());
    std::vector<const NamedTensor*> parts;
    for (const TensorPlace& place : group) {
      if (const auto found = given_.find(place.name); found != given_.end()) {
        parts.push_back(found->second);
      } else {
        unsent.push_back(unpacked(old_, place, place.shape[0], stream_));
        parts.push_back(&unsent.back().tensor);
      }
      if (parts.back()->tensor.dtype != parts.front()->tensor.dtype)
        throw FormatError(
            {.what = "projections that are computed together have different types",
             .where = at(where_, place.name),
             .got = shape_text(parts.back()->tensor),
             .wanted = std::string(dtype_name(parts.front()->tensor.dtype)) + " as in " + group.front().name});
    }
    if (group.front().is_matrix()) {
      Linear& layer = *linear_slot(*made_, group.front());
      const kernels::WeightFormat format =
          format_of(config_, group.front(), parts.front()->tensor.dtype, stream_.device());
      layer.weight = kernels::pack_weight(parts, format, stream_, &region_);
      layer.site = group.front().site;
      stream_.synchronize();  // before what was unpacked goes
      return;
    }
    Vector& vector = vector_slot(*made_, group.front());
    vector.dtype = parts.front()->tensor.dtype;
    for (const NamedTensor* part : parts) vector.size += part->tensor.elements();
    std::vector<float> values(static_cast<size_t>(vector.size));
    for (size_t i = 0; i < parts.size(); ++i) append_f32(values.data() + group[i].row_begin, *parts[i]);
    vector.values = device_copy(values.data(), values.size() * sizeof(float), stream_);
  }

  static void append_f32(float* out, const NamedTensor& named) {
    if (named.tensor.dtype == DType::f32) return named.read(out, 0, named.bytes());
    std::vector<uint16_t> bits(static_cast<size_t>(named.tensor.elements()));
    named.read(bits.data(), 0, named.bytes());
    std::ranges::transform(bits, out, [&](uint16_t half) {
      return named.tensor.dtype == DType::bf16 ? to_f32(BFloat16{half}) : to_f32(Float16{half});
    });
  }

  const ModelSpec& config_;
  const std::vector<TensorPlace> places_;
  const Weights& old_;
  Stream& stream_;
  const std::string& where_;
  const Given given_;
  Region region_;
  std::shared_ptr<Weights> made_ = std::make_shared<Weights>();
};

}  // namespace

std::shared_ptr<const Weights> updated_weights(const ModelSpec& config, const Weights& old, const NamedTensors& tensors,
                                               Stream& stream, const std::string& where) {
  return Updater(config, old, tensors, stream, where).update();
}

int64_t updated_bytes(const ModelSpec& config, const Weights& old, const NamedTensors& tensors) {
  std::set<std::string> given;
  for (const NamedTensor& tensor : tensors) given.insert(tensor.name);
  int64_t bytes = 0;
  for_each_group(tensor_places(config), [&](std::span<const TensorPlace> group) {
    if (std::ranges::none_of(group, [&](const TensorPlace& place) { return given.contains(place.name); })) return;
    const TensorPlace& place = group.front();
    bytes += static_cast<int64_t>(place.is_matrix() ? linear_slot(old, place)->weight.panels.bytes()
                                                    : vector_slot(old, place).values.bytes());
  });
  return bytes;
}

std::shared_ptr<const Weights> moved_weights(const Weights& weights, Device to, Stream& stream) {
  const auto bytes = [&](const Buffer& from) {
    if (from.bytes() == 0) return Buffer();
    if (from.device() == to) throw DeviceError({.what = "weights are to be moved to where they lie"});
    return to == Device::cpu ? host_copy(from, stream) : device_copy(from.data(), from.bytes(), stream);
  };
  const auto vector = [&](const Vector& from) {
    return Vector{.values = bytes(from.values), .size = from.size, .dtype = from.dtype};
  };
  const auto linear = [&](const Linear& from) {
    const kernels::PackedWeight& w = from.weight;
    return Linear{
        .weight = {.rows = w.rows, .depth = w.depth, .dtype = w.dtype, .format = w.format, .panels = bytes(w.panels)},
        .bias = vector(from.bias),
        .site = from.site};
  };
  const auto made = std::make_shared<Weights>();
  made->embedding = linear(weights.embedding);
  made->head = linear(weights.head);
  made->final_norm = vector(weights.final_norm);
  made->tied_copy = weights.tied_copy;
  for (const LayerWeights& layer : weights.layers) {
    LayerWeights& moved = made->layers.emplace_back();
    for (const auto member : kLayerVectors) moved.*member = vector(layer.*member);
    for (const auto& [name, member] : kLayerLinears) moved.*member = linear(layer.*member);
  }
  made->extras = shared_extras(weights);
  stream.synchronize();
  return made;
}

HostTensor read_weight(const ModelSpec& config, const Weights& weights, const std::string& name, int64_t rows,
                       Stream& stream) {
  std::vector<TensorPlace> places = tensor_places(config);
  const std::string wanted = config.tied_head && name == "lm_head.weight" ? "model.embed_tokens.weight" : name;
  const auto place = std::ranges::find(places, wanted, &TensorPlace::name);
  if (place == places.end())
    throw FormatError({.what = "the model has no tensor of this name",
                       .where = name,
                       .wanted = "names of the model's checkpoint, such as " + places.back().name});
  return unpacked(weights, *place, std::clamp<int64_t>(rows, 0, place->shape[0]), stream);
}

}  // namespace lockstep::model
