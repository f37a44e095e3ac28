// Which boxes of a detector answer a request, before the sigmoid: NumPy takes that of the few that are found, so that
// scores are those of the reference to the bit. Contract and checks: kernels/candidates/__init__.py.
//
// As selection (select.cpp) it runs right after a model, on memory that is not in the caches: each asked logit is read
// once, what is not asked never, and the interpreter is not released.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "bind.h"

namespace tallymill {
namespace {

using Values = nanobind::ndarray<const float, nanobind::ndim<3>, nanobind::device::cpu>;
using Whole = Vector<const std::int32_t>;

constexpr std::int64_t REFUSED = -1;  // Python says why, or copies what lies askew
constexpr float INF = std::numeric_limits<float>::infinity();

// The N rows of logits of one window, and the boxes beside them; strides in floats.
struct Window {
  const float* logits;
  std::int64_t row, column;
  const float* boxes;
  std::int64_t box, side;
};

// Where candidates go. Those beyond the room are counted all the same, so that the caller can make more.
struct Places {
  float* boxes;
  float* best;
  std::int64_t* request;
  std::int64_t room, count = 0;

  void add(const Window& window, std::int64_t at, std::int64_t request_of, float logit, const float* scale) noexcept {
    if (count < room) {
      const float* from = window.boxes + at * window.box;
      const float x = from[0], y = from[window.side];
      const float half_width = from[2 * window.side] * 0.5f, half_height = from[3 * window.side] * 0.5f;
      float* box = boxes + 4 * count;
      box[0] = (x - half_width) * scale[0], box[1] = (y - half_height) * scale[1];
      box[2] = (x + half_width) * scale[2], box[3] = (y + half_height) * scale[3];
      best[count] = logit, request[count] = request_of;
    }
    ++count;
  }
};

// The best logit of every row into `best`; false where an asked one is NaN or +inf.
bool best_of(const Window& window, const std::int32_t* columns, std::int64_t how_many, std::int64_t rows,
             float* best) noexcept {
  bool fine = true;
  for (std::int64_t at = 0; at < rows; ++at) {
    const float* logits = window.logits + at * window.row;
    float greatest = -INF;
    for (std::int64_t place = 0; place < how_many; ++place) {
      const float value = logits[columns[place] * window.column];
      fine &= value < INF;  // which NaN is not
      greatest = value > greatest ? value : greatest;
    }
    best[at] = greatest;
  }
  return fine;
}

template <typename Array>
bool aligned(const Array& array) noexcept {
  return reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(*array.data()) == 0;
}

// From 0, up to `end`, rising by at least `step`.
bool rises(const Whole& offsets, std::int64_t end, std::int32_t step) noexcept {
  const std::size_t size = offsets.size();
  if (size == 0 || offsets.data()[0] != 0 || offsets.data()[size - 1] != end) return false;
  for (std::size_t i = 1; i < size; ++i) {
    if (offsets.data()[i] < offsets.data()[i - 1] || offsets.data()[i] - offsets.data()[i - 1] < step) return false;
  }
  return true;
}

bool sound(const Values& logits, const Values& boxes, const Whole& columns, const Whole& edges, const Whole& requests,
           const Boxes<const float>& scale) noexcept {
  const std::size_t windows = logits.shape(0);
  if (boxes.shape(0) != windows || boxes.shape(1) != logits.shape(1) || boxes.shape(2) != 4) return false;
  if (requests.size() != windows + 1 || scale.shape(0) != windows) return false;
  if (!aligned(logits) || !aligned(boxes) || !aligned(columns) || !aligned(edges) || !aligned(requests) ||
      !aligned(scale)) {
    return false;
  }
  const auto width = static_cast<std::int64_t>(logits.shape(2));
  const auto inside = [width](std::int32_t column) noexcept { return column >= 0 && column < width; };
  const auto finite = [](float value) noexcept { return std::isfinite(value); };
  return std::all_of(columns.data(), columns.data() + columns.size(), inside) &&
         std::all_of(scale.data(), scale.data() + scale.size(), finite) &&
         rises(edges, static_cast<std::int64_t>(columns.size()), 1) &&
         rises(requests, static_cast<std::int64_t>(edges.size()) - 1, 0);
}

// Everything whose best logit reaches `least`. Returns how many candidates there are, or REFUSED.
std::int64_t candidates(Values logits, Values boxes, Whole columns, Whole edges, Whole requests,
                        Boxes<const float> scale, float least, Boxes<float> found, Vector<float> best,
                        Vector<std::int64_t> request, Vector<bool> saturated, Vector<bool> finite,
                        Vector<std::int64_t> offsets) {
  if (!sound(logits, boxes, columns, edges, requests, scale)) return REFUSED;
  const auto rows = static_cast<std::int64_t>(logits.shape(1));
  std::vector<float> scratch(static_cast<std::size_t>(rows));
  std::vector<unsigned char> answers(static_cast<std::size_t>(rows));
  Places places{found.data(), best.data(), request.data(), static_cast<std::int64_t>(best.size())};
  offsets.data()[0] = 0;
  for (std::size_t at = 0; at < logits.shape(0); ++at) {
    const auto place = static_cast<std::int64_t>(at);
    const Window window{logits.data() + place * logits.stride(0), logits.stride(1), logits.stride(2),
                        boxes.data() + place * boxes.stride(0),   boxes.stride(1),  boxes.stride(2)};
    const std::int32_t first = requests.data()[at], last = requests.data()[at + 1];
    const std::int64_t before = places.count;
    std::int64_t answered = 0;  // rows that answer any request
    bool fine = true;
    std::fill(answers.begin(), answers.end(), 0);
    for (std::int32_t asked = first; asked < last && fine; ++asked) {
      const std::int32_t edge = edges.data()[asked];
      fine = best_of(window, columns.data() + edge, edges.data()[asked + 1] - edge, rows, scratch.data());
      for (std::int64_t row = 0; row < rows && fine; ++row) {
        if (!(scratch[static_cast<std::size_t>(row)] >= least)) continue;
        places.add(window, row, asked, scratch[static_cast<std::size_t>(row)], scale.data() + 4 * at);
        answered += answers[static_cast<std::size_t>(row)] == 0 ? 1 : 0;
        answers[static_cast<std::size_t>(row)] = 1;
      }
      offsets.data()[asked + 1] = places.count;
    }
    if (!fine) {
      places.count = before;
      std::fill(offsets.data() + first + 1, offsets.data() + last + 1, before);
    }
    finite.data()[at] = fine;
    saturated.data()[at] = fine && rows > 0 && answered == rows;
  }
  return places.count;
}

}  // namespace

void bind_candidates(nanobind::module_& m) {
  using nanobind::arg;
  m.def("candidates", &candidates, arg("logits").noconvert(), arg("boxes").noconvert(), arg("columns").noconvert(),
        arg("edges").noconvert(), arg("requests").noconvert(), arg("scale").noconvert(), arg("least"),
        arg("found").noconvert(), arg("best").noconvert(), arg("request").noconvert(), arg("saturated").noconvert(),
        arg("finite").noconvert(), arg("offsets").noconvert(),
        "Write the boxes, best logits and requests of what reaches the least logit, as far as there is room, and return "
        "how many there are; -1 when an argument is wrong.");
}

}  // namespace tallymill
