#include "model/embedding.h"

#include <vector>

#include "kernels/embedding.h"
#include "kernels/pack.h"
#include "model/tensor_places.h"

namespace lockstep::model {

namespace {

// `site` owns the pairs that the segments point to.
std::vector<kernels::EmbeddingSegment> embedding_segments(const lora::SiteAdapters& site, const RowAdapters& adapters) {
  std::vector<kernels::EmbeddingSegment> segments;
  auto run = adapters.rows.begin();
  for (const kernels::LoraSegment& segment : site.segments()) {
    while (run->row_begin != segment.row_begin) ++run;
    kernels::EmbeddingSegment& to = segments.emplace_back();
    to.row_begin = segment.row_begin, to.rows = segment.rows;
    to.pairs = segment.pairs;
    to.subtracted = segment.subtracted;
    to.gradients = segment.gradients;
    to.weight_gradient = segment.weight_gradient;
    const auto& extras = run->adapter->extras;
    if (const auto* const own = extras ? extras->at(kEmbeddingSite) : nullptr) to.weight = own->table;
  }
  return segments;
}

}  // namespace

void embed(Tensor x, const Rows& rows) {
  kernels::embedding_gather(x, rows.weights->embedding.weight, rows.tokens, *rows.stream);
  const lora::SiteAdapters site(rows.adapters.rows, kEmbeddingSite);
  const std::vector<kernels::EmbeddingSegment> segments = embedding_segments(site, rows.adapters);
  kernels::embedding_adapters(x, rows.tokens, {.segments = segments, .arena = rows.arena}, *rows.stream);
}

void embed_backward(ConstTensor d, const Rows& rows) {
  const lora::SiteAdapters site(rows.adapters.rows, kEmbeddingSite);
  const std::vector<kernels::EmbeddingSegment> segments = embedding_segments(site, rows.adapters);
  kernels::embedding_adapters_backward(d, rows.tokens, {.segments = segments, .arena = rows.arena}, *rows.stream);
}

}  // namespace lockstep::model
