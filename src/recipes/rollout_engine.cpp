#include "recipes/rollout_engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <ostream>
#include <thread>

#include "core/device_facts.h"
#include "core/hidden_secrets.h"
#include "core/stopwatch.h"
#include "net/child_process.h"
#include "recipes/rollouts_together.h"
#include "recipes/server_settings.h"
#include "rollout/local/engine.h"
#include "rollout/remote/remote_sampler.h"
#include "service/hello.h"
#include "versions/adapter_sink.h"
#include "versions/directory_sink.h"
#include "versions/memory_sink.h"
#include "versions/server_check.h"

namespace lockstep::recipes {

namespace {

using rollout::EngineKind;

// That nobody listens at now.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  const bool found = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  if (!found) throw ResourceError({.what = "no port is free for a server on this machine"});
  return ntohs(address.sin_port);
}

fs::Path adapter_directory(const RlOptions& options) {
  if (!options.engine.adapter_dir.empty()) return options.engine.adapter_dir;
  if (!options.save.save.empty()) return fs::Path(options.save.save) / "rollout_adapters";
  return std::filesystem::temp_directory_path() / fmt::format("lockstep-adapters-{}", ::getpid());
}

std::function<void(const std::string&)> noted(const Control& control) {
  return [&control](const std::string& note) { *control.info << "note    " << note << std::endl; };
}

}  // namespace

std::optional<EnginePlan> engine_plan(const RlOptions& options) {
  if (options.engine.kind || options.debug.train_only) return std::nullopt;
  return EnginePlan{.kv_bytes = options.kv_bytes, .max_sequences = max_sequences(options)};
}

struct RolloutEngine::Impl {
  virtual ~Impl() = default;
  virtual rollout::Sampler& sampler() = 0;
  virtual versions::VersionSink* sink() = 0;  // null: nobody generates
  virtual bool is_exact() const { return true; }
  virtual OrderedJson metrics() const { return OrderedJson::object(); }
  virtual void tell_notes() {}
  std::unique_ptr<versions::DirectorySink> published;  // for others
};

struct RolloutEngine::Local : Impl {
  Local(const RlOptions& options, const Base& base, const text::Tokenizer& tokenizer, std::optional<int64_t> kv_bytes,
        Stream& stream)
      : engine(base.model, {.kv_bytes = kv_bytes, .max_sequences = max_sequences(options), .tokenizer = &tokenizer},
               stream) {}
  rollout::Sampler& sampler() override { return engine; }
  versions::VersionSink* sink() override { return &memory; }
  rollout::Engine engine;
  versions::MemorySink memory{engine.versions()};
};

// Of a run whose rollouts are loaded: there is nobody to ask.
struct RolloutEngine::Nobody : Impl {
  rollout::Sampler& sampler() override { return none; }
  versions::VersionSink* sink() override { return nullptr; }

  class NoSampler final : public rollout::Sampler {
   public:
    rollout::Capabilities capabilities() const override { return {.exact_logprobs = true}; }
    rollout::Ticket submit(rollout::SampleRequest /*request*/) override {
      throw ConfigError({.what = "nothing is sampled in this run", .where = "DebugOptions::train_only"});
    }
    void release_memory() override {}

   private:
    std::span<const rollout::Event> next_events(rollout::Deadline /*deadline*/) override { return {}; }
    void end(rollout::Ticket /*ticket*/) override {}
  };
  NoSampler none;
};

struct RolloutEngine::Remote : Impl {
  // What reads servers' log-probs, where they are not the policy's.
  void refuse_readers() const {
    if (!options.engine.policy_logprobs_only) return;
    const char* const reader = options.correction.is_needed()    ? "off-policy corrections"
                               : options.checks.reads_logprobs() ? "a check of log-probs"
                                                                 : nullptr;
    if (reader == nullptr) return;
    throw ConfigError({.what = "log-probs of servers that are not the policy's are read by nobody",
                       .where = "RolloutEngineOptions::policy_logprobs_only",
                       .got = reader,
                       .attempt = "one without the other"});
  }

  // A server keeps the versions that samples are drawn with, and this process the newest.
  void refuse_stale_checks() const {
    if (!options.async.on || !options.checks.equal_logprobs) return;
    throw ConfigError({.what = "log-probs cannot be computed again with versions that only servers hold",
                       .where = "RunChecks::equal_logprobs",
                       .got = "RlOptions::async with servers",
                       .attempt = "one without the other, or the engine of this process"});
  }

  Remote(const RlOptions& run_options, const Base& run_base, Stream& run_stream, const Control& run_control)
      : options(run_options),
        base(run_base),
        stream(run_stream),
        control(run_control),
        directory(adapter_directory(run_options)),
        ours(json_text(Json(service::hello(run_base, run_options.engine.build)))) {
    refuse_readers();
    refuse_stale_checks();
    fs::require_writable_directory(directory);
    rollout::FleetOptions fleet_options = start();
    fleet_options.on_note = [this](const std::string& note) {
      {
        const std::lock_guard lock(notes_mutex);
        notes.push_back(note);
      }
      if (std::this_thread::get_id() == run_thread) tell_notes();
    };
    fleet_options.between = [this] { between(); };
    fleet_options.stopping = [this] { return !connecting && control.interrupted(); };
    fleet.emplace(std::move(fleet_options));
  }
  rollout::Sampler& sampler() override { return *remote; }
  versions::VersionSink* sink() override { return &*files; }
  bool is_exact() const override { return exact; }

  void connect(const lora::AdapterVersion& like, std::span<const rollout::Prompt> prompts) {
    constexpr size_t kPrompts = 3;
    versions::ServerCheckOptions how{.sampling = options.sampling,
                                     .directory = directory,
                                     .write = writer(),
                                     .delivery = options.engine.delivery,
                                     .equal_weights = options.checks.equal_servers,
                                     .any_logprobs = options.engine.policy_logprobs_only};
    for (size_t i = 0; i < std::min(kPrompts, prompts.size()); ++i) how.prompts.push_back(prompts[i].tokens);
    check.emplace(*fleet, std::move(how), base.model, stream);
    fleet->set_on_arrival([this, like](size_t server) {
      const std::string where = fleet->servers()[server].address.text();
      rollout::ServerFacts& facts = fleet->server(server).facts;
      check_base_weights(where, facts, options.engine.delivery);
      // Where weights replace the base, the server may have those of a run before.
      if (options.engine.delivery != rollout::Delivery::weight_files)
        facts.logprobs = known_logprobs(*options.engine.kind, where, facts.logprobs, check->measured_logprobs(server));
      check_settings(*options.engine.kind, where, facts,
                     {.sampling = options.sampling,
                      .rank = lora::largest_rank(*like.layout),
                      .versions = options.async.on ? options.async.max_staleness.value_or(1) + 2
                                                   : options.staleness.versions() + 1,
                      .delivery = options.engine.delivery,
                      .force = options.engine.force,
                      .any_logprobs = options.engine.policy_logprobs_only});
      check->at_arrival(server, like);
      if (exact) require_exact(server);
    });
    fleet->connect();
    connecting = false;
    const rollout::ServerFacts& facts = fleet->servers().front().facts;
    exact = is_exact(facts);
    if (exact) require_exact(0);
    remote.emplace(*fleet, rollout::Capabilities{.exact_logprobs = exact,
                                                 .logprobs = facts.logprobs.value_or(rollout::LogprobKind::tempered),
                                                 .policys_logprobs = !options.engine.policy_logprobs_only});
    files.emplace(*fleet,
                  versions::AdapterSinkOptions{.directory = directory,
                                               .name = options.engine.adapter_name,
                                               .write = writer(),
                                               .delivery = options.engine.delivery},
                  [this](const versions::Version& version) {
                    const Stopwatch clock;
                    check->at_sync(version);
                    check_ms = clock.ms();
                  });
    describe(facts);
  }

  OrderedJson metrics() const override {
    const rollout::Turns::Turn turn(fleet->turns());
    OrderedJson line = server_metrics();
    if (options.checks.equal_servers)
      line.update(
          {{"sync_checksums", check->report().checksums}, {"sync_blind_checksums", check->report().blind_checksums}});
    if (remote->stats().straddled > 0) line["engine_straddled"] = remote->stats().straddled;
    return line;
  }
  void tell_notes() override {
    std::vector<std::string> told;
    {
      const std::lock_guard lock(notes_mutex);
      told.swap(notes);
    }
    for (const std::string& note : told) noted(control)(note);
  }
  OrderedJson server_metrics() const {
    return {{"engine_retries", remote->stats().retries},
            {"sync_check_ms", check_ms},
            {"sync_noise", check->report().noise},
            {"sync_conclusive", check->report().conclusive},
            {"sync_inconclusive", check->report().inconclusive}};
  }

 private:
  versions::VersionWriter writer() {
    // A Lockstep server reads the adapter as it is, bit for bit.
    versions::CopyOptions copy{.base_name = base.name, .exact = *options.engine.kind == EngineKind::lockstep};
    switch (options.engine.delivery) {
      case rollout::Delivery::adapter_files: break;
      case rollout::Delivery::adapter_tensors: return versions::payload_writer(std::move(copy), stream);
      case rollout::Delivery::weight_files: return versions::merged_writer(base, stream, control.interrupted);
    }
    return versions::adapter_writer(std::move(copy), stream);
  }
  bool is_exact(const rollout::ServerFacts& facts) const { return !facts.hello.empty() && facts.hello == ours; }

  rollout::FleetOptions start() {
    const RolloutEngineOptions& engine = options.engine;
    rollout::FleetOptions fleet_options{.kind = *engine.kind,
                                        .api_key = engine.api_key,
                                        .max_samples = max_sequences(options),
                                        .vocab_size = base.config.vocab_size,
                                        .on_version_change = engine.on_version_change};
    for (const std::string& address : engine.addresses) {
      constexpr const char* kField = "RolloutEngineOptions::addresses";
      fleet_options.addresses.push_back(net::parse_address(address, kField));
      net::require_one_authorization(fleet_options.addresses.back(), engine.api_key, kField);
    }
    if (engine.command.empty()) return fleet_options;
    std::string command = engine.command;
    if (fleet_options.addresses.empty()) {
      const int port = free_port();
      command += fmt::format(" --host 127.0.0.1 --port {}", port);
      fleet_options.addresses.push_back({.host = "127.0.0.1", .port = port});
    }
    const fs::Path log = directory / "server.log";
    *control.info << fmt::format("engine  {} (log: {})\n", hide_secrets(command), log.string()) << std::flush;
    // What vLLM asks for before adapters can be loaded while it serves, and its settings read.
    child.emplace(
        net::ChildOptions{.command = command,
                          .environment = {{"VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"}, {"VLLM_SERVER_DEV_MODE", "1"}},
                          .log = log});
    return fleet_options;
  }

  void between() {
    if (connecting && control.interrupted()) throw Cancelled({.what = "interrupted while the servers were waited for"});
    if (!child) return;
    if (const std::optional<int> code = child->exit_code())
      throw ResourceError({.what = "the server that was started has ended",
                           .where = hide_secrets(options.engine.command),
                           .got = fmt::format("exit code {}\n{}", *code, child->log_tail())});
  }

  // Merged weights are compared when the first of them arrive.
  std::string measured_text() const {
    if (options.engine.delivery == rollout::Delivery::weight_files) return "versions arrive merged into the base; ";
    return fmt::format("log-probs differ by {:.2g} on average; ", check->report().noise);
  }

  // Also of a server that was started again in the middle of a run.
  void require_exact(size_t server) const {
    const rollout::Fleet::Server& one = fleet->servers()[server];
    if (!is_exact(one.facts))
      throw versions::ServerFault(
          {.what = "a server that was as this process is another one now, and its bits are not the run's any more",
           .where = one.address.text(),
           .got = one.facts.hello,
           .wanted = ours,
           .attempt = "start the server as it was, and resume the run"});
    if (check->report().noise != 0)
      throw versions::ServerFault({.what = "a server says that it is as this process, and its log-probs differ",
                                   .where = one.address.text(),
                                   .got = fmt::format("{:.3g}", check->report().noise)});
  }

  void describe(const rollout::ServerFacts& facts) const {
    std::vector<std::string> addresses;
    for (const auto& server : fleet->servers()) addresses.push_back(server.address.text());
    *control.info << fmt::format("engine  {} {} at {}: {}\n", rollout::engine_name(*options.engine.kind), facts.version,
                                 fmt::join(addresses, ", "),
                                 exact ? "its log-probs are the trainer's, bit for bit"
                                       : measured_text() + "the trainer computes the policy's own");
    if (!exact && !facts.hello.empty())
      *control.info << fmt::format("note    the server is {}, this process {}\n", facts.hello, ours);
    for (const auto& server : fleet->servers()) {
      const std::string why = fleet->dialect().without_seed(server.facts);
      if (why.empty()) continue;
      *control.info << fmt::format("note    {} gets no seed with its requests: {}; samples cannot be drawn again\n",
                                   server.address.text(), why);
      break;
    }
  }

  const RlOptions& options;
  const Base& base;
  Stream& stream;
  const Control& control;
  const fs::Path directory;
  const std::string ours;  // hello
  const std::thread::id run_thread = std::this_thread::get_id();
  std::mutex notes_mutex;
  std::vector<std::string> notes;  // of whichever thread waits for a server
  bool connecting = true;          // nothing has been trained that an interrupt could leave half done
  double check_ms = 0;             // of the last sync: the comparison
  bool exact = false;              // the servers' log-probs are the trainer's, bit for bit
  std::optional<net::ChildProcess> child;
  std::optional<versions::ServerCheck> check;  // before the fleet, whose threads use it to their end
  std::optional<rollout::Fleet> fleet;
  std::optional<rollout::RemoteSampler> remote;
  std::optional<versions::AdapterSink> files;
};

RolloutEngine::RolloutEngine(const RlOptions& options, const Base& base, const text::Tokenizer& tokenizer,
                             std::optional<int64_t> kv_bytes, const lora::AdapterVersion& like,
                             std::span<const rollout::Prompt> prompts, Stream& stream, const Control& control) {
  if (options.debug.train_only) {
    impl_ = std::make_unique<Nobody>();
  } else if (options.engine.kind) {
    auto remote = std::make_unique<Remote>(options, base, stream, control);
    remote->connect(like, prompts);
    impl_ = std::move(remote);
  } else {
    impl_ = std::make_unique<Local>(options, base, tokenizer, kv_bytes, stream);
  }
  constexpr int64_t kKept = 2;
  if (!options.publish_dir.empty() && control.rank == 0)
    impl_->published = std::make_unique<versions::DirectorySink>(
        options.publish_dir, kKept, versions::CopyOptions{.base_name = base.name}, stream,
        versions::Patience{.on_note = noted(control), .stopping = control.interrupted});
}
RolloutEngine::~RolloutEngine() = default;

void RolloutEngine::add_sinks(versions::Store& store) {
  if (versions::VersionSink* sink = impl_->sink()) store.add(*sink);
  if (impl_->published) store.add(*impl_->published);
}

rollout::Sampler& RolloutEngine::sampler() {
  return impl_->sampler();
}

bool RolloutEngine::is_exact() const {
  return impl_->is_exact();
}

void RolloutEngine::tell_notes() {
  impl_->tell_notes();
}

OrderedJson RolloutEngine::metrics() const {
  return impl_->metrics();
}

}  // namespace lockstep::recipes
