// Where bit-packed masks lie, and how they come from arrays. Contract and checks: kernels/mask_iou/masks.py.
//
// Each form that masks come from is read twice: once for the boxes, from which Python lays out the words, and once to
// fill them in.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "bind.h"
#include "paths.h"
#include "tiles.h"

namespace tallymill {
namespace {

using Integers = Vector<const std::int64_t>;

constexpr std::int64_t FINE = -1;  // instead of the number of the first mask that is wrong

// Lays out masks one after another: writes where each starts and returns how many words there are.
std::int64_t lay_out(Boxes<std::int32_t> box, Vector<std::int64_t> start) {
  std::int64_t words = 0;
  for (std::size_t k = 0; k < start.size(); ++k) {
    start.data()[k] = words;
    words += Tiles(pixel_boxes(box)[k]).size();
  }
  return words;
}

// The first mask whose box is neither zeros nor within the image, or whose words are not there, or FINE.
std::int64_t misplaced(Boxes<const std::int32_t> box, Integers start, std::int64_t words, std::int64_t height,
                       std::int64_t width) {
  for (std::size_t k = 0; k < start.size(); ++k) {
    const auto& own = reinterpret_cast<const PixelBox*>(box.data())[k];
    const bool nothing = (own.x1 | own.y1 | own.x2 | own.y2) == 0;
    const bool inside = own.x1 >= 0 && own.y1 >= 0 && own.x1 < own.x2 && own.y1 < own.y2 && own.x2 <= width &&
                        own.y2 <= height;
    const std::int64_t first = start.data()[k];
    if ((!nothing && !inside) || first < 0 || first > words || Tiles(own).size() > words - first) {
      return static_cast<std::int64_t>(k);
    }
  }
  return FINE;
}

// Arrays.

// 8 pixels, a byte each, as 8 bits, the first pixel lowest; any byte but 0 is inside.
std::uint64_t eight_bits(std::uint64_t pixels) noexcept {
  constexpr std::uint64_t low = 0x7F7F7F7F7F7F7F7Fu, ones = 0x0101010101010101u;
  pixels = ((((pixels & low) + low) | pixels) >> 7) & ones;
  pixels |= pixels >> 7;
  pixels |= pixels >> 14;
  pixels |= pixels >> 28;
  return pixels & 255;
}

// Adds one row of pixels to a row of tiles; `shift` says which of the tiles' rows it is.
TALLYMILL_CLONES void add_row(const std::uint8_t* pixels, std::int64_t n, int shift, std::uint64_t* words) noexcept {
  for (std::int64_t tile = 0; tile < n / TILE; ++tile) {
    std::uint64_t eight;
    std::memcpy(&eight, pixels + tile * TILE, TILE);
    words[tile] |= eight_bits(eight) << shift;
  }
  if (n % TILE == 0) return;
  std::uint64_t rest = 0;
  std::memcpy(&rest, pixels + n / TILE * TILE, static_cast<std::size_t>(n % TILE));
  words[n / TILE] |= eight_bits(rest) << shift;
}

// `column` has room for a byte each.
PixelBox box_of(const std::uint8_t* pixels, std::int64_t height, std::int64_t width, std::uint8_t* column) noexcept {
  std::fill_n(column, width, std::uint8_t{0});
  PixelBox box = NOTHING;
  for (std::int64_t y = 0; y < height; ++y, pixels += width) {
    std::uint8_t some = 0;
    for (std::int64_t x = 0; x < width; ++x) some |= pixels[x], column[x] |= pixels[x];
    if (some == 0) continue;
    box.y1 = std::min(box.y1, static_cast<std::int32_t>(y));
    box.y2 = static_cast<std::int32_t>(y + 1);
  }
  if (box.y2 == 0) return {0, 0, 0, 0};
  const auto inside = [](std::uint8_t pixel) { return pixel != 0; };
  box.x1 = static_cast<std::int32_t>(std::find_if(column, column + width, inside) - column);
  box.x2 = static_cast<std::int32_t>(width);
  while (column[box.x2 - 1] == 0) --box.x2;
  return box;
}

// Fills in words that are zero, and returns the area.
std::int64_t pack_array(const std::uint8_t* pixels, std::int64_t width, const PixelBox& box,
                        std::uint64_t* words) noexcept {
  const Tiles tiles(box);
  const std::int64_t left = tiles.x1 * TILE, right = std::min<std::int64_t>(tiles.x2 * TILE, width);
  for (std::int32_t y = box.y1; y < box.y2; ++y) {
    add_row(pixels + y * width + left, right - left, 8 * (y % TILE), words + tiles.at(tiles.x1, y / TILE));
  }
  std::int64_t area = 0;
  for (std::int64_t k = 0; k < tiles.size(); ++k) area += __builtin_popcountll(words[k]);
  return area;
}

using Stack = nanobind::ndarray<const std::uint8_t, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;

void measure_arrays(Stack arrays, Boxes<std::int32_t> box) {
  const auto height = static_cast<std::int64_t>(arrays.shape(1)), width = static_cast<std::int64_t>(arrays.shape(2));
  std::vector<std::uint8_t> column(static_cast<std::size_t>(width));
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < arrays.shape(0); ++k) {
    const std::uint8_t* pixels = arrays.data() + static_cast<std::int64_t>(k) * height * width;
    pixel_boxes(box)[k] = box_of(pixels, height, width, column.data());
  }
}

void pack_arrays(Stack arrays, Boxes<std::int32_t> box, Integers start, Vector<std::uint64_t> words,
                 Vector<std::int64_t> area) {
  const auto height = static_cast<std::int64_t>(arrays.shape(1)), width = static_cast<std::int64_t>(arrays.shape(2));
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < arrays.shape(0); ++k) {
    const std::uint8_t* pixels = arrays.data() + static_cast<std::int64_t>(k) * height * width;
    area.data()[k] = pack_array(pixels, width, pixel_boxes(box)[k], words.data() + start.data()[k]);
  }
}

}  // namespace

void bind_masks(nanobind::module_& m) {
  using nanobind::arg;
  m.def("masks_lay_out", &lay_out, arg("box").noconvert(), arg("start").noconvert(),
        "Write where each mask starts among the words, and return how many words there are.");
  m.def("masks_misplaced", &misplaced, arg("box").noconvert(), arg("start").noconvert(), arg("words"), arg("height"),
        arg("width"), "Return the first mask whose box or words are not where they can be, or -1.");
  m.def("masks_measure_arrays", &measure_arrays, arg("arrays").noconvert(), arg("box").noconvert(),
        "Write the box of each mask of a stack.");
  m.def("masks_pack_arrays", &pack_arrays, arg("arrays").noconvert(), arg("box").noconvert(), arg("start").noconvert(),
        arg("words").noconvert(), arg("area").noconvert(), "Fill in words that are zero, and write the areas.");
}

}  // namespace tallymill
