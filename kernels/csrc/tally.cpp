// Suppression and counting in one go, an image at a time: what survives is never stored. Contract and checks:
// kernels/count/__init__.py.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>

#include "bind.h"
#include "calibration.h"
#include "floats.h"
#include "nms_scratch.h"
#include "threads.h"

namespace tallymill {
namespace {

struct Batch {
  const float* boxes;           // [N, 4] xyxy
  const float* scores;          // [N, C]
  const std::int64_t* offsets;  // [S+1]
  std::int64_t categories;
  float iou_threshold, next_threshold;
  double tau;
  const float* least;        // [S * C]: lower confidences count nothing
  const double* thresholds;  // [S * C]: what a calibrated confidence has to reach
  double* soft;              // [S * C]
  std::int64_t* hard;        // [S * C]
};

bool all_confidences(const float* scores, std::int64_t n) noexcept {
  bool inside = true;
  for (std::int64_t j = 0; j < n; ++j) inside &= (scores[j] >= 0.0f) & (scores[j] <= 1.0f);
  return inside;
}

void count(const Batch& b, std::int64_t segment, const float* scores, std::int64_t kept, const NmsScratch& s) noexcept {
  // Once the survivors are known their coordinates are no longer needed.
  float *confidence = s.x1, *rho = s.x2;
  for (std::int64_t k = 0; k < kept; ++k) confidence[k] = scores[s.index[k] * b.categories];
  calibrate(confidence, static_cast<std::size_t>(kept), b.tau, rho);
  const double threshold = b.thresholds[segment];
  double soft = 0.0;
  std::int64_t hard = 0;
  for (std::int64_t k = 0; k < kept; ++k) {
    if (rho[k] >= threshold) soft += rho[k];
    hard += confidence[k] >= 0.5f ? 1 : 0;
  }
  b.soft[segment] = soft;
  b.hard[segment] = hard;
}

// Returns false on a box or confidence that is not to be here.
bool tally_image(const Batch& b, std::int64_t image, const NmsScratch& scratch) noexcept {
  const Path path = best_path();
  const std::int64_t start = b.offsets[image], size = b.offsets[image + 1] - start;
  const float *boxes = b.boxes + 4 * start, *scores = b.scores + start * b.categories;
  const std::int64_t entries = size * b.categories;
  if (!TALLYMILL_ON(path, all_valid)(boxes, size, scores, entries) || !all_confidences(scores, entries)) return false;
  for (std::int64_t c = 0; c < b.categories; ++c) {
    const std::int64_t segment = image * b.categories + c;
    const std::int64_t kept = TALLYMILL_ON(path, suppress)(
        {boxes, scores + c, b.categories, size, b.least[segment], b.iou_threshold, b.next_threshold}, scratch);
    count(b, segment, scores + c, kept, scratch);
  }
  return true;
}

bool tally(Boxes<const float> boxes, Vector<const float> scores, Vector<const std::int64_t> offsets,
           double iou_threshold, double tau, Vector<const float> least, Vector<const double> thresholds,
           std::int64_t threads, Vector<double> soft, Vector<std::int64_t> hard) {
  const std::int64_t images = static_cast<std::int64_t>(offsets.size()) - 1;
  const float limit = greatest_float_not_above(iou_threshold);
  const Batch batch{boxes.data(),
                    scores.data(),
                    offsets.data(),
                    images > 0 ? static_cast<std::int64_t>(soft.size()) / images : 0,
                    limit,
                    std::nextafter(limit, std::numeric_limits<float>::infinity()),
                    tau,
                    least.data(),
                    thresholds.data(),
                    soft.data(),
                    hard.data()};
  nanobind::gil_scoped_release unlocked;
  const std::int64_t room = longest(batch.offsets, images);
  std::atomic<bool> refused{false};
  share_out(
      images, threads, fair_grain(images, threads), [room] { return NmsMemory(room); },
      [&](std::int64_t first, std::int64_t last, NmsMemory& memory) noexcept {
        for (std::int64_t image = first; image < last; ++image) {
          if (!tally_image(batch, image, memory.scratch())) refused = true;
        }
      });
  return !refused;
}

}  // namespace

void bind_tally(nanobind::module_& m) {
  using nanobind::arg;
  m.def("count_tally", &tally, arg("boxes").noconvert(), arg("scores").noconvert(), arg("offsets").noconvert(),
        arg("iou_threshold"), arg("tau"), arg("least").noconvert(), arg("thresholds").noconvert(), arg("threads"),
        arg("soft").noconvert(), arg("hard").noconvert(),
        "Write the soft and hard counts of each segment; false when a box or confidence is not valid.");
}

}  // namespace tallymill
