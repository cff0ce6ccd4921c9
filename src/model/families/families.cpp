#include "model/families/family.h"

namespace lockstep::model {

// Each is defined in a file of this folder.
FamilyRules llama_rules();
FamilyRules mistral_rules();
FamilyRules qwen2_rules();
FamilyRules qwen3_rules();

std::span<const FamilyRules> families() {
  static const FamilyRules kFamilies[] = {llama_rules(), mistral_rules(), qwen2_rules(), qwen3_rules()};
  return kFamilies;
}

}  // namespace lockstep::model
