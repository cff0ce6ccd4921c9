// Structs of Thrift's compact protocol, field by field. Every count is held against the bytes that are left.
#pragma once

#include <thrift/protocol/TCompactProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::data::parquet {

// Throws apache::thrift::TException where the bytes are no such struct.
class ThriftReader {
 public:
  using Type = apache::thrift::protocol::TType;

  // `bytes` stay the caller's.
  explicit ThriftReader(std::string_view bytes)
      : size_(static_cast<uint32_t>(std::min<size_t>(bytes.size(), std::numeric_limits<int32_t>::max()))),
        buffer_(std::make_shared<Buffer>(reinterpret_cast<uint8_t*>(const_cast<char*>(bytes.data())), size_,
                                         Buffer::OBSERVE, limits())),
        protocol_(buffer_, most(size_, std::numeric_limits<int32_t>::max()), most(size_, kMaxItems)) {}

  size_t consumed() const { return size_ - buffer_->available_read(); }

  // read(id, type) reads the value of each field or skips it.
  template <class Read>
  void structure(const Read& read) {
    const apache::thrift::protocol::TInputRecursionTracker tracker(protocol_);
    std::string name;
    Type type;
    int16_t id = 0;
    protocol_.readStructBegin(name);
    for (;;) {
      protocol_.readFieldBegin(name, type, id);
      if (type == apache::thrift::protocol::T_STOP) break;
      read(id, type);
      protocol_.readFieldEnd();
    }
    protocol_.readStructEnd();
  }
  // read() for every item, if the field is a list of items of this type.
  template <class Read>
  void list(Type type, Type item, const Read& read) {
    if (type != apache::thrift::protocol::T_LIST) return skip(type);
    uint32_t count = 0;
    Type found;
    protocol_.readListBegin(found, count);
    for (uint32_t i = 0; i < count; ++i) {
      if (found == item)
        read();
      else
        skip(found);
    }
    protocol_.readListEnd();
  }
  void skip(Type type) { protocol_.skip(type); }

  // A field of another type is passed over, as a generated reader does.
  template <class Integer>
  void integer(Type type, Integer& value) {
    using namespace apache::thrift::protocol;
    int8_t i8 = 0;
    int16_t i16 = 0;
    int32_t i32 = 0;
    int64_t i64 = 0;
    if (type == T_BYTE && sizeof(Integer) >= 1)
      protocol_.readByte(i8), value = i8;
    else if (type == T_I16 && sizeof(Integer) >= 2)
      protocol_.readI16(i16), value = i16;
    else if (type == T_I32 && sizeof(Integer) >= 4)
      protocol_.readI32(i32), value = i32;
    else if (type == T_I64 && sizeof(Integer) >= 8)
      protocol_.readI64(i64), value = static_cast<Integer>(i64);
    else
      skip(type);
  }
  template <class Integer>
  void integer(Type type, std::optional<Integer>& value) {
    Integer read = value.value_or(std::numeric_limits<Integer>::min());
    integer(type, read);
    value = read;
  }
  void boolean(Type type, bool& value) {
    if (type != apache::thrift::protocol::T_BOOL) return skip(type);
    protocol_.readBool(value);
  }
  std::string string() {
    std::string text;
    protocol_.readString(text);
    return text;
  }
  void string(Type type, std::string& value) {
    if (type != apache::thrift::protocol::T_STRING) return skip(type);
    value = string();
  }

 private:
  using Buffer = apache::thrift::transport::TMemoryBuffer;

  // Every byte of a string and every item of a list takes a byte at least. The library multiplies a count by the bytes
  // of an item (16 at most) in 32 bits.
  static constexpr uint32_t kMaxItems = 1 << 26;
  static int32_t most(uint32_t bytes, uint32_t limit) {
    return static_cast<int32_t>(std::clamp<uint32_t>(bytes, 1, limit));
  }
  static std::shared_ptr<apache::thrift::TConfiguration> limits() {
    return std::make_shared<apache::thrift::TConfiguration>(std::numeric_limits<int32_t>::max());
  }

  uint32_t size_;
  std::shared_ptr<Buffer> buffer_;
  apache::thrift::protocol::TCompactProtocolT<Buffer> protocol_;
};

}  // namespace lockstep::data::parquet
