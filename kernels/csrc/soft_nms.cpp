// Soft-NMS over ragged segments. Contract and checks: kernels/nms/__init__.py; the definition: kernels/nms/reference.py.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

#include "bind.h"
#include "nms_scratch.h"
#include "threads.h"

namespace tallymill {
namespace {

constexpr std::int64_t REFUSED = -1;  // Python says which box it was
constexpr float GONE = -1.0f;         // the score of a box that was taken or has fallen too low

struct Decay {
  bool gaussian;
  float iou_threshold;  // linear
  double sigma;         // gaussian
  std::int32_t least;   // the bits of the least score that stays: floats from 0 on are ordered like their bits
};

// The boxes of one segment in the order of their indices.
struct Candidates {
  explicit Candidates(std::int64_t longest)
      : room(static_cast<std::size_t>(longest)), memory(7 * room), indices(room) {
    float* at = memory.data();
    for (float** array : {&x1, &y1, &x2, &y2, &area, &score, &weight}) {
      *array = at;
      at += room;
    }
    index = indices.data();
  }

  std::size_t room;
  std::vector<float> memory;
  std::vector<std::int32_t> indices;
  float *x1, *y1, *x2, *y2, *area, *score, *weight;
  std::int32_t* index;
};

// Writes each box's IoU with the one at `head` as its weight; 0 where an area that overflows or underflows makes it NaN.
TALLYMILL_CLONES
void overlaps(const Candidates& c, std::int64_t n, std::int64_t head) noexcept {
  const float left = c.x1[head], top = c.y1[head], right = c.x2[head], bottom = c.y2[head], area = c.area[head];
  const float *x1 = c.x1, *y1 = c.y1, *x2 = c.x2, *y2 = c.y2, *areas = c.area;
  float* __restrict iou = c.weight;
  for (std::int64_t j = 0; j < n; ++j) {
    const float w = (x2[j] < right ? x2[j] : right) - (x1[j] > left ? x1[j] : left);
    const float h = (y2[j] < bottom ? y2[j] : bottom) - (y1[j] > top ? y1[j] : top);
    const float intersection = (w > 0.0f ? w : 0.0f) * (h > 0.0f ? h : 0.0f);
    const float value = intersection / (area + areas[j] - intersection);
    iou[j] = value > 0.0f ? value : 0.0f;
  }
}

TALLYMILL_CLONES
void linear_weights(float* weight, std::int64_t n, float threshold) noexcept {
  for (std::int64_t j = 0; j < n; ++j) weight[j] = weight[j] >= threshold ? 1.0f - weight[j] : 1.0f;
}

void gaussian_weights(float* weight, std::int64_t n, double sigma) noexcept {
  for (std::int64_t j = 0; j < n; ++j) {
    const double iou = weight[j];
    weight[j] = iou == 0.0 ? 1.0f : static_cast<float>(std::exp(-(iou * iou) / sigma));
  }
}

// Multiplies the scores by the weights, and returns the bits of the best one that stays, below 0 when there is none.
TALLYMILL_CLONES
std::int32_t apply(float* __restrict score, const float* __restrict weight, std::int64_t n, std::int32_t least) noexcept {
  std::int32_t best = -1;
  for (std::int64_t j = 0; j < n; ++j) {
    const float value = score[j] * weight[j] + 0.0f;  // -0 to 0
    const auto bits = std::bit_cast<std::int32_t>(value);
    const bool stays = (score[j] >= 0.0f) & (bits >= least);  // a weight of 0 brings nothing back
    score[j] = stays ? value : GONE;
    const std::int32_t standing = stays ? bits : -1;
    best = standing > best ? standing : best;
  }
  return best;
}

std::int64_t lay_out(const Segment& segment, const Candidates& c) noexcept {
  for (std::int64_t j = 0; j < segment.size; ++j) {
    const float* box = segment.boxes + 4 * j;
    c.x1[j] = box[0], c.y1[j] = box[1], c.x2[j] = box[2], c.y2[j] = box[3];
    c.area[j] = (box[2] - box[0]) * (box[3] - box[1]);
    c.score[j] = segment.scores[j * segment.stride];
    c.weight[j] = 1.0f;
    c.index[j] = static_cast<std::int32_t>(j);
  }
  return segment.size;
}

// Closes the gaps that boxes left which are gone.
std::int64_t compact(const Candidates& c, std::int64_t n) noexcept {
  std::int64_t to = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    c.x1[to] = c.x1[j], c.y1[to] = c.y1[j], c.x2[to] = c.x2[j], c.y2[to] = c.y2[j];
    c.area[to] = c.area[j], c.score[to] = c.score[j], c.index[to] = c.index[j];
    to += c.score[j] != GONE ? 1 : 0;
  }
  return to;
}

// Takes the best box again and again, each time lowering those that overlap it; returns how many were taken.
std::int64_t take(const Segment& segment, const Decay& decay, const Candidates& c, std::int64_t base,
                  std::int64_t* index, float* score) noexcept {
  std::int64_t n = lay_out(segment, c), taken = 0, next_compaction = n / 2;
  for (;;) {
    const std::int32_t best = apply(c.score, c.weight, n, decay.least);
    if (best < 0) return taken;
    if (taken >= next_compaction) {
      n = compact(c, n);
      next_compaction = taken + n / 2 + 1;
    }
    const std::int64_t head = std::find(c.score, c.score + n, std::bit_cast<float>(best)) - c.score;
    index[taken] = base + c.index[head];
    score[taken++] = c.score[head];
    c.score[head] = GONE;
    overlaps(c, n, head);
    if (decay.gaussian) {
      gaussian_weights(c.weight, n, decay.sigma);
    } else {
      linear_weights(c.weight, n, decay.iou_threshold);
    }
  }
}

struct Batch {
  const float* boxes;           // [N, 4] xyxy
  const float* scores;          // [N, C]
  const std::int64_t* offsets;  // [S+1]
  std::int64_t images, categories;
  Decay decay;
  std::int64_t* indices;  // [N * C], as kept_scores: each segment writes from its own start
  float* kept_scores;
  std::int64_t* counts;  // [S * C]

  std::int64_t start(std::int64_t image, std::int64_t category) const noexcept {
    return offsets[image] * categories + category * (offsets[image + 1] - offsets[image]);
  }
};

// Returns false on a box or score that is not to be here.
bool take_image(const Batch& b, std::int64_t image, const Candidates& candidates) noexcept {
  const std::int64_t first = b.offsets[image], size = b.offsets[image + 1] - first;
  const float *boxes = b.boxes + 4 * first, *scores = b.scores + first * b.categories;
  if (!TALLYMILL_ON(best_path(), all_valid)(boxes, size, scores, size * b.categories)) return false;
  for (std::int64_t c = 0; c < b.categories; ++c) {
    const Segment segment{boxes, scores + c, b.categories, size, {}, {}, {}};
    const std::int64_t at = b.start(image, c);
    b.counts[image * b.categories + c] =
        take(segment, b.decay, candidates, first, b.indices + at, b.kept_scores + at);
  }
  return true;
}

// Closes the gaps between the segments, and turns counts into offsets.
std::int64_t gather(const Batch& b, std::int64_t* kept_offsets) noexcept {
  std::int64_t total = 0;
  for (std::int64_t image = 0; image < b.images; ++image) {
    for (std::int64_t c = 0; c < b.categories; ++c) {
      const std::int64_t segment = image * b.categories + c, count = b.counts[segment], from = b.start(image, c);
      std::copy_n(b.indices + from, count, b.indices + total);
      std::copy_n(b.kept_scores + from, count, b.kept_scores + total);
      kept_offsets[segment] = total;
      total += count;
    }
  }
  kept_offsets[b.images * b.categories] = total;
  return total;
}

std::int64_t soft_nms(Boxes<const float> boxes, Vector<const float> scores, Vector<const std::int64_t> offsets,
                      bool gaussian, double iou_threshold, double sigma, double min_score, std::int64_t threads,
                      Vector<std::int64_t> indices, Vector<std::int64_t> kept_offsets, Vector<float> kept_scores) {
  const std::int64_t images = static_cast<std::int64_t>(offsets.size()) - 1;
  const std::int64_t segments = static_cast<std::int64_t>(kept_offsets.size()) - 1;
  const auto least = std::bit_cast<std::int32_t>(static_cast<float>(min_score) + 0.0f);
  // counts live in kept_offsets until gather() reads each and writes the offset over it.
  const Batch batch{boxes.data(),
                    scores.data(),
                    offsets.data(),
                    images,
                    images > 0 ? segments / images : 0,
                    {gaussian, static_cast<float>(iou_threshold), sigma, least},
                    indices.data(),
                    kept_scores.data(),
                    kept_offsets.data()};
  nanobind::gil_scoped_release unlocked;
  const std::int64_t room = longest(batch.offsets, images);
  std::atomic<bool> refused{false};
  share_out(
      images, threads, 1, [room] { return Candidates(room); },
      [&](std::int64_t first, std::int64_t, Candidates& candidates) noexcept {
        if (!take_image(batch, first, candidates)) refused = true;
      });
  return refused ? REFUSED : gather(batch, kept_offsets.data());
}

}  // namespace

void bind_soft_nms(nanobind::module_& m) {
  using nanobind::arg;
  m.def("soft_nms", &soft_nms, arg("boxes").noconvert(), arg("scores").noconvert(), arg("offsets").noconvert(),
        arg("gaussian"), arg("iou_threshold"), arg("sigma"), arg("min_score"), arg("threads"),
        arg("indices").noconvert(), arg("kept_offsets").noconvert(), arg("kept_scores").noconvert(),
        "Write the taken indices, their offsets and lowered scores, and return how many indices were written; -1 when a "
        "box or score is not valid.");
}

}  // namespace tallymill
