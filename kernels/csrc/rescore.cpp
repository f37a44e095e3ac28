// Counts from stored confidences (equation 7 with its sums). Contract and checks: kernels/count/__init__.py.
//
// Boxes are taken in blocks that stay in the nearest cache: they are checked and their hard votes taken in one pass;
// those that count are gathered by comparing raw confidences, and only they are calibrated.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

#include "bind.h"
#include "calibration.h"
#include "paths.h"
#include "threads.h"

namespace tallymill {
namespace {

constexpr std::int64_t GRAIN = 1024;  // items that a thread takes at a time
constexpr std::int64_t BLOCK = 2048;  // boxes
constexpr std::int64_t ADDRESSABLE = 256;  // targets of one item that a uint8 can name
constexpr std::uint64_t ONES = 0x0101010101010101;

struct Problem {
  const float* confidence;
  const std::uint8_t* target;
  const std::int64_t *item_offsets, *target_offsets;
  const double* thresholds;  // with `soft` only
  double tau;
  double* soft;        // null: not wanted
  std::int64_t* hard;  // null: not wanted
};

// Remembers the raw threshold of each of the few thresholds that a schedule has. Once full it remembers no more.
class RawThresholds {
 public:
  explicit RawThresholds(double tau) : tau_(tau) {}

  float operator()(double threshold) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(threshold);
    std::size_t at = (bits * 0x9e3779b97f4a7c15) >> (64 - LOG_SLOTS);
    while (known_[at] && threshold_[at] != bits) at = (at + 1) % SLOTS;
    if (known_[at]) return raw_[at];
    // Where rho need not rise with p, every box is let through and compared after calibration.
    const float raw = tau_ > MAX_RISING_TAU ? 0.0f : raw_threshold(threshold, tau_);
    if (count_ == SLOTS / 2) return raw;
    known_[at] = true, threshold_[at] = bits, raw_[at] = raw, ++count_;
    return raw;
  }

 private:
  static constexpr int LOG_SLOTS = 9;
  static constexpr std::size_t SLOTS = std::size_t{1} << LOG_SLOTS;
  double tau_;
  std::size_t count_ = 0;
  bool known_[SLOTS] = {};
  std::uint64_t threshold_[SLOTS];
  float raw_[SLOTS];
};

struct Scratch {
  explicit Scratch(double tau) : raw_thresholds(tau) {}

  RawThresholds raw_thresholds;
  float least[ADDRESSABLE];  // raw thresholds of the item's targets
  // The block: eight bytes more than boxes, so that words can be read from any place.
  std::uint8_t target[BLOCK + 8], vote[BLOCK + 8];
  // The boxes of the block that count.
  std::int64_t kept = 0;
  float raw[BLOCK], rho[BLOCK];
  std::int64_t slot[BLOCK];
};

// Takes boxes [base, base + n) into the scratch, with their hard votes; false if a confidence is outside [0, 1].
TALLYMILL_CLONES
bool load(const Problem& p, std::int64_t base, std::int64_t n, Scratch& s) noexcept {
  const float* confidence = p.confidence + base;
  std::memcpy(s.target, p.target + base, static_cast<std::size_t>(n));
  unsigned outside = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const float value = confidence[j];
    s.vote[j] = value >= 0.5f;
    outside |= !((value >= 0.0f) & (value <= 1.0f));
  }
  return outside == 0;
}

inline std::uint64_t word(const std::uint8_t* bytes) noexcept {
  std::uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Whether a byte of `which` is `targets` or more. One of 128 or more shows itself; sums that it spoils do not matter.
inline bool beyond(std::uint64_t which, std::int64_t targets) noexcept {
  if (targets <= 128) return ((which | (which + static_cast<std::uint64_t>(128 - targets) * ONES)) & (128 * ONES)) != 0;
  for (; which != 0; which >>= 8) {
    if (static_cast<std::int64_t>(which & 255) >= targets) return true;
  }
  return false;
}

// Adds the votes of boxes [from, to) of the block, all of one item, eight at a time.
// False if one names a target that the item does not have.
inline bool add_votes(const Scratch& s, std::int64_t from, std::int64_t to, std::int64_t targets,
                      std::int64_t* hard) noexcept {
  std::int64_t all = 0, second = 0;
  for (std::int64_t at = from; at < to; at += 8) {
    const std::uint64_t mask = to - at >= 8 ? ~std::uint64_t{0} : ~(~std::uint64_t{0} << (8 * (to - at)));
    const std::uint64_t which = word(s.target + at) & mask;
    std::uint64_t votes = word(s.vote + at) & mask;
    if (beyond(which, targets)) return false;
    if (hard == nullptr) continue;
    if (targets <= 2) {  // a byte of `which` is 0 or 1
      all += std::popcount(votes);
      second += std::popcount(votes & which);
    } else {
      for (; votes != 0; votes &= votes - 1) ++hard[s.target[at + std::countr_zero(votes) / 8]];
    }
  }
  if (hard != nullptr && targets <= 2) {
    hard[0] += all - second;
    if (targets == 2) hard[1] += second;
  }
  return true;
}

// Gathers those of boxes [from, to) of the block that count; `first` is the item's first target.
inline void keep(const float* confidence, Scratch& s, std::int64_t from, std::int64_t to, std::int64_t first) noexcept {
  std::int64_t kept = s.kept;
  for (std::int64_t j = from; j < to; ++j) {
    s.raw[kept] = confidence[j];
    s.slot[kept] = first + s.target[j];
    kept += confidence[j] >= s.least[s.target[j]];
  }
  s.kept = kept;
}

// Counts boxes [base, base + n), which are loaded. `item` is the first that may have some of them and becomes the first
// that may have some of the next. False if a box names a target that its item does not have.
TALLYMILL_CLONES
bool count_block(const Problem& p, std::int64_t base, std::int64_t n, std::int64_t& item, Scratch& s) noexcept {
  for (;; ++item) {
    const std::int64_t from = std::max<std::int64_t>(p.item_offsets[item] - base, 0);
    const std::int64_t stop = p.item_offsets[item + 1] - base, to = std::min(stop, n);
    if (from < to) {
      const std::int64_t first = p.target_offsets[item], targets = p.target_offsets[item + 1] - first;
      if (targets == 0 || !add_votes(s, from, to, targets, p.hard == nullptr ? nullptr : p.hard + first)) return false;
      if (p.soft != nullptr) {
        for (std::int64_t t = 0; t < std::min(targets, ADDRESSABLE); ++t) {
          s.least[t] = s.raw_thresholds(p.thresholds[first + t]);
        }
        keep(p.confidence + base, s, from, to, first);
      }
    }
    if (stop >= n) return true;  // the item goes on in the next block, or ends with this one
  }
}

// Adds what the boxes that count are calibrated to, in stored order.
void add_soft(const Problem& p, Scratch& s) noexcept {
  calibrate(s.raw, static_cast<std::size_t>(s.kept), p.tau, s.rho);
  for (std::int64_t j = 0; j < s.kept; ++j) {
    const double rho = s.rho[j];
    if (rho >= p.thresholds[s.slot[j]]) p.soft[s.slot[j]] += rho;
  }
  s.kept = 0;
}

// Items [first, last). False if a confidence or a target is wrong; the sums are then of no use.
bool count_items(const Problem& p, std::int64_t first, std::int64_t last, Scratch& s) noexcept {
  std::int64_t item = first;
  const std::int64_t end = p.item_offsets[last];
  for (std::int64_t base = p.item_offsets[first]; base < end; base += BLOCK) {
    const std::int64_t n = std::min(BLOCK, end - base);
    if (!load(p, base, n, s) || !count_block(p, base, n, item, s)) return false;
    if (p.soft != nullptr) add_soft(p, s);
  }
  return true;
}

bool accumulate(Vector<const float> confidence, Vector<const std::uint8_t> target,
                Vector<const std::int64_t> item_offsets, Vector<const std::int64_t> target_offsets,
                std::optional<Vector<const double>> thresholds, double tau, std::optional<Vector<double>> soft,
                std::optional<Vector<std::int64_t>> hard, std::int64_t threads) {
  nanobind::gil_scoped_release unlocked;
  const Problem problem{confidence.data(),
                        target.data(),
                        item_offsets.data(),
                        target_offsets.data(),
                        thresholds ? thresholds->data() : nullptr,
                        tau,
                        soft ? soft->data() : nullptr,
                        hard ? hard->data() : nullptr};
  const auto items = static_cast<std::int64_t>(item_offsets.size()) - 1;
  std::atomic<bool> good{true};
  const auto count = [&](std::int64_t first, std::int64_t last, std::unique_ptr<Scratch>& scratch) noexcept {
    if (!count_items(problem, first, last, *scratch)) good = false;
  };
  share_out(items, threads, GRAIN, [&] { return std::make_unique<Scratch>(tau); }, count);
  return good;
}

}  // namespace

void bind_rescore(nanobind::module_& m) {
  using nanobind::arg;
  m.def("count_accumulate", &accumulate, arg("confidence").noconvert(), arg("target").noconvert(),
        arg("item_offsets").noconvert(), arg("target_offsets").noconvert(), arg("thresholds").noconvert().none(),
        arg("tau"), arg("soft").noconvert().none(), arg("hard").noconvert().none(), arg("threads"),
        "Add one detector's boxes to the counts of each target; False if a box is not as it should be.");
}

}  // namespace tallymill
