// Temperature scaling, several values at a time, without giving up a bit.
//
// The definition rounds a float64 value to float32 once. So an evaluation that is only nearly right settles the result
// wherever both ends of its error interval round to the same float32, and that is nearly everywhere: the few values
// that lie too close to a rounding boundary (one in 2,000) are evaluated again by the definition.
#include "calibration.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "paths.h"

namespace tallymill {
namespace {

constexpr std::size_t BATCH = 16;

// What `approximate` may be off by, relatively, for temperatures of at least MIN_TAU. Its logit is off by 6e-15 from
// the series (divided by tau: 4e-13) and by 150 * 2^-51 from rounding, its exp by less, and so is the definition. That
// makes less than 1e-12; the margin is more than tenfold.
constexpr double ERROR = 0x1p-36;
constexpr double MIN_TAU = 0x1p-6;

// The polynomial with these coefficients, highest power first.
template <typename... Rest>
inline double polynomial(double x, double value, Rest... rest) noexcept {
  ((value = value * x + rest), ...);
  return value;
}

// log(p / (1 - p)) for p strictly between 0 and 1: p / (1 - p) = m * 2^k with m between 0.66 and 1.51,
// and log m = 2 atanh((m - 1) / (m + 1)). Bits of doubles, taken as integers, are nearly logarithms: they give k.
inline double logit(double p) noexcept {
  constexpr std::uint64_t MAGIC = 0x4330000000000000;  // 2^52, whose low bits count in ones: a conversion for any lanes
  constexpr std::uint64_t BIAS = 2048;  // keeps what is shifted above 0
  const double q = 1.0 - p;
  const auto p_bits = std::bit_cast<std::uint64_t>(p);
  const std::uint64_t shifted = p_bits - std::bit_cast<std::uint64_t>(q) + (BIAS << 52) + (std::uint64_t{1} << 51);
  const std::uint64_t k = shifted >> 52;
  const double scaled = std::bit_cast<double>(p_bits - ((k - BIAS) << 52));
  const double s = (scaled - q) / (scaled + q), square = s * s;
  const double series =
      polynomial(square, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return (std::bit_cast<double>(k | MAGIC) - (0x1p52 + BIAS)) * 0x1.62e42fefa39efp-1 + 2.0 * s * series;
}

// exp for |x| <= 150: 2^n * exp(r) with |r| <= log(2)/2.
inline double exponential(double x) noexcept {
  constexpr double ROUND = 0x1.8p52;  // adding it rounds to an integer, which then stands in the low bits
  const double rounded = x * 0x1.71547652b82fep+0 + ROUND;
  const double r = x - (rounded - ROUND) * 0x1.62e42fefa39efp-1;
  const double series =
      polynomial(r, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0);
  const std::uint64_t power = (std::bit_cast<std::uint64_t>(rounded) + 1023) << 52;
  return series * std::bit_cast<double>(power);
}

// Equation 6 to within ERROR. Where x is cut off, rho rounds to 0 or 1 whatever x is.
inline double approximate(double p, double over_tau) noexcept {
  const double x = -logit(p) * over_tau, size = std::abs(x);
  return 1.0 / (1.0 + exponential(std::copysign(size > 150.0 ? 150.0 : size, x)));
}

// Whole batches: rho, by the definition wherever the error interval does not settle it, and for 0 and 1.
TALLYMILL_CLONES
void calibrate_batches(const float* confidence, std::size_t batches, double tau, float* rho) noexcept {
  const double over_tau = 1.0 / tau;
  for (std::size_t b = 0; b < batches; ++b, confidence += BATCH, rho += BATCH) {
    float high[BATCH];
    std::uint32_t open[BATCH], any = 0;  // as wide as a float, so that lanes need no repacking
    for (std::size_t j = 0; j < BATCH; ++j) {
      const double value = approximate(confidence[j], over_tau), error = value * ERROR;
      const float low = static_cast<float>(value - error);
      high[j] = static_cast<float>(value + error);
      open[j] = (low != high[j]) | (confidence[j] == 0.0f) | (confidence[j] == 1.0f);
      any |= open[j];
    }
    for (std::size_t j = 0; j < BATCH; ++j) {
      rho[j] = any != 0 && open[j] != 0 ? calibrated(confidence[j], tau) : high[j];
    }
  }
}

}  // namespace

float calibrated(float confidence, double tau) noexcept {
  if (confidence == 0.0f || confidence == 1.0f) return confidence;
  const double p = confidence;
  return static_cast<float>(1.0 / (1.0 + std::exp(-std::log(p / (1.0 - p)) / tau)));
}

void calibrate(const float* confidence, std::size_t n, double tau, float* rho) noexcept {
  // The definition is then off p by at most 2^-45 of it, and rounds to p, which is a float32 itself.
  if (tau == 1.0 && n > 0) std::memmove(rho, confidence, n * sizeof(float));
  if (tau == 1.0) return;
  if (tau < MIN_TAU) {
    for (std::size_t j = 0; j < n; ++j) rho[j] = calibrated(confidence[j], tau);
    return;
  }
  const std::size_t whole = n / BATCH * BATCH, rest = n - whole;
  calibrate_batches(confidence, n / BATCH, tau, rho);
  if (rest == 0) return;
  float padded[BATCH] = {};
  for (std::size_t j = 0; j < rest; ++j) padded[j] = confidence[whole + j];
  calibrate_batches(padded, 1, tau, padded);
  for (std::size_t j = 0; j < rest; ++j) rho[whole + j] = padded[j];
}

// Bisection over the floats in [0, 1], which are ordered like their bits. That rho never falls as p rises is true of
// the rounded evaluation too: from one float32 to the next the logit rises by at least 2^-24, and its quotient by tau
// by 2^-24/tau, while log, division and exp are off by 2^-45/tau and, relatively, 2^-52.
float raw_threshold(double threshold, double tau) noexcept {
  if (threshold <= 0.0) return 0.0f;
  if (!(threshold <= 1.0)) return std::numeric_limits<float>::infinity();
  std::uint32_t below = 0, reaches = std::bit_cast<std::uint32_t>(1.0f);
  while (reaches - below > 1) {
    const std::uint32_t middle = below + (reaches - below) / 2;
    (calibrated(std::bit_cast<float>(middle), tau) >= threshold ? reaches : below) = middle;
  }
  return std::bit_cast<float>(reaches);
}

}  // namespace tallymill
