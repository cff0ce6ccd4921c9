// Files that torch itself wrote (tests/golden/torch), and files that nobody should have written.
#include "checkpoint/torch/torch_file.h"

#include <cstring>
#include <set>

#include "checkpoint/peft_directory.h"
#include "core/error.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const fs::Path kGoldens = fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden/torch";

void expect_tensors(const NamedTensors& got, const SafetensorsFile& wanted) {
  EXPECT_EQ(got.size(), wanted.tensors().size());
  for (const NamedTensor& named : got) {
    const ConstTensor* tensor = wanted.find(named.name);
    ASSERT_NE(tensor, nullptr) << named.name;
    EXPECT_EQ(shape_text(named.tensor), shape_text(*tensor)) << named.name;
    const auto bytes = static_cast<size_t>(tensor->elements() * dtype_bytes(tensor->dtype));
    if (bytes > 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(named.tensor.data) % static_cast<size_t>(dtype_bytes(tensor->dtype)), 0u);
      EXPECT_EQ(std::memcmp(named.tensor.data, tensor->data, bytes), 0) << named.name;
    }
  }
}

TEST(TorchFile, ReadsWhatTorchWrites) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".bin" || name.find("_refused_") != std::string::npos) continue;
    SCOPED_TRACE(name);
    const SafetensorsFile wanted(kGoldens / (name.substr(name.find('_') + 1) + ".safetensors"));
    expect_tensors(read_torch_file(entry.path()).tensors, wanted);
    const NamedTensors header = torch_file_header(entry.path());
    ASSERT_EQ(header.size(), wanted.tensors().size());
    for (const NamedTensor& named : header) EXPECT_EQ(shape_text(named.tensor), shape_text(*wanted.find(named.name)));
    ++num_files;
  }
  EXPECT_EQ(num_files, 2 * 10 + 3);
}

TEST(TorchFile, SharedStoragesShareMemory) {
  const TorchTensors read = read_torch_file(kGoldens / "zip_shared.bin");
  ASSERT_EQ(read.tensors.size(), 3u);
  EXPECT_EQ(read.tensors[0].tensor.data, read.tensors[2].tensor.data);
}

TEST(TorchFile, RefusesEverythingElseThatTorchWrites) {
  const Json refused = read_json((kGoldens / "refused.json").string());
  EXPECT_EQ(refused.size(), 16u);
  for (const auto& [file, words] : refused.items()) {
    SCOPED_TRACE(file);
    for (const Json& word : words)
      expect_error<FormatError>([&, file = file] { read_torch_file(kGoldens / file); },
                                {file.c_str(), word.get_ref<const std::string&>().c_str()});
    expect_error<FormatError>([&, file = file] { torch_file_header(kGoldens / file); }, {file.c_str()});
  }
}

TEST(TorchFile, EveryCutFileIsRefused) {
  const TempDirectory dir;
  for (const char* name : {"zip_bf16.bin", "legacy_bf16.bin"}) {
    const std::string bytes = fs::read_file(kGoldens / name);
    for (size_t kept = 0; kept < bytes.size(); kept += kept < 1000 ? 7 : 61)
      expect_error<FormatError>([&] { read_torch_file(dir.write("cut.bin", bytes.substr(0, kept))); }, {"cut.bin"});
  }
}

TEST(TorchFile, NoFlippedBitDoesHarm) {
  const TempDirectory dir;
  int refused = 0;
  for (const char* name : {"zip_strided.bin", "legacy_strided.bin"}) {
    const std::string bytes = fs::read_file(kGoldens / name);
    for (size_t i = 0; i < bytes.size(); i += 3) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
      try {
        for (const NamedTensor& named : read_torch_file(dir.write("x.bin", flipped)).tensors)
          EXPECT_LE(named.tensor.elements(), 1000);
      } catch (const FormatError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

// ---- Pickles by hand

std::string text(std::string_view value) {
  std::string bytes = "X";
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value.size() >> (8 * i) & 255);
  return bytes.append(value);
}

std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string byte(int64_t value) {
  return std::string("K") + static_cast<char>(value);
}

// ('storage', torch.FloatStorage, key, 'cpu', elements)
std::string storage(const std::string& key, int64_t elements, const std::string& type = "FloatStorage") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") + byte(elements) + "tQ";
}

// _rebuild_tensor_v2(storage, offset, shape, strides, False, OrderedDict())
std::string tensor(const std::string& of, const std::string& offset, const std::string& shape,
                   const std::string& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + of + offset + "(" + shape + "t(" + strides + "t\x89" +
         global("collections", "OrderedDict") + ")RtR";
}

std::string dictionary(const std::string& value, const std::string& key = "a") {
  return std::string("\x80\x02}", 3) + text(key) + value + "s.";
}

// ---- Archives by hand

struct Member {
  std::string name, bytes;
  int method = 0, flags = 0;
  int64_t claimed = -1;         // size in the directory
  int64_t header = -1;          // place in the directory
  std::string local_name = {};  // in its own header, if that says another
};

void put(std::string& out, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i) & 255);
}

std::string zip(const std::vector<Member>& members) {
  std::string out, directory;
  for (const Member& member : members) {
    const uint64_t place = out.size(),
                   size = member.claimed < 0 ? member.bytes.size() : static_cast<uint64_t>(member.claimed);
    const std::string& own = member.local_name.empty() ? member.name : member.local_name;
    out += std::string("PK\3\4", 4);
    for (const int field : {20, member.flags, member.method, 0, 0}) put(out, static_cast<uint64_t>(field), 2);
    for (const uint64_t field : {uint64_t{0}, size, size}) put(out, field, 4);
    put(out, own.size(), 2);
    put(out, 0, 2);
    out += own + member.bytes;
    directory += std::string("PK\1\2", 4);
    for (const int field : {20, 20, member.flags, member.method, 0, 0}) put(directory, static_cast<uint64_t>(field), 2);
    for (const uint64_t field : {uint64_t{0}, size, size}) put(directory, field, 4);
    put(directory, member.name.size(), 2);
    for (int i = 0; i < 4; ++i) put(directory, 0, 2);
    put(directory, 0, 4);
    put(directory, member.header < 0 ? place : static_cast<uint64_t>(member.header), 4);
    directory += member.name;
  }
  const uint64_t place = out.size();
  out += directory + std::string("PK\5\6", 4);
  put(out, 0, 4);
  put(out, members.size(), 2);
  put(out, members.size(), 2);
  put(out, directory.size(), 4);
  put(out, place, 4);
  put(out, 0, 2);
  return out;
}

const std::string kFourFloats(16, '\0');

std::string archive(const std::string& pickle, const std::string& data = kFourFloats) {
  return zip({{"x/data.pkl", pickle}, {"x/data/0", data}});
}

const std::string kGood = dictionary(tensor(storage("0", 4), byte(0), byte(2) + byte(2), byte(2) + byte(1)));

void expect_refused(const std::string& bytes, std::initializer_list<const char*> parts) {
  const TempDirectory dir;
  const fs::Path file = dir.write("bad.bin", bytes);
  expect_error<FormatError>([&] { read_torch_file(file); }, parts);
  expect_error<FormatError>([&] { torch_file_header(file); }, {"bad.bin"});
}

TEST(TorchFile, AFileByHandIsRead) {
  const TempDirectory dir;
  const TorchTensors read = read_torch_file(dir.write("x", archive(kGood)));
  ASSERT_EQ(read.tensors.size(), 1u);
  EXPECT_EQ(shape_text(read.tensors[0].tensor), "f32 [2, 2]");
}

TEST(TorchFile, RefusesOpcodesOutsideTheSubset) {
  const std::string begin("\x80\x02", 2);
  expect_refused(archive(begin + global("os", "system") + "(" + text("true") + "tR."),
                 {"bad.bin", "os.system", "byte 2"});
  expect_refused(archive(begin + global("torch", "load") + "."), {"torch.load"});
  expect_refused(archive(begin + "(ios\nsystem\n."), {"INST", "byte 3"});
  expect_refused(archive(begin + "(" + global("collections", "OrderedDict") + "o."), {"OBJ"});
  expect_refused(archive(begin + global("collections", "OrderedDict") + ")\x81."), {"NEWOBJ"});
  expect_refused(archive(begin + "\x82\x01."), {"EXT1"});
  expect_refused(archive(begin + "Pid\n."), {"PERSID"});
  expect_refused(archive(begin + "\xff."), {"0xff"});
  expect_refused(archive(std::string("\x80\x09}.", 4)), {"another protocol", "9"});
  // What the names allow, at places where they mean nothing.
  expect_refused(archive(dictionary(global("torch", "FloatStorage"))), {"no tensor"});
  expect_refused(archive(begin + global("torch._utils", "_rebuild_tensor_v2") + ")R."), {"else than a dictionary"});
  expect_refused(archive(dictionary(global("torch._utils", "_rebuild_tensor_v2") + ")R")), {"another kind"});
  expect_refused(archive(dictionary(global("torch._utils", "_rebuild_parameter") + ")R")), {"damaged parameter"});
  expect_refused(archive(begin + "}Nb."), {"attributes"});
}

TEST(TorchFile, RefusesDamagedPickles) {
  const std::string begin("\x80\x02", 2);
  for (const std::string& rest : {std::string("."),           std::string("t."),
                                  std::string("s."),          std::string("u."),
                                  std::string("R."),          std::string("Q."),
                                  std::string("b."),          std::string("h\5."),
                                  std::string("}K\1K"),       std::string("}("),
                                  std::string("}]."),         std::string("(}(K\1K\2s."),
                                  std::string("q\1."),        std::string("X\xff\xff\xff\xff."),
                                  std::string("]K\1K\2s."),   std::string("}(K\1u."),
                                  std::string("NQ."),         std::string("NN\x93."),
                                  std::string("}N\x86\x86."), std::string()})
    expect_refused(archive(begin + rest), {"bad.bin"});
}

TEST(TorchFile, RefusesTensorsThatLie) {
  const auto of = [&](const std::string& offset, const std::string& shape, const std::string& strides) {
    return archive(dictionary(tensor(storage("0", 4), offset, shape, strides)));
  };
  const std::string huge = "J\xff\xff\xff\x7f", negative("J\xff\xff\xff\xff", 5);
  expect_refused(of(byte(1), byte(4), byte(1)), {"inside its storage", "bad.bin: a"});
  expect_refused(of(huge, byte(1), byte(1)), {"inside its storage"});
  expect_refused(of(byte(0), huge + huge, huge + byte(1)), {"inside its storage"});
  expect_refused(of(byte(0), byte(4), byte(0)), {"two places"});
  expect_refused(of(byte(0), byte(2) + byte(3), byte(1) + byte(1)), {"two places"});
  expect_refused(of(negative, byte(1), byte(1)), {"no count"});
  expect_refused(of(byte(0), negative, byte(1)), {"no count"});
  expect_refused(of(byte(0), byte(2) + byte(2), byte(1)), {"strides"});
  expect_refused(of(byte(0), text("4"), byte(1)), {"no count"});
  expect_refused(of(byte(0), byte(0) + huge + huge + huge, byte(1) + byte(1) + byte(1) + byte(1)), {"possible shape"});
  expect_refused(archive(kGood, std::string(15, '\0')), {"another size", "15 bytes"});
  expect_refused(archive(kGood, std::string(17, '\0')), {"another size"});
  expect_refused(archive(dictionary(tensor(storage("1", 4), byte(0), byte(4), byte(1)))), {"missing"});
  expect_refused(archive(dictionary(tensor(storage("../0", 4), byte(0), byte(4), byte(1)))), {"missing"});
  expect_refused(archive(dictionary(tensor(storage("0", 4, "ByteStorage"), byte(0), byte(4), byte(1)))),
                 {"another size"});
  expect_refused(archive(std::string("\x80\x02}(", 4) + text("a") + tensor(storage("0", 4), byte(0), byte(4), byte(1)) +
                         text("a") + tensor(storage("0", 4), byte(0), byte(4), byte(1)) + "u."),
                 {"there twice"});
  // One storage of 4 floats named by very many tensors.
  std::string many("\x80\x02}(", 4);
  for (int i = 0; i < 2000; ++i)
    many += text(std::to_string(i)) + (i == 0 ? tensor(storage("0", 120), byte(0), byte(120), byte(1)) + "q\1" : "h\1");
  expect_error<FormatError>(
      [&] {
        const TempDirectory dir;
        read_torch_file(dir.write("bad.bin", archive(many + "u.", std::string(480, '\0'))));
      },
      {"many times as large"});
}

TEST(TorchFile, RefusesArchivesThatLie) {
  const auto with = [&](Member member) { return zip({{"x/data.pkl", kGood}, std::move(member)}); };
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .method = 8}), {"compressed", "method 8"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .flags = 1}), {"encrypted"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .claimed = 1 << 30}), {"larger than the file"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .claimed = 0xffffffff}), {"size is missing"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .header = 0}), {"x/data/0"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .header = 1 << 30}), {"outside the file"});
  expect_refused(with({.name = "x/data/0", .bytes = kFourFloats, .local_name = "x/data/1"}), {"contradicts"});
  expect_refused(with({.name = "x/data.pkl", .bytes = kGood}), {"two members of one name"});
  expect_refused(with({.name = "y/data.pkl", .bytes = kGood}), {"data.pkl"});
  for (const char* name : {"../x", "/etc/passwd", "x/../../y", "x\\y", "..", "C:/x", ""})
    expect_refused(with({.name = name, .bytes = "x"}), {"no place in it"});
  expect_refused(zip({{"x/data.pkl", kGood}, {"x/byteorder", "big"}, {"x/data/0", kFourFloats}}), {"byte order"});
  expect_refused(zip({{"x/other", "1"}}), {"without its pickle"});
  expect_refused("PK\3\4", {"no directory"});
  expect_refused("", {"no file of torch.save"});
  expect_refused("hello, world", {"no file of torch.save"});
}

TEST(TorchFile, RefusesRowsOfPicklesThatLie) {
  const std::string good = fs::read_file(kGoldens / "legacy_f32.bin");
  expect_refused(good + "x", {"do not fill the file"});
  std::string other = good;
  other[4] ^= 1;
  expect_refused(other, {"magic number"});
}

TEST(TorchFile, AnAdapterDirectoryOfMilesOrVimeIsRead) {
  const PeftDirectory adapter(kGoldens / "adapter");
  EXPECT_EQ(adapter.weights_file(), kGoldens / "adapter" / "adapter_model.bin");
  EXPECT_EQ(adapter.config().rank, 2);
  EXPECT_EQ(adapter.header().size(), 4u);
  const AdapterWeights weights = adapter.read_weights();
  expect_tensors(weights.tensors(), SafetensorsFile(kGoldens / "adapter.safetensors"));
  EXPECT_EQ(weights.bytes().size(), std::filesystem::file_size(adapter.weights_file()));
  EXPECT_EQ(adapter.unread_files(),
            (std::vector<std::string>{"adapter_megatron_tp0_pp0.pt", "training_state_rank0.pt"}));
}

TEST(TorchFile, SafetensorsGoBeforeBin) {
  const TempDirectory dir;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens / "adapter"))
    std::filesystem::copy(entry.path(), dir.path() / entry.path().filename());
  std::filesystem::copy(kGoldens / "adapter.safetensors", dir.path() / "adapter_model.safetensors");
  EXPECT_EQ(PeftDirectory(dir.path()).weights_file().filename(), "adapter_model.safetensors");
  std::filesystem::remove(dir.path() / "adapter_model.safetensors");
  std::filesystem::rename(dir.path() / "adapter_model.bin", dir.path() / "adapter_model.pt");
  EXPECT_EQ(PeftDirectory(dir.path()).weights_file().filename(), "adapter_model.pt");
}

}  // namespace
}  // namespace lockstep::checkpoint
