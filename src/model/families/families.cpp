#include "model/families/family.h"

namespace lockstep::model {

std::span<const FamilyRules> families() {
  static const FamilyRules kFamilies[] = {llama_rules(), mistral_rules(), qwen2_rules(), qwen3_rules()};
  return kFamilies;
}

}  // namespace lockstep::model
