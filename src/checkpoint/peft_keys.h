// Every key of PEFT's adapter_config.json and what becomes of it here: the list that reading is done by, and the table
// of docs/peft.md.
#pragma once

#include <span>
#include <string_view>

namespace lockstep::checkpoint {

//   used      read, and it means what it means to PEFT
//   ignored   says nothing of weights that are already in the file
//   refused   with any value but null, false and empty ones: its meaning would be lost
enum class KeyUse { used, ignored, refused };

struct PeftKey {
  std::string_view name;
  KeyUse use;
  std::string_view meaning;  // used, ignored: what it does; refused: what it stands for
  std::string_view attempt;  // refused: the way out
};

std::span<const PeftKey> peft_keys();  // sorted by name
const PeftKey* find_peft_key(std::string_view name);

// Values of peft_type other than LORA.
struct PeftType {
  std::string_view name;
  std::string_view attempt;  // the way out
};
std::span<const PeftType> other_peft_types();

}  // namespace lockstep::checkpoint
