#include "checkpoint/base_fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace lockstep::checkpoint {

namespace {

namespace stdfs = std::filesystem;

constexpr size_t kPieceBytes = size_t{64} << 20;
// Stands before the path in a cache file, so that a value made by another definition is never taken for one of this.
constexpr const char* kDefinition = "pieces of 64 MiB: ";

// A stretch of a tensor's bytes.
struct Piece {
  const NamedTensor* tensor;
  size_t begin, bytes;
};

std::vector<Piece> pieces_of(const NamedTensors& tensors) {
  std::vector<Piece> pieces;
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.contiguous())
      throw ShapeError(
          {.what = "a fingerprint is of whole tensors",
           .where = named.name,
           .got = fmt::format("{} with rows {} apart", shape_text(named.tensor), named.tensor.row_stride)});
    for (size_t begin = 0; begin < named.bytes(); begin += kPieceBytes)
      pieces.push_back({&named, begin, std::min(kPieceBytes, named.bytes() - begin)});
  }
  return pieces;
}

std::string digest_of(const Piece& piece, int worker, Stream& stream) {
  constexpr size_t kReadBytes = size_t{1} << 20;
  Sha256 hash;
  const size_t room_bytes = std::min(kReadBytes, piece.bytes);
  auto* const room = static_cast<std::byte*>(stream.scratch(worker, room_bytes));
  for (size_t done = 0; done < piece.bytes; done += kReadBytes) {
    const size_t bytes = std::min(kReadBytes, piece.bytes - done);
    piece.tensor->read(room, piece.begin + done, bytes);
    hash.update(std::span(room, bytes));
  }
  return hash.hex();
}

// What stands before the digests of a tensor.
std::string head_of(const NamedTensor& named) {
  const std::span<const int64_t> shape(named.tensor.shape.data(), static_cast<size_t>(named.tensor.rank));
  return named.name + '\0' + dtype_name(named.tensor.dtype) + '\0' + fmt::format("{}", fmt::join(shape, ",")) + '\0';
}

// What the cache believes about one weight file.
Json file_identity(const fs::Path& path) {
  try {
    return {{"path", stdfs::canonical(path).string()},
            {"size", stdfs::file_size(path)},
            {"mtime", stdfs::last_write_time(path).time_since_epoch().count()}};
  } catch (const stdfs::filesystem_error& error) {
    throw DataError({.what = "cannot read file", .where = path.string(), .got = error.code().message()});
  }
}

bool is_fingerprint(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().size() == 64 &&
         value.get_ref<const std::string&>().find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Entries of a cache file; none when it is absent or damaged, for it can always be made again.
Json read_cache(const fs::Path& cache_file) {
  try {
    Json cache = read_json(cache_file.string());
    if (cache.is_object()) return cache;
  } catch (const Error&) {
  }
  return Json::object();
}

}  // namespace

std::string base_fingerprint(const std::string& weights_fingerprint, std::string_view config_text) {
  Sha256 hash;
  hash.update("base\n" + weights_fingerprint + '\n');
  hash.update(config_text);
  return hash.hex();
}

void WeightsHash::add(const NamedTensor& tensor, Stream& stream) {
  const NamedTensors one = {tensor};
  const std::vector<Piece> pieces = pieces_of(one);
  std::vector<std::string> digests(pieces.size());
  stream.parallel(static_cast<int64_t>(pieces.size()), [&](int64_t index, int worker) {
    const auto i = static_cast<size_t>(index);
    digests[i] = digest_of(pieces[i], worker, stream);
  });
  hash_.update(head_of(tensor));
  for (const std::string& digest : digests) hash_.update(digest);
}

std::string WeightsHash::hex() {
  return hash_.hex();
}

std::string weights_fingerprint(const NamedTensors& sorted_tensors, Stream& stream) {
  const std::vector<Piece> pieces = pieces_of(sorted_tensors);
  std::vector<std::string> digests(pieces.size());
  stream.parallel(static_cast<int64_t>(pieces.size()), [&](int64_t index, int worker) {
    const auto i = static_cast<size_t>(index);
    digests[i] = digest_of(pieces[i], worker, stream);
  });
  Sha256 hash;
  auto digest = digests.begin();
  for (const NamedTensor& named : sorted_tensors) {
    hash.update(head_of(named));
    for (size_t hashed = 0; hashed < named.bytes(); hashed += kPieceBytes) hash.update(*digest++);
  }
  return hash.hex();
}

std::string cached_weights_fingerprint(const HfDirectory& directory, const fs::Path& cache_file, Stream& stream) {
  Json files = Json::array();
  for (const fs::Path& file : directory.weight_files()) files.push_back(file_identity(file));
  Json cache = read_cache(cache_file);
  const std::string key = kDefinition + stdfs::canonical(directory.path()).string();
  if (cache.contains(key) && cache[key].is_object()) {
    const Json& entry = cache[key];
    if (entry.value("files", Json()) == files && is_fingerprint(entry.value("fingerprint", Json())))
      return entry["fingerprint"].get<std::string>();
  }
  std::string fingerprint = weights_fingerprint(directory.tensors(), stream);
  cache[key] = {{"files", files}, {"fingerprint", fingerprint}};
  try {
    fs::write_file_atomic(cache_file, json_text(cache, 2) + "\n");
  } catch (const ResourceError&) {
    // The cache only saves time: a read-only home must not stop a run.
  }
  return fingerprint;
}

}  // namespace lockstep::checkpoint
