// A double as a limit for floats: comparing with the result says what comparing in float64 with the value would.
#pragma once

#include <cmath>
#include <limits>

namespace tallymill {

// float > limit just when it exceeds the value.
inline float greatest_float_not_above(double value) noexcept {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

// float >= limit just when it reaches the value.
inline float least_float_not_below(double value) noexcept {
  const auto near = static_cast<float>(value);
  return near < value ? std::nextafter(near, std::numeric_limits<float>::infinity()) : near;
}

}  // namespace tallymill
