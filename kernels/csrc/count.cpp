// Calibration and scores (equations 5, 6 and 8); the counts are in rescore.cpp. Contract and checks: kernels/count/__init__.py.
//
// Results are promised to the bit: float64 throughout, in the order written, compiled with -ffp-contract=off.
#include <cmath>
#include <cstddef>
#include <limits>

#include "bind.h"
#include "calibration.h"

namespace tallymill {
namespace {

void calibrate_all(Vector<const float> confidence, double tau, Vector<float> rho) {
  nanobind::gil_scoped_release unlocked;
  calibrate(confidence.data(), confidence.size(), tau, rho.data());
}

void raw_thresholds(Vector<const double> thresholds, double tau, Vector<float> raw) {
  nanobind::gil_scoped_release unlocked;
  for (std::size_t t = 0; t < thresholds.size(); ++t) raw.data()[t] = raw_threshold(thresholds.data()[t], tau);
}

// The first box whose target its item does not have; -1 when there is none.
std::int64_t misplaced(Vector<const std::uint8_t> target, Vector<const std::int64_t> item_offsets,
                       Vector<const std::int64_t> target_offsets) {
  nanobind::gil_scoped_release unlocked;
  const std::int64_t *boxes = item_offsets.data(), *targets = target_offsets.data();
  for (std::size_t i = 0; i + 1 < item_offsets.size(); ++i) {
    for (std::int64_t j = boxes[i]; j < boxes[i + 1]; ++j) {
      if (target.data()[j] >= targets[i + 1] - targets[i]) return j;
    }
  }
  return -1;
}

// 1 - (e1 + ... + ek) / k, not below 0; NaN without targets and wherever a count is NaN.
double precision(const double* count, const std::uint16_t* requested, std::int64_t targets) noexcept {
  if (targets == 0) return std::numeric_limits<double>::quiet_NaN();
  double errors = 0.0;
  for (std::int64_t t = 0; t < targets; ++t) {
    const double wanted = requested[t];
    errors += std::abs(count[t] - wanted) / wanted;
  }
  const double value = 1.0 - errors / static_cast<double>(targets);
  return value < 0.0 ? 0.0 : value;  // std::max would turn NaN into 0
}

void score(Vector<const double> soft, Vector<const std::int64_t> hard, Vector<const std::uint8_t> covering,
           Vector<const std::uint16_t> requested, Vector<const std::int64_t> target_offsets,
           Vector<double> soft_count, Vector<double> hard_count, Vector<double> cw_nps, Vector<double> b_nps) {
  nanobind::gil_scoped_release unlocked;
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  double *counts = soft_count.data(), *hard_counts = hard_count.data();
  for (std::size_t t = 0; t < soft.size(); ++t) {
    const double detectors = covering.data()[t];
    counts[t] = detectors > 0.0 ? soft.data()[t] / detectors : unknown;
    hard_counts[t] = detectors > 0.0 ? static_cast<double>(hard.data()[t]) / detectors : unknown;
  }
  const std::int64_t* offsets = target_offsets.data();
  for (std::size_t i = 0; i + 1 < target_offsets.size(); ++i) {
    const std::int64_t first = offsets[i], targets = offsets[i + 1] - first;
    cw_nps.data()[i] = precision(counts + first, requested.data() + first, targets);
    b_nps.data()[i] = precision(hard_counts + first, requested.data() + first, targets);
  }
}

}  // namespace

void bind_count(nanobind::module_& m) {
  using nanobind::arg;
  m.def("count_calibrate", &calibrate_all, arg("confidence").noconvert(), arg("tau"), arg("rho").noconvert(),
        "Write the calibrated confidence of each raw one (equation 6).");
  m.def("count_raw_thresholds", &raw_thresholds, arg("thresholds").noconvert(), arg("tau"), arg("raw").noconvert(),
        "Write the least raw confidence that is calibrated to each threshold.");
  m.def("count_misplaced", &misplaced, arg("target").noconvert(), arg("item_offsets").noconvert(),
        arg("target_offsets").noconvert(), "Return the first box whose target its item does not have, or -1.");
  m.def("count_score", &score, arg("soft").noconvert(), arg("hard").noconvert(), arg("covering").noconvert(),
        arg("requested").noconvert(), arg("target_offsets").noconvert(), arg("soft_count").noconvert(),
        arg("hard_count").noconvert(), arg("cw_nps").noconvert(), arg("b_nps").noconvert(),
        "Write the counts per detector and the two scores of each item (equations 5 and 8).");
}

}  // namespace tallymill
