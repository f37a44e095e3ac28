// Greedy suppression within one segment, for whatever goes over segments. Contract: kernels/nms/__init__.py.
#pragma once

#include <cstdint>

#include "paths.h"

namespace tallymill {

struct Segment {
  const float* boxes;   // [size, 4] xyxy
  const float* scores;  // of box j at scores[j * stride]
  std::int64_t stride;
  std::int64_t size;
  float least_score;    // lower scores take no part
  float iou_threshold;  // in [0, 1]; what exceeds it is suppressed
  float next_threshold;  // the float above it
};

// What one thread works in: the boxes that are still undecided, best first, coordinates in arrays of their own. Each
// array has room for the longest segment and `spare_lanes` more, because vectors are written whole.
struct NmsScratch {
  static constexpr std::int64_t spare_lanes = 16;

  std::uint64_t *keys, *spare;
  float *x1, *y1, *x2, *y2, *area;
  std::int32_t* index;
};

TALLYMILL_EACH_PATH(
    // Leaves the survivors in scratch.index, by falling score and then rising index, and returns how many there are.
    std::int64_t suppress(const Segment& segment, const NmsScratch& scratch) noexcept;
    // Whether all boxes [size, 4] have x2 > x1 and y2 > y1, and they and the scores [scores] are finite.
    bool all_valid(const float* boxes, std::int64_t size, const float* score, std::int64_t scores) noexcept;)

}  // namespace tallymill
