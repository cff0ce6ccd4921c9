#include "text/file_bytes.h"

namespace lockstep::text {

FileBytes::FileBytes(const std::string& path) {
  std::string piped;
  std::string_view raw;
  if (std::error_code ignored; std::filesystem::is_regular_file(path, ignored)) {
    mapped_.emplace(path);
    raw = {reinterpret_cast<const char*>(mapped_->bytes().data()), mapped_->bytes().size()};
  } else {
    piped = fs::read_file(path);
    raw = piped;
  }
  compression_ = detect_compression(raw);
  if (compression_ == Compression::none && mapped_) {
    bytes_ = raw;
    return;
  }
  decompress(compression_, raw, path, [&](std::string_view piece) { spool_.append(piece); });
  mapped_.reset();
  bytes_ = spool_.bytes();
}

}  // namespace lockstep::text
