// Greedy non-maximum suppression over ragged segments. Contract and checks: kernels/nms/__init__.py.
#include "nms.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>

#include "bind.h"
#include "floats.h"
#include "nms_scratch.h"
#include "threads.h"

namespace tallymill {
namespace {

constexpr std::int64_t REFUSED = -1;  // Python says which box it was

struct Batch {
  const float* boxes;           // [N, 4] xyxy
  const float* scores;          // [N, C]
  const std::int64_t* offsets;  // [S+1]
  std::int64_t images, categories;
  float iou_threshold, least_score;
  std::int64_t* indices;  // [N * C]; each piece writes from its own start
  std::int64_t* counts;   // [S * C]
};

// Suppresses in the images first..last-1, one category after another, and writes the survivors without gaps. Returns
// false on a box or score that is not to be here.
bool suppress_images(const Batch& b, Path path, std::int64_t first, std::int64_t last, NmsMemory& memory) noexcept {
  const auto run = TALLYMILL_ON(path, suppress);
  const auto check = TALLYMILL_ON(path, all_valid);
  const NmsScratch scratch = memory.scratch();
  const float next = std::nextafter(b.iou_threshold, std::numeric_limits<float>::infinity());
  std::int64_t* out = b.indices + b.offsets[first] * b.categories;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t start = b.offsets[i], size = b.offsets[i + 1] - start;
    const float *boxes = b.boxes + 4 * start, *scores = b.scores + start * b.categories;
    if (!check(boxes, size, scores, size * b.categories)) return false;
    for (std::int64_t c = 0; c < b.categories; ++c) {
      const std::int64_t kept =
          run({boxes, scores + c, b.categories, size, b.least_score, b.iou_threshold, next}, scratch);
      for (std::int64_t k = 0; k < kept; ++k) out[k] = start + scratch.index[k];
      out += kept;
      b.counts[i * b.categories + c] = kept;
    }
  }
  return true;
}

// Closes the gaps between the pieces, and turns counts into offsets.
std::int64_t gather(const Batch& b, std::int64_t grain, std::int64_t* kept_offsets) noexcept {
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < b.images; first += grain) {
    const std::int64_t last = std::min(first + grain, b.images), before = total;
    for (std::int64_t segment = first * b.categories; segment < last * b.categories; ++segment) {
      const std::int64_t count = b.counts[segment];
      kept_offsets[segment] = total;
      total += count;
    }
    std::copy_n(b.indices + b.offsets[first] * b.categories, total - before, b.indices + before);
  }
  kept_offsets[b.images * b.categories] = total;
  return total;
}

std::int64_t nms(Boxes<const float> boxes, Vector<const float> scores, Vector<const std::int64_t> offsets,
                 double iou_threshold, double score_threshold, std::int64_t threads, const char* path_name,
                 Vector<std::int64_t> indices, Vector<std::int64_t> kept_offsets) {
  const Path path = path_named(path_name);
  const std::int64_t images = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t segments = static_cast<std::int64_t>(kept_offsets.size()) - 1;
  // counts live in kept_offsets until gather() reads each and writes the offset over it.
  const Batch batch{boxes.data(),
                    scores.data(),
                    offsets.data(),
                    images,
                    images > 0 ? segments / images : 0,
                    greatest_float_not_above(iou_threshold),
                    least_float_not_below(score_threshold),
                    indices.data(),
                    kept_offsets.data()};
  nanobind::gil_scoped_release unlocked;
  const std::int64_t room = longest(batch.offsets, images), grain = fair_grain(images, threads);
  std::atomic<bool> refused{false};
  share_out(
      images, threads, grain, [room] { return NmsMemory(room); },
      [&](std::int64_t first, std::int64_t last, NmsMemory& memory) noexcept {
        if (!suppress_images(batch, path, first, last, memory)) refused = true;
      });
  return refused ? REFUSED : gather(batch, grain, kept_offsets.data());
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
        arg("iou_threshold"), arg("score_threshold"), arg("threads"), arg("path"), arg("indices").noconvert(),
        arg("kept_offsets").noconvert(),
        "Write the kept indices and their offsets, and return how many indices were written; -1 when a box or score is "
        "not valid.");
  m.def("nms_valid", &valid, arg("boxes").noconvert(), arg("scores").noconvert(), arg("usable").noconvert(),
        "Write which boxes are finite and not degenerate.");
}

}  // namespace tallymill
