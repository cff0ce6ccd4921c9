// Where a part occurs in a text, in time linear in both whatever they hold (Knuth, Morris and Pratt; std::string::find
// takes their product, which a stranger's texts can make minutes of).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::text {

class TextSearch {
 public:
  enum class From { left, right };

  // `part` is not empty and outlives the object. Takes four bytes of memory for each of its own.
  explicit TextSearch(std::string_view part, From from = From::left);

  // Offset of the first occurrence, from the right the last; npos when there is none. `work(bytes)` is called now and
  // then how many bytes were compared one by one (or skipped, which counts for less) since it was called last, and may
  // throw.
  template <class Work>
  size_t find(std::string_view text, const Work& work) const {
    Progress progress;
    while (advance(text, progress)) work(progress.take());
    work(progress.take());
    return progress.found;
  }
  size_t find(std::string_view text) const {
    return find(text, [](size_t) {});
  }

 private:
  struct Progress {
    size_t place = 0;    // bytes of the text that were read
    size_t matched = 0;  // bytes of the part that end there
    size_t compared = 0;
    size_t found = std::string_view::npos;
    size_t take() {
      const size_t bytes = compared;
      compared = 0;
      return bytes;
    }
  };
  bool advance(std::string_view text, Progress& progress) const;  // false: the search is over
  template <From from>
  bool advance_from(std::string_view text, Progress& progress) const;

  std::string_view part_;
  From from_;
  std::vector<uint32_t> border_;  // of each beginning of the part: its longest proper beginning that also ends it
};

}  // namespace lockstep::text
