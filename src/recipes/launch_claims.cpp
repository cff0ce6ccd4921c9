#include "recipes/launch_claims.h"

#include <fmt/format.h>

#include <charconv>

#include "core/device_facts.h"
#include "core/fs.h"
#include "recipes/base.h"

namespace lockstep::recipes {

namespace {

using Kind = LaunchClaim::Kind;

// As PyTorch, vLLM and SGLang write them; "auto" is whatever the model has, an unknown name is itself.
std::string type_name(const std::string& value) {
  if (value == "float" || value == "fp32") return "float32";
  if (value == "half" || value == "fp16") return "float16";
  if (value == "bf16") return "bfloat16";
  if (value == "f16") return "float16";
  if (value == "f32") return "float32";
  return value;
}

std::string weight_type(const Base& base, Device device) {
  return type_name(kernels::format_name(model::block_format(base.config, load::weight_dtype(base), device)));
}

[[noreturn]] void wrong(const LaunchClaim& claim, const std::string& what, const std::string& wanted) {
  throw ConfigError({.what = what,
                     .where = claim.flag,
                     .got = claim.value,
                     .wanted = wanted,
                     .attempt = "drop the flag, or give it this value"});
}

bool is_model(const std::string& value, const Base& base) {
  return value == base.name || (fs::exists(value) && fs::same_place(value, base.path));
}

void check(const LaunchClaim& claim, const Base& base, Device device) {
  const std::string type = type_name(claim.value);
  const std::string place = fmt::format("on {}", device_text(device));
  const std::string computed = type_name(dtype_name(kernels::activation_dtype(device)));
  switch (claim.kind) {
    case Kind::model:
      if (!is_model(claim.value, base)) wrong(claim, "another model than the one that is trained", base.name);
      return;
    case Kind::context: {
      int64_t tokens = 0;
      std::from_chars(claim.value.data(), claim.value.data() + claim.value.size(), tokens);
      if (tokens > base.config.max_positions)
        wrong(claim, "longer than the model's context", fmt::format("at most {}", base.config.max_positions));
      return;
    }
    case Kind::weight_type: {
      // Matmuls of 16-bit weights with f32 activations are at least what f32 weights would give.
      const std::string packed = weight_type(base, device);
      if (type != "auto" && type != packed && type != computed)
        wrong(claim, "weights are not of this type " + place,
              packed == computed ? "auto or " + packed : fmt::format("auto, {} or {}", packed, computed));
      return;
    }
    case Kind::cache_type:
      if (type != "auto" && type != computed)
        wrong(claim, "keys and values are not of this type " + place, "auto or " + computed);
      return;
    case Kind::adapter_type:
      if (type != "auto" && type != computed)
        wrong(claim, "adapters are not of this type " + place, "auto or " + computed);
      return;
    case Kind::device: {
      const std::string wanted = device_name(device);
      if (claim.value != "auto" && claim.value != wanted && !claim.value.starts_with(wanted + ":"))
        wrong(claim, "trainer and engine share one device", wanted + " (StreamOptions::device)");
      return;
    }
  }
}

}  // namespace

void check_claims(const BaseOptions& options, const std::vector<LaunchClaim>& claims) {
  if (claims.empty()) return;
  const Base base = read_base(options);
  const Device device = stream_options(options).device;
  for (const LaunchClaim& claim : claims) check(claim, base, device);
}

}  // namespace lockstep::recipes
