// TensorBoard's event files: records of length, CRC-32C of the length, an Event, CRC-32C of it. The first Event is the
// version of the format; each line of metrics is one Event with a Summary.
// Source: tensorboard/summary/writer/record_writer.py, compat/proto/event.proto and summary.proto.
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "recipes/reports/append_file.h"
#include "recipes/reports/protobuf.h"
#include "recipes/reports/report.h"

namespace lockstep::recipes {

namespace {

// Castagnoli's polynomial, bits reflected.
uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t rest = i;
      for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0x82F63B78U : 0);
      table[i] = rest;
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string little_endian(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// A CRC of data that holds CRCs is weak, so they are stored so.
std::string masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return little_endian((crc >> 15 | crc << 17) + 0xA282EAD8U, 4);
}

std::string record(const Message& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + masked_crc(length) + event.bytes() + masked_crc(event.bytes());
}

// Fields of Event, Summary, Summary.Value and SessionLog.
namespace event_field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kStatus = 1;
constexpr int kStart = 1;  // SessionLog: everything from this step on that was written before is void
}  // namespace event_field

class TensorBoard : public Report {
 public:
  TensorBoard(const fs::Path& directory, const ReportRun& run)
      : file_(directory / fmt::format("events.out.tfevents.{:010}.lockstep.{}.{}", static_cast<int64_t>(run.time),
                                      ::getpid(), run.resume_step)) {
    file_.append(
        record(Message().real(event_field::kWallTime, run.time).text(event_field::kFileVersion, "brain.Event:2")));
    if (run.resume_step > 0)
      file_.append(
          record(Message()
                     .real(event_field::kWallTime, run.time)
                     .integer(event_field::kStep, run.resume_step + 1)
                     .message(event_field::kSessionLog, Message().integer(event_field::kStatus, event_field::kStart))));
  }

  void add(int64_t step, const Scalars& scalars, double time) override {
    Message summary;
    for (const auto& [name, value] : scalars)
      summary.message(
          event_field::kValue,
          Message().text(event_field::kTag, name).real32(event_field::kSimpleValue, static_cast<float>(value)));
    file_.append(record(Message()
                            .real(event_field::kWallTime, time)
                            .integer(event_field::kStep, step)
                            .message(event_field::kSummary, summary)));
  }

 private:
  AppendFile file_;
};

}  // namespace

std::unique_ptr<Report> make_tensorboard(const ReportOptions& options, const ReportRun& run) {
  return std::make_unique<TensorBoard>(
      options.tensorboard_dir.empty() ? fs::Path(run.save) / "tensorboard" : fs::Path(options.tensorboard_dir), run);
}

}  // namespace lockstep::recipes
