// How bit-packed masks lie in memory: masks.cpp, rle.cpp and panoptic.cpp write it, mask_iou.cpp reads it.
//
// A mask is kept only inside its box, as tiles of 8x8 pixels: pixel (x, y) is bit 8 * (y % 8) + x % 8 of the word of
// tile (x / 8, y / 8), and the tiles that the box touches follow one another row by row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "bind.h"

namespace tallymill {

// Pixels are taken from words by their bytes.
static_assert(std::endian::native == std::endian::little);

constexpr std::int32_t TILE = 8;

// In pixels, without the right and bottom ends; all zeros for an empty mask.
struct PixelBox {
  std::int32_t x1, y1, x2, y2;
};

// Grows a box that begins as NOTHING; `x2` and `y2` are one past the end.
inline constexpr PixelBox NOTHING{INT32_MAX, INT32_MAX, 0, 0};

inline void include(PixelBox& box, std::int32_t x1, std::int32_t y1, std::int32_t x2, std::int32_t y2) noexcept {
  box.x1 = std::min(box.x1, x1), box.y1 = std::min(box.y1, y1);
  box.x2 = std::max(box.x2, x2), box.y2 = std::max(box.y2, y2);
}

inline PixelBox finished(const PixelBox& box) noexcept { return box.x2 == 0 ? PixelBox{0, 0, 0, 0} : box; }

inline PixelBox* pixel_boxes(const Boxes<std::int32_t>& box) noexcept {
  return reinterpret_cast<PixelBox*>(box.data());
}

// The tiles that a box touches, likewise without the right and bottom ends.
struct Tiles {
  explicit Tiles(const PixelBox& box) noexcept
      : x1(box.x1 / TILE), y1(box.y1 / TILE), x2((box.x2 - 1) / TILE + 1), y2((box.y2 - 1) / TILE + 1) {
    if (box.x1 >= box.x2 || box.y1 >= box.y2) x2 = x1, y2 = y1;
  }

  std::int64_t columns() const noexcept { return x2 - x1; }
  std::int64_t rows() const noexcept { return y2 - y1; }
  std::int64_t size() const noexcept { return columns() * rows(); }
  // Where a tile lies among the mask's words.
  std::int64_t at(std::int32_t x, std::int32_t y) const noexcept { return (y - y1) * columns() + (x - x1); }

  std::int32_t x1, y1, x2, y2;
};

}  // namespace tallymill
