// Every tensor of a model: its name and shape in the file, and its place in Weights. The one list that loading,
// visiting, counting and the adapter's view of the model are made from.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "model/spec.h"
#include "model/weights.h"

namespace lockstep::model {

struct TensorPlace {
  // The member that holds it, of Weights or of a layer.
  using Member = std::variant<Linear Weights::*, Vector Weights::*, Linear LayerWeights::*, Vector LayerWeights::*>;

  std::string name;
  std::vector<int64_t> shape = {};
  Member member = &Weights::embedding;
  int64_t layer = -1;     // of a block; else -1
  int64_t row_begin = 0;  // of the stacked matrix or vector
  bool is_bias = false;   // of the linear layer in `member`
  int64_t site = -1;      // of a linear layer (lora::Module)

  bool is_matrix() const { return shape.size() == 2; }
  // Whether both are parts of one matrix or vector.
  bool is_stacked_with(const TensorPlace& other) const {
    return member == other.member && layer == other.layer && is_bias == other.is_bias;
  }
};

// Sites: the embedding, the head (also when it is tied), then the linear layers of the blocks in the order of forward.
inline constexpr int64_t kEmbeddingSite = 0, kHeadSite = 1, kFirstBlockSite = 2;

// Stacked siblings follow one another in order of rows.
std::vector<TensorPlace> tensor_places(const ModelSpec& config);

// use(siblings): the places that are stored as one matrix or vector, in turn.
template <class Use>
void for_each_group(std::span<const TensorPlace> places, const Use& use) {
  for (size_t begin = 0, end; begin < places.size(); begin = end) {
    for (end = begin + 1; end < places.size() && places[begin].is_stacked_with(places[end]);) ++end;
    use(places.subspan(begin, end - begin));
  }
}

// The format of a matrix on a device, where its file holds `stored`: block_format, or for the embedding and the head
// the plain one. Whoever packs weights or plans their memory asks here.
kernels::WeightFormat format_of(const ModelSpec& config, const TensorPlace& matrix, DType stored, Device device);

// Weights::bytes of the model on a device, where the file holds a tensor as stored(name).
int64_t weight_bytes(const ModelSpec& config, const std::function<DType(const std::string& name)>& stored,
                     Device device);

}  // namespace lockstep::model
