#include "core/error.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Error, MessageSaysWhatWhereGotWantedTry) {
  const FormatError error({.what = "w", .where = "x", .got = "g", .wanted = "n", .attempt = "a"});
  EXPECT_STREQ(error.what(), "w\n  where:  x\n  got:    g\n  wanted: n\n  try:    a");
  EXPECT_EQ(error.fault().wanted, "n");
}

TEST(Error, EmptyFieldsAreLeftOut) {
  EXPECT_STREQ(DataError({.what = "w", .got = "g"}).what(), "w\n  got:    g");
}

template <class Kind>
void expect_kind(const char* name, int code) {
  try {
    throw Kind({.what = "w"});
  } catch (const Error& error) {
    EXPECT_STREQ(error.kind(), name);
    EXPECT_EQ(error.exit_code(), code);
  }
}

TEST(Error, KindsAndExitCodes) {
  expect_kind<ConfigError>("ConfigError", 2);
  expect_kind<DataError>("DataError", 3);
  expect_kind<FormatError>("FormatError", 4);
  expect_kind<ShapeError>("ShapeError", 5);
  expect_kind<DTypeError>("DTypeError", 5);
  expect_kind<DeviceError>("DeviceError", 6);
  expect_kind<ResourceError>("ResourceError", 7);
  expect_kind<Cancelled>("Cancelled", 130);
}

}  // namespace
}  // namespace lockstep
