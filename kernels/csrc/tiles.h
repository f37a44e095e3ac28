// How bit-packed masks lie in memory: masks.cpp writes it, mask_iou.cpp reads it, kernels/mask_iou/masks.py documents it.
//
// A mask is kept only inside its box, as tiles of 8x8 pixels: pixel (x, y) is bit 8 * (y % 8) + x % 8 of the word of tile
// (x / 8, y / 8), and the tiles that the box touches follow one another row by row.
#pragma once

#include <cstdint>

namespace tallymill {

constexpr std::int32_t TILE = 8;

// In pixels, without the right and bottom ends; all zeros for an empty mask.
struct PixelBox {
  std::int32_t x1, y1, x2, y2;
};

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
