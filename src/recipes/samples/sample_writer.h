// Writes the samples of a run (sample_index.h).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data/compression.h"
#include "recipes/samples/sample_index.h"

namespace lockstep::recipes {

class SampleWriter {
 public:
  // At most `keep` samples stay (at least 1), the newest, in pieces of at most an eighth of them; a single group may be
  // larger. Files are touched by the first write: a fresh run (resume_step 0) then sets an existing directory aside as
  // samples.previous (or .previous.2, ...), a resumed one cuts what is beyond resume_step and goes on after it.
  SampleWriter(const std::string& save, int64_t resume_step, int64_t keep);

  // A group of which place and size are still open, and its lines (JSON Lines).
  struct Group {
    SampleGroup entry;
    std::string lines;
  };
  // Appends the groups of one step, first to the pieces, then to the index. ResourceError with the path.
  void write(std::vector<Group> groups);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;

  void open();
  void cut();
  void begin_piece();
  void remove_old();
  void remove_strange_pieces() const;
  File opened(const fs::Path& path) const;
  void append(std::FILE* file, const fs::Path& path, const std::string& bytes) const;
  void flush(std::FILE* file, const fs::Path& path) const;
  fs::Path path_of(int64_t piece) const { return directory_ / piece_name(piece); }

  const fs::Path directory_;
  const int64_t resume_step_, keep_;
  std::vector<SampleGroup> groups_;  // that stay, in order
  int64_t samples_ = 0;              // in them
  int64_t piece_ = 0, piece_bytes_ = 0, piece_samples_ = 0;
  data::ZstdCompressor compressor_;
  bool open_ = false;
  File file_, index_;
};

}  // namespace lockstep::recipes
