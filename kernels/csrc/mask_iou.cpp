// Intersection over union of bit-packed masks. Contract and checks: kernels/mask_iou/__init__.py.
//
// Most pairs do not meet, and the boxes say so. Of the others only the tiles that both boxes touch are read; a word
// holds 8x8 pixels, so that little is read in vain whichever way the overlap is long.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "bind.h"
#include "paths.h"
#include "threads.h"
#include "tiles.h"

#if defined(__x86_64__)
#define TALLYMILL_VPOPCNT 1
#include <immintrin.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && !defined(TALLYMILL_SANITIZE)
#define TALLYMILL_POPCNT __attribute__((target_clones("default", "popcnt")))  // as TALLYMILL_CLONES in paths.h
#else
#define TALLYMILL_POPCNT
#endif

namespace tallymill {
namespace {

// A set of masks, as kernels/mask_iou/masks.py keeps it.
struct Masks {
  const std::uint64_t* words;
  const std::int64_t* start;  // of each mask among the words
  const std::int64_t* area;   // in pixels
  const PixelBox* box;
  std::int64_t size;
};

// The tiles that two masks have in common, as each of them keeps these.
struct Overlap {
  const std::uint64_t *a, *b;
  std::int64_t a_stride, b_stride;  // words from one row of tiles to the next
  std::int64_t columns, rows;
};

// What a thread needs for one row of the result.
struct Scratch {
  explicit Scratch(std::size_t others) : near(others), overlaps(others), common(others) {}

  std::vector<std::int64_t> near;
  std::vector<Overlap> overlaps;
  std::vector<std::int64_t> common;
};

// Writes how many pixels each overlap has in common.
using Count = void (*)(const Overlap* overlaps, std::size_t n, std::int64_t* common) noexcept;

// One word at a time. Not TALLYMILL_CLONES: GCC 12's code for those takes two to four times as long as counting
// words one by one.
TALLYMILL_POPCNT void count_portable(const Overlap* overlaps, std::size_t n, std::int64_t* common) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const Overlap& o = overlaps[i];
    const std::uint64_t *a = o.a, *b = o.b;
    std::int64_t total = 0;
    for (std::int64_t row = 0; row < o.rows; ++row, a += o.a_stride, b += o.b_stride) {
      for (std::int64_t k = 0; k < o.columns; ++k) total += __builtin_popcountll(a[k] & b[k]);
    }
    common[i] = total;
  }
}

#ifdef TALLYMILL_VPOPCNT
// Eight tiles at a time, the last of a row under a mask.
__attribute__((target("avx512f,avx512vpopcntdq"))) void count_vpopcnt(const Overlap* overlaps, std::size_t n,
                                                                      std::int64_t* common) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const Overlap& o = overlaps[i];
    const std::uint64_t *a = o.a, *b = o.b;
    const std::int64_t whole = o.columns & ~std::int64_t{7};
    const auto rest = static_cast<__mmask8>((1u << (o.columns & 7)) - 1);
    __m512i total = _mm512_setzero_si512();
    for (std::int64_t row = 0; row < o.rows; ++row, a += o.a_stride, b += o.b_stride) {
      for (std::int64_t k = 0; k < whole; k += 8) {
        const __m512i both = _mm512_and_si512(_mm512_loadu_si512(a + k), _mm512_loadu_si512(b + k));
        total = _mm512_add_epi64(total, _mm512_popcnt_epi64(both));
      }
      if (rest != 0) {
        const __m512i both = _mm512_and_si512(_mm512_maskz_loadu_epi64(rest, a + whole),
                                              _mm512_maskz_loadu_epi64(rest, b + whole));
        total = _mm512_add_epi64(total, _mm512_popcnt_epi64(both));
      }
    }
    alignas(64) std::int64_t lane[8];  // GCC 12 warns of _mm512_reduce_add_epi64 in its own header
    _mm512_store_si512(lane, total);
    common[i] = lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
  }
}

bool has_vpopcnt() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vpopcntdq");
}

Count best_count() noexcept { return has_vpopcnt() ? count_vpopcnt : count_portable; }
#else
Count best_count() noexcept { return count_portable; }
#endif

// Lists the masks of `b` whose boxes meet this one, without a branch on what cannot be foreseen. An empty mask's box
// meets none.
std::size_t meeting(const PixelBox& box, const Masks& b, std::int64_t* near) noexcept {
  std::size_t n = 0;
  for (std::int64_t j = 0; j < b.size; ++j) {
    const PixelBox& other = b.box[j];
    near[n] = j;
    n += static_cast<std::size_t>((box.x1 < other.x2) & (other.x1 < box.x2) & (box.y1 < other.y2) &
                                  (other.y1 < box.y2));
  }
  return n;
}

Overlap overlap(const Masks& a, std::int64_t i, const Masks& b, std::int64_t j) noexcept {
  const PixelBox &one = a.box[i], &other = b.box[j];
  const Tiles in_a(one), in_b(other);
  const Tiles both(PixelBox{std::max(one.x1, other.x1), std::max(one.y1, other.y1), std::min(one.x2, other.x2),
                            std::min(one.y2, other.y2)});
  return {a.words + a.start[i] + in_a.at(both.x1, both.y1),
          b.words + b.start[j] + in_b.at(both.x1, both.y1),
          in_a.columns(),
          in_b.columns(),
          both.columns(),
          both.rows()};
}

// One row of the result, which holds zeros.
void row_of_iou(const Masks& a, std::int64_t i, const Masks& b, Count count, Scratch& s, double* iou) noexcept {
  const std::size_t n = meeting(a.box[i], b, s.near.data());
  for (std::size_t k = 0; k < n; ++k) s.overlaps[k] = overlap(a, i, b, s.near[k]);
  count(s.overlaps.data(), n, s.common.data());
  for (std::size_t k = 0; k < n; ++k) {
    const std::int64_t j = s.near[k], common = s.common[k];
    iou[j] = static_cast<double>(common) / static_cast<double>(a.area[i] + b.area[j] - common);
  }
}

using Words = Vector<const std::uint64_t>;
using Integers = Vector<const std::int64_t>;
using PixelBoxes = Boxes<const std::int32_t>;

Masks masks(const Words& words, const Integers& start, const Integers& area, const PixelBoxes& box) noexcept {
  return {words.data(), start.data(), area.data(), reinterpret_cast<const PixelBox*>(box.data()),
          static_cast<std::int64_t>(start.size())};
}

void mask_iou(Words a_words, Integers a_start, Integers a_area, PixelBoxes a_box, Words b_words, Integers b_start,
              Integers b_area, PixelBoxes b_box, bool portable, std::int64_t threads, Vector<double> iou) {
  const Masks a = masks(a_words, a_start, a_area, a_box), b = masks(b_words, b_start, b_area, b_box);
  const Count count = portable ? count_portable : best_count();
  nanobind::gil_scoped_release unlocked;
  share_out(
      a.size, threads, 1, [&] { return Scratch(static_cast<std::size_t>(b.size)); },
      [&](std::int64_t first, std::int64_t last, Scratch& own) noexcept {
        for (std::int64_t i = first; i < last; ++i) row_of_iou(a, i, b, count, own, iou.data() + i * b.size);
      });
}

}  // namespace

void bind_mask_iou(nanobind::module_& m) {
  using nanobind::arg;
  m.def("mask_iou", &mask_iou, arg("a_words").noconvert(), arg("a_start").noconvert(), arg("a_area").noconvert(),
        arg("a_box").noconvert(), arg("b_words").noconvert(), arg("b_start").noconvert(), arg("b_area").noconvert(),
        arg("b_box").noconvert(), arg("portable"), arg("threads"), arg("iou").noconvert(),
        "Write the IoU of the pairs whose boxes meet into a flat [n * m] array of zeros.");
}

}  // namespace tallymill
