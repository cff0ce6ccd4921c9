// Load for an OpenAI-compatible server, in the way of vLLM's benchmark_serving: streamed completions, so many at once.
// The same program, unchanged, measures `lockstep serve` and its peers. Exit code 1 when a request failed.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>

#include "core/error.h"
#include "load_report.h"
#include "load_stream.h"

using namespace lockstep;
using namespace lockstep::bench;
namespace asio = boost::asio;

namespace {

struct Options {
  std::string host = "127.0.0.1", endpoint = "completions", json, api_key;
  int port = 8000;
  std::vector<std::string> models;
  int64_t concurrency = 8, num_requests = 64, prompt_tokens = 128, max_tokens = 128, shared_prefix = 0;
  int64_t vocab = 32000, slow_clients = 0, prompt_seed = 0;
  std::optional<int64_t> logprobs;
  double temperature = 0, timeout_s = 600;

  bool chat() const { return endpoint == "chat"; }
};

void add_flags(CLI::App& app, Options& o) {
  app.add_option("--host", o.host, "where the server listens")->capture_default_str();
  app.add_option("--port", o.port)->capture_default_str();
  app.add_option("--model", o.models,
                 "a model or adapter, or several NAME,NAME...: request i asks for number i modulo them")
      ->delimiter(',')
      ->required();
  app.add_option("--endpoint", o.endpoint, "completions: prompts of random token ids; chat: of common words")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app.add_option("--concurrency", o.concurrency, "requests in flight")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--num-requests", o.num_requests)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--prompt-tokens", o.prompt_tokens, "of each prompt (chat: about)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--shared-prefix", o.shared_prefix, "so many first tokens are the same in all prompts")
      ->capture_default_str();
  app.add_option("--max-tokens", o.max_tokens, "of each answer, which must have exactly so many (ignore_eos)")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--vocab", o.vocab, "token ids are below this")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--temperature", o.temperature)->capture_default_str();
  app.add_option("--logprobs", o.logprobs, "ask for log-probs with so many alternatives");
  app.add_option("--slow-clients", o.slow_clients, "more clients that read 100 bytes a second; not counted")
      ->capture_default_str();
  app.add_option("--timeout", o.timeout_s, "seconds for one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--prompt-seed", o.prompt_seed, "another one gives other prompts")->capture_default_str();
  app.add_option("--api-key", o.api_key);
  app.add_option("--json", o.json, "also write the report to this file");
  app.footer(
      "Every stream must end with a finish_reason, usage of exactly --max-tokens and [DONE]; what does not is an "
      "error.\n"
      "A warm-up is a run of its own. Example, 1,000 streams while 200 slow clients hold connections open:\n"
      "  serve_load --port 8000 --model smollm2 --vocab 49152 --concurrency 1000 --num-requests 1000 --slow-clients "
      "200");
}

// Request bodies, the same for the same options. Never with `seed`: vLLM's CPU sampler is slow with it.
class Prompts {
 public:
  explicit Prompts(const Options& options) : options_(options) {
    std::mt19937_64 random(static_cast<uint64_t>(options.prompt_seed));
    for (int64_t i = 0; i < std::min(options.shared_prefix, options.prompt_tokens); ++i) shared_.push_back(random());
  }

  std::string request(int64_t index) const {
    // Prompt i does not depend on how many are asked for.
    std::mt19937_64 random(static_cast<uint64_t>(options_.prompt_seed) * 1'000'003 + static_cast<uint64_t>(index) + 1);
    std::vector<uint64_t> draws = shared_;
    while (draws.size() < static_cast<size_t>(options_.prompt_tokens)) draws.push_back(random());
    const size_t model = static_cast<size_t>(index) % options_.models.size();
    Json body = {{"model", options_.models[model]},
                 {"max_tokens", options_.max_tokens},
                 {"temperature", options_.temperature},
                 {"ignore_eos", true},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (options_.chat()) {
      body["messages"] = {{{"role", "user"}, {"content", words(draws)}}};
    } else {
      for (uint64_t& draw : draws) draw %= static_cast<uint64_t>(options_.vocab);
      body["prompt"] = draws;
    }
    if (options_.logprobs && options_.chat()) body["top_logprobs"] = *options_.logprobs;
    if (options_.logprobs) body["logprobs"] = options_.chat() ? Json(true) : Json(*options_.logprobs);
    return head(body.dump().size()) + body.dump();
  }

 private:
  std::string words(const std::vector<uint64_t>& draws) const {
    constexpr const char* kWords[] = {"time", "year",  "people", "way",    "day",   "man",  "thing", "woman",
                                      "life", "child", "world",  "school", "state", "hand", "part",  "place"};
    std::string text;
    for (const uint64_t draw : draws) text += (text.empty() ? "" : " ") + std::string(kWords[draw % std::size(kWords)]);
    return text;
  }

  std::string head(size_t body_bytes) const {
    const std::string path = options_.chat() ? "/v1/chat/completions" : "/v1/completions";
    const std::string key = options_.api_key.empty() ? "" : "Authorization: Bearer " + options_.api_key + "\r\n";
    return "POST " + path + " HTTP/1.1\r\nHost: " + options_.host + ":" + std::to_string(options_.port) +
           "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n" + key +
           "Content-Length: " + std::to_string(body_bytes) + "\r\n\r\n";
  }

  const Options& options_;
  std::vector<uint64_t> shared_;
};

asio::ip::tcp::endpoint resolve(asio::io_context& context, const Options& options) {
  boost::system::error_code error;
  asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), error);
  if (error || found.empty()) throw ConfigError({.what = "cannot resolve --host", .got = options.host});
  return found.begin()->endpoint();
}

// A connection is a file.
void raise_file_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Load {
 public:
  explicit Load(const Options& options)
      : options_(options),
        prompts_(options),
        stream_{.endpoint = resolve(context_, options),
                .chat = options.chat(),
                .max_tokens = options.max_tokens,
                .timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000))} {}

  OrderedJson run() {
    int64_t waiting = options_.slow_clients;
    if (waiting == 0) begin();
    for (int64_t i = 0; i < options_.slow_clients; ++i) {
      const auto connected = [this, &waiting] {
        if (--waiting == 0) begin();
      };
      start_slow_client(context_, stream_.endpoint, prompts_.request(-1 - i), connected, [this] { ++slow_lost_; });
    }
    context_.run();
    OrderedJson report = report_.json(std::chrono::duration<double>(end_ - begin_).count());
    if (options_.slow_clients > 0) report["slow_clients_lost"] = slow_lost_;
    return report;
  }

 private:
  void begin() {
    begin_ = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < options_.concurrency; ++i) next();
  }

  void next() {
    if (num_started_ == options_.num_requests) return;
    LoadStream::start(context_, stream_, prompts_.request(num_started_++), [this](StreamResult result) {
      report_.add(result);
      if (++num_ended_ == options_.num_requests) return end();
      next();
    });
  }

  void end() {
    end_ = std::chrono::steady_clock::now();
    context_.stop();
  }

  const Options& options_;
  const Prompts prompts_;
  asio::io_context context_{1};
  const StreamOptions stream_;
  LoadReport report_;
  int64_t num_started_ = 0, num_ended_ = 0, slow_lost_ = 0;
  std::chrono::steady_clock::time_point begin_, end_;
};

OrderedJson settings(const Options& o) {
  return {{"endpoint", o.endpoint},           {"models", o.models},
          {"concurrency", o.concurrency},     {"num_requests", o.num_requests},
          {"prompt_tokens", o.prompt_tokens}, {"shared_prefix", o.shared_prefix},
          {"max_tokens", o.max_tokens},       {"slow_clients", o.slow_clients}};
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Streams completions from an OpenAI-compatible server, so many at once, and reports rates and latencies.");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    raise_file_limit();
    OrderedJson report = settings(options);
    report.update(Load(options).run());
    std::cout << report_text(report);
    if (!options.json.empty()) {
      std::ofstream file(options.json);
      file << report.dump(2) << "\n";
      if (!file.flush()) throw ResourceError({.what = "cannot write the report", .where = options.json});
    }
    return report.at("num_errors") == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
