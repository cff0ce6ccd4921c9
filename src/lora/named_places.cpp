#include "lora/named_places.h"

namespace lockstep::lora {

namespace {

std::string peft_name(const Module& module, const std::string& rest) {
  return std::string(kPeftPrefix) + module.name + rest;
}

// A [r, in], of which A^T lies at `offset`; with A0 below it.
NamedPlace place_of_a(const Pair& pair, const Module& module) {
  const auto name = [&](const Module& m) {
    return peft_name(m, pair.of_embedding() ? ".lora_embedding_A" : ".lora_A.weight");
  };
  NamedPlace place{.name = name(module), .rows = pair.rank, .cols = pair.in};
  if (&module != &pair.module()) place.same_as = name(pair.module());
  PlacePiece piece{
      .offset = pair.a_offset, .stride = pair.rank, .rows = pair.rank, .cols = pair.in, .transposed = true};
  place.pieces.push_back(piece);
  if (pair.a0_offset == kAbsent) return place;
  place.rows = 2 * pair.rank;
  piece.offset = pair.a0_offset, piece.row = pair.rank;
  place.pieces.push_back(piece);
  return place;
}

// B [out, r] of one module, of which B^T lies in that of all modules of the pair; with -B0 to its right.
NamedPlace place_of_b(const Pair& pair, const Module& module) {
  NamedPlace place{.name = peft_name(module, pair.of_embedding() ? ".lora_embedding_B" : ".lora_B.weight"),
                   .rows = module.out,
                   .cols = pair.rank};
  const int64_t begin = module.out_begin - pair.out_begin;
  PlacePiece piece{
      .offset = pair.b_offset + begin, .stride = pair.out, .rows = module.out, .cols = pair.rank, .transposed = true};
  place.pieces.push_back(piece);
  if (pair.b0_offset == kAbsent) return place;
  place.cols = 2 * pair.rank;
  piece.offset = pair.b0_offset + begin, piece.col = pair.rank, piece.negated = true;
  place.pieces.push_back(piece);
  return place;
}

NamedPlace place_of_vector(const std::string& name, int64_t offset, int64_t size) {
  return {.name = name,
          .cols = size,
          .is_vector = true,
          .pieces = {{.offset = offset, .stride = size, .rows = 1, .cols = size}}};
}

bool is_target(const AdapterLayout& layout, const Module& module) {
  for (const int pair : layout.pairs_at(module.site))
    for (const Module& covered : layout.pairs[static_cast<size_t>(pair)].modules)
      if (covered.name == module.name) return true;
  return false;
}

}  // namespace

std::vector<NamedPlace> named_places(const AdapterLayout& layout) {
  std::vector<NamedPlace> places;
  for (const Pair& pair : layout.pairs)
    for (const Module& module : pair.modules) {
      places.push_back(place_of_a(pair, module));
      places.push_back(place_of_b(pair, module));
    }
  for (const OwnTensors& own : layout.own) {
    const Module& module = own.module;
    if (own.magnitude != kAbsent)
      places.push_back(place_of_vector(peft_name(module, ".lora_magnitude_vector"), own.magnitude, module.out));
    // PEFT wraps its targets, and the module itself is then the wrapper's base_layer.
    if (own.bias != kAbsent)
      places.push_back(place_of_vector(peft_name(module, is_target(layout, module) ? ".base_layer.bias" : ".bias"),
                                       own.bias, module.out));
    if (own.weight != kAbsent)
      places.push_back({.name = peft_name(module, ".weight"),
                        .rows = own.weight_rows(),
                        .cols = own.weight_cols(),
                        .pieces = {{.offset = own.weight,
                                    .stride = own.weight_cols(),
                                    .rows = own.weight_rows(),
                                    .cols = own.weight_cols()}}});
  }
  if (layout.value_head) {
    NamedPlace weight =
        place_of_vector(std::string(kValueHeadWeight), layout.value_head->weight, layout.value_head->width);
    weight.is_vector = false;  // [1, width]
    places.push_back(std::move(weight));
    places.push_back(place_of_vector(std::string(kValueHeadBias), layout.value_head->bias, 1));
  }
  return places;
}

}  // namespace lockstep::lora
