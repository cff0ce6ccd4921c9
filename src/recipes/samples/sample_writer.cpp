#include "recipes/samples/sample_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

[[noreturn]] void fail_writing(const fs::Path& path) {
  throw ResourceError({.what = "the samples of the run cannot be written",
                       .where = path.string(),
                       .got = std::strerror(errno),
                       .attempt = "free disk space, or SaveOptions::keep_samples 0 for none"});
}

fs::Path free_samples_name(const fs::Path& directory) {
  fs::Path name = directory.string() + ".previous";
  for (int i = 2; fs::exists(name); ++i) name = fmt::format("{}.previous.{}", directory.string(), i);
  return name;
}

}  // namespace

SampleWriter::SampleWriter(const std::string& save, int64_t resume_step, int64_t keep)
    : directory_(fs::Path(save) / kSamplesDirectory), resume_step_(resume_step), keep_(keep) {}

SampleWriter::File SampleWriter::opened(const fs::Path& path) const {
  File file(std::fopen(path.c_str(), "a"));
  if (!file) fail_writing(path);
  return file;
}

void SampleWriter::append(std::FILE* file, const fs::Path& path, const std::string& bytes) const {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) fail_writing(path);
}

void SampleWriter::flush(std::FILE* file, const fs::Path& path) const {
  if (std::fflush(file) != 0) fail_writing(path);
}

void SampleWriter::open() {
  if (resume_step_ == 0 && fs::exists(directory_)) std::filesystem::rename(directory_, free_samples_name(directory_));
  fs::require_writable_directory(directory_);
  if (resume_step_ > 0) cut();
  begin_piece();
  index_ = opened(directory_ / kSampleIndex);
  open_ = true;
}

// What an interrupted run wrote beyond its checkpoint is written again.
void SampleWriter::cut() {
  std::string kept;
  for (SampleGroup& group : read_sample_index(directory_)) {
    if (group.step > resume_step_) continue;
    kept += index_line(group) + "\n";
    piece_ = group.piece;
    piece_bytes_ = group.offset + group.bytes;
    samples_ += group.num_samples();
    groups_.push_back(std::move(group));
  }
  fs::write_file_atomic(directory_ / kSampleIndex, kept);
  for (const SampleGroup& group : groups_)
    if (group.piece == piece_) piece_samples_ += group.num_samples();
  remove_strange_pieces();
  std::error_code error;
  if (piece_ > 0) std::filesystem::resize_file(path_of(piece_), static_cast<uintmax_t>(piece_bytes_), error);
  if (error) {
    errno = error.value();
    fail_writing(path_of(piece_));
  }
}

// Those that no line of the index names.
void SampleWriter::remove_strange_pieces() const {
  std::set<int64_t> named;
  for (const SampleGroup& group : groups_) named.insert(group.piece);
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::optional<int64_t> piece = piece_number(entry.path().filename().string());
    std::error_code ignored;  // it only takes space
    if (piece && !named.contains(*piece)) std::filesystem::remove(entry.path(), ignored);
  }
}

// Opens the piece that comes next, or goes on with the last one while it has room.
void SampleWriter::begin_piece() {
  const bool full = piece_bytes_ >= kPieceBytes || piece_samples_ >= std::max<int64_t>(1, keep_ / 8);
  if (file_ && !full) return;
  if (file_) flush(file_.get(), path_of(piece_));
  if (piece_ == 0 || full) {
    ++piece_;
    piece_bytes_ = piece_samples_ = 0;
  }
  file_ = opened(path_of(piece_));
}

// Whole pieces go, the oldest first; the index no longer names them when they do.
void SampleWriter::remove_old() {
  const int64_t before = groups_.front().piece;
  int64_t first = before;
  auto stays = groups_.begin();
  while (samples_ > keep_ && first < piece_) {
    for (; stays != groups_.end() && stays->piece == first; ++stays) samples_ -= stays->num_samples();
    first = stays == groups_.end() ? piece_ : stays->piece;
  }
  if (first == before) return;
  groups_.erase(groups_.begin(), stays);
  std::string kept;
  for (const SampleGroup& group : groups_) kept += index_line(group) + "\n";
  index_.reset();
  fs::write_file_atomic(directory_ / kSampleIndex, kept);
  index_ = opened(directory_ / kSampleIndex);
  std::error_code ignored;  // it only takes space, and a resumed run removes it
  for (int64_t piece = before; piece < first; ++piece) std::filesystem::remove(path_of(piece), ignored);
}

void SampleWriter::write(std::vector<Group> groups) {
  if (groups.empty()) return;
  if (!open_) open();
  std::string lines;
  for (Group& group : groups) {
    begin_piece();
    const std::string frame = compressor_.frame(group.lines);
    group.entry.piece = piece_;
    group.entry.offset = piece_bytes_;
    group.entry.bytes = static_cast<int64_t>(frame.size());
    append(file_.get(), path_of(piece_), frame);
    piece_bytes_ += group.entry.bytes;
    piece_samples_ += group.entry.num_samples();
    samples_ += group.entry.num_samples();
    lines += index_line(group.entry) + "\n";
    groups_.push_back(std::move(group.entry));
  }
  flush(file_.get(), path_of(piece_));
  append(index_.get(), directory_ / kSampleIndex, lines);
  flush(index_.get(), directory_ / kSampleIndex);
  remove_old();
}

}  // namespace lockstep::recipes
