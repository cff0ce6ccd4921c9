// The adapter that a run starts with: fresh, or a PEFT directory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "load/adapter.h"
#include "recipes/base.h"

namespace lockstep::recipes {

// Checks and loads a PEFT directory, or the one that a checkpoint or save directory holds (of miles and vime, too), and
// prints its notes. Throws what load::check_adapter and load::load_adapter
// throw.
lora::AdapterVersion load_adapter(const std::string& directory, const Base& base, const Control& control);
// Prints a line for each note.
void print_notes(const std::vector<std::string>& notes, const Control& control);

// What an adapter has beside plain factors of its modules: ", DoRA, dropout 0.1, lm_head whole"; empty: nothing.
std::string kind_text(const lora::LoraConfig& config);
// Prints rank, modules and parameter counts.
void describe_adapter(const lora::AdapterVersion& adapter, const Base& base, const Control& control);

// ConfigError unless what was asked for is this adapter: rank, alpha, scaling, type, modules. `with_defaults`: a rank
// without the rest asks for the defaults of the rest. `where`: of the adapter, for messages.
void require_same_adapter(const AdapterOptions& wanted, bool with_defaults, const lora::AdapterLayout& stored,
                          const Base& base, const fs::Path& where);

// ConfigError for an adapter that is used here and not trained (LoraConfig::freezes_b).
void require_trainable(const lora::LoraConfig& config);

// The layout with this dropout, which is trained with and saved.
std::shared_ptr<const lora::AdapterLayout> with_dropout(std::shared_ptr<const lora::AdapterLayout> layout,
                                                        double dropout);
// The same with the dropout that the options ask for; without one that of the adapter stays.
std::shared_ptr<const lora::AdapterLayout> with_asked_dropout(std::shared_ptr<const lora::AdapterLayout> layout,
                                                              const AdapterOptions& options);

// The adapter a fresh run starts with: the PEFT directory's, or new weights. The directory supplies what the options do
// not ask for, dropout among it; ConfigError if they ask for another rank, alpha, scaling, type or other modules than
// it has.
lora::AdapterVersion starting_adapter(const AdapterOptions& options, const Base& base, uint64_t seed,
                                      const Control& control);
// The layout of that adapter, of which no weight is read. The same errors.
std::shared_ptr<const lora::AdapterLayout> starting_layout(const AdapterOptions& options, const Base& base);

}  // namespace lockstep::recipes
