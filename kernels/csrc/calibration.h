// Equation 6 and its inverse, defined to the bit (calibration.cpp); used by every kernel that calibrates.
#pragma once

#include <cstddef>

namespace tallymill {

// Beyond this temperature neighbouring confidences are no longer told apart, and rho need not rise with p.
constexpr double MAX_RISING_TAU = 1048576.0;

// float32(1/(1+exp(-log(p/(1-p))/tau))), evaluated in float64 with the C library's log and exp: the definition.
// `confidence` in [0, 1]; 0 and 1 map to themselves.
float calibrated(float confidence, double tau) noexcept;

// calibrated() of n values, several at a time and equal to it in every bit. `rho` may be `confidence`.
void calibrate(const float* confidence, std::size_t n, double tau, float* rho) noexcept;

// The least confidence whose calibrated value is at least `threshold`, so that `p >= raw_threshold` says the same as
// `calibrated(p) >= threshold`; infinity where none is. For tau up to MAX_RISING_TAU.
float raw_threshold(double threshold, double tau) noexcept;

}  // namespace tallymill
