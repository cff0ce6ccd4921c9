#include "model/families/family.h"

namespace lockstep::model {

// Llama 1 to 3.x and what keeps its shape: SmolLM2, Vicuna, ...
FamilyRules llama_rules() {
  return {.model_type = "llama",
          .defaults = {.vocab_size = 32000,
                       .width = 4096,
                       .ffn = 11008,
                       .layers = 32,
                       .heads = 32,
                       .kv_heads = 0,
                       .head_dim = 0,
                       .max_positions = 2048},
          .keys = {"attention_bias", "mlp_bias"},
          .apply = [](ModelSpec& config, const JsonObject& json) {
            config.qkv_bias = config.o_bias = json.boolean("attention_bias", false);
            config.mlp_bias = json.boolean("mlp_bias", false);
          }};
}

}  // namespace lockstep::model
