// Bit-packed masks from arrays, run lengths and maps of ids. Contract and checks: kernels/mask_iou/masks.py.
//
// Each form is read twice: once for the boxes, from which Python lays out the words, and once to fill them in.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <nanobind/stl/pair.h>

#include "bind.h"
#include "paths.h"
#include "tiles.h"

namespace tallymill {
namespace {

using Integers = Vector<const std::int64_t>;

constexpr std::int64_t FINE = -1;  // instead of the number of the first mask that is wrong

// Grows a box that begins as NOTHING; `x2` and `y2` are one past the end.
constexpr PixelBox NOTHING{INT32_MAX, INT32_MAX, 0, 0};

void include(PixelBox& box, std::int32_t x1, std::int32_t y1, std::int32_t x2, std::int32_t y2) noexcept {
  box.x1 = std::min(box.x1, x1), box.y1 = std::min(box.y1, y1);
  box.x2 = std::max(box.x2, x2), box.y2 = std::max(box.y2, y2);
}

PixelBox finished(const PixelBox& box) noexcept { return box.x2 == 0 ? PixelBox{0, 0, 0, 0} : box; }

PixelBox* pixel_boxes(const Boxes<std::int32_t>& box) noexcept { return reinterpret_cast<PixelBox*>(box.data()); }

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
    const bool inside = own.x1 >= 0 && own.y1 >= 0 && own.x1 < own.x2 && own.y1 < own.y2 && own.x2 <= width && own.y2 <= height;
    const std::int64_t first = start.data()[k];
    if ((!nothing && !inside) || first < 0 || first > words || Tiles(own).size() > words - first) {
      return static_cast<std::int64_t>(k);
    }
  }
  return FINE;
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

// One mask whose words, all zero so far, are being filled: either by columns or by rows.
struct Canvas {
  Canvas(std::uint64_t* first, const PixelBox& box) noexcept : words(first), tiles(box) {}

  // Pixels [y1, y2) of column x, at least one: marks where the mask begins and where it ends on the way down. Once all
  // columns are marked, fill_down() is due.
  void mark_column(std::int32_t x, std::int32_t y1, std::int32_t y2) noexcept {
    mark(x, y1);
    if (y2 < tiles.y2 * TILE) mark(x, y2);
  }

  void fill_down() noexcept { carry_down(words, tiles.columns(), tiles.rows()); }

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

  void mark(std::int32_t x, std::int32_t y) noexcept {
    words[tiles.at(x / TILE, y / TILE)] ^= std::uint64_t{1} << (8 * (y % TILE) + x % TILE);
  }

  std::uint64_t* words;
  Tiles tiles;
};

// Arrays.

// 8 pixels as bits, the first one lowest; any byte but 0 is inside. The image may end after `n` of them.
std::uint64_t eight_bits(const std::uint8_t* pixels, std::int64_t n) noexcept {
  constexpr std::uint64_t low = 0x7F7F7F7F7F7F7F7Fu, ones = 0x0101010101010101u;
  std::uint64_t v = 0;
  if (n == TILE) {
    std::memcpy(&v, pixels, TILE);  // one load, where the length is known
  } else {
    std::memcpy(&v, pixels, static_cast<std::size_t>(n));
  }
  v = ((((v & low) + low) | v) >> 7) & ones;
  return (v * 0x0102040810204080u) >> 56;
}

// `column` has room for a byte each.
PixelBox box_of(const std::uint8_t* pixels, std::int64_t height, std::int64_t width, std::uint8_t* column) noexcept {
  std::fill_n(column, width, std::uint8_t{0});
  PixelBox box = NOTHING;
  for (std::int64_t y = 0; y < height; ++y, pixels += width) {
    std::uint8_t some = 0;
    for (std::int64_t x = 0; x < width; ++x) some |= pixels[x], column[x] |= pixels[x];
    if (some != 0) box.y1 = std::min(box.y1, static_cast<std::int32_t>(y)), box.y2 = static_cast<std::int32_t>(y + 1);
  }
  if (box.y2 == 0) return {0, 0, 0, 0};
  const auto inside = [](std::uint8_t pixel) { return pixel != 0; };
  box.x1 = static_cast<std::int32_t>(std::find_if(column, column + width, inside) - column);
  box.x2 = static_cast<std::int32_t>(width);
  while (column[box.x2 - 1] == 0) --box.x2;
  return box;
}

std::int64_t pack_array(const std::uint8_t* pixels, std::int64_t width, const PixelBox& box,
                        std::uint64_t* words) noexcept {
  const Tiles tiles(box);
  std::int64_t area = 0;
  for (std::int32_t ty = tiles.y1; ty < tiles.y2; ++ty) {
    const std::int32_t y1 = std::max(ty * TILE, box.y1), y2 = std::min((ty + 1) * TILE, box.y2);
    for (std::int32_t tx = tiles.x1; tx < tiles.x2; ++tx) {
      const std::uint8_t* from = pixels + y1 * width + tx * TILE;
      const std::int64_t n = std::min<std::int64_t>(TILE, width - tx * TILE);
      std::uint64_t word = 0;
      for (std::int32_t y = y1; y < y2; ++y, from += width) word |= eight_bits(from, n) << (8 * (y % TILE));
      area += __builtin_popcountll(word);
      *words++ = word;
    }
  }
  return area;
}

using Stack = nanobind::ndarray<const std::uint8_t, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;

void measure_arrays(Stack arrays, Boxes<std::int32_t> box) {
  const auto height = static_cast<std::int64_t>(arrays.shape(1)), width = static_cast<std::int64_t>(arrays.shape(2));
  std::vector<std::uint8_t> column(static_cast<std::size_t>(width));
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < arrays.shape(0); ++k) {
    pixel_boxes(box)[k] = box_of(arrays.data() + static_cast<std::int64_t>(k) * height * width, height, width, column.data());
  }
}

void pack_arrays(Stack arrays, Boxes<std::int32_t> box, Integers start, Vector<std::uint64_t> words,
                 Vector<std::int64_t> area) {
  const auto height = static_cast<std::int64_t>(arrays.shape(1)), width = static_cast<std::int64_t>(arrays.shape(2));
  nanobind::gil_scoped_release unlocked;
  for (std::size_t k = 0; k < arrays.shape(0); ++k) {
    area.data()[k] = pack_array(arrays.data() + static_cast<std::int64_t>(k) * height * width, width,
                                pixel_boxes(box)[k], words.data() + start.data()[k]);
  }
}

// COCO run lengths: runs down the columns, from the left column to the right, outside and inside in turns.

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

// Calls `inside(x, y1, y2)` for each piece of a column that lies in the mask. The counts must cover the image exactly.
template <typename Inside>
void each_column(const std::int64_t* counts, std::int64_t n, std::int64_t height, Inside inside) noexcept {
  std::int64_t x = 0, y = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    for (std::int64_t left = counts[k]; left > 0;) {
      const std::int64_t taken = std::min(left, height - y);
      if (k % 2 == 1) inside(static_cast<std::int32_t>(x), static_cast<std::int32_t>(y), static_cast<std::int32_t>(y + taken));
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

// Maps of ids, each one number or three channels of 8 bits.

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
  for (std::int64_t i = 0; i < n; ++i, pixel += 3) ids[i] = pixel[0] | pixel[1] << 8 | pixel[2] << 16;
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
  for (std::size_t k = 0; k < ids.size(); ++k) canvases.emplace_back(words.data() + start.data()[k], pixel_boxes(box)[k]);
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

void bind_masks(nanobind::module_& m) {
  using nanobind::arg;
  m.def("masks_lay_out", &lay_out, arg("box").noconvert(), arg("start").noconvert(),
        "Write where each mask starts among the words, and return how many words there are.");
  m.def("masks_misplaced", &misplaced, arg("box").noconvert(), arg("start").noconvert(), arg("words"), arg("height"),
        arg("width"), "Return the first mask whose box or words are not where they can be, or -1.");
  m.def("masks_measure_arrays", &measure_arrays, arg("arrays").noconvert(), arg("box").noconvert(),
        "Write the box of each mask of a stack.");
  m.def("masks_pack_arrays", &pack_arrays, arg("arrays").noconvert(), arg("box").noconvert(), arg("start").noconvert(),
        arg("words").noconvert(), arg("area").noconvert(), "Write the words and areas of a stack of masks.");
  m.def("masks_rle_decode", &rle_decode, arg("text"), arg("text_offsets").noconvert(), arg("most"),
        arg("counts").noconvert(), arg("offsets").noconvert(),
        "Write the counts of compressed run lengths; returns the first mask that is wrong, or -1, and why.");
  m.def("masks_rle_measure", &rle_measure, arg("counts").noconvert(), arg("offsets").noconvert(), arg("height"),
        arg("width"), arg("box").noconvert(), arg("area").noconvert(),
        "Write boxes and areas; returns the first mask whose counts do not cover the image, or -1.");
  m.def("masks_rle_pack", &rle_pack, arg("counts").noconvert(), arg("offsets").noconvert(), arg("height"),
        arg("box").noconvert(), arg("start").noconvert(), arg("words").noconvert(), "Fill in words that are zero.");
  m.def("masks_ids_of_colours", &panoptic_ids, arg("rgb").noconvert(), arg("ids").noconvert(),
        "Write R + 256 G + 65536 B.");
  bind_ids<Map>(m);
  bind_ids<Colours>(m);
}

}  // namespace tallymill
