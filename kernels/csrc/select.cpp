// Which entries of a score map reach a floor, and which of them are peaks. Contract and checks:
// kernels/select/__init__.py.
//
// Called right after a model has emptied the caches, so that what counts is how little memory is touched: one pass over
// the rows that are asked. The interpreter is not released, for that would take longer than the pass.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "bind.h"
#include "floats.h"

namespace tallymill {
namespace {

using Scores = Strided<const float>;
using Rows = Vector<const std::int64_t>;

constexpr std::int64_t REFUSED = -1;  // Python says why, or copies what lies askew

// One row of the scores; neighbouring cells lie `stride` floats apart.
struct Row {
  const float* data;
  std::int64_t stride, cells;

  float operator[](std::int64_t cell) const noexcept { return data[cell * stride]; }
};

// Where the selected entries go. Those beyond the room are counted all the same, so that the caller can make more.
struct Selected {
  std::int64_t* request;
  std::int64_t* cell;
  float* scores;
  std::int64_t room, count = 0;

  void add(std::int64_t request_of, std::int64_t cell_of, float score) noexcept {
    if (count < room) request[count] = request_of, cell[count] = cell_of, scores[count] = score;
    ++count;
  }
};

// Calls `reached` for every entry of at least `least`, in cell order; false as soon as one is not finite. Nearly all
// blocks hold nothing: two flags tell, without a branch an entry.
template <typename Reached>
bool scan(const Row& row, float least, Reached reached) noexcept {
  constexpr std::int64_t block = 64;
  constexpr std::uint32_t exponent = 0x7F800000;  // all of its bits are set in NaN and the infinities alone
  float gathered[block];
  for (std::int64_t start = 0; start < row.cells; start += block) {
    const std::int64_t size = std::min(block, row.cells - start);
    const float* entries = row.data + start * row.stride;
    if (row.stride != 1) {
      for (std::int64_t j = 0; j < size; ++j) gathered[j] = row[start + j];
      entries = gathered;
    }
    std::uint32_t some = 0, broken = 0;
    for (std::int64_t j = 0; j < size; ++j) {
      some |= entries[j] >= least ? 1u : 0u;
      broken |= (std::bit_cast<std::uint32_t>(entries[j]) & exponent) == exponent ? 1u : 0u;
    }
    if (broken != 0) return false;
    if (some == 0) continue;
    for (std::int64_t j = 0; j < size; ++j) {
      if (entries[j] >= least) reached(start + j, entries[j]);
    }
  }
  return true;
}

// No cell of the 3x3 surroundings, inside the map, is above the score.
bool is_peak(const Row& map, std::int64_t width, std::int64_t cell, float score) noexcept {
  const std::int64_t height = map.cells / width, y = cell / width, x = cell % width;
  const std::int64_t right = std::min(x + 1, width - 1), bottom = std::min(y + 1, height - 1);
  for (std::int64_t ny = std::max<std::int64_t>(y - 1, 0); ny <= bottom; ++ny) {
    for (std::int64_t nx = std::max<std::int64_t>(x - 1, 0); nx <= right; ++nx) {
      if (map[ny * width + nx] > score) return false;
    }
  }
  return true;
}

template <typename Array>
bool aligned(const Array& array) noexcept {
  return reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(*array.data()) == 0;
}

// Returns how many entries were found, or REFUSED. `wanted` sees row, cell and score.
template <typename Wanted>
std::int64_t collect(const Scores& scores, const Rows& classes, double floor, Selected found, Wanted wanted) noexcept {
  if (!aligned(scores) || !aligned(classes) || !std::isfinite(floor)) return REFUSED;
  const float least = least_float_not_below(floor);
  for (std::size_t request = 0; request < classes.size(); ++request) {
    const std::int64_t asked = classes.data()[request];
    if (asked < 0 || asked >= static_cast<std::int64_t>(scores.shape(0))) return REFUSED;
    const Row row{scores.data() + asked * scores.stride(0), scores.stride(1),
                  static_cast<std::int64_t>(scores.shape(1))};
    const bool finite = scan(row, least, [&](std::int64_t cell, float score) noexcept {
      if (wanted(row, cell, score)) found.add(static_cast<std::int64_t>(request), cell, score);
    });
    if (!finite) return REFUSED;
  }
  return found.count;
}

std::int64_t select(Scores scores, Rows classes, double floor, Vector<std::int64_t> request, Vector<std::int64_t> cell,
                    Vector<float> kept) {
  const Selected found{request.data(), cell.data(), kept.data(), static_cast<std::int64_t>(kept.size())};
  return collect(scores, classes, floor, found, [](const Row&, std::int64_t, float) noexcept { return true; });
}

std::int64_t select_peaks(Scores scores, Rows classes, double floor, std::int64_t width, Vector<std::int64_t> request,
                          Vector<std::int64_t> cell, Vector<float> kept) {
  if (width < 1 || static_cast<std::int64_t>(scores.shape(1)) % width != 0) return REFUSED;
  const Selected found{request.data(), cell.data(), kept.data(), static_cast<std::int64_t>(kept.size())};
  return collect(scores, classes, floor, found, [width](const Row& map, std::int64_t at, float score) noexcept {
    return is_peak(map, width, at, score);
  });
}

}  // namespace

void bind_select(nanobind::module_& m) {
  using nanobind::arg;
  m.def("select", &select, arg("scores").noconvert(), arg("classes").noconvert(), arg("floor"),
        arg("request").noconvert(), arg("cell").noconvert(), arg("kept").noconvert(),
        "Write the entries of the asked rows that reach the floor, as far as there is room, and return how many there "
        "are; -1 when an argument is wrong or an asked entry is not finite.");
  m.def("select_peaks", &select_peaks, arg("scores").noconvert(), arg("classes").noconvert(), arg("floor"),
        arg("width"), arg("request").noconvert(), arg("cell").noconvert(), arg("kept").noconvert(),
        "The same for maps of this width, without entries that a neighbour exceeds.");
}

}  // namespace tallymill
