#include "model/families/family.h"

namespace lockstep::model {

FamilyRules mistral_rules() {
  return {.model_type = "mistral",
          .defaults = {.vocab_size = 32000,
                       .width = 4096,
                       .ffn = 14336,
                       .layers = 32,
                       .heads = 32,
                       .kv_heads = 8,
                       .head_dim = 0,
                       .max_positions = 4096 * 32},
          .keys = {"sliding_window"},
          .apply = [](ModelSpec& config, const JsonObject& json) {
            // Absent is the default, 4096; null is full attention.
            const bool absent = !json.json().contains("sliding_window");
            const int64_t window = absent ? 4096 : json.integer("sliding_window", 0);
            if (window < 1 && json.has("sliding_window"))
              throw FormatError({.what = "impossible sliding window",
                                 .where = json.where() + ": sliding_window",
                                 .got = std::to_string(window),
                                 .wanted = "1 or more, or null"});
            config.window.assign(static_cast<size_t>(config.layers), window);
          }};
}

}  // namespace lockstep::model
