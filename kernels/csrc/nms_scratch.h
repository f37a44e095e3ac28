// The memory behind NmsScratch. Not for *_paths.cpp: std::vector is in here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "nms.h"

namespace tallymill {

class NmsMemory {
 public:
  explicit NmsMemory(std::int64_t longest)
      : room_(static_cast<std::size_t>(longest + NmsScratch::spare_lanes)),
        keys_(2 * room_), floats_(5 * room_), index_(room_) {}

  NmsScratch scratch() noexcept {
    std::uint64_t* keys = keys_.data();
    float* floats = floats_.data();
    return {keys,
            keys + room_,
            floats,
            floats + room_,
            floats + 2 * room_,
            floats + 3 * room_,
            floats + 4 * room_,
            index_.data()};
  }

 private:
  std::size_t room_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> floats_;
  std::vector<std::int32_t> index_;
};

// The length of the longest segment, which has to be one that an int32 index can tell apart.
inline std::int64_t longest(const std::int64_t* offsets, std::int64_t segments) {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < segments; ++i) most = std::max(most, offsets[i + 1] - offsets[i]);
  if (most > std::numeric_limits<std::int32_t>::max()) throw std::length_error("offsets: a segment of over 2^31 boxes");
  return most;
}

}  // namespace tallymill
