// Base weights through HTTP: vLLM's and SGLang's routes that bring them, give memory back and say what is there.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/peft_directory.h"
#include "core/half.h"
#include "server/adapter_fixture.h"
#include "versions/tensor_payload.h"

namespace lockstep::server {
namespace {

using testing::Reply, testing::Served;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kText = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kText[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// pickle.dumps({name: tensor}), protocol 2, of contiguous CPU tensors.
std::string pickled(const NamedTensors& tensors) {
  const auto number = [](uint64_t value, size_t width) {
    std::string text;
    for (size_t i = 0; i < width; ++i) text += static_cast<char>(value >> (8 * i) & 255);
    return text;
  };
  const auto text = [&](std::string_view value) { return "X" + number(value.size(), 4) + std::string(value); };
  const auto integer = [&](int64_t value) { return "J" + number(static_cast<uint64_t>(value), 4); };
  const std::string begin("\x80\x02", 2);
  std::string out = begin + "}(";
  for (const NamedTensor& named : tensors) {
    const ConstTensor& tensor = named.tensor;
    const char* type = tensor.dtype == DType::bf16 ? "BFloat16Storage" : "FloatStorage";
    std::string storage = begin + "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + begin + "M\xe9\x03." + begin +
                          "}(" + text("little_endian") + "\x88u." + begin + "(" + text("storage") + "ctorch\n" + type +
                          "\n" + text("0") + text("cpu") + integer(tensor.elements()) + "Ntq\x01Q." + begin + "](" +
                          text("0") + "e." + number(static_cast<uint64_t>(tensor.elements()), 8);
    storage.append(static_cast<const char*>(tensor.data), named.bytes());
    std::string shape = "(", strides = "(";
    for (int i = 0; i < tensor.rank; ++i) {
      int64_t stride = 1;
      for (int k = i + 1; k < tensor.rank; ++k) stride *= tensor.shape[static_cast<size_t>(k)];
      shape += integer(tensor.shape[static_cast<size_t>(i)]);
      strides += integer(stride);
    }
    out += text(named.name) + "ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\nB" +
           number(storage.size(), 4) + storage + "\x85R" + integer(0) + shape + "t" + strides +
           "t\x89"
           "ccollections\nOrderedDict\n)RtR";
  }
  return out + "u.";
}

class WeightRoutes : public ::testing::Test {
 protected:
  static ServiceOptions options() {
    return {.model_names = {"base"}, .weight_updates = true, .weights_root = LOCKSTEP_SOURCE_DIR "/models"};
  }
  WeightRoutes() : served_(options()) {}

  std::string answer(const std::string& model = "base") const {
    const OrderedJson body = {
        {"model", model}, {"prompt", "12+34="}, {"temperature", 0}, {"max_tokens", 12}, {"ignore_eos", true}};
    return served_.json("/v1/completions", body)["choices"][0]["text"];
  }
  static std::string weights(const NamedTensors& tensors) { return base64(pickled(tensors)); }
  static OrderedJson update_body(const NamedTensors& tensors) {
    return {{"serialized_named_tensors", {weights(tensors)}}, {"flush_cache", true}};
  }
  // The final norm of the model, times `factor`.
  struct Norm {
    Buffer memory;
    NamedTensor tensor;
  };
  Norm norm(float factor) const {
    const recipes::Base& base = testing::Model::get().base;
    Stream stream({.threads = 1});
    model::HostTensor old =
        model::read_weight(base.config, base.model->weights(), "model.norm.weight", 1 << 20, stream);
    Norm made{.memory = Buffer(static_cast<size_t>(old.tensor.tensor.elements()) * sizeof(float)),
              .tensor = old.tensor};
    for (int64_t i = 0; i < old.tensor.tensor.elements(); ++i)
      made.memory.f32()[i] = factor * (old.tensor.tensor.dtype == DType::f32
                                           ? static_cast<const float*>(old.tensor.tensor.data)[i]
                                           : to_f32(static_cast<const BFloat16*>(old.tensor.tensor.data)[i]));
    made.tensor.tensor.data = made.memory.data();
    made.tensor.tensor.dtype = DType::f32;
    return made;
  }

  Served served_;
};

TEST_F(WeightRoutes, AreNotThereUnlessAskedFor) {
  const Served plain;
  for (const char* path :
       {"/sleep", "/wake_up", "/collective_rpc", "/update_weights_from_disk", "/update_weights_from_tensor",
        "/weights_checker", "/release_memory_occupation", "/update_weights", "/areal_update_weights"})
    EXPECT_EQ(plain.post(path, OrderedJson::object()).status, 404) << path;
  EXPECT_EQ(plain.get("/is_sleeping").status, 404);
}

TEST_F(WeightRoutes, AreBehindTheApiKey) {
  ServiceOptions locked = options();
  locked.api_keys = {"secret"};
  const Served served(std::move(locked));
  for (const char* path : {"/sleep", "/update_weights_from_tensor", "/load_lora_adapter_from_tensors"}) {
    EXPECT_EQ(served.post(path, OrderedJson::object()).status, 401) << path;
  }
  EXPECT_EQ(served.ask("POST", "/sleep?level=0&mode=keep", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(WeightRoutes, SleepAndWakeUp) {
  const std::string before = answer();
  const Reply asleep = served_.ask("POST", "/sleep?level=1");
  EXPECT_EQ(asleep.json(), (OrderedJson{{"status", "sleeping"}, {"level", 1}}));
  EXPECT_EQ(served_.get("/is_sleeping").json()["is_sleeping"], true);
  EXPECT_EQ(served_.ask("POST", "/wake_up?tags=weights").json()["status"], "sleeping");
  const Reply awake = served_.ask("POST", "/wake_up?tags=weights&tags=kv_cache");
  EXPECT_EQ(awake.json(), (OrderedJson{{"status", "awake"}, {"tags", {"weights", "kv_cache"}}}));
  EXPECT_EQ(served_.get("/is_sleeping").json()["is_sleeping"], false);
  EXPECT_EQ(answer(), before);
  EXPECT_EQ(served_.ask("POST", "/sleep?level=3").status, 400);
  EXPECT_EQ(served_.ask("POST", "/sleep?level=1&mode=wait").status, 400);
  EXPECT_EQ(served_.ask("POST", "/wake_up?tags=all").status, 400);
}

TEST_F(WeightRoutes, Level2Answers503UntilTheBaseIsWhole) {
  const std::string before = answer();
  EXPECT_EQ(served_.ask("POST", "/sleep?level=2").status, 200);
  const OrderedJson body = {{"prompt", "12+34="}, {"max_tokens", 2}};
  EXPECT_EQ(served_.post("/v1/completions", body).status, 503);
  EXPECT_EQ(served_.ask("POST", "/wake_up").status, 200);
  EXPECT_EQ(served_.post("/v1/completions", body).status, 503);
  EXPECT_EQ(served_.json("/collective_rpc", {{"method", "reload_weights"}}), (OrderedJson{{"results", {nullptr}}}));
  EXPECT_EQ(answer(), before);
}

TEST_F(WeightRoutes, FromTensorAndBack) {
  const std::string before = answer();
  const Norm other = norm(-1.0f);
  OrderedJson body = update_body({other.tensor});
  body["weight_version"] = "step 7";
  const OrderedJson said = served_.json("/update_weights_from_tensor", body);
  EXPECT_EQ(said["success"], true) << said;
  EXPECT_NE(answer(), before);
  EXPECT_EQ(served_.get("/weight_info").json()["weight_version"], "step 7");
  const OrderedJson generated =
      served_.json("/generate", {{"text", "12+34="}, {"sampling_params", {{"max_new_tokens", 2}}}});
  EXPECT_EQ(generated["meta_info"]["weight_version"], "step 7");
  const OrderedJson rows = served_.json("/get_weights_by_name", {{"name", "model.norm.weight"}, {"truncate_size", 2}});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].get<float>(), other.memory.f32()[0]);
  EXPECT_EQ(served_.json("/update_weights_from_disk", {{"model_path", "arith"}})["success"], true);
  EXPECT_EQ(answer(), before);
}

TEST_F(WeightRoutes, WhatCannotBeUsedChangesNothing) {
  const std::string before = answer();
  const Norm good = norm(-1.0f);
  NamedTensor unknown = good.tensor;
  unknown.name = "model.nothing.weight";
  const auto refused = [&](const OrderedJson& body, int status, const std::string& part) {
    const Reply reply = served_.post("/update_weights_from_tensor", body);
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_NE(reply.body.find(part), std::string::npos) << reply.body;
  };
  refused(update_body({unknown}), 400, "model.nothing.weight");
  refused({{"serialized_named_tensors", {"no base64!"}}}, 400, "serialized_named_tensors");
  refused({{"serialized_named_tensors", {std::string(10000, '!')}}}, 400, "base64");
  refused({{"serialized_named_tensors", {base64(std::string(9000, 'x'))}}}, 400, "serialized_named_tensors");
  refused({{"serialized_named_tensors", OrderedJson::array()}}, 400, "one rank");
  refused(OrderedJson::object(), 400, "required");
  OrderedJson format = update_body({good.tensor});
  format["load_format"] = "module.loader";
  refused(format, 501, "load_format");
  const std::string handles = fs::read_file(LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/tensor_message/handles");
  refused({{"serialized_named_tensors", {base64(handles)}}}, 501, "pickle.dumps");
  for (const char* path : {"../tests/golden/qwen3", "/etc", "nowhere"})
    EXPECT_EQ(served_.post("/update_weights_from_disk", {{"model_path", path}}).status, 400) << path;
  EXPECT_EQ(answer(), before);
}

TEST_F(WeightRoutes, CheckersTellWhatHasChanged) {
  const OrderedJson sums = served_.json("/weight_checker", {{"action", "checksum"}})["checksums"];
  EXPECT_TRUE(sums.contains("model.norm.weight"));
  EXPECT_EQ(served_.json("/weight_checker", {{"action", "compare"}, {"baseline", sums}})["match"], true);
  EXPECT_EQ(served_.json("/weights_checker", {{"action", "snapshot"}})["success"], true);
  EXPECT_EQ(served_.json("/weights_checker", {{"action", "compare"}})["success"], true);
  served_.json("/update_weights_from_tensor", update_body({norm(2.0f).tensor}));
  const OrderedJson now = served_.json("/weight_checker", {{"action", "compare"}, {"baseline", sums}});
  EXPECT_EQ(now, (OrderedJson{{"match", false}, {"mismatches", {"model.norm.weight"}}}));
  EXPECT_EQ(served_.post("/weights_checker", {{"action", "compare"}}).status, 400);
  EXPECT_EQ(served_.post("/weights_checker", {{"action", "reset_tensors"}}).status, 501);
  EXPECT_EQ(served_.post("/weight_checker", {{"action", "reset"}}).status, 501);
}

TEST_F(WeightRoutes, MemoryIsGivenBackAndTakenAgain) {
  const std::string before = answer();
  EXPECT_EQ(served_.post("/release_memory_occupation", OrderedJson::object()).body, "null");
  EXPECT_EQ(served_.get("/is_sleeping").json()["is_sleeping"], true);
  EXPECT_EQ(served_.post("/resume_memory_occupation", {{"tags", {"weights"}}}).body, "null");
  EXPECT_EQ(served_.post("/resume_memory_occupation", {{"tags", {"kv_cache"}}}).body, "null");
  EXPECT_EQ(answer(), before);
  EXPECT_EQ(served_.post("/release_memory_occupation", {{"tags", {"disk"}}}).status, 400);
}

TEST_F(WeightRoutes, WhatIsNotBuiltSaysSo) {
  for (const char* path : {"/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
                           "/finish_weight_update", "/init_weights_update_group", "/areal_update_weights_lora_xccl"}) {
    const Reply reply = served_.post(path, OrderedJson::object());
    EXPECT_EQ(reply.status, 501) << path;
    EXPECT_NE(reply.body.find("/v1/load_lora_adapter"), std::string::npos) << path;
  }
  OrderedJson meta = {{"names", {"a"}}, {"dtypes", {"bfloat16"}}, {"shapes", {{2, 3}}}, {"group_name", "g"}};
  EXPECT_EQ(served_.post("/areal_set_update_weight_meta_lora", meta).status, 501);
  meta["shapes"] = OrderedJson::array();
  EXPECT_EQ(served_.post("/areal_set_update_weight_meta_lora", meta).status, 400);
  EXPECT_EQ(served_.post("/collective_rpc", {{"method", "reset_weights"}}).status, 501);
  EXPECT_EQ(served_.json("/collective_rpc", {{"method", "list_loras"}})["results"][0], "set()");
}

TEST_F(WeightRoutes, AnAdapterAsTensorsIsTheOneOfItsFiles) {
  const lockstep::testing::TempDirectory dir;
  const std::string path = testing::write_adapter(dir.path() / "a", 1);
  const checkpoint::PeftDirectory directory(path);
  const checkpoint::AdapterWeights read = directory.read_weights();
  OrderedJson body = {{"lora_name", "tensor"},
                      {"config_dict", OrderedJson::parse(fs::read_file(fs::Path(path) / "adapter_config.json"))},
                      {"serialized_named_tensors", {weights(read.tensors())}}};
  EXPECT_EQ(served_.post("/v1/load_lora_adapter", {{"lora_name", "file"}, {"lora_path", path}}).status, 200);
  const OrderedJson loaded = served_.json("/load_lora_adapter_from_tensors", body);
  EXPECT_EQ(loaded["loaded_adapters"]["tensor"], "__tensor__");
  EXPECT_EQ(answer("tensor"), answer("file"));
  EXPECT_NE(answer("tensor"), answer());
  EXPECT_EQ(served_.post("/load_lora_adapter_from_tensors", body).status, 400) << "it is loaded";
  OrderedJson ours = {{"lora_name", "ours"}};
  ours.update(OrderedJson::parse(versions::tensor_payload(directory)));
  EXPECT_EQ(served_.json("/load_lora_adapter_from_tensors", ours)["success"], true) << "as our trainer sends it";
  EXPECT_EQ(answer("ours"), answer("file"));
  body["lora_name"] = "summed";
  body["expected_checksums"] = {{read.tensors()[0].name, std::string(64, '0')}};
  EXPECT_EQ(served_.post("/load_lora_adapter_from_tensors", body).status, 400);
  // On another base it would have to come again.
  served_.json("/update_weights_from_tensor", update_body({norm(2.0f).tensor}));
  EXPECT_EQ(served_.post("/v1/completions", {{"model", "tensor"}, {"prompt", "1+1="}}).status, 409);
  EXPECT_EQ(served_.post("/v1/completions", {{"model", "file"}, {"prompt", "1+1="}}).status, 200);
}

}  // namespace
}  // namespace lockstep::server
