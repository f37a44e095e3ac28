// Greedy non-maximum suppression over ragged segments. Contract and checks: kernels/nms/__init__.py.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "bind.h"

namespace tallymill {
namespace {

struct Problem {
  const float* boxes;  // [N, 4] xyxy
  const float* scores;
  const std::int64_t* offsets;
  std::int64_t segments;
  float threshold;  // the greatest float not above the given double
  std::int64_t* indices;  // [N]; each segment writes from its own start
  std::int64_t* counts;   // [S]
};

// The boxes of one segment that are still undecided, best first. Coordinates lie in arrays of their own, so that the
// compiler can vectorise over boxes.
struct Scratch {
  explicit Scratch(std::size_t n) : keys(n), spare(n), x1(n), y1(n), x2(n), y2(n), area(n), index(n), alive(n) {}

  std::vector<std::uint64_t> keys, spare;
  std::vector<float> x1, y1, x2, y2, area;
  std::vector<std::uint32_t> index;
  std::vector<std::uint32_t> alive;  // as wide as a float, so that lanes need no repacking
};

// Smaller for a better box: a float's bits, taken as an integer, grow with it once the negative ones are turned over.
// The index below makes all keys differ, so that ties come by rising index however they are sorted.
std::uint64_t sort_key(float score, std::uint32_t index) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 and +0 are a tie
  const std::uint32_t rising = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return (std::uint64_t{~rising} << 32) | index;
}

// Radix sort by the four bytes of the score, least first; each pass is stable, so the indices need no pass.
void sort_keys(std::size_t n, Scratch& s) noexcept {
  if (std::is_sorted(s.keys.begin(), s.keys.begin() + n)) return;  // many detectors answer in this order already
  if (n < 64) return std::sort(s.keys.begin(), s.keys.begin() + n);
  const auto digit = [](std::uint64_t key, int byte) { return (key >> (32 + 8 * byte)) & 255; };
  std::uint32_t places[4][256] = {};
  for (std::size_t j = 0; j < n; ++j) {
    for (int byte = 0; byte < 4; ++byte) ++places[byte][digit(s.keys[j], byte)];
  }
  for (int byte = 0; byte < 4; ++byte) {
    std::uint32_t* place = places[byte];
    if (place[digit(s.keys[0], byte)] == n) continue;  // the same everywhere
    std::exclusive_scan(place, place + 256, place, 0u);
    for (std::size_t j = 0; j < n; ++j) s.spare[place[digit(s.keys[j], byte)]++] = s.keys[j];
    s.keys.swap(s.spare);
  }
}

void load(const Problem& p, std::int64_t start, std::size_t n, Scratch& s) noexcept {
  for (std::size_t j = 0; j < n; ++j) s.keys[j] = sort_key(p.scores[start + j], static_cast<std::uint32_t>(j));
  sort_keys(n, s);
  for (std::size_t j = 0; j < n; ++j) {
    const auto index = static_cast<std::uint32_t>(s.keys[j]);
    const float* box = p.boxes + 4 * (start + index);
    s.index[j] = index;
    s.x1[j] = box[0], s.y1[j] = box[1], s.x2[j] = box[2], s.y2[j] = box[3];
    s.area[j] = (box[2] - box[0]) * (box[3] - box[1]);
  }
}

// Marks which of the boxes after `head` survive it, and returns how many do. NaN (an overflowed area) survives.
std::size_t compare(std::size_t head, std::size_t n, float threshold, Scratch& s) noexcept {
  const float x1 = s.x1[head], y1 = s.y1[head], x2 = s.x2[head], y2 = s.y2[head], area = s.area[head];
  const float *xs1 = s.x1.data(), *ys1 = s.y1.data(), *xs2 = s.x2.data(), *ys2 = s.y2.data(), *areas = s.area.data();
  std::uint32_t* alive = s.alive.data();
  std::uint32_t survivors = 0;
  for (std::size_t j = head + 1; j < n; ++j) {
    const float left = xs1[j] > x1 ? xs1[j] : x1, right = xs2[j] < x2 ? xs2[j] : x2;
    const float top = ys1[j] > y1 ? ys1[j] : y1, bottom = ys2[j] < y2 ? ys2[j] : y2;
    const float w = right - left, h = bottom - top;
    const float inter = (w > 0.0f ? w : 0.0f) * (h > 0.0f ? h : 0.0f);
    const float iou = inter / (area + areas[j] - inter);
    alive[j] = iou > threshold ? 0u : 1u;
    survivors += alive[j];
  }
  return survivors;
}

// Closes the gaps among boxes first..n-1, one of which at least did not survive; keeps the order, without branches.
std::size_t compact(std::size_t first, std::size_t n, Scratch& s) noexcept {
  while (s.alive[first] != 0) ++first;
  std::size_t to = first;
  for (std::size_t j = first; j < n; ++j) {
    s.x1[to] = s.x1[j], s.y1[to] = s.y1[j], s.x2[to] = s.x2[j], s.y2[to] = s.y2[j];
    s.area[to] = s.area[j], s.index[to] = s.index[j];
    to += s.alive[j];
  }
  return to;
}

void suppress(const Problem& p, std::int64_t segment, Scratch& s) noexcept {
  const std::int64_t start = p.offsets[segment];
  std::size_t n = static_cast<std::size_t>(p.offsets[segment + 1] - start);
  load(p, start, n, s);
  for (std::size_t head = 0; head < n; ++head) {
    p.indices[start + head] = start + s.index[head];
    if (compare(head, n, p.threshold, s) != n - head - 1) n = compact(head + 1, n, s);
  }
  p.counts[segment] = static_cast<std::int64_t>(n);
}

std::int64_t longest(const Problem& p) noexcept {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < p.segments; ++i) most = std::max(most, p.offsets[i + 1] - p.offsets[i]);
  return most;
}

// All memory is taken here, before the first thread starts: nothing that runs on a thread can throw.
void suppress_all(const Problem& p, std::int64_t threads) {
  const auto workers = static_cast<std::size_t>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(p.segments, 1)));
  const auto room = static_cast<std::size_t>(longest(p));
  if (room > std::numeric_limits<std::uint32_t>::max()) throw std::length_error("offsets: a segment of over 2^32 boxes");
  std::vector<Scratch> scratch;
  scratch.reserve(workers);
  for (std::size_t i = 0; i < workers; ++i) scratch.emplace_back(room);
  std::atomic<std::int64_t> next{0};
  const auto work = [&](Scratch& own) noexcept {
    for (auto i = next.fetch_add(1); i < p.segments; i = next.fetch_add(1)) suppress(p, i, own);
  };
  std::vector<std::jthread> pool;
  pool.reserve(workers - 1);
  try {
    for (std::size_t i = 1; i < workers; ++i) pool.emplace_back(work, std::ref(scratch[i]));
  } catch (const std::system_error&) {
    // The system has no more threads to give: those that run take all segments, with the same result.
  }
  work(scratch[0]);
}

// Closes the gaps that the suppressed boxes left, and turns counts into offsets.
std::int64_t gather(const Problem& p, std::int64_t* kept_offsets) noexcept {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < p.segments; ++i) {
    const std::int64_t count = p.counts[i];
    std::copy_n(p.indices + p.offsets[i], count, p.indices + total);
    kept_offsets[i] = total;
    total += count;
  }
  kept_offsets[p.segments] = total;
  return total;
}

float greatest_float_not_above(double value) noexcept {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

std::int64_t nms(Boxes<const float> boxes, Vector<const float> scores, Vector<const std::int64_t> offsets,
                 double iou_threshold, std::int64_t threads, Vector<std::int64_t> indices,
                 Vector<std::int64_t> kept_offsets) {
  // counts live in kept_offsets until gather() reads each and writes the offset over it.
  const Problem p{boxes.data(),
                  scores.data(),
                  offsets.data(),
                  static_cast<std::int64_t>(offsets.size()) - 1,
                  greatest_float_not_above(iou_threshold),
                  indices.data(),
                  kept_offsets.data()};
  nanobind::gil_scoped_release unlocked;
  suppress_all(p, threads);
  return gather(p, kept_offsets.data());
}

void valid(Boxes<const float> boxes, Vector<const float> scores, Vector<bool> usable) {
  nanobind::gil_scoped_release unlocked;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float *box = boxes.data(), *score = scores.data();
  bool* out = usable.data();
  // No comparison with NaN holds, so that the two chains refuse it along with the infinities.
  for (std::size_t i = 0; i < usable.size(); ++i, box += 4) {
    out[i] = (-infinity < box[0]) & (box[0] < box[2]) & (box[2] < infinity) & (-infinity < box[1]) &
             (box[1] < box[3]) & (box[3] < infinity) & (-infinity < score[i]) & (score[i] < infinity);
  }
}

}  // namespace

void bind_nms(nanobind::module_& m) {
  using nanobind::arg;
  m.def("nms", &nms, arg("boxes").noconvert(), arg("scores").noconvert(), arg("offsets").noconvert(),
        arg("iou_threshold"), arg("threads"), arg("indices").noconvert(), arg("kept_offsets").noconvert(),
        "Write the kept indices and their offsets, and return how many indices were written.");
  m.def("nms_valid", &valid, arg("boxes").noconvert(), arg("scores").noconvert(), arg("usable").noconvert(),
        "Write which boxes are finite and not degenerate.");
}

}  // namespace tallymill
