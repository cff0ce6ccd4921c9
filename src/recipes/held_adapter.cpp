#include "recipes/held_adapter.h"

#include "recipes/adapter.h"

namespace lockstep::recipes {

int64_t hold_adapter(rollout::Engine& engine, const std::string& path, const Base& base, const Control& control) {
  if (path.empty()) return rollout::Engine::kBase;
  const Adapter loaded = load_adapter(path, base);
  tell_notes(loaded.notes, control);
  lora::AdapterVersion adapter = loaded.snapshot();
  const int64_t version = adapter.version;
  engine.hold(std::move(adapter));
  return version;
}

}  // namespace lockstep::recipes
