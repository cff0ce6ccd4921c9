// Bodies that bring weights: a limit of their own, read only for who may send them, and never held twice.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "server/http/reader.h"
#include "server/protocol/api_error.h"
#include "server/protocol/weights_request.h"

namespace lockstep::server {
namespace {

using Status = RequestReader::Status;

constexpr const char* kPath = "/update_weights_from_tensor";

std::string head(const std::string& path, size_t length, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(length) + "\r\n" + more + "\r\n";
}

LargeBodies large(size_t max_bytes) {
  return {.paths = {kPath}, .max_bytes = max_bytes, .admits = [](const HttpRequest& request) {
            return request.header("authorization") == "yes";
          }};
}

TEST(LargeBody, OnItsPathsAlone) {
  for (const std::string path : {kPath, "/generate"}) {
    RequestReader reader(1 << 16, 100, large(1000));
    reader.append(head(path, 500, "Authorization: yes\r\n") + std::string(500, 'x'));
    EXPECT_EQ(reader.parse(), path == kPath ? Status::request : Status::refused);
    EXPECT_EQ(reader.refusal().status, path == kPath ? 0 : 413);
  }
  RequestReader reader(1 << 16, 100, large(1000));
  reader.append(head(kPath, 1001, "Authorization: yes\r\n"));
  EXPECT_EQ(reader.parse(), Status::refused);
  EXPECT_EQ(reader.refusal().status, 413);
  EXPECT_NE(reader.refusal().message.find("1000"), std::string::npos);
}

TEST(LargeBody, IsNotReadForWhoMayNotSendIt) {
  RequestReader reader(1 << 16, 100, large(1000));
  reader.append(head(kPath, 500));
  EXPECT_EQ(reader.parse(), Status::refused) << "before a byte of the body";
  EXPECT_EQ(reader.refusal().status, 401);
}

TEST(Base64, InPlace) {
  const auto decoded = [](std::string text) {
    const int64_t size = decode_base64_in_place(text);
    return size < 0 ? std::string("refused") : text.substr(0, static_cast<size_t>(size));
  };
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("TWFu"), "Man");
  EXPECT_EQ(decoded("TWE="), "Ma");
  EXPECT_EQ(decoded("TQ=="), "M");
  for (const char* wrong : {"TWF", "TW=u", "TWFu\n", "T===", "TWF-", "===="})
    EXPECT_EQ(decoded(wrong), "refused") << wrong;
}

HttpRequest with_body(std::string body) {
  return {.method = "POST", .path = kPath, .headers = {{"content-type", "application/json"}}, .body = std::move(body)};
}

// Texts with escapes, quotes inside, and long ones side by side; what is short stays in the JSON.
TEST(Payloads, LongTextsAreCutOutAndOthersStay) {
  std::string encoded;
  for (int i = 0; i < 2000; ++i) encoded += "TWFu";
  Payloads payloads(
      with_body(R"({"a\"b": "x\\", "list": [")" + encoded + R"(","TWE="], "n": {"deep": ")" + encoded + R"("}})"));
  EXPECT_EQ(payloads.json()["a\"b"], "x\\");
  const auto text = [&](const OrderedJson& value) {
    const std::span<char> bytes = payloads.bytes(value, "field");
    return std::string(bytes.data(), bytes.size());
  };
  const std::string first = text(payloads.json()["list"][0]);
  EXPECT_EQ(first.size(), 6000u);
  EXPECT_TRUE(first.starts_with("ManMan"));
  EXPECT_EQ(text(payloads.json()["list"][1]), "Ma");
  EXPECT_EQ(text(payloads.json()["n"]["deep"]), first);
  EXPECT_THROW(payloads.bytes(OrderedJson(1), "field"), ApiError);
  EXPECT_THROW(Payloads(with_body(R"({"a": ")" + encoded + "!!!!\"}")), ApiError);
  EXPECT_THROW(Payloads(with_body(R"({"a": ")" + encoded)), ApiError) << "cut off";
}

// Kilobytes that the kernel counts in VmHWM or VmRSS; -1: it does not say.
int64_t status_kilobytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t value = 0; word == name + ":" && status >> value) return value;
  return -1;
}

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

// A pickle of {name: f32 tensor of zeros}: what stands before the zeros and behind them. 3 bytes of name make it come
// out at a multiple of 3, where base64 can be cut.
struct Zeros {
  std::string before, behind;
};
Zeros pickle_of_zeros(int64_t elements) {
  const auto number = [](uint64_t value, size_t width) {
    std::string text;
    for (size_t i = 0; i < width; ++i) text += static_cast<char>(value >> (8 * i) & 255);
    return text;
  };
  const auto text = [&](std::string_view value) { return "X" + number(value.size(), 4) + std::string(value); };
  const auto count = static_cast<uint64_t>(elements);
  const std::string begin("\x80\x02", 2);
  const std::string storage = begin + "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + begin + "M\xe9\x03." +
                              begin + "}(" + text("little_endian") + "\x88u." + begin + "(" + text("storage") +
                              "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "J" + number(count, 4) + "NtQ." +
                              begin + "](" + text("0") + "e." + number(count, 8);
  std::string name = "w";
  Zeros made;
  do {
    made.before = begin + "}(" + text(name) +
                  "ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\nB" +
                  number(storage.size() + 4 * count, 4) + storage;
    name += 'w';
  } while (made.before.size() % 3 != 0);
  made.behind = "\x85RJ" + number(0, 4) + "(J" + number(count, 4) + "t(J" + number(1, 4) +
                "t\x89"
                "ccollections\nOrderedDict\n)RtRu.";
  return made;
}

// 96 MB of body come in pieces, as from a socket.
TEST(LargeBody, IsHeldOnce) {
  constexpr int64_t kElements = 3 * (int64_t{6} << 20);
  constexpr size_t kZeros = static_cast<size_t>(kElements) * 4 / 3 * 4;  // characters of base64
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush) || status_kilobytes("VmHWM") < 0)
    GTEST_SKIP() << "the kernel does not measure the highest memory use of a process here";
  const Zeros pickle = pickle_of_zeros(kElements);
  const std::string before = R"({"serialized_named_tensors":[")" + base64(pickle.before);
  const std::string behind = base64(pickle.behind) + "\"]}", piece(size_t{64} << 10, 'A');
  const size_t length = before.size() + kZeros + behind.size();
  const int64_t rss = status_kilobytes("VmRSS");
  RequestReader reader(1 << 16, 1 << 20, large(size_t{1} << 30));
  reader.append(head(kPath, length, "Authorization: yes\r\n") + before);
  ASSERT_EQ(reader.parse(), Status::more);
  for (size_t sent = 0; sent < kZeros; sent += piece.size()) {
    reader.append(std::string_view(piece).substr(0, std::min(piece.size(), kZeros - sent)));
    ASSERT_EQ(reader.parse(), Status::more);
  }
  reader.append(behind);
  ASSERT_EQ(reader.parse(), Status::request);
  Payloads payloads(reader.take());
  const NamedTensors tensors = read_named_tensors(payloads);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].tensor.elements(), kElements);
  EXPECT_EQ(static_cast<const float*>(tensors[0].tensor.data)[kElements - 1], 0.0f);
  const double grown = 1024.0 * static_cast<double>(status_kilobytes("VmHWM") - rss);
  EXPECT_LE(grown, 1.3 * static_cast<double>(length));
  EXPECT_GE(grown, 0.9 * static_cast<double>(length)) << "it was measured";
}

}  // namespace
}  // namespace lockstep::server
