#include "model/adapter_extras.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/output_columns.h"
#include "kernels/pack.h"
#include "model/tensor_places.h"

namespace lockstep::model {

namespace {

using Own = std::span<const lora::OwnTensors>;

bool has_magnitude(const lora::OwnTensors& own) {
  return own.magnitude != lora::kAbsent;
}
bool has_bias(const lora::OwnTensors& own) {
  return own.bias != lora::kAbsent;
}

// Calls f(site, its tensors) for every site that has some.
template <class F>
void for_sites(const lora::AdapterLayout& layout, const F& f) {
  for (size_t i = 0; i < layout.own.size();) {
    const int64_t site = layout.own[i].module.site;
    const Own own = lora::own_tensors_at(layout, site);
    f(site, own);
    i += own.size();
  }
}

int64_t outputs_of(const lora::OwnTensors& own) {
  return own.module.out_begin + own.module.out;
}

const Linear& linear_at(const Weights& base, int64_t site) {
  if (site == kEmbeddingSite) return base.embedding;
  if (site == kHeadSite) return base.head;
  for (const LayerWeights& layer : base.layers)
    for (const auto& linear : kLayerLinears)
      if ((layer.*linear.member).site == site) return layer.*linear.member;
  throw ShapeError({.what = "an adapter belongs to another model",
                    .got = "linear layer " + std::to_string(site),
                    .wanted = "below " + std::to_string(base.num_sites())});
}

class ExtrasBuilder {
 public:
  ExtrasBuilder(const lora::AdapterVersion& version, const Weights& base, Stream& stream)
      : version_(version), layout_(*version.layout), base_(base), stream_(stream) {}

  std::shared_ptr<const lora::AdapterExtras> build() {
    for_sites(layout_, [&](int64_t site, Own own) { add_site(site, own); });
    return std::move(extras_);
  }

 private:
  void add_site(int64_t site, Own own) {
    lora::AdapterExtras::Site& extra = extras_->sites.emplace_back();
    extra.site = site;
    const int64_t rows = weight_at(site).rows;
    if (std::ranges::any_of(own, has_magnitude)) add_factors(extra, site, own, rows);
    if (std::ranges::any_of(own, has_bias)) extra.bias = biases(site, own, rows);
    for (const lora::OwnTensors& tensors : own)
      if (tensors.weight != lora::kAbsent) add_weight(extra, tensors);
  }

  const kernels::PackedWeight& weight_at(int64_t site) const {
    return site == kHeadSite ? base_.head_weight() : linear_at(base_, site).weight;
  }

  // Allocates [count] f32 on the stream's device, which live as long as the extras.
  Tensor vector(int64_t count) {
    Buffer& memory =
        extras_->memory.emplace_back(static_cast<size_t>(count) * sizeof(float), Buffer::Fill::none, stream_.device());
    return Tensor(memory.data(), DType::f32, {count});
  }
  ConstTensor placed(const std::vector<float>& host) {
    const Tensor to = vector(static_cast<int64_t>(host.size()));
    upload(to.data, host.data(), host.size() * sizeof(float), stream_);
    stream_.synchronize();  // `host` ends with the caller
    return to;
  }
  std::vector<float> host_values(const float* device, int64_t count) const {
    std::vector<float> host(static_cast<size_t>(count));
    download(host.data(), device, host.size() * sizeof(float), stream_);
    return host;
  }
  const float* own_values(int64_t offset) const { return version_.weights->f32() + offset; }

  // The pairs that add to the rows of one module, with B's columns of these rows alone.
  std::vector<kernels::LoraPair> pairs_of(const lora::Module& module) const {
    std::vector<kernels::LoraPair> pairs;
    for (const int index : layout_.pairs_at(module.site)) {
      const lora::Pair& pair = layout_.pairs[static_cast<size_t>(index)];
      const int64_t begin = module.out_begin - pair.out_begin;
      if (begin < 0 || begin + module.out > pair.out) continue;
      const auto add = [&](ConstTensor a, ConstTensor b, float scale) {
        pairs.push_back({.a = a, .b = b.cols(begin, begin + module.out), .scale = scale});
      };
      add(version_.a(pair), version_.b(pair), pair.scale);
      if (pair.a0_offset != lora::kAbsent) add(version_.a0(pair), version_.b0(pair), -pair.scale);
    }
    return pairs;
  }

  // Outputs whose module has no magnitude keep a factor of 1.
  void add_factors(lora::AdapterExtras::Site& extra, int64_t site, Own own, int64_t rows) {
    constexpr float kLeastFactor = 1.0F / 1024;
    std::vector<float> factor(static_cast<size_t>(rows), 1.0F), inverse(static_cast<size_t>(rows), 0.0F);
    std::vector<float> over_magnitude = inverse;
    bool keeps_outputs = true;  // no factor leaves too little of an output
    for (const lora::OwnTensors& tensors : own) {
      if (!has_magnitude(tensors)) continue;
      const lora::Module& module = tensors.module;
      Buffer memory(static_cast<size_t>(module.out) * sizeof(float), Buffer::Fill::none, stream_.device());
      kernels::row_norms(Tensor(memory.data(), DType::f32, {module.out}), weight_at(site), module.out_begin,
                         pairs_of(module), stream_);
      const std::vector<float> norm = host_values(memory.f32(), module.out);
      const std::vector<float> magnitude = host_values(own_values(tensors.magnitude), module.out);
      for (size_t i = 0; i < norm.size(); ++i) {
        const size_t n = static_cast<size_t>(module.out_begin) + i;
        inverse[n] = norm[i] > 0 ? 1.0F / norm[i] : 0.0F;
        factor[n] = norm[i] > 0 ? magnitude[i] / norm[i] : 0.0F;
        keeps_outputs = keeps_outputs && std::abs(factor[n]) >= kLeastFactor;
        over_magnitude[n] = inverse[n] / factor[n];
      }
    }
    extra.factor = placed(factor);
    extra.inverse_norm = placed(inverse);
    if (keeps_outputs) extra.inverse_magnitude = placed(over_magnitude);
  }

  // The base's values, except for the modules that have values of their own.
  ConstTensor biases(int64_t site, Own own, int64_t rows) {
    const Vector& base = linear_at(base_, site).bias;
    std::vector<float> bias =
        base.size > 0 ? host_values(base.values.f32(), rows) : std::vector<float>(static_cast<size_t>(rows));
    for (const lora::OwnTensors& tensors : own)
      if (has_bias(tensors))
        std::ranges::copy(host_values(own_values(tensors.bias), tensors.module.out),
                          bias.begin() + static_cast<std::ptrdiff_t>(tensors.module.out_begin));
    return placed(bias);
  }

  void add_weight(lora::AdapterExtras::Site& extra, const lora::OwnTensors& tensors) {
    const ConstTensor weight = version_.own_weight(tensors);
    if (tensors.module.kind == lora::ModuleKind::embedding) {
      extra.table = weight;
      return;
    }
    extra.weight = std::make_shared<const kernels::PackedWeight>(kernels::pack_placed(weight, stream_));
  }

  const lora::AdapterVersion& version_;
  const lora::AdapterLayout& layout_;
  const Weights& base_;
  Stream& stream_;
  std::shared_ptr<lora::AdapterExtras> extras_ = std::make_shared<lora::AdapterExtras>();
};

}  // namespace

lora::AdapterVersion with_extras(lora::AdapterVersion version, const Weights& base, Stream& stream) {
  if (!version.layout->own.empty()) version.extras = ExtrasBuilder(version, base, stream).build();
  return version;
}

int64_t extras_bytes(const lora::AdapterLayout& layout, Device device) {
  int64_t bytes = 0;
  for_sites(layout, [&](int64_t, Own own) {
    const int64_t vectors = (std::ranges::any_of(own, has_magnitude) ? 3 : 0) + std::ranges::any_of(own, has_bias);
    bytes += vectors * outputs_of(own.back()) * static_cast<int64_t>(sizeof(float));
    for (const lora::OwnTensors& tensors : own)
      if (tensors.weight != lora::kAbsent && tensors.module.kind != lora::ModuleKind::embedding)
        bytes += static_cast<int64_t>(kernels::packed_bytes(kernels::plain_format(DType::f32, device),
                                                            tensors.weight_rows(), tensors.weight_cols(), device));
  });
  return bytes;
}

void require_extras(const lora::AdapterVersion& version) {
  for (const lora::OwnTensors& own : version.layout->own)
    if (!version.extras || !version.extras->at(own.module.site))
      throw ConfigError({.what = "an adapter's own tensors were not made ready for a pass",
                         .where = lora::policy_text(version.policy),
                         .got = own.module.name,
                         .attempt = "model::with_extras"});
}

}  // namespace lockstep::model
