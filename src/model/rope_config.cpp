#include "model/rope_config.h"

#include <cmath>
#include <numbers>
#include <set>

#include "core/error.h"

namespace lockstep::model {

namespace {

double positive(const JsonObject& json, const char* key, double value) {
  if (!(value > 0) || !std::isfinite(value))
    throw FormatError({.what = "impossible rotary embedding",
                       .where = json.where() + ": " + key,
                       .got = std::to_string(value),
                       .wanted = "a number above 0"});
  return value;
}

void require_whole_rotation(const JsonObject& json) {
  const double factor = json.number("partial_rotary_factor", 1);
  if (factor != 1)
    throw FormatError({.what = "partial rotary embedding is not supported",
                       .where = json.where() + ": partial_rotary_factor",
                       .got = std::to_string(factor),
                       .wanted = "1"});
}

// The object that says how frequencies are scaled: rope_parameters or rope_scaling.
void parse_scaling(RopeConfig& rope, const JsonObject& json, int64_t max_positions) {
  const std::string type = json.string("rope_type", json.string("type", "default"));
  std::set<std::string> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  require_whole_rotation(json);
  if (type == "linear") {
    rope.type = RopeType::linear;
    known.insert("factor");
    rope.factor = positive(json, "factor", json.number("factor"));
  } else if (type == "llama3") {
    rope.type = RopeType::llama3;
    known.insert({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    rope.factor = positive(json, "factor", json.number("factor"));
    rope.low_freq_factor = positive(json, "low_freq_factor", json.number("low_freq_factor"));
    rope.high_freq_factor = positive(json, "high_freq_factor", json.number("high_freq_factor"));
    rope.original_max_positions = json.integer("original_max_position_embeddings", max_positions);
    positive(json, "original_max_position_embeddings", static_cast<double>(rope.original_max_positions));
    if (rope.low_freq_factor >= rope.high_freq_factor)
      throw FormatError({.what = "impossible rotary embedding",
                         .where = json.where() + ": high_freq_factor",
                         .got = std::to_string(rope.high_freq_factor),
                         .wanted = "above low_freq_factor = " + std::to_string(rope.low_freq_factor)});
  } else if (type != "default") {
    throw FormatError({.what = "this rotary embedding is not supported",
                       .where = json.where() + ": rope_type",
                       .got = type,
                       .wanted = "default, linear or llama3"});
  }
  for (const auto& [key, value] : json.json().items()) {
    const bool nothing = value.is_null() || value == false || (value.is_structured() && value.empty());
    if (!nothing && !known.count(key))
      throw FormatError({.what = "a rotary embedding has a key this program does not know",
                         .where = json.where() + ": " + key,
                         .got = value.dump().substr(0, 100),
                         .wanted = "no such key for rope_type " + type});
  }
}

bool same(const RopeConfig& a, const RopeConfig& b) {
  return a.type == b.type && a.theta == b.theta && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor && a.original_max_positions == b.original_max_positions;
}

}  // namespace

RopeConfig parse_rope(const JsonObject& json, int64_t max_positions) {
  require_whole_rotation(json);
  RopeConfig old_spelling;
  old_spelling.theta = positive(json, "rope_theta", json.number("rope_theta", 10000));
  if (json.has("rope_scaling")) parse_scaling(old_spelling, json.object("rope_scaling"), max_positions);
  if (!json.has("rope_parameters")) return old_spelling;

  const JsonObject parameters = json.object("rope_parameters");
  RopeConfig rope;
  rope.theta = positive(parameters, "rope_theta", parameters.number("rope_theta", old_spelling.theta));
  parse_scaling(rope, parameters, max_positions);
  const bool both = json.has("rope_scaling") || json.has("rope_theta");
  if (!json.has("rope_theta")) old_spelling.theta = rope.theta;
  if (both && !json.has("rope_scaling")) {
    const double theta = old_spelling.theta;
    old_spelling = rope;
    old_spelling.theta = theta;
  }
  if (both && !same(rope, old_spelling))
    throw FormatError({.what = "rope_parameters contradicts rope_theta or rope_scaling",
                       .where = json.where() + ": rope_parameters",
                       .got = parameters.json().dump(),
                       .attempt = "remove one of the two spellings"});
  return rope;
}

std::vector<float> rope_frequencies(const ModelSpec& config) {
  const RopeConfig& rope = config.rope;
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float band = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  const double original = static_cast<double>(rope.original_max_positions);
  const float longest = static_cast<float>(original / rope.low_freq_factor);
  const float shortest = static_cast<float>(original / rope.high_freq_factor);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    // Every operation rounds to f32, in transformers' order: its frequencies are what the weights were trained with.
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.type == RopeType::linear) frequency /= factor;
    if (rope.type == RopeType::llama3) {
      const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
      if (wavelength > longest) {
        frequency /= factor;
      } else if (wavelength >= shortest) {
        const float smooth = (static_cast<float>(original) / wavelength - low) / band;
        frequency = (1 - smooth) * frequency / factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace lockstep::model
