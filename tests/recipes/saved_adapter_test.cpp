// What a run saves is what a run loads: the modules that were chosen, on the base they were trained on.
#include "checkpoint/file_hash.h"
#include "commands/commands.h"
#include "model/config.h"
#include "recipes/adapter.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

class SavedAdapter : public Training {
 protected:
  SftOptions one_epoch(const std::string& save) {
    SftOptions options = sft(save);
    options.num_epoch = 1;
    return options;
  }
  std::string adapter_of(const std::string& save, int64_t iteration = 3) const {
    return (dir_.path() / save / checkpoint::iteration_directory_name(iteration) / "lora_adapter").string();
  }
  // A copy of the tiny model whose config.json may be changed.
  std::string model() {
    std::filesystem::copy(kTiny, dir_ / "model");
    return (dir_ / "model").string();
  }
  Json config() const { return read_json((dir_ / "model/config.json").string()); }
  void set_config(const Json& json) const { dir_.write("model/config.json", json.dump()); }

  // Leaves a checkpoint as builds before the later hashes and fingerprints did.
  void make_older(const std::string& save, int64_t iteration, const std::string& weights_fingerprint) const {
    const fs::Path directory = dir_.path() / save / checkpoint::iteration_directory_name(iteration);
    for (const char* name : {"vime_lora_metadata.json", "lora_adapter/vime_lora_metadata.json"}) {
      Json metadata = read_json((directory / name).string());
      metadata["base_fingerprint"] = weights_fingerprint;
      metadata.erase("base_weights_fingerprint");
      fs::write_file_atomic(directory / name, metadata.dump());
    }
    Json state = read_json((directory / "train_state.json").string());
    state.erase("state_sha256");
    for (const char* later :
         {"lora_adapter/adapter_config.json", "lora_adapter/vime_lora_metadata.json", "vime_lora_metadata.json"})
      state["sha256"].erase(later);
    fs::write_file_atomic(directory / "train_state.json", state.dump());
  }
};

TEST_F(SavedAdapter, ModulesChosenByNameOrExpressionLoadAgain) {
  const auto holds = [&](const std::string& name, auto choose) {
    SCOPED_TRACE(name);
    for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
      const std::string save = name + lora::lora_type_name(type);
      SftOptions options = one_epoch(save);
      options.adapter.config.type = type;
      options.adapter.config.target_modules.clear();
      choose(options.adapter.config);
      run_sft(options, control_);
      Stream stream({.threads = 1});
      const Base base = load_base(options.base, stream, control_);
      const lora::AdapterVersion loaded = load_adapter(adapter_of(save), base, control_);
      const auto asked = lora::resolve_layout(options.adapter.config, model::linear_modules(base.config));
      ASSERT_EQ(loaded.layout->pairs.size(), asked->pairs.size());
      for (size_t i = 0; i < asked->pairs.size(); ++i)
        EXPECT_EQ(loaded.layout->pairs[i].modules.front().name, asked->pairs[i].modules.front().name);
      // A run goes on from it, by --load and by --lora-adapter-path.
      options.save.load = options.save.save;
      EXPECT_NO_THROW(run_sft(options, control_));
      options.save.load.clear();
      options.save.save.clear();
      options.adapter.adapter_path = adapter_of(save);
      EXPECT_NO_THROW(run_sft(options, control_));
      commands::run_inspect({.path = adapter_of(save)}, control_);
    }
  };
  holds("names", [](lora::LoraConfig& c) {
    c.target_modules = {"model.layers.1.self_attn.q_proj", "layers.0.mlp.down_proj"};
  });
  holds("regex", [](lora::LoraConfig& c) { c.target_regex = "model\\.layers\\.0\\.(self_attn\\.[qo]|mlp\\.up)_proj"; });
  holds("layers", [](lora::LoraConfig& c) {
    c.target_modules = {"v_proj"};
    c.layers_to_transform = {0};
  });
}

TEST_F(SavedAdapter, AnotherChoiceOfModulesIsAnotherAdapter) {
  SftOptions options = one_epoch("save");
  options.adapter.config.type = lora::LoraType::canonical;
  options.adapter.config.target_modules = {"model.layers.0.self_attn.o_proj"};
  run_sft(options, control_);
  options.save.load = options.save.save;
  for (const char* other : {"model.layers.1.self_attn.o_proj", "o_proj"}) {
    options.adapter.config.target_modules = {other};
    expect_error<ConfigError>([&] { run_sft(options, control_); },
                              {"LoraConfig::target_modules", other, "layers.0.self_attn"});
  }
}

TEST_F(SavedAdapter, AChangedAdapterConfigIsNotResumed) {
  SftOptions options = one_epoch("save");
  run_sft(options, control_);
  const std::string file = adapter_of("save") + "/adapter_config.json";
  Json json = read_json(file);
  json["lora_alpha"] = 61;
  fs::write_file_atomic(file, json.dump());
  options.save.load = options.save.save;
  options.adapter.config = {};  // asks for no adapter, so that nothing else refuses it
  options.save.ckpt_step = 3;
  expect_error<FormatError>([&] { run_sft(options, control_); }, {"adapter_config.json", "not the one that was saved"});
  // Without its number the newest checkpoint that is whole goes on, and a line says why it is not this one.
  options.save.ckpt_step.reset();
  info_.str("");
  run_sft(options, control_);
  EXPECT_NE(info_.str().find("iter_0000003 is passed over"), std::string::npos) << info_.str();
  EXPECT_NE(info_.str().find("not the one that was saved"), std::string::npos) << info_.str();
}

TEST_F(SavedAdapter, AnotherConfigOfTheSameWeightsIsAnotherBase) {
  SftOptions options = one_epoch("save");
  options.base.hf_checkpoint = model();
  run_sft(options, control_);
  options.save.load = options.save.save;
  const Json good = config();
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"rope_theta", 12345.0}, {"rms_norm_eps", 1e-3}}) {
    SCOPED_TRACE(key);
    Json changed = good;
    changed.erase("rope_parameters");
    changed[key] = value;
    set_config(changed);
    expect_error<FormatError>([&] { run_sft(options, control_); },
                              {"another config.json of the same weights", "vime_lora_metadata.json: base_fingerprint"});
    expect_error<FormatError>(
        [&] {
          commands::run_score({.base = options.base, .adapter_path = adapter_of("save"), .input = options.prompt_data},
                              control_);
        },
        {"another config.json"});
  }
  // The same values in transformers 5's words, another dtype and a longer context change nothing.
  Stream stream({.threads = 1});
  const double theta = model::parse_config(good, "").rope.theta;
  Json fresh = good;
  fresh.erase("rope_theta");
  fresh.erase("rope_scaling");
  fresh["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", theta}};
  fresh["max_position_embeddings"] = 4 * good["max_position_embeddings"].get<int64_t>();
  fresh["dtype"] = "float32";
  set_config(fresh);
  EXPECT_NO_THROW(run_sft(options, control_));
}

TEST_F(SavedAdapter, AnOlderBuildsCheckpointLoadsWithALine) {
  SftOptions options = sft("save");
  options.base.hf_checkpoint = model();
  options.num_epoch = 1;
  run_sft(options, control_);
  options.num_epoch = 2;
  options.save.load = options.save.save;
  options.save.overrides = {"lr-decay-iters"};  // a longer run
  Stream stream({.threads = 1});
  const Base base = load_base(options.base, stream, control_);
  make_older("save", 3, base.weights_fingerprint);
  info_.str("");
  run_sft(options, control_);
  const std::string said = info_.str();
  EXPECT_NE(said.find("note    " + (dir_ / "save/iter_0000003").string() + " is of an older build"), std::string::npos)
      << said;
  EXPECT_NE(said.find("adapter_config.json"), std::string::npos) << said;
  EXPECT_NE(said.find("its config.json is not compared"), std::string::npos) << said;
  run_sft(sft("whole"), control_);
  EXPECT_EQ(adapter_bytes("save", 6), adapter_bytes("whole", 6));

  make_older("save", 6, std::string(64, '0'));
  expect_error<FormatError>([&] { run_sft(options, control_); }, {"another base model"});
}

class SavedDropout : public SavedAdapter {
 protected:
  SavedDropout() {
    SftOptions options = one_epoch("first");
    options.adapter.config.dropout = 0.3;
    run_sft(options, control_);
  }
  // A run that begins with the adapter of "first", whose config says 0.3.
  SftOptions from_first(const std::string& save, std::optional<double> asked) {
    SftOptions options = one_epoch(save);
    options.adapter = {.adapter_path = adapter_of("first")};
    return asking(options, asked);
  }
  static SftOptions asking(SftOptions options, std::optional<double> dropout) {
    options.adapter.asked_dropout = dropout.has_value();
    options.adapter.config.dropout = dropout.value_or(0);
    return options;
  }
  double saved(const std::string& save, int64_t iteration = 3) const {
    return read_json(adapter_of(save, iteration) + "/adapter_config.json").at("lora_dropout").get<double>();
  }
  Json state(const std::string& save, int64_t iteration = 3) const {
    return read_json(
        (dir_.path() / save / checkpoint::iteration_directory_name(iteration) / "train_state.json").string());
  }
  double setting(const std::string& save, int64_t iteration = 3) const {
    return state(save, iteration).at("counters").at("settings").at("--lora-dropout").get<double>();
  }
};

TEST_F(SavedDropout, AnAdapterToStartFromBringsItsOwnUnlessAnotherIsAskedFor) {
  info_.str("");
  run_sft(from_first("own", {}), control_);
  EXPECT_NE(info_.str().find(", dropout 0.3\n"), std::string::npos) << info_.str();
  run_sft(from_first("asked", 0.3), control_);
  run_sft(from_first("none", 0), control_);
  EXPECT_EQ(adapter_bytes("own", 3), adapter_bytes("asked", 3));
  EXPECT_NE(adapter_bytes("own", 3), adapter_bytes("none", 3));
  EXPECT_EQ(saved("own"), 0.3);
  EXPECT_EQ(setting("own"), 0.3);
  EXPECT_EQ(saved("none"), 0);
  EXPECT_EQ(setting("none"), 0);
  // As a dry run lists it.
  out_.str("");
  commands::dry_run_sft(from_first("planned", {}), {}, control_);
  EXPECT_NE(out_.str().find("--lora-dropout 0.3\n"), std::string::npos) << out_.str();
}

TEST_F(SavedDropout, ARunThatGoesOnSavesWhatItTrainsWith) {
  const auto from = [&](const std::string& save, std::optional<double> asked) {
    SftOptions options = asking(one_epoch(save), asked);
    options.num_epoch = 2;
    options.save.load = (dir_ / "first").string();
    options.save.overrides = {"lr-decay-iters"};
    return options;
  };
  SftOptions finetune = from("finetuned", 0.4);
  finetune.save.finetune = true;
  run_sft(finetune, control_);
  EXPECT_EQ(saved("finetuned", 6), 0.4);
  finetune = asking(finetune, {});
  finetune.save.save = (dir_ / "finetuned own").string();
  run_sft(finetune, control_);
  EXPECT_EQ(saved("finetuned own", 6), 0.3);
  EXPECT_EQ(setting("finetuned own", 6), 0.3);

  SftOptions overridden = from("overridden", 0);
  expect_error<ConfigError>([&] { run_sft(overridden, control_); }, {"--lora-dropout 0.3", "SaveOptions::overrides"});
  overridden.save.overrides.push_back("lora-dropout");
  run_sft(overridden, control_);
  EXPECT_EQ(saved("overridden", 6), 0);
}

TEST_F(SavedDropout, ARunOfAnOlderBuildGoesOnWithTheDropoutThatItHad) {
  SftOptions options = from_first("run", 0);
  run_sft(options, control_);
  // Such a run ignored the adapter's number, and saved it.
  Json config = read_json(adapter_of("run") + "/adapter_config.json");
  config["lora_dropout"] = 0.3;
  fs::write_file_atomic(adapter_of("run") + "/adapter_config.json", config.dump());
  make_older("run", 3, read_json(adapter_of("run") + "/vime_lora_metadata.json").at("base_weights_fingerprint"));
  options = asking(options, {});
  options.num_epoch = 2;
  options.save.load = options.save.save;
  options.save.overrides = {"lr-decay-iters"};
  run_sft(options, control_);
  EXPECT_EQ(saved("run", 6), 0);
}

TEST_F(SavedAdapter, OneOfMiCAIsNotTrained) {
  run_sft(one_epoch("save"), control_);
  const std::string file = adapter_of("save") + "/adapter_config.json";
  Json json = read_json(file);
  json["init_lora_weights"] = "mica";
  fs::write_file_atomic(file, json.dump());
  SftOptions options = one_epoch("other");
  options.adapter = {.adapter_path = adapter_of("save")};
  for (const auto& run : {std::function([&] { run_sft(options, control_); }),
                          std::function([&] { commands::dry_run_sft(options, {}, control_); })})
    expect_error<ConfigError>(run, {"MiCA", "adapter_config.json: init_lora_weights", "mica"});
  Stream stream({.threads = 1});
  EXPECT_NO_THROW(load_adapter(adapter_of("save"), load_base(options.base, stream, control_), control_));
}

// What a dry run passes is not refused by the run.
TEST_F(SavedAdapter, ADryRunRefusesWhatTheRunRefuses) {
  run_sft(one_epoch("save"), control_);
  const auto refused = [&](const char* part, const std::function<void(SftOptions&)>& change) {
    SftOptions options = one_epoch("next");
    change(options);
    for (const auto& run : {std::function([&] { commands::dry_run_sft(options, {}, control_); }),
                            std::function([&] { run_sft(options, control_); })})
      expect_error<ConfigError>(run, {part});
  };
  const auto resumed = [&](const char* part, const std::function<void(SftOptions&)>& change) {
    refused(part, [&](SftOptions& options) {
      options.save.load = (dir_ / "save").string();
      change(options);
    });
  };
  resumed("--lr 0.5", [](SftOptions& o) { o.optimizer.schedule.lr = 0.5; });
  resumed("--lora-dropout 0.5", [](SftOptions& o) { o.adapter.config.dropout = 0.5, o.adapter.asked_dropout = true; });
  resumed("--global-batch-size", [](SftOptions& o) { o.training.global_batch_size += 1; });
  resumed("LoraConfig::rank", [](SftOptions& o) { o.adapter.config.rank *= 2; });
  const auto begins = [](SftOptions& options, lora::InitMethod method, int64_t rank) {
    options.adapter.config.init.method = method;
    options.adapter.config.rank = rank;
    options.adapter.asked_init = true;
  };
  refused("even rank", [&](SftOptions& o) { begins(o, lora::InitMethod::orthogonal, 3); });
  refused("rank above its sides", [&](SftOptions& o) { begins(o, lora::InitMethod::pissa, 100); });
  refused("the embedding's factors", [&](SftOptions& o) {
    begins(o, lora::InitMethod::olora, 2);
    o.adapter.config.target_modules = {"embed_tokens"};
  });
  SftOptions options = one_epoch("save");
  options.save.load = options.save.save;
  EXPECT_NO_THROW(commands::dry_run_sft(options, {}, control_));
}

}  // namespace
}  // namespace lockstep::recipes
