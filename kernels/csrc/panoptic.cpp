// Bit-packed masks from maps of ids and panoptic images. Contract and checks: kernels/mask_iou/masks.py.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "bind.h"
#include "tiles.h"

namespace tallymill {
namespace {

using Integers = Vector<const std::int64_t>;
using Ids = Vector<const std::uint32_t>;

// Gives row after row of a map of ids.
struct Map {
  using Array = nanobind::ndarray<const std::uint32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

  explicit Map(const Array& array)
      : ids(array.data()), height(static_cast<std::int64_t>(array.shape(0))),
        width(static_cast<std::int64_t>(array.shape(1))) {}

  const std::uint32_t* row(std::int64_t y) noexcept { return ids + y * width; }

  const std::uint32_t* ids;
  std::int64_t height, width;
};

void ids_of_colours(const std::uint8_t* pixel, std::int64_t n, std::uint32_t* ids) noexcept {
  // Four bytes are read at once, and the next pixel's dropped, as long as there is a next one.
  for (; n > 1; --n, pixel += 3) {
    std::uint32_t four;
    std::memcpy(&four, pixel, sizeof four);
    *ids++ = four & 0xFFFFFFu;
  }
  if (n > 0) *ids = pixel[0] | pixel[1] << 8 | pixel[2] << 16;
}

// The same of an RGB image.
struct Colours {
  using Array = nanobind::ndarray<const std::uint8_t, nanobind::shape<-1, -1, 3>, nanobind::c_contig,
                                  nanobind::device::cpu>;

  explicit Colours(const Array& array)
      : rgb(array.data()), height(static_cast<std::int64_t>(array.shape(0))),
        width(static_cast<std::int64_t>(array.shape(1))), ids(array.shape(1)) {}

  const std::uint32_t* row(std::int64_t y) noexcept {
    ids_of_colours(rgb + 3 * y * width, width, ids.data());
    return ids.data();
  }

  const std::uint8_t* rgb;
  std::int64_t height, width;
  std::vector<std::uint32_t> ids;
};

// Where the stretch of equal ids that starts at x ends.
std::int64_t end_of_run(const std::uint32_t* row, std::int64_t x, std::int64_t width) noexcept {
  constexpr std::int64_t block = 16;
  const std::uint32_t id = row[x++];
  for (; x + block <= width; x += block) {
    std::uint32_t different = 0;
    for (std::int64_t i = 0; i < block; ++i) different |= row[x + i] ^ id;
    if (different != 0) break;
  }
  while (x < width && row[x] == id) ++x;
  return x;
}

// Finds the place of an id among those that are wanted, which rise; most questions are repeated ones.
class Places {
 public:
  static constexpr std::int64_t NOWHERE = -1;

  explicit Places(const Ids& wanted) noexcept : first(wanted.data()), last(first + wanted.size()) {
    answers.fill({0, search(0)});
  }

  std::int64_t operator[](std::uint32_t id) noexcept {
    Answer& answer = answers[(id * 0x9E3779B1u) >> 24];
    if (answer.id != id) answer = {id, search(id)};
    return answer.place;
  }

 private:
  struct Answer {
    std::uint32_t id;
    std::int64_t place;
  };

  std::int64_t search(std::uint32_t id) const noexcept {
    const std::uint32_t* found = std::lower_bound(first, last, id);
    return found != last && *found == id ? found - first : NOWHERE;
  }

  const std::uint32_t *first, *last;
  std::array<Answer, 256> answers;
};

// Calls `run(k, y, x1, x2)` for each stretch of a row that has the k-th of the ids, which rise.
template <typename Image, typename Run>
void each_run(Image& image, const Ids& ids, Run run) noexcept {
  Places places(ids);
  for (std::int64_t y = 0; y < image.height; ++y) {
    const std::uint32_t* row = image.row(y);
    for (std::int64_t x1 = 0, x2; x1 < image.width; x1 = x2) {
      x2 = end_of_run(row, x1, image.width);
      const std::int64_t place = places[row[x1]];
      if (place == Places::NOWHERE) continue;
      run(place, static_cast<std::int32_t>(y), static_cast<std::int32_t>(x1), static_cast<std::int32_t>(x2));
    }
  }
}

// One mask whose words, all zero so far, are being filled in.
struct Canvas {
  Canvas(std::uint64_t* first, const PixelBox& box) noexcept : words(first), tiles(box) {}

  // Pixels [x1, x2) of row y, at least one.
  void fill_row(std::int32_t y, std::int32_t x1, std::int32_t x2) noexcept {
    const int shift = 8 * (y % TILE);
    const std::uint64_t first = (0xFFu << (x1 % TILE)) & 0xFFu, last = 0xFFu >> (TILE - 1 - (x2 - 1) % TILE);
    std::uint64_t* word = words + tiles.at(x1 / TILE, y / TILE);
    std::uint64_t* const end = words + tiles.at((x2 - 1) / TILE, y / TILE);
    if (word == end) {
      *word |= (first & last) << shift;
      return;
    }
    *word++ |= first << shift;
    while (word < end) *word++ |= std::uint64_t{0xFF} << shift;
    *end |= last << shift;
  }

  std::uint64_t* words;
  Tiles tiles;
};

template <typename Image>
void measure_ids(typename Image::Array array, Ids ids, Boxes<std::int32_t> box, Vector<std::int64_t> area) {
  Image image(array);
  nanobind::gil_scoped_release unlocked;
  PixelBox* boxes = pixel_boxes(box);
  std::fill_n(boxes, ids.size(), NOTHING);
  std::fill_n(area.data(), ids.size(), std::int64_t{0});
  each_run(image, ids, [&](std::int64_t k, std::int32_t y, std::int32_t x1, std::int32_t x2) noexcept {
    include(boxes[k], x1, y, x2, y + 1);
    area.data()[k] += x2 - x1;
  });
  std::transform(boxes, boxes + ids.size(), boxes, finished);
}

template <typename Image>
void pack_ids(typename Image::Array array, Ids ids, Boxes<std::int32_t> box, Integers start,
              Vector<std::uint64_t> words) {
  Image image(array);
  std::vector<Canvas> canvases;
  canvases.reserve(ids.size());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    canvases.emplace_back(words.data() + start.data()[k], pixel_boxes(box)[k]);
  }
  nanobind::gil_scoped_release unlocked;
  each_run(image, ids, [&](std::int64_t k, std::int32_t y, std::int32_t x1, std::int32_t x2) noexcept {
    canvases[static_cast<std::size_t>(k)].fill_row(y, x1, x2);
  });
}

void panoptic_ids(Vector<const std::uint8_t> rgb, Vector<std::uint32_t> ids) {
  nanobind::gil_scoped_release unlocked;
  ids_of_colours(rgb.data(), static_cast<std::int64_t>(ids.size()), ids.data());
}

template <typename Image>
void bind_ids(nanobind::module_& m) {
  using nanobind::arg;
  m.def("masks_measure_ids", &measure_ids<Image>, arg("image").noconvert(), arg("ids").noconvert(),
        arg("box").noconvert(), arg("area").noconvert(), "Write the box and area of each of the ids, which rise.");
  m.def("masks_pack_ids", &pack_ids<Image>, arg("image").noconvert(), arg("ids").noconvert(), arg("box").noconvert(),
        arg("start").noconvert(), arg("words").noconvert(), "Fill in words that are zero.");
}

}  // namespace

void bind_panoptic(nanobind::module_& m) {
  using nanobind::arg;
  m.def("masks_ids_of_colours", &panoptic_ids, arg("rgb").noconvert(), arg("ids").noconvert(),
        "Write R + 256 G + 65536 B.");
  bind_ids<Map>(m);
  bind_ids<Colours>(m);
}

}  // namespace tallymill
