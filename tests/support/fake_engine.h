// A server that answers as vLLM, SGLang or Lockstep do where Lockstep asks them, with switches for failures and lies.
// What it generates is made up from the prompt, unless a test computes it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/fs.h"
#include "core/json.h"
#include "rollout/remote/dialect.h"
#include "server/http/http.h"
#include "support/temp_directory.h"

namespace lockstep::testing {

using rollout::EngineKind;

// All that there are, for tests of what every kind of server does.
inline std::vector<EngineKind> engine_kinds() {
  std::vector<EngineKind> kinds;
  for (const rollout::EngineFacts& engine : rollout::kEngines) kinds.push_back(engine.kind);
  return kinds;
}

class FakeEngine {
 public:
  struct Drawn {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    bool stopped = false, aborted = false;  // by an end token; by a pause
  };
  // `directory`: of the adapter that is asked for; empty: the base. `sampling`: as the request says it.
  using Generate = std::function<Drawn(const std::string& directory, const std::vector<int32_t>& prompt, int64_t sample,
                                       const OrderedJson& sampling)>;

  // Of the adapters' weights nothing is looked at.
  static Drawn made_up(const std::string&, const std::vector<int32_t>& prompt, int64_t sample,
                       const OrderedJson& sampling) {
    const int64_t most = sampling.value("max_tokens", sampling.value("max_new_tokens", int64_t{4}));
    Drawn drawn;
    for (int64_t t = 0; t < std::min<int64_t>(most, 4); ++t) {
      drawn.tokens.push_back(static_cast<int32_t>((prompt.front() + sample * 7 + t) % 90));
      drawn.logprobs.push_back(-0.25F * static_cast<float>(t + 1));
    }
    return drawn;
  }

  explicit FakeEngine(EngineKind kind, Generate generate = made_up) : kind_(kind), generate_(std::move(generate)) {
    start();
  }
  ~FakeEngine() { kill(); }

  // At once, with every connection; what it held is gone. start() listens at the same port again.
  void kill() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    server_.reset();
    const std::lock_guard lock(mutex_);
    adapters_.clear();
    weights_.clear();
    weight_version_.clear();
  }
  void start() {
    server_ = std::make_unique<server::HttpServer>(
        server::HttpOptions{.port = port_},
        [this](server::HttpRequest request, std::shared_ptr<server::Responder> responder) {
          handle(request, responder);
        });
    port_ = server_->port();
    thread_ = std::thread([server = server_.get()] { server->run(); });
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    adapters_.clear();
  }

  // Processor time of the server's thread.
  double cpu_seconds() {
    clockid_t clock;
    timespec time{};
    if (pthread_getcpuclockid(thread_.native_handle(), &clock) == 0) clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  net::Address address() const { return {.host = "127.0.0.1", .port = port_}; }
  std::map<std::string, std::string> adapters() const {
    const std::lock_guard lock(mutex_);
    return adapters_;
  }
  std::string weights() const {  // the directory whose weights took the base's place
    const std::lock_guard lock(mutex_);
    return weights_;
  }
  std::vector<OrderedJson> bodies() const {  // of requests to generate
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

  // Failures.
  std::atomic<int> fail_each = 0;     // every so manieth request to generate is answered 500
  std::atomic<int> fail_at = 0;       // the request to generate of this number is answered 500
  std::atomic<int> token_ms = 0;      // time of a token
  std::atomic<int> refuse_loads = 0;  // status that loading is answered with
  std::atomic<int> stumbles = 0;      // so many loads are answered 500 first
  std::atomic<bool> hang = false;     // requests to generate are not answered
  std::atomic<bool> hang_health = false, hang_changes = false;  // nor those to /health; to load and to unload
  std::string wrong_answer;                                     // instead of any answer to generate
  std::string api_key;                                          // asked for, if not empty
  // Lies: 200 for a load that does nothing; or that leaves the adapter before it in use.
  std::atomic<bool> loads_nothing = false, keeps_old = false;
  // Writes the tensors of a request to load them as a PEFT directory.
  std::function<void(const OrderedJson& body, const std::string& directory)> read_tensors;
  std::function<std::string(const std::string& directory)> change;  // what it makes of a directory that it loads

  // What it says of itself.
  OrderedJson lora = {{"max_loras", 8}, {"max_lora_rank", 64}};
  int64_t data_parallel = 1;
  bool deterministic = false;              // SGLang's --enable-deterministic-inference
  std::atomic<int64_t> says_version = -2;  // Lockstep: of every answer, if it is not -2; -1: the base
  std::string logprobs_mode = "processed_logprobs", device = "cpu";
  std::atomic<int> generated = 0, loads = 0, unloads = 0, max_adapters = 0, weight_loads = 0, cache_resets = 0,
                   pauses = 0, resumes = 0, hung = 0, rollouts = 0;  // rollouts: requests of several samples
  OrderedJson hello;                                                 // of a Lockstep server; null: of another build
  std::string base_sum = "a";

 private:
  static constexpr const char* kSumOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  using Reply = std::shared_ptr<server::Responder>;

  void keep(const Reply& reply) {
    kept_.push_back(reply);
    ++hung;
  }
  static void say(const Reply& reply, int status, const OrderedJson& body) {
    reply->send({.status = status, .body = body.dump()});
  }
  void refuse(const Reply& reply, int status, const std::string& message) const {
    if (kind_ == EngineKind::sglang) return say(reply, status, {{"success", false}, {"error_message", message}});
    say(reply, status,
        {{"error", {{"message", message}, {"type", "BadRequestError"}, {"param", nullptr}, {"code", status}}}});
  }

  void handle(const server::HttpRequest& request, const Reply& reply) {
    if (!api_key.empty() && request.path.starts_with("/v1") && request.header("authorization") != "Bearer " + api_key)
      return say(reply, 401, {{"error", "Unauthorized"}});
    if (request.path == "/health") return hang_health ? keep(reply) : reply->send({});
    if (request.method == "GET") return describe(request.path, reply);
    if (request.path == "/reset_prefix_cache" && kind_ == EngineKind::vllm) {
      ++cache_resets;
      return say(reply, 200, {{"success", true}});
    }
    if (request.path == "/pause") return pause(request.parameter("mode").value_or("abort"), reply);
    if (request.path == "/resume") return ++resumes, say(reply, 200, {{"status", "resumed"}});
    const OrderedJson body = OrderedJson::parse(request.body);
    if (hang_changes && (request.path.ends_with("load_lora_adapter") || request.path == "/collective_rpc"))
      return keep(reply);
    if (request.path == "/update_weight_version" && kind_ == EngineKind::vllm) {
      weight_version_ = body.value("new_version", "");
      return say(reply, 200, {{"success", true}, {"new_version", weight_version_}});
    }
    if (request.path == "/weight_checker" && body.value("action", "") == "checksum")
      return say(reply, 200, {{"checksums", {{"base", base_sum}, {"weights", weights()}, {"packed", kSumOfNothing}}}});
    if (request.path == "/weights_checker" && kind_ == EngineKind::sglang) {
      OrderedJson rank, ranks = OrderedJson::array();
      rank["checksums"] = {{"base", base_sum}, {"packed", kSumOfNothing}};
      ranks.push_back(rank);
      return say(reply, 200, {{"success", true}, {"ranks", ranks}});
    }
    if (request.path == "/collective_rpc" && kind_ == EngineKind::vllm) {
      if (body.value("method", "") != "reload_weights") return refuse(reply, 500, "no such method");
      return load_weights(body["kwargs"]["weights_path"], reply);
    }
    if (request.path == "/update_weights_from_disk" && kind_ == EngineKind::sglang) {
      if (body.value("flush_cache", false)) ++cache_resets;
      return load_weights(body["model_path"], reply);
    }
    if (request.path == "/load_lora_adapter_from_tensors" && kind_ == EngineKind::sglang)
      return load_tensors(body, reply);
    if (request.path.ends_with("/load_lora_adapter") && !request.path.ends_with("unload_lora_adapter"))
      return load(body, reply);
    if (request.path.ends_with("/unload_lora_adapter")) return unload(body, reply);
    const std::string path = kind_ == EngineKind::vllm     ? "/v1/completions"
                             : kind_ == EngineKind::sglang ? "/generate"
                                                           : "/inference/v1/generate";
    if (request.path == path) return generate(body, reply);
    say(reply, 404, {{"detail", "Not Found"}});
  }

  void describe(const std::string& path, const Reply& reply) const {
    if (path == "/v1/models") {
      OrderedJson cards = OrderedJson::array({{{"id", "base"}, {"parent", nullptr}, {"max_model_len", 160}}});
      for (const auto& [name, directory] : adapters())
        cards.push_back({{"id", name}, {"root", directory}, {"parent", "base"}, {"max_model_len", nullptr}});
      return say(reply, 200, {{"object", "list"}, {"data", cards}});
    }
    if (path == "/weight_info" && kind_ == EngineKind::vllm)
      return say(reply, 200,
                 {{"weight_version", weight_version_.empty() ? OrderedJson(nullptr) : OrderedJson(weight_version_)}});
    if (path == "/model_info" && kind_ == EngineKind::sglang)
      return say(reply, 200, {{"model_path", "base"}, {"weight_version", "default"}});
    if (path == "/version") return say(reply, 200, {{"version", "0.32.0"}});
    if (path == "/server_info" && kind_ == EngineKind::vllm)
      return say(reply, 200,
                 {{"vllm_config",
                   {{"lora_config", lora},
                    {"parallel_config", {{"data_parallel_size", data_parallel}}},
                    {"device_config", {{"device_type", device}}},
                    {"model_config", {{"logprobs_mode", logprobs_mode}, {"quantization", nullptr}}}}}});
    if (path == "/server_info" && kind_ == EngineKind::sglang)
      return say(reply, 200,
                 {{"version", "0.5.17"},
                  {"enable_lora", true},
                  {"max_lora_rank", 64},
                  {"max_loras_per_batch", 8},
                  {"enable_deterministic_inference", deterministic},
                  {"dp_size", data_parallel}});
    if (path == "/hello" && kind_ == EngineKind::lockstep)
      return say(reply, 200,
                 {{"hello", hello.is_null() ? OrderedJson{{"build", "another"}, {"device", device}} : hello},
                  {"max_loras", 64},
                  {"max_lora_rank", 256}});
    say(reply, 404, {{"detail", "Not Found"}});
  }

  void load(const OrderedJson& body, const Reply& reply) {
    ++loads;
    if (stumbles > 0) return --stumbles, refuse(reply, 500, "the engine has stumbled");
    if (refuse_loads != 0) return refuse(reply, refuse_loads, "LoRA rank 64 is greater than max_lora_rank 16.");
    const std::string name = body["lora_name"], directory = body["lora_path"];
    if (!fs::exists(fs::Path(directory) / "adapter_config.json"))
      return refuse(reply, 404, "No adapter found for " + directory);
    const std::lock_guard lock(mutex_);
    if (adapters_.contains(name)) return refuse(reply, 400, "The lora adapter '" + name + "' has already been loaded.");
    if (!keeps_old) last_ = change ? change(directory) : directory;
    if (!loads_nothing) adapters_[name] = last_;
    versions_[name] = body.value("adapter_version", int64_t{-1});
    max_adapters = std::max<int>(max_adapters, static_cast<int>(adapters_.size()));
    if (kind_ == EngineKind::sglang) return say(reply, 200, {{"success", true}, {"error_message", nullptr}});
    reply->send({.body = "Success: LoRA adapter '" + name + "' added successfully.", .content_type = "text/plain"});
  }

  // Those that are running are answered with what half of the time has made.
  void pause(const std::string& mode, const Reply& reply) {
    ++pauses;
    if (mode == "abort")
      for (Running& one : running_)
        if (!std::exchange(*one.answered, true)) {
          for (Drawn& drawn : one.samples) {
            drawn.aborted = true;
            drawn.tokens.resize(drawn.tokens.size() / 2);
            drawn.logprobs.resize(drawn.tokens.size());
          }
          one.reply->send({.body = answer_json(one.samples, -1).dump()});
        }
    running_.clear();
    say(reply, 200, {{"status", "paused"}});
  }

  void load_weights(const std::string& directory, const Reply& reply) {
    ++weight_loads;
    if (refuse_loads != 0) return refuse(reply, refuse_loads, "the weights cannot be read");
    if (!fs::exists(fs::Path(directory) / "config.json")) return refuse(reply, 500, "no model in " + directory);
    if (!loads_nothing && !keeps_old) {
      const std::lock_guard lock(mutex_);
      weights_ = directory;
    }
    say(reply, 200,
        kind_ == EngineKind::sglang ? OrderedJson{{"success", true}, {"message", "ok"}}
                                    : OrderedJson{{"results", {nullptr}}});
  }

  // They are kept in a directory of this server.
  void load_tensors(const OrderedJson& body, const Reply& reply) {
    ++loads;
    const std::lock_guard lock(mutex_);
    const std::string directory = own_->path() / body["lora_name"].get<std::string>();
    if (!read_tensors) return refuse(reply, 500, "this server reads no tensors");
    read_tensors(body, directory);
    adapters_[body["lora_name"]] = directory;
    say(reply, 200, {{"success", true}, {"error_message", nullptr}});
  }

  void unload(const OrderedJson& body, const Reply& reply) {
    ++unloads;
    const std::lock_guard lock(mutex_);
    if (adapters_.erase(body["lora_name"]) == 0) return refuse(reply, 404, "The lora adapter cannot be found.");
    if (kind_ == EngineKind::sglang) return say(reply, 200, {{"success", true}, {"error_message", nullptr}});
    reply->send({.body = "Success", .content_type = "text/plain"});
  }

  void generate(const OrderedJson& body, const Reply& reply) {
    const int number = ++generated;
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(body);
    }
    if (hang) return keep(reply);
    if (number == fail_at || (fail_each > 0 && number % fail_each == 0))
      return refuse(reply, 500, "the engine has stumbled");
    if (!wrong_answer.empty()) return reply->send({.body = wrong_answer});
    std::string directory;
    int64_t version = -1;
    const std::string name = kind_ == EngineKind::sglang ? body.value("lora_path", "") : body.value("model", "");
    if (!name.empty() && name != "base") {
      const std::lock_guard lock(mutex_);
      if (!adapters_.contains(name))
        return refuse(reply, kind_ == EngineKind::sglang ? 400 : 404, "The model `" + name + "` does not exist.");
      directory = adapters_[name];
      version = versions_[name];
    }
    if (says_version != -2) version = says_version;
    if (name.empty() || name == "base") directory = weights();
    const OrderedJson& given = body.contains("sampling_params") ? body["sampling_params"] : body;
    const OrderedJson& sampling = given.is_array() ? given.front() : given;
    const int64_t count = given.is_array() ? static_cast<int64_t>(given.size()) : sampling.value("n", int64_t{1});
    const char* const key = kind_ == EngineKind::vllm     ? "prompt"
                            : kind_ == EngineKind::sglang ? "input_ids"
                                                          : "token_ids";
    const auto prompt = (given.is_array() ? body[key].front() : body[key]).get<std::vector<int32_t>>();
    if (count > 1) ++rollouts;
    std::vector<Drawn> samples;
    OrderedJson how = sampling;
    if (logprobs_mode == "raw_logprobs") how["fake_logprobs_mode"] = "raw";
    try {
      for (int64_t i = 0; i < count; ++i) samples.push_back(generate_(directory, prompt, i, how));
    } catch (const std::exception& error) {  // what a real server's own fault looks like from outside
      return refuse(reply, 500, error.what());
    }
    const auto delay = std::chrono::milliseconds(token_ms * static_cast<int>(samples.front().tokens.size()));
    const auto answered = std::make_shared<bool>(false);
    const std::string answer = answer_json(samples, version).dump();
    if (token_ms > 0) running_.push_back({reply, std::move(samples), answered});
    server_->post_after(delay, [reply, answered, answer] {
      if (!std::exchange(*answered, true)) reply->send({.body = answer});
    });
  }

  static const char* finish_of(const Drawn& drawn) {
    return drawn.aborted ? "abort" : drawn.stopped ? "stop" : "length";
  }

  OrderedJson answer_json(const std::vector<Drawn>& samples, int64_t version) const {
    OrderedJson choices = OrderedJson::array();
    for (size_t i = 0; i < samples.size(); ++i) {
      const Drawn& s = samples[i];
      if (kind_ == EngineKind::vllm)
        choices.push_back({{"index", i},
                           {"text", ""},
                           {"logprobs", {{"token_logprobs", s.logprobs}, {"tokens", OrderedJson::array()}}},
                           {"finish_reason", finish_of(s)},
                           {"stop_reason", nullptr},
                           {"token_ids", s.tokens}});
      if (kind_ == EngineKind::lockstep) {
        OrderedJson content = OrderedJson::array();
        for (const float logprob : s.logprobs) content.push_back({{"logprob", logprob}});
        choices.push_back({{"index", i},
                           {"logprobs", {{"content", content}}},
                           {"finish_reason", finish_of(s)},
                           {"token_ids", s.tokens}});
      }
      if (kind_ == EngineKind::sglang) {
        OrderedJson triples = OrderedJson::array();
        for (size_t t = 0; t < s.tokens.size(); ++t) triples.push_back({s.logprobs[t], s.tokens[t], nullptr});
        choices.push_back({{"text", ""},
                           {"output_ids", s.tokens},
                           {"meta_info",
                            {{"id", "x"},
                             {"finish_reason", {{"type", finish_of(s)}, {"length", s.tokens.size()}}},
                             {"cached_tokens", 0},
                             {"output_token_logprobs", triples}}}});
      }
    }
    if (kind_ == EngineKind::sglang) return choices.size() == 1 ? choices[0] : choices;
    return {{"id", "cmpl-1"},
            {"choices", choices},
            {"usage", {{"prompt_tokens", 1}}},
            {"adapter_version", version < 0 ? OrderedJson(nullptr) : OrderedJson(version)}};
  }

  const EngineKind kind_;
  const Generate generate_;
  int port_ = 0;
  std::unique_ptr<server::HttpServer> server_;
  std::thread thread_;
  const std::unique_ptr<TempDirectory> own_ = std::make_unique<TempDirectory>();
  struct Running {
    Reply reply;
    std::vector<Drawn> samples;
    std::shared_ptr<bool> answered;
  };
  std::string weight_version_;                   // of the server's thread, as the next two
  std::vector<Running> running_;                 // of the server's thread, as the next
  std::vector<Reply> kept_;                      // of the server's thread
  mutable std::mutex mutex_;                     // of what follows
  std::map<std::string, std::string> adapters_;  // directories by name
  std::map<std::string, int64_t> versions_;      // of each name that was ever loaded, as the request said
  std::string weights_;                          // directory whose weights took the base's place
  std::string last_;                             // directory that was loaded honestly
  std::vector<OrderedJson> bodies_;
};

}  // namespace lockstep::testing
