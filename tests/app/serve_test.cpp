// lockstep serve: its flags, and the program as a process that is asked, drained and stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/arguments.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

server::ServeOptions serve(const std::string& more) {
  return parse_serve(words("--hf-checkpoint M " + more));
}

TEST(Serve, Defaults) {
  const server::ServeOptions plain = serve("");
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, 8000);
  EXPECT_EQ(plain.max_num_seqs, 256);
  EXPECT_EQ(plain.max_queue, 4096);
  EXPECT_EQ(plain.max_payload_size, int64_t{64} << 20);
  EXPECT_EQ(plain.max_logprobs, 20);
  EXPECT_EQ(plain.generation_config, "auto");
  EXPECT_TRUE(plain.prefix_cache);
  EXPECT_TRUE(plain.api_keys.empty() && plain.served_model_names.empty() && plain.lora_modules.empty());
}

TEST(Serve, Flags) {
  const server::ServeOptions told = serve(
      "--host ::1 --port 0 --served-model-name a b --api-key k1 k2 --max-model-len 100 --max-num-seqs 4 "
      "--max-num-batched-tokens 64 --kv-cache-bytes 1000000 --max-loras 3 --max-lora-rank 16 --lora-root /r "
      "--keep-adapter-versions 5 --max-queue 9 --generation-config vllm --max-logprobs -1 "
      "--no-enable-prefix-caching --return-tokens-as-token-ids --log-requests --drain-timeout 7 "
      "--trust-request-chat-template --enable-prompt-tokens-details --max-payload-size 5000 --threads 1 --device cpu");
  EXPECT_EQ(told.host, "::1");
  EXPECT_EQ(told.port, 0);
  EXPECT_EQ(told.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(told.api_keys, (std::vector<std::string>{"k1", "k2"}));
  EXPECT_EQ(told.max_model_len, 100);
  EXPECT_EQ(told.max_num_seqs, 4);
  EXPECT_EQ(told.max_num_batched_tokens, 64);
  EXPECT_EQ(told.kv_bytes, 1000000);
  EXPECT_EQ(told.max_loras, 3);
  EXPECT_EQ(told.max_lora_rank, 16);
  EXPECT_EQ(told.lora_root, "/r");
  EXPECT_EQ(told.keep_versions, 5);
  EXPECT_EQ(told.max_queue, 9);
  EXPECT_EQ(told.max_payload_size, 5000);
  EXPECT_EQ(told.generation_config, "vllm");
  EXPECT_EQ(told.max_logprobs, -1);
  EXPECT_FALSE(told.prefix_cache);
  EXPECT_TRUE(told.tokens_as_ids && told.log_requests && told.request_chat_template && told.prompt_tokens_details);
  EXPECT_EQ(told.drain_timeout.count(), 7);
}

TEST(Serve, LoraModules) {
  const auto modules = [](const Values& values) {
    Values args = {"--hf-checkpoint", "M", "--lora-modules"};
    args.insert(args.end(), values.begin(), values.end());
    return parse_serve(args).lora_modules;
  };
  const auto found = modules({"a=/x/y=z", R"({"name": "b", "path": "/p", "base_model_name": "m"})"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "a");
  EXPECT_EQ(found[0].path, "/x/y=z");
  EXPECT_EQ(found[1].name, "b");
  EXPECT_EQ(found[1].path, "/p");
  for (const char* bad : {"a", "=p", "a=", "{\"name\": \"b\"}", "{"})
    expect_error<ConfigError>([&] { modules({bad}); }, {"--lora-modules", "NAME=PATH"});
  expect_error<ConfigError>([&] { modules({"a=x", "a=y"}); }, {"two adapters of one name"});
  expect_error<ConfigError>([&] { serve("--max-loras 1 --lora-modules a=x b=y"); }, {"--max-loras"});
}

TEST(Serve, FlagsOfOtherServers) {
  const server::ServeOptions told =
      serve("--enable-lora --max-cpu-loras 4 --dtype float32 --gpu-memory-utilization 0.9");
  EXPECT_EQ(told.notes.size(), 4u);
  expect_error<ConfigError>([] { serve("--tensor-parallel-size 2"); }, {"--tensor-parallel-size"});
  expect_error<ConfigError>([] { serve("--prot 1"); }, {"--prot", "--port"});
  expect_error<ConfigError>([] { serve("--num-layers 2"); }, {"unknown: --num-layers"});
  expect_error<ConfigError>([] { parse_serve({}); }, {"--hf-checkpoint"});
}

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Starts the server, asks for a completion, sends SIGTERM while a long one is being streamed.
constexpr const char* kScript = R"(
set -m
"$@" >out 2>err &
while ! grep -q http out; do kill -0 $! || exit 9; sleep 0.05; done
port=$(sed -n 's/.*:\([0-9]*\),.*/\1/p' out)
ask() {
  exec 3<>/dev/tcp/127.0.0.1/$port
  printf 'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' ${#1} "$1" >&3
}
ask '{"prompt": "12+34=", "max_tokens": 20, "temperature": 0}'
cat <&3 >whole
ask '{"prompt": "12+34=", "max_tokens": 480, "temperature": 0, "ignore_eos": true, "stream": true}'
head -c 700 <&3 >stream
kill -TERM $!
cat <&3 >>stream
wait $!
)";

TEST(Serve, AnswersAndDrains) {
  const testing::TempDirectory dir;
  dir.write("serve.sh", kScript);
  const std::string model = std::filesystem::absolute(LOCKSTEP_SOURCE_DIR "/models/arith").string();
  const std::string command = "cd " + dir.path().string() +
                              " && bash serve.sh " LOCKSTEP_BINARY " serve --hf-checkpoint " + model +
                              " --served-model-name base "
                              "--port 0 --device cpu --log-requests";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << read(dir / "err");
  EXPECT_TRUE(read(dir / "out").starts_with("serving base at http://127.0.0.1:")) << read(dir / "out");
  EXPECT_NE(read(dir / "whole").find("\"text_completion\""), std::string::npos) << read(dir / "whole");
  const std::string stream = read(dir / "stream"), err = read(dir / "err");
  EXPECT_NE(stream.find("\"finish_reason\":\"length\""), std::string::npos) << "it was allowed to end";
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos);
  EXPECT_NE(err.find("draining"), std::string::npos) << err;
  EXPECT_NE(err.find("POST /v1/completions 200 "), std::string::npos) << err;
}

// Starts the server, asks twice without a seed.
constexpr const char* kSeedScript = R"sh(
set -m
"$@" >out 2>err &
while ! grep -q http out; do kill -0 $! || exit 9; sleep 0.05; done
port=$(sed -n 's/.*:\([0-9]*\),.*/\1/p' out)
for file in first second; do
  exec 3<>/dev/tcp/127.0.0.1/$port
  body='{"prompt": "12+34=", "max_tokens": 40, "temperature": 2, "ignore_eos": true}'
  printf 'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
  cat <&3 | sed -n 's/.*"text"://p' >$file
done
kill -TERM $!
wait $!
)sh";

TEST(Serve, SeedsOfRequestsFollowFromTheServers) {
  const std::string model = std::filesystem::absolute(LOCKSTEP_SOURCE_DIR "/models/arith").string();
  const auto answers = [&](const std::string& flags) {
    const testing::TempDirectory dir;
    dir.write("serve.sh", kSeedScript);
    const std::string command = "cd " + dir.path().string() +
                                " && bash serve.sh " LOCKSTEP_BINARY " serve --port 0 --device cpu --hf-checkpoint " +
                                model + " " + flags;
    EXPECT_EQ(std::system(command.c_str()), 0);
    return std::vector<std::string>{read(dir / "first"), read(dir / "second")};
  };
  const auto seven = answers("--seed 7");
  EXPECT_GT(seven[0].size(), 40u);
  EXPECT_NE(seven[0], seven[1]);
  EXPECT_EQ(answers("--seed 7"), seven);
  EXPECT_NE(answers("--seed 8")[0], seven[0]);
  EXPECT_NE(answers("")[0], seven[0]);
}

TEST(Serve, SaysThatTheKvPoolShortensTheContext) {
  const testing::TempDirectory dir;
  dir.write("serve.sh", kSeedScript);
  const std::string model = std::filesystem::absolute(LOCKSTEP_SOURCE_DIR "/models/arith").string();
  const std::string command = "cd " + dir.path().string() +
                              " && bash serve.sh " LOCKSTEP_BINARY " serve --port 0 --device cpu --hf-checkpoint " +
                              model + " --kv-cache-bytes 1000000";
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string err = read(dir / "err");
  EXPECT_NE(err.find("note    the KV cache has room for "), std::string::npos) << err;
  EXPECT_NE(err.find("not 512; --kv-cache-bytes sets its size"), std::string::npos) << err;
}

// Starts the server, has it load an adapter whose file cannot be opened for now, and sends SIGTERM.
constexpr const char* kLoadScript = R"(
set -m
"$@" >out 2>err &
while ! grep -q http out; do kill -0 $! || exit 9; sleep 0.05; done
port=$(sed -n 's/.*:\([0-9]*\),.*/\1/p' out)
exec 3<>/dev/tcp/127.0.0.1/$port
body='{"lora_name": "a", "lora_path": "adapter"}'
printf 'POST /v1/load_lora_adapter HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
sleep 0.5
kill -TERM $!
wait $!
)";

// Who opens a file waits until this is gone, or for the system's lease-break-time, which is 45 s.
class Lease {
 public:
  explicit Lease(const std::filesystem::path& file) : file_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    std::signal(SIGIO, SIG_IGN);  // somebody wants to open it
    held_ = ::fcntl(file_, F_SETLEASE, F_WRLCK) == 0;
  }
  ~Lease() { ::close(file_); }
  bool held() const { return held_; }

 private:
  int file_;
  bool held_ = false;
};

TEST(Serve, ALoadThatHangsDoesNotHoldUpTheEnd) {
  const testing::TempDirectory dir;
  dir.write("serve.sh", kLoadScript);
  const Lease lease(dir.write("adapter/adapter_config.json", "{}"));
  if (!lease.held()) GTEST_SKIP() << "no leases on this file system";
  const std::string model = std::filesystem::absolute(LOCKSTEP_SOURCE_DIR "/models/arith").string();
  const auto begin = std::chrono::steady_clock::now();
  const std::string command = "cd " + dir.path().string() +
                              " && bash serve.sh " LOCKSTEP_BINARY " serve --hf-checkpoint " + model +
                              " --port 0 --device cpu --drain-timeout 1";
  const int status = std::system(command.c_str());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(read(dir / "err").find("it is left"), std::string::npos) << read(dir / "err");
}

}  // namespace
}  // namespace lockstep::cli
