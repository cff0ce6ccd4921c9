// Who generates: what the flags of servers ask for, pass on or refuse.
#include "app/arguments.h"
#include "rollout/remote/engine_kind.h"

namespace lockstep::cli {
namespace {

using rollout::Delivery, rollout::EngineKind, rollout::OnVersionChange;

const std::string kRunning = " --rollout-external-engine-addrs a:1 b:2";

recipes::RolloutEngineOptions engine(const std::string& more) {
  return train("--rollout-engine " + more).engine;
}
void refused(const std::string& more, std::initializer_list<const char*> parts) {
  rejects("--rollout-engine " + more, parts);
}
bool noted(const std::string& more, const std::string& text) {
  for (const std::string& note : parse_train(train_args("--rollout-engine " + more)).notes)
    if (note.find(text) != std::string::npos) return true;
  return false;
}

TEST(RolloutEngineFlags, NameTheServers) {
  const recipes::RolloutEngineOptions two = engine("vllm" + kRunning);
  EXPECT_EQ(two.kind, EngineKind::vllm);
  EXPECT_EQ(two.addresses, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(two.delivery, Delivery::adapter_files);
  EXPECT_EQ(engine("sglang" + kRunning).kind, EngineKind::sglang);
  EXPECT_EQ(engine("lockstep" + kRunning).kind, EngineKind::lockstep);
  EXPECT_FALSE(engine("local").kind);
  EXPECT_FALSE(train("").engine.kind);
  EXPECT_EQ(engine("vllm --rollout-engine-command serve --lora-adapter-name mine").adapter_name, "mine");
  refused("vllm", {"missing: who generates", "--rollout-external-engine-addrs", "--rollout-engine-command"});
  refused("vllm --rollout-engine-command serve" + kRunning, {"one server is started, and several are named"});
  refused("vllm --lora-adapter-name a/b" + kRunning, {"--lora-adapter-name", "no spaces, slashes or colons"});
  refused("tgi" + kRunning, {"--rollout-engine", "tgi"});
}

TEST(RolloutEngineFlags, OfServersAreRefusedWithoutThem) {
  for (const char* flag : {"--rollout-external-engine-addrs a:1", "--rollout-engine-command serve",
                           "--rollout-engine-api-key k", "--rollout-adapter-dir d", "--sync-strategy lora_adapter",
                           "--on-version-change cut", "--force", "--policy-logprobs-only"})
    rejects(flag, {"the engine of this process needs no such thing", "--rollout-engine"});
  EXPECT_EQ(train("--publish-dir d").publish_dir, "d") << "whoever generates";
}

TEST(RolloutEngineFlags, OfTheLocalEngineAreRefusedWithServers) {
  refused("vllm --kv-cache-bytes 1000000" + kRunning, {"a setting of the engine of this process", "drop it"});
  for (const char* flag : {"--colocate", "--rollout-num-gpus"})
    EXPECT_TRUE(noted("vllm " + std::string(flag) + (flag[2] == 'r' ? " 1" : "") + kRunning,
                      std::string(flag) + ": not used; servers generate"));
  for (const char* flag :
       {"--update-weight-buffer-size 1", "--use-rollout-logprobs", "--skip-actor-forward-only", "--use-miles-router"})
    refused("vllm " + std::string(flag) + kRunning, {"does not hold with --rollout-engine vllm"});
}

TEST(RolloutEngineFlags, SayHowVersionsTravel) {
  EXPECT_EQ(engine("sglang --sync-strategy tensor" + kRunning).delivery, Delivery::adapter_tensors);
  EXPECT_EQ(engine("sglang --lora-sync-from-tensor" + kRunning).delivery, Delivery::adapter_tensors);
  EXPECT_EQ(engine("vllm --sync-strategy weights" + kRunning).delivery, Delivery::weight_files);
  EXPECT_TRUE(engine("vllm --sync-strategy weights --force" + kRunning).force);
  EXPECT_EQ(engine("vllm --sync-strategy weights --on-version-change drop" + kRunning).on_version_change,
            OnVersionChange::drop);
  EXPECT_EQ(engine("vllm --sync-strategy weights --pause-generation-mode in_place" + kRunning).on_version_change,
            OnVersionChange::keep);
  EXPECT_EQ(engine("vllm --sync-strategy weights --pause-generation-mode abort" + kRunning).on_version_change,
            OnVersionChange::cut);
  EXPECT_TRUE(noted("vllm --pause-generation-mode abort" + kRunning, "a sample goes on with the adapter it began"));
  refused("vllm --sync-strategy tensor" + kRunning, {"take adapters as files", "/dev/shm"});
  refused("vllm --lora-sync-from-tensor" + kRunning, {"take adapters as files", "/dev/shm"});
  refused("lockstep --sync-strategy weights" + kRunning, {"take adapters as files"});
  refused("vllm --sync-strategy collective" + kRunning, {"--sync-strategy", "collectives", "lora_adapter"});
  refused("vllm --force" + kRunning, {"--force", "--sync-strategy weights"});
  refused("vllm --on-version-change drop" + kRunning, {"--on-version-change", "--sync-strategy weights"});
  refused("sglang --lora-sync-from-tensor --sync-strategy lora_adapter" + kRunning, {"disagree"});
  refused("vllm --sync-strategy weights --on-version-change cut --pause-generation-mode retract" + kRunning,
          {"disagree"});
}

TEST(RolloutEngineFlags, OfTheEngineGoToTheCommandThatIsStarted) {
  const std::string command = "vllm --rollout-engine-command serve ";
  EXPECT_EQ(engine(command + "--vllm-max-loras 3 --vllm-enforce-eager --vllm-block-size 16").command,
            "serve --max-loras 3 --enforce-eager --block-size 16");
  EXPECT_TRUE(noted(command + "--vllm-max-loras 3", "--vllm-max-loras: passed to the server that is started"));
  EXPECT_EQ(engine("sglang --rollout-engine-command serve --sglang-mem-fraction-static 0.5").command,
            "serve --mem-fraction-static 0.5");
  refused("vllm --vllm-max-loras 3" + kRunning, {"the servers are running already", "--max-loras"});
  refused(command + "--sglang-mem-fraction-static 0.5", {"for another engine", "drop it"});
  EXPECT_FALSE(noted(command + "--vllm-gpu-memory-utilization 0.5", "lives in this process"));
}

}  // namespace
}  // namespace lockstep::cli
