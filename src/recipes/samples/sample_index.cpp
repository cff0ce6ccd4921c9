#include "recipes/samples/sample_index.h"

#include <fmt/format.h>

#include <charconv>

#include "core/json.h"
#include "data/compression.h"

namespace lockstep::recipes {

namespace {

constexpr std::string_view kPieceEnd = ".jsonl.zst";
constexpr size_t kMaxText = size_t{256} << 20;

void append_column(std::string& out, std::string_view key, size_t size, const auto& append) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":[", key);
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) out += ',';
    append(i);
  }
  out += ']';
}

const Json& list_of(const JsonObject& line, const char* key, size_t size) {
  const Json& list = line.value(key);
  if (!list.is_array() || list.size() != size)
    throw FormatError({.what = "a line of the index has lists of different lengths",
                       .where = line.where() + ": " + key,
                       .wanted = fmt::format("a list of {}", size)});
  return list;
}

}  // namespace

std::string index_line(const SampleGroup& group) {
  std::string out = fmt::format(R"({{"step":{},"group":{},"piece":{},"offset":{},"bytes":{})", group.step, group.group,
                                group.piece, group.offset, group.bytes);
  append_column(out, "rewards", group.rewards.size(), [&](size_t i) {
    if (group.rewards[i])
      fmt::format_to(std::back_inserter(out), "{}", *group.rewards[i]);
    else
      out += "null";
  });
  append_column(out, "lengths", group.lengths.size(),
                [&](size_t i) { fmt::format_to(std::back_inserter(out), "{}", group.lengths[i]); });
  append_column(out, "truncated", group.truncated.size(), [&](size_t i) { out += group.truncated[i] ? '1' : '0'; });
  out += '}';
  return out;
}

SampleGroup parse_index_line(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  const JsonObject object(json, where);
  SampleGroup group{.step = object.integer("step"),
                    .group = object.integer("group"),
                    .piece = object.integer("piece"),
                    .offset = object.integer("offset"),
                    .bytes = object.integer("bytes")};
  const Json& lengths = object.value("lengths");
  const size_t size = lengths.size();
  const Json &rewards = list_of(object, "rewards", size), &truncated = list_of(object, "truncated", size);
  for (size_t i = 0; i < size; ++i) {
    if (!lengths[i].is_number_integer() || !truncated[i].is_number_integer() ||
        !(rewards[i].is_number() || rewards[i].is_null()))
      throw FormatError({.what = "a line of the index of samples has a value of another type", .where = where});
    group.lengths.push_back(lengths[i].get<int64_t>());
    group.truncated.push_back(truncated[i].get<int64_t>() != 0);
    group.rewards.push_back(rewards[i].is_null() ? std::nullopt : std::optional(rewards[i].get<float>()));
  }
  if (group.piece < 0 || group.offset < 0 || group.bytes < 0)
    throw FormatError({.what = "a line of the index of samples has a negative place", .where = where});
  return group;
}

std::string piece_name(int64_t piece) {
  return fmt::format("{:06}{}", piece, kPieceEnd);
}

std::optional<int64_t> piece_number(const std::string& name) {
  if (!name.ends_with(kPieceEnd)) return std::nullopt;
  int64_t number = 0;
  const char* end = name.data() + name.size() - kPieceEnd.size();
  const auto [read, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || read != end || number < 0 || piece_name(number) != name) return std::nullopt;
  return number;
}

std::vector<SampleGroup> read_sample_index(const fs::Path& directory) {
  const fs::Path file = directory / kSampleIndex;
  std::vector<SampleGroup> groups;
  const std::optional<std::string> text = fs::read_file_if_exists(file);
  if (!text) return groups;
  size_t begin = 0;
  for (size_t end = text->find('\n'); end != std::string::npos; begin = end + 1, end = text->find('\n', begin))
    groups.push_back(parse_index_line(std::string_view(*text).substr(begin, end - begin),
                                      fmt::format("{} line {}", file.string(), groups.size() + 1)));
  return groups;
}

std::string read_sample_group(const fs::Path& directory, const SampleGroup& group) {
  const fs::File piece(directory / piece_name(group.piece));
  const auto begin = static_cast<size_t>(group.offset), bytes = static_cast<size_t>(group.bytes);
  const std::string where = fmt::format("{} at {}", piece.path().string(), begin);
  if (begin > piece.size() || bytes > piece.size() - begin)
    throw FormatError({.what = "a piece of samples is shorter than its index says",
                       .where = where,
                       .got = fmt::format("{} bytes", piece.size())});
  std::string frame(bytes, '\0');
  piece.read(frame.data(), begin, bytes);
  std::string text;
  bool given = false;
  data::decompress(
      data::Compression::zstd,
      [&]() -> std::string_view { return std::exchange(given, true) ? std::string_view() : std::string_view(frame); },
      where,
      [&](std::string_view part) {
        if (text.size() + part.size() > kMaxText)
          throw FormatError({.what = "a group of samples is too large", .where = where, .wanted = "at most 256 MiB"});
        text += part;
      });
  return text;
}

}  // namespace lockstep::recipes
