// Formats and compressions of data sets, bad rows, rows in any order.
#include <gtest/gtest.h>
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "core/fs.h"
#include "core/random.h"
#include "data/byte_window.h"
#include "data/compression.h"
#include "data/dataset.h"
#include "data/spool.h"
#include "support/temp_directory.h"

namespace lockstep::data {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

std::string gzip(std::string_view text) {
  std::string out(text.size() + 100, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string xz(std::string_view text) {
  std::string out(text.size() + 1000, '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string numbered_rows(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i % 7 == 0 ? "\n" : "") + std::string("{\"n\":") + std::to_string(i) + "}\n";
  return text;
}

std::vector<int64_t> numbers(Dataset& data) {
  std::vector<int64_t> found;
  while (const auto row = data.next()) found.push_back(row->json.at("n"));
  return found;
}

std::vector<int64_t> counted(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) all[static_cast<size_t>(i)] = i;
  return all;
}

class DatasetFormat : public ::testing::Test {
 protected:
  Dataset open(std::string_view bytes, const std::string& slice = "", int64_t max_bad_rows = 0) {
    return Dataset::open(dir_.write("rows.data", bytes).string() + slice, {.max_bad_rows = max_bad_rows});
  }
  TempDirectory dir_;
};

TEST_F(DatasetFormat, CompressionIsToldByTheBytes) {
  const std::string text = numbered_rows(1000);
  for (const std::string& bytes : {gzip(text), xz(text), zstd(text)}) {
    Dataset data = open(bytes);
    EXPECT_EQ(numbers(data), counted(1000));
    EXPECT_EQ(data.size(), 1000);
    EXPECT_EQ(data.row(70).line, 82);
    EXPECT_NE(data.format(), "JSON Lines");
  }
  // A name proves nothing.
  Dataset plain = Dataset::open(dir_.write("rows.jsonl.gz", text).string());
  EXPECT_EQ(numbers(plain), counted(1000));
}

TEST_F(DatasetFormat, SeveralMembersAreOneText) {
  const std::string a = "{\"n\":0}\n{\"n\"", b = ":1}\n{\"n\":2}\n";
  for (const std::string& bytes :
       {gzip(a) + gzip(b), gzip(a) + gzip("") + gzip(b) + std::string(7, '\0'), xz(a) + xz(b), zstd(a) + zstd(b)}) {
    Dataset data = open(bytes);
    EXPECT_EQ(numbers(data), counted(3));
  }
}

TEST_F(DatasetFormat, DamagedArchivesAreTypedErrors) {
  const std::string text = numbered_rows(3000);
  for (const std::string& whole : {gzip(text), xz(text), zstd(text)}) {
    const char* name = compression_name(detect_compression(whole));
    for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{6}})
      expect_error<FormatError>([&] { open(whole.substr(0, size)); }, {"cannot unpack", name, "rows.data"});
    std::string changed = whole;
    changed[whole.size() / 2] ^= 0x10;
    if (changed != whole) expect_error<FormatError>([&] { open(changed).rest(); }, {});
    expect_error<FormatError>([&] { open(whole + "rubbish"); }, {"cannot unpack", name});
  }
}

TEST_F(DatasetFormat, ArchivesAreUnpackedFromPiecesOfAnySize) {
  const std::string text = numbered_rows(3000), zeros(5, '\0');
  for (const std::string& packed :
       {gzip(text) + gzip(text), gzip(text) + gzip(text) + zeros, xz(text) + xz(text), zstd(text) + zstd(text)})
    for (const size_t size : {size_t{1}, size_t{100}, packed.size() - 3, packed.size()}) {
      size_t place = 0;
      std::string unpacked;
      const auto next = [&] {
        const std::string_view piece = std::string_view(packed).substr(place, size);
        place += piece.size();
        return piece;
      };
      decompress(detect_compression(packed), next, "f", [&](std::string_view piece) { unpacked += piece; });
      EXPECT_TRUE(unpacked == text + text) << size;
    }
  for (const size_t size : {size_t{1}, size_t{1} << 20}) {  // data behind zeros is no padding
    const std::string packed = gzip(text) + zeros + gzip(text);
    size_t place = 0;
    const auto next = [&] {
      const std::string_view piece = std::string_view(packed).substr(place, size);
      place += piece.size();
      return piece;
    };
    EXPECT_THROW(decompress(Compression::gzip, next, "f", [](std::string_view) {}), FormatError);
  }
}

// A map of such a file would end the process with SIGBUS.
TEST_F(DatasetFormat, AFileThatIsTruncatedWhileItIsReadIsAnError) {
  const std::string lines = numbered_rows(100'000);
  std::string list = "[";
  for (int i = 0; i < 100'000; ++i) list += (i > 0 ? ",\n" : "") + ("{\"n\": " + std::to_string(i) + "}");
  for (const std::string& text : {lines, list + "]"}) {
    for (const bool in_order : {true, false}) {
      Dataset data = open(text, "", 7);
      EXPECT_EQ(data.next()->json.at("n"), 0);
      if (!in_order) {
        EXPECT_EQ(data.row(99'000).json.at("n"), 99'000);
      }
      std::filesystem::resize_file(data.path(), 8192);
      const auto read = [&] { return in_order ? data.rest().size() : data.row(50'000).line + size_t{0}; };
      expect_error<DataError>(read, {"changed while it was read", "rows.data", "8192 bytes"});
      EXPECT_EQ(data.bad_rows().size(), 0u);
    }
  }
}

// Rows are longer than what is read at a time, or end where it does.
TEST(ByteWindow, IsTheBytesWhateverItReadsAtATime) {
  const TempDirectory dir;
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 60; ++i) text += std::string(random() % 70, static_cast<char>('a' + i % 26)) + "\n";
  const fs::File file(dir.write("x", text));
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{64}, size_t{100'000}}) {
    ByteWindow window(ByteSource(file), bytes);
    for (int i = 0; i < 300; ++i) {
      const size_t begin = random() % text.size(), end = begin + random() % (text.size() - begin + 1);
      EXPECT_EQ(window.view(begin, end), std::string_view(text).substr(begin, end - begin));
      EXPECT_EQ(window.at(begin), text[begin]);
      EXPECT_EQ(window.find('\n', end), std::min(text.find('\n', end), text.size()));
      EXPECT_EQ(window.find('#', begin), text.size());
    }
  }
}

TEST_F(DatasetFormat, EveryRowInAnyOrder) {
  const int64_t count = 500;
  Dataset data = open(numbered_rows(count), "@[3:-2]");
  ASSERT_EQ(data.size(), count - 5);
  for (const int64_t i : permutation(data.size(), 42, 0)) {
    const Row row = data.row(i);
    EXPECT_EQ(row.number, i);
    EXPECT_EQ(row.json.at("n"), i + 3);
    EXPECT_EQ(row.line, 1 + (i + 3) + (i + 3) / 7 + 1);
  }
  data.row(9);
  EXPECT_EQ(data.next()->number, 10);
  data.rewind();
  EXPECT_EQ(data.next()->number, 0);
  for (const int64_t i : {int64_t{-1}, count - 5})
    expect_error<DataError>([&] { data.row(i); }, {"no such row", "0 to 494"});
}

TEST_F(DatasetFormat, OneListOfObjects) {
  Dataset data = open(
      "\xEF\xBB\xBF \n[{\"n\": 0},\n {\n  \"n\": 1, \"s\": \"a ] } \\\" b\", \"l\": [[1], {}]\n },\n\n{\"n\":2}\n]\n");
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.format(), "JSON, one list");
  EXPECT_EQ(data.row(1).line, 3);
  EXPECT_EQ(data.row(1).json.at("s"), "a ] } \" b");
  EXPECT_EQ(data.row(2).line, 7);
  EXPECT_EQ(data.row(0).json.at("n"), 0);
  data.rewind();
  EXPECT_EQ(numbers(data), counted(3));
  std::string many = "[";
  for (int i = 0; i < 200; ++i) many += (i > 0 ? ",{\"n\":" : "{\"n\":") + std::to_string(i) + "}";
  Dataset list = open(many + "]");
  for (int64_t i = 200; i-- > 0;) EXPECT_EQ(list.row(i).json.at("n"), i);
}

TEST_F(DatasetFormat, BrokenListsNameTheLine) {
  const auto fails = [&](const char* text, const char* line, const char* reason) {
    expect_error<FormatError>([&] { open(text).rest(); }, {"invalid JSON", line, reason});
  };
  fails("[{\"n\":1},\n{\"n\":2}", "line 2", "the list ends early");
  fails("[{\"n\":1},\n{\"n\":2", "line 2", "the list ends early");
  fails("[{\"n\":1},\n{\"n\":\"2}]", "line 2", "the list ends early");
  fails("[{\"n\":1},\n]", "line 2", "a comma before ]");
  fails("[{\"n\":1},,\n{\"n\":2}]", "line 1", "no value");
  fails("[{\"n\":1}]\n{\"n\":2}", "line 2", "something behind the list");
  fails("[{\"n\":1}}]", "line 1", "}");
  expect_error<DataError>([&] { open("[{\"n\":1} {\"n\":2}]").rest(); }, {"line 1", "invalid JSON"});
  expect_error<DataError>([&] { open("[{\"n\":1},\n7]").rest(); }, {"line 2", "not a JSON object"});
  expect_error<DataError>([&] { open(" [ ] "); }, {"empty", "0 rows"});
}

TEST_F(DatasetFormat, BadRowsAreLeftOutUpToTheLimit) {
  const std::string text = "{\"n\":0}\nnope\n{\"n\":1}\n[]\n{\"n\":2}\n{\"n\":\"\xff\"}\n";
  expect_error<DataError>([&] { open(text).rest(); }, {"line 2", "invalid JSON"});
  expect_error<DataError>([&] { open(text, "", 2).rest(); }, {"line 6", "after 2 bad rows"});
  Dataset data = open(text, "", 3);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(numbers(data), counted(3));
    data.rewind();
  }
  const std::vector<BadRow> bad = data.bad_rows();
  ASSERT_EQ(bad.size(), 3u);
  EXPECT_EQ(bad[1].place, data.path() + " line 4");
  EXPECT_EQ(bad[1].reason, "a row is not a JSON object: array");
  EXPECT_EQ(data.size(), 6);
  EXPECT_EQ(data.row(4).json.at("n"), 2);
  expect_error<DataError>([&] { data.row(3); }, {"line 4", "not a JSON object"});
  // Slices count bad rows, and do not look at those outside.
  Dataset slice = open(text, "@[2:5]", 1);
  EXPECT_EQ(numbers(slice), (std::vector<int64_t>{1, 2}));
}

TEST_F(DatasetFormat, AUserOfARowMayFindItBad) {
  Dataset data = open(numbered_rows(4), "", 1);
  std::vector<bool> accepted;
  const auto use = [&](const Row& row, int64_t bad) {
    if (row.number == bad) throw DataError({.what = "no good", .where = data.where(row), .got = "this"});
  };
  while (const auto row = data.next()) accepted.push_back(data.accept(*row, [&] { use(*row, 2); }));
  EXPECT_EQ(accepted, (std::vector<bool>{true, true, false, true}));
  ASSERT_EQ(data.bad_rows().size(), 1u);
  EXPECT_EQ(data.bad_rows()[0].reason, "no good: this");
  data.rewind();
  const auto row = data.next();
  expect_error<DataError>([&] { data.accept(*row, [&] { use(*row, 0); }); }, {"no good", "after 1 bad row", "line 2"});
  EXPECT_THROW(data.accept(*row, [] { throw FormatError({.what = "not the row's"}); }), FormatError);
}

TEST_F(DatasetFormat, APipeIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = numbered_rows(100);
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  Dataset data = Dataset::open("/proc/self/fd/" + std::to_string(ends[0]) + "@[10:]");
  ::close(ends[0]);
  EXPECT_EQ(data.size(), 90);
  EXPECT_EQ(data.row(50).json.at("n"), 60);
}

std::string all_of(const ByteSource& source) {
  std::vector<char> room;
  return std::string(source.read(0, source.size(), room));
}

TEST(Spool, ManyBytesGoToAFileAndComeBack) {
  Spool spool(1000);
  std::string all;
  for (int i = 0; i < 3000; ++i) {
    const std::string piece = std::to_string(i) + std::string(static_cast<size_t>(i % 50), 'x');
    spool.append(piece);
    all += piece;
    if (i == 10 || i == 2000) {
      EXPECT_TRUE(all_of(spool.source()) == all);
      EXPECT_EQ(spool.source().in_memory(), i == 10);
    }
  }
  EXPECT_TRUE(all_of(spool.source()) == all);
  EXPECT_EQ(all_of(Spool().source()), "");
}

// The descriptors of temporary files without a name: a spool writes to one and reads from another.
std::vector<fs::Path> nameless_files() {
  std::vector<fs::Path> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.find("lockstep-") != std::string::npos && target.ends_with("(deleted)")) found.push_back(entry.path());
  }
  return found;
}

// A disk that loses what was written, here a file that somebody empties, is an error of the data set's.
TEST(Spool, WhatTheDiskLosesIsAnError) {
  Spool spool(100);
  spool.append(std::string(100000, 'x'));
  const ByteSource source = spool.source();
  ASSERT_EQ(source.size(), 100000u);
  const std::vector<fs::Path> files = nameless_files();
  ASSERT_FALSE(files.empty());
  std::filesystem::resize_file(files.front(), 5000);
  std::vector<char> room;
  EXPECT_EQ(source.read(0, 5000, room).size(), 5000u);
  expect_error<DataError>([&] { source.read(4000, 5000, room); }, {"temporary file", "5000 bytes"});
}

TEST(DatasetData, Gsm8k) {
  if (std::string_view(LOCKSTEP_TEST_DATA).empty()) GTEST_SKIP() << "LOCKSTEP_TEST_DATA is empty: no GSM8K";
  Dataset data = Dataset::open(LOCKSTEP_TEST_DATA "/data/gsm8k/test.jsonl.xz");
  EXPECT_EQ(data.size(), 1319);
  EXPECT_EQ(data.rest().size(), 1319u);
  EXPECT_TRUE(string_field(data, data.row(0), "answer").ends_with("#### 18"));
}

}  // namespace
}  // namespace lockstep::data
