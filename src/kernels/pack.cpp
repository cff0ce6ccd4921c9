#include "kernels/pack.h"

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/cpu/matrix_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {
namespace {

void require_part(const ConstTensor& part, const ConstTensor& first, size_t index) {
  const std::string where = "pack_weight: parts[" + std::to_string(index) + "]";
  if (part.rank != 2 || part[0] < 1 || part[1] < 1 || part[1] != first[1])
    throw ShapeError({.what = "weight has the wrong shape",
                      .where = where,
                      .got = shape_text(part),
                      .wanted = first.rank == 2 ? "[N, " + std::to_string(first[1]) + "]" : "[N, K]"});
  if (part.dtype != DType::f32 && part.dtype != DType::bf16 && part.dtype != DType::f16)
    throw DTypeError({.what = "weight has the wrong type",
                      .where = where,
                      .got = dtype_name(part.dtype),
                      .wanted = "f32, bf16 or f16"});
  if (part.dtype != first.dtype)
    throw DTypeError({.what = "stacked weights differ in type",
                      .where = where,
                      .got = dtype_name(part.dtype),
                      .wanted = std::string(dtype_name(first.dtype)) + ", as parts[0]"});
}

// The packed weight but for its memory.
PackedWeight checked(std::span<const NamedTensor* const> parts, WeightFormat format, Device device) {
  if (parts.empty()) throw ShapeError({.what = "nothing to pack", .where = "pack_weight: parts", .wanted = "[N, K]"});
  PackedWeight weight{.format = format};
  for (size_t i = 0; i < parts.size(); ++i) {
    require_part(parts[i]->tensor, parts[0]->tensor, i);
    weight.rows += parts[i]->tensor[0];
  }
  weight.depth = parts[0]->tensor[1];
  weight.dtype = parts[0]->tensor.dtype;
  if (!can_pack(weight.dtype, format, device))
    throw DTypeError({.what = "values of this type cannot be packed in this format",
                      .where = "pack_weight: format",
                      .got = std::string(dtype_name(weight.dtype)) + " in " + format_name(format),
                      .wanted = std::string("plain_format: ") + format_name(plain_format(weight.dtype, device))});
  return weight;
}

}  // namespace

PackedWeight pack_weight(std::span<const NamedTensor* const> parts, WeightFormat format, Stream& stream, Region* region,
                         Buffer memory) {
  PackedWeight weight = checked(parts, format, stream.device());
  const size_t bytes = packed_bytes(weight.format, weight.rows, weight.depth, stream.device());
  if (stream.device() == Device::cpu) {
    weight.panels = region ? region->take(bytes) : Buffer(bytes, Buffer::Fill::none);
    cpu::pack_panels(weight, parts, stream);
    return weight;
  }
  if (memory.data() == nullptr) memory = Buffer(bytes, Buffer::Fill::none, Device::cuda);
  if (memory.bytes() != bytes || memory.device() != Device::cuda)
    throw ShapeError({.what = "memory of another size than the weight",
                      .where = "pack_weight: memory",
                      .got = std::to_string(memory.bytes()) + " bytes",
                      .wanted = std::to_string(bytes) + " on the GPU"});
  weight.panels = std::move(memory);
  cuda::pack_rows(weight, parts, stream);
  return weight;
}

PackedWeight pack_weight(std::span<const ConstTensor> parts, Stream& stream, Region* region) {
  std::vector<NamedTensor> named(parts.size());
  std::vector<const NamedTensor*> pointers;
  for (size_t i = 0; i < parts.size(); ++i) {
    named[i].tensor = parts[i];
    pointers.push_back(&named[i]);
  }
  const DType stored = parts.empty() ? DType::f32 : parts[0].dtype;
  return pack_weight(pointers, plain_format(stored, stream.device()), stream, region);
}

PackedWeight pack_placed(const ConstTensor& weight, Stream& stream) {
  if (stream.device() == Device::cpu) return pack_weight({&weight, 1}, stream);
  require_tensor(weight, DType::bf16, {weight[0], weight[1]}, "pack_placed", "weight");
  PackedWeight packed{.rows = weight[0], .depth = weight[1], .dtype = DType::bf16, .format = WeightFormat::bf16};
  packed.panels =
      Buffer(packed_bytes(packed.format, packed.rows, packed.depth, Device::cuda), Buffer::Fill::none, Device::cuda);
  copy(packed.panels.data(), weight.data, packed.panels.bytes(), stream);
  return packed;
}

void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream) {
  if (begin < 0 || end < begin || end > weight.rows)
    throw ShapeError({.what = "rows outside the packed weight",
                      .where = "unpack_rows",
                      .got = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")",
                      .wanted = "within [0, " + std::to_string(weight.rows) + ")"});
  if (out.dtype != weight.dtype)
    throw DTypeError({.what = "op argument has the wrong type",
                      .where = "unpack_rows: out",
                      .got = dtype_name(out.dtype),
                      .wanted = dtype_name(weight.dtype)});
  if (out.rank != 2 || out[0] != end - begin || out[1] != weight.depth)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = "unpack_rows: out",
                      .got = shape_text(out),
                      .wanted = "[" + std::to_string(end - begin) + ", " + std::to_string(weight.depth) + "]"});
  if (stream.device() == Device::cuda) return cuda::unpack_rows(out, weight, begin, end, stream);
  cpu::unpack_rows(out, weight, begin, end, stream);
}

void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream) {
  require_tensor(y, activation_dtype(stream.device()), {static_cast<int64_t>(ids.size()), weight.depth},
                 "embedding_gather", "y");
  if (stream.device() == Device::cuda) return cuda::embedding_gather(y, weight, ids, stream);
  for (size_t t = 0; t < ids.size(); ++t)
    if (ids[t] < 0 || ids[t] >= weight.rows)
      throw DataError({.what = "token outside the vocabulary",
                       .where = "position " + std::to_string(t),
                       .got = std::to_string(ids[t]),
                       .wanted = "0 to " + std::to_string(weight.rows - 1),
                       .attempt = "the tokenizer that belongs to this model"});
  cpu::embedding_gather(y, weight, ids, stream);
}

}  // namespace lockstep::kernels
