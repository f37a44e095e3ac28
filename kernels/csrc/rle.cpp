// Bit-packed masks from COCO run lengths. Contract and checks: kernels/mask_iou/masks.py, kernels/mask_iou/rle.py.
//
// Runs go down the columns, from the left column to the right, outside and inside in turns.
#include <algorithm>
#include <cstddef>
#include <utility>

#include <nanobind/stl/pair.h>

#include "bind.h"
#include "paths.h"
#include "tiles.h"

namespace tallymill {
namespace {

using Integers = Vector<const std::int64_t>;

constexpr std::int64_t FINE = -1;  // instead of the number of the first mask that is wrong

// Why a text is refused: places in RLE_FAULTS of kernels/mask_iou/rle.py.
enum Fault : std::int64_t { SOUND, BAD_CHARACTER, CUT_OFF, OUT_OF_RANGE };

// A count is written as groups of 5 bits, least first, each a character from '0' on whose bit 5 says that more follow;
// bit 4 of the last group is the sign. From the fourth count on, what is written is the difference to the one before
// the last.
Fault decode_counts(const char* text, std::int64_t length, std::int64_t most, std::int64_t*& counts) noexcept {
  const std::int64_t* const begin = counts;
  for (std::int64_t at = 0; at < length;) {
    std::int64_t value = 0;
    for (int shift = 0;; shift += 5) {
      if (at == length) return CUT_OFF;
      if (shift > 50) return OUT_OF_RANGE;
      const std::int64_t group = text[at++] - '0';
      if (group < 0 || group > 63) return BAD_CHARACTER;
      value |= (group & 31) << shift;
      if ((group & 32) != 0) continue;
      if ((group & 16) != 0) value -= std::int64_t{32} << shift;
      break;
    }
    if (counts - begin > 2) value += counts[-2];
    if (value < 0 || value > most) return OUT_OF_RANGE;
    *counts++ = value;
  }
  return SOUND;
}

using Text = nanobind::bytes;

std::pair<std::int64_t, std::int64_t> rle_decode(Text text, Integers text_offsets, std::int64_t most,
                                                 Vector<std::int64_t> counts, Vector<std::int64_t> offsets) {
  std::int64_t* next = counts.data();
  const std::int64_t* ends = text_offsets.data();
  offsets.data()[0] = 0;
  for (std::size_t k = 0; k + 1 < text_offsets.size(); ++k) {
    const Fault fault = decode_counts(text.c_str() + ends[k], ends[k + 1] - ends[k], most, next);
    if (fault != SOUND) return {static_cast<std::int64_t>(k), fault};
    offsets.data()[k + 1] = next - counts.data();
  }
  return {FINE, SOUND};
}

// Makes each row of pixels what the row above is, changed where it has marks.
TALLYMILL_CLONES void carry_down(std::uint64_t* words, std::int64_t columns, std::int64_t rows) noexcept {
  for (std::int64_t at = 0; at < columns * rows; ++at) {
    std::uint64_t word = words[at];
    word ^= word << 8;
    word ^= word << 16;
    words[at] = word ^ word << 32;
  }
  for (std::int64_t row = 1; row < rows; ++row) {
    const std::uint64_t* above = words + (row - 1) * columns;
    std::uint64_t* own = words + row * columns;
    for (std::int64_t x = 0; x < columns; ++x) {
      std::uint64_t last = above[x] >> 56;
      last |= last << 8;
      last |= last << 16;
      own[x] ^= last | last << 32;
    }
  }
}

// One mask whose words, all zero so far, are being filled in.
struct Canvas {
  Canvas(std::uint64_t* first, const PixelBox& box) noexcept : words(first), tiles(box) {}

  // Pixels [y1, y2) of column x, at least one: marks where the mask begins and where it ends on the way down. Once all
  // columns are marked, fill_down() is due.
  void mark_column(std::int32_t x, std::int32_t y1, std::int32_t y2) noexcept {
    mark(x, y1);
    if (y2 < tiles.y2 * TILE) mark(x, y2);
  }

  void fill_down() noexcept { carry_down(words, tiles.columns(), tiles.rows()); }

  void mark(std::int32_t x, std::int32_t y) noexcept {
    words[tiles.at(x / TILE, y / TILE)] ^= std::uint64_t{1} << (8 * (y % TILE) + x % TILE);
  }

  std::uint64_t* words;
  Tiles tiles;
};

// Calls `inside(x, y1, y2)` for each piece of a column that lies in the mask. The counts must cover the image exactly.
template <typename Inside>
void each_column(const std::int64_t* counts, std::int64_t n, std::int64_t height, Inside inside) noexcept {
  std::int64_t x = 0, y = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    for (std::int64_t left = counts[k]; left > 0;) {
      const std::int64_t taken = std::min(left, height - y);
      if (k % 2 == 1) {
        inside(static_cast<std::int32_t>(x), static_cast<std::int32_t>(y), static_cast<std::int32_t>(y + taken));
      }
      left -= taken;
      y += taken;
      if (y == height) y = 0, ++x;
    }
  }
}

// None is negative, and their sum is the number of pixels.
bool covers(const std::int64_t* counts, std::int64_t n, std::int64_t pixels) noexcept {
  for (std::int64_t k = 0; k < n; ++k) {
    if (counts[k] < 0 || counts[k] > pixels) return false;
    pixels -= counts[k];
  }
  return pixels == 0;
}

std::int64_t rle_measure(Integers counts, Integers offsets, std::int64_t height, std::int64_t width,
                         Boxes<std::int32_t> box, Vector<std::int64_t> area) {
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < area.size(); ++k) {
    const std::int64_t* own = counts.data() + offsets.data()[k];
    const std::int64_t n = offsets.data()[k + 1] - offsets.data()[k];
    if (!covers(own, n, height * width)) return static_cast<std::int64_t>(k);
    PixelBox grown = NOTHING;
    std::int64_t inside = 0;
    each_column(own, n, height, [&](std::int32_t x, std::int32_t y1, std::int32_t y2) noexcept {
      include(grown, x, y1, x + 1, y2);
      inside += y2 - y1;
    });
    pixel_boxes(box)[k] = finished(grown);
    area.data()[k] = inside;
  }
  return FINE;
}

void rle_pack(Integers counts, Integers offsets, std::int64_t height, Boxes<std::int32_t> box, Integers start,
              Vector<std::uint64_t> words) {
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < start.size(); ++k) {
    Canvas canvas(words.data() + start.data()[k], pixel_boxes(box)[k]);
    each_column(counts.data() + offsets.data()[k], offsets.data()[k + 1] - offsets.data()[k], height,
                [&](std::int32_t x, std::int32_t y1, std::int32_t y2) noexcept { canvas.mark_column(x, y1, y2); });
    canvas.fill_down();
  }
}

}  // namespace

void bind_rle(nanobind::module_& m) {
  using nanobind::arg;
  m.def("masks_rle_decode", &rle_decode, arg("text"), arg("text_offsets").noconvert(), arg("most"),
        arg("counts").noconvert(), arg("offsets").noconvert(),
        "Write the counts of compressed run lengths; returns the first mask that is wrong, or -1, and why.");
  m.def("masks_rle_measure", &rle_measure, arg("counts").noconvert(), arg("offsets").noconvert(), arg("height"),
        arg("width"), arg("box").noconvert(), arg("area").noconvert(),
        "Write boxes and areas; returns the first mask whose counts do not cover the image, or -1.");
  m.def("masks_rle_pack", &rle_pack, arg("counts").noconvert(), arg("offsets").noconvert(), arg("height"),
        arg("box").noconvert(), arg("start").noconvert(), arg("words").noconvert(), "Fill in words that are zero.");
}

}  // namespace tallymill
