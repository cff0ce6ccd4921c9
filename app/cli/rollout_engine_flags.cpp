#include "cli/rollout_engine_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/secret_file.h"
#include "commands/commands.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr std::string_view kLocal = "local", kDefaultStrategy = "lora_adapter";

// Said for the engine of this process, and not true of servers.
struct Refused {
  std::string_view name, attempt;
};
constexpr Refused kRefused[] = {
    {"--update-weight-*", "drop it: versions reach servers by --sync-strategy and --rollout-adapter-dir"},
    {"--use-rollout-logprobs", "drop it: a server's log-probs are not the trainer's, which computes the policy's own"},
    {"--skip-actor-forward-only",
     "drop it: a server's log-probs are not the trainer's, which computes the policy's own"},
    {"--recompute-logprobs-via-prefill", "drop it: the trainer computes the policy's log-probs"},
    {"--http-proxy", "drop it: servers are reached directly"},
    {"--use-miles-router", "drop it: --rollout-external-engine-addrs names every server"},
    {"--miles-router-*", "drop it: --rollout-external-engine-addrs names every server"},
    {"--router-*", "drop it: --rollout-external-engine-addrs names every server"},
};

// As a shell reads it back.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The engine's own name of a script's flag; empty: it is no flag of an engine.
std::string engines_flag(const std::string& flag, rollout::EngineKind kind) {
  const std::string name = rollout::engine_name(kind);
  if (flag.starts_with("--" + name + "-")) return "--" + flag.substr(name.size() + 3);
  if (flag.starts_with("--no-" + name + "-")) return "--no-" + flag.substr(name.size() + 6);
  return "";
}

bool is_engine_flag(const std::string& flag) {
  return std::ranges::any_of(
      rollout::kEngines, [&](const rollout::EngineFacts& engine) { return !engines_flag(flag, engine.kind).empty(); });
}

// "local" and the names of servers, for choice and (separated by commas) for errors.
std::string engine_names(std::string_view first, std::string_view separator) {
  std::string names(first);
  for (const rollout::EngineFacts& engine : rollout::kEngines)
    names += (names.empty() ? "" : std::string(separator)) + engine.name;
  return names;
}

// Hands the flag to the command, or refuses it.
void pass_on(const Occurrence& flag, bool is_switch, recipes::RolloutEngineOptions& engine,
             std::vector<std::string>& notes) {
  const std::string own = engines_flag(flag.flag, *engine.kind);
  if (own.empty())
    throw ConfigError({.what = "this flag is for another engine",
                       .where = flag.flag,
                       .wanted = fmt::format("flags of --rollout-engine {}", rollout::engine_name(*engine.kind)),
                       .attempt = "drop it"});
  if (engine.command.empty())
    throw ConfigError(
        {.what = "the servers are running already, and this flag would change nothing about them",
         .where = flag.flag,
         .attempt = fmt::format("start the servers with {}, or let --rollout-engine-command start one", own)});
  engine.command += " " + own;
  if (!is_switch)
    for (const std::string& value : flag.values) engine.command += " " + quoted(value);
  notes.push_back(flag.flag + ": passed to the server that is started");
}

// One error for all that the engine of this process needs none of.
void refuse_without_servers(const Classified& given) {
  for (const char* name : {"--rollout-external-engine-addrs", "--rollout-engine-command", "--rollout-engine-api-key",
                           "--rollout-engine-api-key-file", "--rollout-adapter-dir", "--sync-strategy",
                           "--on-version-change", "--force", "--policy-logprobs-only"})
    if (given.given(name) != nullptr)
      throw ConfigError({.what = "the engine of this process needs no such thing",
                         .where = name,
                         .attempt = "--rollout-engine " + engine_names("", " or ") + ", or drop it"});
}

[[noreturn]] void disagree(const std::string& flag, const std::string& other, const std::string& wanted) {
  throw ConfigError({.what = flag + " and " + other + " disagree", .where = flag, .wanted = wanted});
}

void refuse_with_servers(const RolloutEngineForm& form, Classified& given) {
  // Scripts of other systems have one of them, whoever generates.
  for (const char* name : {"--colocate", "--rollout-num-gpus"})
    if (given.given(name) != nullptr) given.notes.push_back(fmt::format("{}: not used; servers generate", name));
  if (given.given("--kv-cache-bytes") != nullptr)
    throw ConfigError({.what = "this is a setting of the engine of this process, and servers generate",
                       .where = "--kv-cache-bytes",
                       .got = "--rollout-engine " + form.engine,
                       .attempt = "drop it, or give the servers their own"});
}

// Flags of other systems that mean one of ours.
void map_flags(RolloutEngineForm& form, Classified& given) {
  if (given.given("--lora-sync-from-tensor") != nullptr) {
    if (!form.sync_strategy.empty() && form.sync_strategy != "tensor")
      disagree("--lora-sync-from-tensor", "--sync-strategy", "--sync-strategy tensor");
    form.sync_strategy = "tensor";
    given.notes.push_back("--lora-sync-from-tensor: --sync-strategy tensor");
  }
  const Occurrence* const pause = given.given("--pause-generation-mode");
  if (pause == nullptr) return;
  if (form.sync_strategy != "weights") {
    given.notes.push_back("--pause-generation-mode: nothing pauses; a sample goes on with the adapter it began with");
    return;
  }
  const std::string meant = pause->values.front() == "abort" ? "cut" : "keep";
  if (!form.on_version_change.empty() && form.on_version_change != meant)
    disagree("--pause-generation-mode", "--on-version-change", "--on-version-change " + meant);
  form.on_version_change = meant;
  given.notes.push_back("--pause-generation-mode: --on-version-change " + meant);
}

void check_change(const RolloutEngineForm& form) {
  if (form.sync_strategy == "weights" || form.on_version_change.empty() || form.on_version_change == "keep") return;
  throw ConfigError({.what = "adapters have names, and a sample goes on with the one that it began with",
                     .where = "--on-version-change",
                     .got = form.on_version_change,
                     .wanted = "keep, or --sync-strategy weights"});
}

void check_servers(const RolloutEngineForm& form, const recipes::RolloutEngineOptions& engine) {
  if (engine.addresses.empty() && engine.command.empty())
    throw ConfigError({.what = "missing: who generates",
                       .where = "--rollout-engine " + form.engine,
                       .wanted = "--rollout-external-engine-addrs HOST:PORT ..., or --rollout-engine-command COMMAND"});
  if (!engine.command.empty() && engine.addresses.size() > 1)
    throw ConfigError({.what = "one server is started, and several are named",
                       .where = "--rollout-external-engine-addrs",
                       .got = fmt::format("{}", fmt::join(engine.addresses, " ")),
                       .wanted = "the address that --rollout-engine-command listens at, or none"});
  if (engine.adapter_name.empty() || engine.adapter_name.find_first_of("/: ") != std::string::npos)
    throw ConfigError({.what = "an adapter's name is part of a file's name",
                       .where = "--lora-adapter-name",
                       .got = engine.adapter_name,
                       .wanted = "no spaces, slashes or colons"});
  const rollout::EngineFacts& server = rollout::engine_facts(*engine.kind);
  const bool takes = form.sync_strategy == "tensor"    ? server.takes_tensors
                     : form.sync_strategy == "weights" ? server.takes_weights
                                                       : true;
  if (!takes)
    throw ConfigError(
        {.what = fmt::format("servers of {} take adapters as files", form.engine),
         .where = "--sync-strategy",
         .got = form.sync_strategy,
         .wanted = std::string(kDefaultStrategy),
         .attempt = "--sync-strategy lora_adapter; with --rollout-adapter-dir below /dev/shm no disk is touched"});
  if (engine.force && form.sync_strategy != "weights")
    throw ConfigError({.what = "only --sync-strategy weights asks for it", .where = "--force", .attempt = "drop it"});
  if (form.sync_strategy == "collective")
    throw ConfigError({.what = "adapters cannot be sent to servers through collectives",
                       .where = "--sync-strategy",
                       .got = form.sync_strategy,
                       .wanted = std::string(kDefaultStrategy),
                       .attempt = "--sync-strategy lora_adapter with --rollout-adapter-dir below /dev/shm"});
}

}  // namespace

std::vector<Flag> rollout_engine_flags(RolloutEngineForm& form, recipes::RlOptions& options) {
  static const std::string kEngineNames = engine_names(kLocal, "|");
  recipes::RolloutEngineOptions& engine = options.engine;
  const auto keep_engine = [&form](const std::string& name) { form.engine = name; };
  const auto keep_change = [&form](const std::string& name) { form.on_version_change = name; };
  const auto keep_strategy = [&form](const std::string& name) { form.sync_strategy = name; };
  return {
      {"--rollout-engine", "NAME", choice(kEngineNames, kLocal, keep_engine),
       "what generates the rollouts: this process, or servers of vLLM, SGLang or Lockstep (docs/engines.md)"},
      {"--rollout-external-engine-addrs", "HOST:PORT...", texts(engine.addresses), "running servers to use"},
      {"--rollout-engine-command", "COMMAND", text(engine.command),
       "or: a server to start with the run and end with it"},
      {"--rollout-engine-api-key", "KEY", text(engine.api_key), "API key that the servers require"},
      {"--rollout-engine-api-key-file", "FILE", secret_file(engine.api_key), "file with that key"},
      {"--rollout-adapter-dir", "DIR", text(engine.adapter_dir),
       "where adapter versions are written for the servers, which must see this path (SAVE/rollout_adapters)"},
      {"--lora-adapter-name", "NAME", text(engine.adapter_name), "prefix of the adapter names that servers see"},
      {"--sync-strategy", "NAME", choice("lora_adapter|tensor|weights|collective", kDefaultStrategy, keep_strategy),
       "how versions reach servers: as adapters in files, each with a name of its own; as tensors (SGLang); or merged "
       "into the base, whole"},
      {"--on-version-change", "NAME", choice("cut|keep|drop", "cut", keep_change),
       "with --sync-strategy weights: samples in flight end at a new version, go on with it, or are drawn again"},
      {"--force", "", toggle(engine.force), "with --sync-strategy weights: also to servers of a quantized base"},
      {"--policy-logprobs-only", "", toggle(engine.policy_logprobs_only),
       "also servers whose log-probs are not those that rollouts are drawn by (raw ones at a temperature other than 1, "
       "processed ones with top-p): the trainer computes the policy's, and corrections are off"},
      {"--publish-dir", "DIR", text(options.publish_dir),
       "also write versions here for other engines: DIR/vN with a file STABLE, DIR/latest"}};
}

void resolve_rollout_engine(RolloutEngineForm form, recipes::RlOptions& options, Classified& given) {
  recipes::RolloutEngineOptions& engine = options.engine;
  if (form.engine == kLocal) {
    refuse_without_servers(given);
    if (given.given("--lora-adapter-name") != nullptr)
      given.notes.push_back("--lora-adapter-name: the engine knows adapters by version");
    return;
  }
  engine.kind = rollout::parse_engine_kind(form.engine);
  engine.build = commands::build_commit();
  refuse_with_servers(form, given);
  // What was said about the engine of this process.
  std::erase_if(given.notes, [](const std::string& note) {
    return note.starts_with("--lora-sync-from-tensor") || note.starts_with("--pause-generation-mode");
  });
  map_flags(form, given);
  check_change(form);
  check_servers(form, engine);
  if (form.on_version_change == "keep") engine.on_version_change = rollout::OnVersionChange::keep;
  if (form.on_version_change == "drop") engine.on_version_change = rollout::OnVersionChange::drop;
  if (form.sync_strategy == "tensor") engine.delivery = rollout::Delivery::adapter_tensors;
  if (form.sync_strategy == "weights") engine.delivery = rollout::Delivery::weight_files;
  for (const Occurrence& flag : given.compatible)
    for (const Refused& refused : kRefused)
      if (means(refused.name, flag.flag))
        throw ConfigError({.what = "this flag does not hold with --rollout-engine " + form.engine,
                           .where = flag.flag,
                           .attempt = std::string(refused.attempt)});
  for (const Occurrence& flag : given.compatible)
    if (is_engine_flag(flag.flag)) pass_on(flag, flag.values.empty(), engine, given.notes);
  // A claim of a switch has a value that nobody wrote.
  const auto is_switch = [](const std::string& name) {
    return std::ranges::any_of(claim_flags(),
                               [&](const ClaimFlag& row) { return row.name == name && row.arity == Arity::none; });
  };
  for (const MadeClaim& made : given.claims)
    if (is_engine_flag(made.flag.flag)) pass_on(made.flag, is_switch(made.flag.flag), engine, given.notes);
  std::erase_if(given.claims, [](const MadeClaim& made) { return is_engine_flag(made.flag.flag); });
  // What was said about the engine of this process.
  std::erase_if(given.notes, [](const std::string& note) {
    return is_engine_flag(note) && note.find("passed to the server") == std::string::npos;
  });
}

}  // namespace lockstep::cli
