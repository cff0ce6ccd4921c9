#include "parallel/report.h"

#include <array>
#include <new>

#include "parallel/bytes.h"

namespace lockstep::parallel {

namespace {

template <class AnyReport>
auto texts_of(AnyReport& report) {
  return std::array{&report.kind,      &report.fault.what,   &report.fault.where,
                    &report.fault.got, &report.fault.wanted, &report.fault.attempt};
}

}  // namespace

Report report_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return {typed.kind(), typed.fault(), typed.exit_code()};
  } catch (const std::bad_alloc&) {
    const ResourceError typed({.what = "out of memory"});
    return {typed.kind(), typed.fault(), typed.exit_code()};
  } catch (const std::exception& other) {
    return {"", {.what = other.what()}, 1};
  } catch (...) {
    return {"", {.what = "an exception without a message"}, 1};
  }
}

std::vector<std::byte> pack_report(const Report& report) {
  ByteWriter writer;
  writer.add(report.exit_code);
  for (const std::string* text : texts_of(report)) writer.add_text(*text);
  return writer.take();
}

Report unpack_report(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Report report;
  report.exit_code = reader.take<int32_t>();
  for (std::string* text : texts_of(report)) *text = reader.take_text();
  return report;
}

}  // namespace lockstep::parallel
