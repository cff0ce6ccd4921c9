// Include before <hwy/foreach_target.h>. The build disables AVX-512 variants by name (HWY_DISABLED_TARGETS); releases
// of Highway that do not know such a name must read it as "no target".
#pragma once

#include <hwy/detect_targets.h>

#ifndef HWY_AVX3_ZEN4
#define HWY_AVX3_ZEN4 0
#endif
