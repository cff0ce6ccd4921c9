// A file of supervised or preference rows, read once to be checked and then by number.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "core/hash.h"
#include "data/dataset.h"
#include "recipes/row_tokens.h"
#include "train/loss.h"

namespace lockstep::recipes {

// What a row of a file is: one sequence; chosen and rejected; a sequence with a "label" that is true or false, of KTO.
enum class RowKind { sequences, pairs, judged };
RowKind row_kind(const train::Loss& loss);

class TrainingRows {
 public:
  // Reads every row of `path`, so that what is wrong with one is known before training starts. DataError naming file
  // and row, unless max_bad_rows allows it: whatever RowTokenizer says, no target at all, more tokens than the model's
  // context without max_length, a token that the model does not have. The options outlive
  // this.
  TrainingRows(const std::string& path, const Base& base, const RowOptions& options, RowKind kind,
               const Control& control);

  int64_t size() const { return static_cast<int64_t>(kept_.size()); }  // usable rows
  int64_t datums_per_row() const { return kind_ == RowKind::pairs ? 2 : 1; }
  // SHA-256 over tokens and weights of all usable rows: what a resumed run must find again, whatever made them.
  const std::string& digest() const { return digest_; }
  // Appends the row's datum, or chosen and rejected.
  void append(int64_t row, std::vector<train::Datum>& datums);

  // Says how many rows there are, and which were cut or left out.
  void describe(const std::string& label, std::ostream& out) const;

 private:
  struct Counts {
    int64_t truncated = 0, cut_tokens = 0, dropped = 0, unaligned = 0, tokens = 0, targets = 0, desirable = 0;
    void add(const Counts& other);
  };

  // The row's datums; none if truncation left one without a target.
  std::vector<train::Datum> datums_of(const data::Row& row, Counts& counts);
  bool cut(RowTokens& row, Counts& counts) const;  // false: no target is left
  void keep(int64_t number, std::vector<train::Datum> datums);

  const Base& base_;
  const RowOptions& options_;
  const RowKind kind_;
  data::Dataset data_;
  RowTokenizer tokenizer_;
  std::vector<int64_t> kept_;                     // numbers of usable rows
  std::vector<std::vector<train::Datum>> ready_;  // of the first ones, as many as memory is set aside for
  int64_t ready_bytes_ = 0;
  Counts counts_;
  Sha256 hash_;
  std::string digest_;
};

}  // namespace lockstep::recipes
