// Samples through rollout::Sampler from a server of vLLM, SGLang or Lockstep, or from a made-up one in a process of its
// own: how many tokens a second, and what our client costs. bench/engine_client.py runs it beside a peer's client.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <random>

#include "core/json.h"
#include "rollout/remote/remote_sampler.h"
#include "rollout/sample_groups.h"
#include "support/fake_engine.h"

namespace {

using namespace lockstep;
using rollout::EngineKind;

struct Options {
  std::string engine = "vllm", address;
  int prompts = 64, streams = 32, input_len = 32, output_len = 64, vocabulary = 1000, rounds = 3, warm_up = 1;
  int token_ms = 20;  // of the made-up server
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Writes its address into the pipe and answers until it is killed.
[[noreturn]] void serve(const Options& options, int pipe) {
  lockstep::testing::FakeEngine server(
      rollout::parse_engine_kind(options.engine),
      [&options](const std::string&, const std::vector<int32_t>&, int64_t, const OrderedJson&) {
        lockstep::testing::FakeEngine::Drawn drawn;
        for (int t = 0; t < options.output_len; ++t) {
          drawn.tokens.push_back(100'000 + t);
          drawn.logprobs.push_back(-0.123456789F * static_cast<float>(t + 1));
        }
        return drawn;
      });
  server.token_ms = options.token_ms;
  const std::string address = server.address().text();
  if (::write(pipe, address.data(), address.size()) != static_cast<ssize_t>(address.size())) _exit(1);
  ::close(pipe);
  for (;;) ::pause();
}

struct Server {
  pid_t process = 0;
  std::string address;
  ~Server() {
    if (process == 0) return;
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
};

void start(const Options& options, Server& server) {
  int pipe[2];
  if (::pipe(pipe) != 0) throw ResourceError({.what = "no pipe"});
  server.process = ::fork();
  if (server.process == 0) serve(options, pipe[1]);
  ::close(pipe[1]);
  char text[256];
  const ssize_t count = ::read(pipe[0], text, sizeof text);
  ::close(pipe[0]);
  server.address.assign(text, static_cast<size_t>(std::max<ssize_t>(count, 0)));
}

OrderedJson measure(const Options& options, const std::string& address) {
  rollout::Fleet fleet({.kind = rollout::parse_engine_kind(options.engine),
                        .addresses = {net::parse_address(address, "--address")},
                        .max_samples = options.streams});
  fleet.connect();
  rollout::RemoteSampler sampler(fleet, {});
  std::mt19937 random(1);
  OrderedJson rounds = OrderedJson::array();
  for (int round = -options.warm_up; round < options.rounds; ++round) {
    std::vector<rollout::Prompt> prompts;
    for (int i = 0; i < options.prompts; ++i) {
      rollout::Prompt& prompt = prompts.emplace_back(rollout::Prompt{.row = static_cast<uint32_t>(i)});
      for (int t = 0; t < options.input_len; ++t)
        prompt.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(options.vocabulary)));
    }
    const rollout::GroupParams params{
        .sampling = {.temperature = 1, .max_tokens = options.output_len, .min_tokens = options.output_len}, .n = 1};
    const double cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    int64_t tokens = 0;
    for (const rollout::Sample& sample : sample_groups(sampler, prompts, params, {}))
      tokens += static_cast<int64_t>(sample.tokens.size());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round >= 0)
      rounds.push_back({{"tokens", tokens},
                        {"seconds", took.count()},
                        {"tokens_per_second", static_cast<double>(tokens) / took.count()},
                        {"client_cpu_seconds", cpu_seconds() - cpu},
                        {"share_of_a_core", (cpu_seconds() - cpu) / took.count()}});
  }
  return rounds;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app{"Samples through our Sampler from a server; without --address from one that makes its tokens up."};
  app.add_option("--engine", options.engine, "vllm, sglang or lockstep");
  app.add_option("--address", options.address, "HOST:PORT of a running server");
  app.add_option("--prompts", options.prompts);
  app.add_option("--streams", options.streams, "samples in flight");
  app.add_option("--input-len", options.input_len, "tokens of each prompt");
  app.add_option("--output-len", options.output_len, "tokens of each sample");
  app.add_option("--vocabulary", options.vocabulary, "prompts are of random tokens below it");
  app.add_option("--rounds", options.rounds);
  app.add_option("--warm-up", options.warm_up, "rounds before them that are not counted");
  app.add_option("--token-ms", options.token_ms, "time of a token of the made-up server");
  CLI11_PARSE(app, argc, argv);
  Server made_up;
  if (options.address.empty()) start(options, made_up);
  std::cout << measure(options, options.address.empty() ? made_up.address : options.address).dump() << std::endl;
  return 0;
} catch (const lockstep::Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
}
