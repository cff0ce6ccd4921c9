#include "lora/tensor_reader.h"

#include <algorithm>

#include "lora/transpose.h"

namespace lockstep::lora {

namespace {

void narrow(float* to, int64_t to_stride, const PlacePiece& piece, const float* flat) {
  float* const begin = to + piece.row * to_stride + piece.col;
  const float* const from = flat + piece.offset;
  if (piece.transposed)
    transpose(begin, to_stride, from, piece.stride, piece.cols, piece.rows);
  else
    for (int64_t i = 0; i < piece.rows; ++i) std::copy_n(from + i * piece.stride, piece.cols, begin + i * to_stride);
  for (int64_t i = 0; piece.negated && i < piece.rows; ++i)
    for (int64_t j = 0; j < piece.cols; ++j) begin[i * to_stride + j] *= -1;
}

// Whether the values lie in the flat array as they are named.
bool lies_in_order(const NamedPlace& place) {
  const PlacePiece& piece = place.pieces.front();
  return place.pieces.size() == 1 && !piece.transposed && !piece.negated && piece.rows == place.rows &&
         piece.cols == place.cols && piece.stride == place.cols;
}

// What read() returns of a place whose values are at `values`.
ConstTensor tensor_at(const NamedPlace& place, const float* values) {
  return place.is_vector ? ConstTensor(values, DType::f32, {place.cols})
                         : ConstTensor(values, DType::f32, {place.rows, place.cols});
}

void put_in_order(float* to, const NamedPlace& place, const float* flat) {
  for (const PlacePiece& piece : place.pieces) narrow(to, place.cols, piece, flat);
}

}  // namespace

TensorReader::TensorReader(const AdapterLayout& layout, const float* flat)
    : places_(named_places(layout)), flat_(flat) {
  for (const NamedPlace& place : places_) tensors_.push_back({place.name, tensor_at(place, nullptr)});
}

ConstTensor TensorReader::read(size_t tensor) {
  const NamedPlace& place = places_[tensor];
  if (lies_in_order(place)) return tensor_at(place, flat_ + place.pieces.front().offset);
  values_.resize(std::max(values_.size(), static_cast<size_t>(place.rows * place.cols)));
  put_in_order(values_.data(), place, flat_);
  return tensor_at(place, values_.data());
}

ExportedTensors export_tensors(const AdapterLayout& layout, const float* flat) {
  ExportedTensors result;
  for (const NamedPlace& place : named_places(layout)) {
    result.memory.emplace_back(static_cast<size_t>(place.rows * place.cols) * sizeof(float), Buffer::Fill::none);
    put_in_order(result.memory.back().f32(), place, flat);
    result.tensors.push_back({place.name, tensor_at(place, result.memory.back().f32())});
  }
  return result;
}

}  // namespace lockstep::lora
