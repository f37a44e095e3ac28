// One assignment problem at a time, for whatever goes over a batch of them. Contract: kernels/match/__init__.py.
#pragma once

#include <cstdint>

#include "paths.h"

namespace tallymill {

// What one thread works in, for problems of up to `rows` x `columns` with rows <= columns. Rows of costs lie `stride`
// entries apart, a multiple of every vector's width; the columns from `columns` on are filled with infinity.
template <typename Real, typename Index>
struct MatchScratch {
  static constexpr std::int64_t widest = 16;  // entries of a vector, at most

  Real* costs;            // [rows, stride]
  Real* price;            // [stride] of a column
  Real* distance;         // [stride] from the row that looks for a column, along cheapest alternations
  Index* reached_from;    // [stride] the row before the column on that way
  std::int32_t* row_of;   // [stride] of a column, -1 without
  std::int32_t* column_of;  // [rows] of a row, -1 without
  std::int32_t *looking, *later;  // [rows] each: rows without a column
  std::int32_t* settled;      // [rows] columns whose distance is final
  Real *settled_distance, *settled_price;  // [rows] each
  std::uint32_t* open;        // [stride / narrowest] a bit for each column without a row
  Real* corners;              // [5, stride] x1, y1, x2, y2 and area of boxes; for pairs of boxes only
  std::int32_t* row_number;   // [rows] which box a row of costs is; for pairs of boxes only
};
using MatchScratch32 = MatchScratch<float, std::int32_t>;
using MatchScratch64 = MatchScratch<double, std::int64_t>;

// A matrix of costs as the caller has it: float32 or float64, row-major.
struct Costs {
  const void* entries;
  bool is_double;
  bool maximize;
  std::int64_t rows, columns;
};

struct Solution {
  std::int64_t pairs;      // that were found; min(rows, columns) when all are
  std::int64_t undefined;  // NaN entries
  bool refused;            // an entry is infinitely good
  double total;
};

// Two sets of boxes xyxy.
struct Pairing {
  const float *boxes_a, *boxes_b;
  std::int64_t size_a, size_b;
  float gate;  // the least IoU that counts
};

TALLYMILL_EACH_PATH(
    // Writes each row's column, or -1, to column[rows].
    Solution assign(const Costs& costs, const MatchScratch64& scratch, std::int64_t* column) noexcept;
    // Writes each a's partner among b, or -1, to partner[size_a], and their IoU, or 0, to iou[size_a].
    void match(const Pairing& pairing, const MatchScratch32& scratch, std::int64_t* partner, float* iou) noexcept;)

}  // namespace tallymill
