#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "core/error.h"
#include "kernels/lora.h"
#include "lora/adapter.h"
#include "lora/saved_targets.h"
#include "lora/targets.h"

namespace lockstep::lora {

namespace {

// One tensor never shares a cache line with the next, and every tensor is aligned for the widest vectors.
constexpr int64_t kAlignFloats = 16;
int64_t aligned(int64_t floats) {
  return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
}

class LayoutBuilder {
 public:
  LayoutBuilder(const LoraConfig& config, const std::vector<Module>& modules)
      : config_(config),
        modules_(modules),
        patterns_(config, modules),
        ranks_(patterns_.values(config.rank_pattern, "rank_pattern", config.rank)),
        alphas_(patterns_.values(config.alpha_pattern, "alpha_pattern", config.alpha)) {}

  std::shared_ptr<const AdapterLayout> build() {
    const std::vector<bool> selected = select_modules(config_, modules_, patterns_);
    int64_t sites = 0;
    for (const Module& module : modules_) sites = std::max(sites, module.site + 1);
    layout_->config = config_;
    layout_->site_pairs.resize(static_cast<size_t>(sites));
    for (int64_t site = 0; site < sites; ++site) add_site(site, selected);
    add_own_tensors();
    add_value_head();
    layout_->num_trained = layout_->num_floats;
    if (config_.subtracts_initial) add_initial();
    find_depth();
    std::set<std::string> leaves;
    for (const Pair& pair : layout_->pairs)
      for (const Module& module : pair.modules) leaves.insert(module.leaf);
    layout_->target_leaves.assign(leaves.begin(), leaves.end());
    layout_->config.target_modules = layout_->target_leaves;
    layout_->config.exclude_modules = lasting_exclusions();
    layout_->config = exact_targets(std::move(layout_->config), modules_, covered_);
    return layout_;
  }

 private:
  // Exclusions as they came true, for readers that do not know shared factors: an entry that names a covered sibling
  // becomes the full names of what it did leave out.
  std::vector<std::string> lasting_exclusions() const {
    std::vector<std::string> lasting;
    for (const std::string& entry : config_.exclude_modules) {
      std::vector<std::string> left_out;
      bool names_covered = false;
      for (size_t i = 0; i < modules_.size(); ++i) {
        if (!names_module(entry, modules_[i])) continue;
        if (covered_[i])
          names_covered = true;
        else
          left_out.push_back(modules_[i].name);
      }
      if (!names_covered) left_out = {entry};
      lasting.insert(lasting.end(), left_out.begin(), left_out.end());
    }
    return lasting;
  }

  void add_site(int64_t site, const std::vector<bool>& selected) {
    std::vector<size_t> members, siblings;  // places in modules_
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (modules_[i].site != site) continue;
      siblings.push_back(i);
      if (selected[i]) members.push_back(i);
    }
    if (members.empty()) return;
    if (config_.type == LoraType::fused) members = siblings;
    std::sort(members.begin(), members.end(),
              [&](size_t a, size_t b) { return modules_[a].out_begin < modules_[b].out_begin; });
    if (config_.type == LoraType::fused) {
      add_pair(members);
    } else {
      for (const size_t member : members) add_pair({member});
    }
  }

  void add_pair(const std::vector<size_t>& members) {
    const Module& first = modules_[members.front()];
    Pair pair;
    pair.in = first.in;
    pair.out_begin = first.out_begin;
    pair.rank = ranks_[members.front()];
    const double alpha = alphas_[members.front()];
    for (const size_t member : members) {
      const Module& module = modules_[member];
      covered_[member] = true;
      pair.modules.push_back(module);
      pair.out += module.out;
      if (ranks_[member] != pair.rank || alphas_[member] != alpha)
        reject(config_, "rank_pattern, alpha_pattern", "rank_pattern, alpha_pattern",
               {.what = "projections that share one A must have one rank and one alpha",
                .got = first.name + " and " + module.name + " differ",
                .attempt = "LoraConfig::type canonical_lora"});
    }
    check(pair, alpha, first.name);
    const double divisor =
        config_.use_rslora ? std::sqrt(static_cast<double>(pair.rank)) : static_cast<double>(pair.rank);
    pair.scale = static_cast<float>(alpha / divisor);
    pair.a_offset = place(pair.in * pair.rank);
    pair.b_offset = place(pair.rank * pair.out);
    layout_->num_parameters += pair.rank * (pair.in + pair.out);
    layout_->site_pairs[static_cast<size_t>(first.site)].push_back(static_cast<int>(layout_->pairs.size()));
    layout_->pairs.push_back(std::move(pair));
  }

  // The offset of a tensor behind all before it.
  int64_t place(int64_t floats) {
    const int64_t offset = layout_->num_floats;
    layout_->num_floats += aligned(floats);
    return offset;
  }
  int64_t place_trained(int64_t floats) {
    layout_->num_parameters += floats;
    return place(floats);
  }

  void add_own_tensors() {
    const std::vector<bool> saved = saved_modules(config_, modules_);
    for (size_t i = 0; i < modules_.size(); ++i) {
      const Module& module = modules_[i];
      OwnTensors own{.module = module};
      if (config_.use_dora && covered_[i]) {
        require_magnitude(module);
        own.magnitude = place_trained(module.out);
      }
      const bool takes_bias =
          config_.bias == TrainedBiases::all || (config_.bias == TrainedBiases::lora_only && covered_[i]);
      if (takes_bias && module.has_bias) own.bias = place_trained(module.out);
      if (saved[i]) own.weight = place_trained(module.in * module.out);
      if (own.magnitude != kAbsent || own.bias != kAbsent || own.weight != kAbsent) layout_->own.push_back(own);
    }
    std::ranges::stable_sort(layout_->own, {},
                             [](const OwnTensors& own) { return std::pair(own.module.site, own.module.out_begin); });
  }

  void add_value_head() {
    if (config_.value_width < 1) return;
    ValueHead& head = layout_->value_head.emplace(ValueHead{.width = config_.value_width});
    head.weight = place_trained(head.width);
    head.bias = place_trained(1);
  }

  void require_magnitude(const Module& module) const {
    if (module.kind != ModuleKind::embedding) return;
    reject(config_, "LoraConfig::use_dora", "use_dora",
           {.what = "the embedding takes no magnitudes",
            .where = "for " + module.name,
            .attempt = "targets without it, or modules_to_save"});
  }

  void add_initial() {
    for (Pair& pair : layout_->pairs) {
      pair.a0_offset = place(pair.in * pair.rank);
      pair.b0_offset = place(pair.rank * pair.out);
    }
  }

  void find_depth() {
    int64_t lowest = 0;
    for (const Module& module : modules_) lowest = std::max(lowest, module.layer + 1);
    const auto reach = [&](const Module& module) {
      if (module.kind == ModuleKind::embedding) layout_->trains_embedding = true;
      if (module.kind != ModuleKind::head) lowest = std::min(lowest, std::max<int64_t>(0, module.layer));
    };
    for (const Pair& pair : layout_->pairs) reach(pair.module());
    for (const OwnTensors& own : layout_->own) reach(own.module);
    layout_->first_layer = lowest;
  }

  // A rank above the smaller side of its module is wasteful, yet PEFT makes such adapters.
  void check(const Pair& pair, double alpha, const std::string& name) const {
    if (pair.rank < 1 || pair.rank > kMaxRank)
      reject(config_, "LoraConfig::rank", "r",
             {.what = "impossible LoRA rank",
              .where = "for " + name,
              .got = std::to_string(pair.rank),
              .wanted = "1 to " + std::to_string(kMaxRank)});
    if (!(alpha > 0) || !std::isfinite(alpha))
      reject(config_, "LoraConfig::alpha", "lora_alpha",
             {.what = "impossible LoRA alpha",
              .where = "for " + name,
              .got = std::to_string(alpha),
              .wanted = "a number above 0"});
  }

  const LoraConfig& config_;
  const std::vector<Module>& modules_;
  std::vector<bool> covered_ = std::vector<bool>(modules_.size());  // has a pair
  FilePatterns patterns_;
  std::vector<int64_t> ranks_;  // of modules_
  std::vector<double> alphas_;
  std::shared_ptr<AdapterLayout> layout_ = std::make_shared<AdapterLayout>();
};

}  // namespace

int64_t largest_rank(const AdapterLayout& layout) {
  int64_t rank = 0;
  for (const Pair& pair : layout.pairs) rank = std::max(rank, pair.rank);
  return rank;
}

std::span<const OwnTensors> own_tensors_at(const AdapterLayout& layout, int64_t site) {
  const auto of_site =
      std::ranges::equal_range(layout.own, site, {}, [](const OwnTensors& o) { return o.module.site; });
  return {of_site.begin(), of_site.end()};
}

bool saves_weights(const AdapterLayout& layout) {
  return std::ranges::any_of(layout.own, [](const OwnTensors& own) { return own.weight != kAbsent; });
}

bool is_plain(const AdapterLayout& layout) {
  return layout.own.empty() && std::ranges::all_of(layout.pairs, [](const Pair& pair) {
           return pair.module().kind == ModuleKind::linear && pair.a0_offset == kAbsent;
         });
}

void check_ranks(const AdapterLayout& layout, Device device) {
  const int64_t most = kernels::max_lora_rank(device);
  for (const Pair& pair : layout.pairs)
    if (pair.rank > most)
      reject(layout.config, "LoraConfig::rank", pair.rank == layout.config.rank ? "r" : "rank_pattern",
             {.what = "a GPU takes smaller LoRA ranks",
              .where = "for " + pair.modules.front().name,
              .got = std::to_string(pair.rank),
              .wanted = "at most " + std::to_string(most),
              .attempt = "an adapter of a smaller rank, or StreamOptions::device cpu"});
}

std::shared_ptr<const AdapterLayout> resolve_layout(const LoraConfig& config, const std::vector<Module>& modules) {
  if (!(config.dropout >= 0 && config.dropout < 1))
    reject(
        config, "LoraConfig::dropout", "lora_dropout",
        {.what = "impossible LoRA dropout", .got = std::to_string(config.dropout), .wanted = "0 or more and below 1"});
  return LayoutBuilder(config, modules).build();
}

}  // namespace lockstep::lora
