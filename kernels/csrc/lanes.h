// Vectors of float, double and integers, as wide as the path that is compiled: 16/8/4 floats, 8/4/2 doubles.
//
// For *_paths.cpp alone, each of which is compiled once a path (see paths.h). Everything is internal to the file that
// includes it: a function the linker could share between paths might run AVX-512 on a machine without.
//
// All paths agree to the bit. What they agree on where it is not obvious:
// - min(a, b) is a < b ? a : b and max(a, b) is a > b ? a : b: b wherever either is NaN, and for zeros of either sign.
// - Comparisons are false wherever either is NaN.
// - add_one(m, a) is where(m, a + 1, a). reduce_min() gives the least lane; no lane may be NaN.
// - Loads and stores need no alignment. Index lanes: I32 beside F32, I64 beside F64.
#pragma once

#include <cstdint>

#ifdef __AVX2__
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 about its own _mm512_undefined_ps
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace tallymill::TALLYMILL_PATH {
namespace {

#if defined(__AVX512F__)

struct Mask32 {
  __mmask16 v;

  static Mask32 from_bits(std::uint32_t bits) { return {static_cast<__mmask16>(bits)}; }
  // The first n lanes, all of them for a larger n.
  static Mask32 first(std::int64_t n) { return from_bits(n < 16 ? (1u << n) - 1u : 0xFFFFu); }
};
inline std::uint32_t bits(Mask32 m) { return m.v; }
inline Mask32 operator&(Mask32 a, Mask32 b) { return {_kand_mask16(a.v, b.v)}; }
inline Mask32 operator|(Mask32 a, Mask32 b) { return {_kor_mask16(a.v, b.v)}; }
inline Mask32 operator~(Mask32 a) { return {_knot_mask16(a.v)}; }

struct Mask64 {
  __mmask8 v;

  static Mask64 from_bits(std::uint32_t bits) { return {static_cast<__mmask8>(bits)}; }
  static Mask64 first(std::int64_t n) { return from_bits(n < 8 ? (1u << n) - 1u : 0xFFu); }
};
inline std::uint32_t bits(Mask64 m) { return m.v; }
inline Mask64 operator&(Mask64 a, Mask64 b) { return {_kand_mask8(a.v, b.v)}; }
inline Mask64 operator|(Mask64 a, Mask64 b) { return {_kor_mask8(a.v, b.v)}; }
inline Mask64 operator~(Mask64 a) { return {_knot_mask8(a.v)}; }

struct F32 {
  static constexpr std::int64_t width = 16;
  __m512 v;

  static F32 all(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, v); }
};
inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Mask32 operator>(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask32 operator<(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask32 operator>=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask32 operator==(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline F32 where(Mask32 m, F32 a, F32 b) { return {_mm512_mask_mov_ps(b.v, m.v, a.v)}; }

struct F64 {
  static constexpr std::int64_t width = 8;
  __m512d v;

  static F64 all(double x) { return {_mm512_set1_pd(x)}; }
  static F64 load(const double* from) { return {_mm512_loadu_pd(from)}; }
  void store(double* to) const { _mm512_storeu_pd(to, v); }
};
inline F64 operator+(F64 a, F64 b) { return {_mm512_add_pd(a.v, b.v)}; }
inline F64 operator-(F64 a, F64 b) { return {_mm512_sub_pd(a.v, b.v)}; }
inline F64 min(F64 a, F64 b) { return {_mm512_min_pd(a.v, b.v)}; }
inline F64 max(F64 a, F64 b) { return {_mm512_max_pd(a.v, b.v)}; }
inline Mask64 operator>(F64 a, F64 b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask64 operator<(F64 a, F64 b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask64 operator>=(F64 a, F64 b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask64 operator==(F64 a, F64 b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline F64 where(Mask64 m, F64 a, F64 b) { return {_mm512_mask_mov_pd(b.v, m.v, a.v)}; }

struct I32 {
  static constexpr std::int64_t width = 16;
  __m512i v;

  static I32 all(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
  static I32 load(const std::int32_t* from) { return {_mm512_loadu_si512(from)}; }
  void store(std::int32_t* to) const { _mm512_storeu_si512(to, v); }
};
inline I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 where(Mask32 m, I32 a, I32 b) { return {_mm512_mask_mov_epi32(b.v, m.v, a.v)}; }
inline I32 add_one(Mask32 m, I32 a) { return {_mm512_mask_sub_epi32(a.v, m.v, a.v, _mm512_set1_epi32(-1))}; }

struct I64 {
  static constexpr std::int64_t width = 8;
  __m512i v;

  static I64 all(std::int64_t x) { return {_mm512_set1_epi64(x)}; }
  static I64 load(const std::int64_t* from) { return {_mm512_loadu_si512(from)}; }
  void store(std::int64_t* to) const { _mm512_storeu_si512(to, v); }
};
inline I64 where(Mask64 m, I64 a, I64 b) { return {_mm512_mask_mov_epi64(b.v, m.v, a.v)}; }

inline float reduce_min(F32 a) { return _mm512_reduce_min_ps(a.v); }
inline double reduce_min(F64 a) { return _mm512_reduce_min_pd(a.v); }

// Moves the chosen lanes together. A store writes a whole vector, of which the first `count` lanes mean something: the
// array needs room for that. (Compressing right into memory would write no more than that, and is slow on Zen 4.)
struct Packing {
  __mmask16 v;
  std::int64_t count;

  explicit Packing(Mask32 chosen) : v(chosen.v), count(_mm_popcnt_u32(chosen.v)) {}
  void store(float* to, F32 from) const { _mm512_storeu_ps(to, _mm512_maskz_compress_ps(v, from.v)); }
  void store(std::int32_t* to, I32 from) const { _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(v, from.v)); }
};

#elif defined(__AVX2__)

struct Mask32 {
  __m256 v;  // lanes of ones or of zeros

  static Mask32 from_bits(std::uint32_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i own = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(own, lane))};
  }
  // The first n lanes, all of them for a larger n.
  static Mask32 first(std::int64_t n) {
    const __m256i end = _mm256_set1_epi32(n < 8 ? static_cast<int>(n) : 8);
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(end, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))};
  }
};
inline std::uint32_t bits(Mask32 m) { return static_cast<std::uint32_t>(_mm256_movemask_ps(m.v)); }
inline Mask32 operator&(Mask32 a, Mask32 b) { return {_mm256_and_ps(a.v, b.v)}; }
inline Mask32 operator|(Mask32 a, Mask32 b) { return {_mm256_or_ps(a.v, b.v)}; }
inline Mask32 operator~(Mask32 a) { return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))}; }

struct Mask64 {
  __m256d v;

  static Mask64 from_bits(std::uint32_t bits) {
    const __m256i lane = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i own = _mm256_and_si256(_mm256_set1_epi64x(bits), lane);
    return {_mm256_castsi256_pd(_mm256_cmpeq_epi64(own, lane))};
  }
  static Mask64 first(std::int64_t n) {
    return {_mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)))};
  }
};
inline std::uint32_t bits(Mask64 m) { return static_cast<std::uint32_t>(_mm256_movemask_pd(m.v)); }
inline Mask64 operator&(Mask64 a, Mask64 b) { return {_mm256_and_pd(a.v, b.v)}; }
inline Mask64 operator|(Mask64 a, Mask64 b) { return {_mm256_or_pd(a.v, b.v)}; }
inline Mask64 operator~(Mask64 a) { return {_mm256_xor_pd(a.v, _mm256_castsi256_pd(_mm256_set1_epi32(-1)))}; }

struct F32 {
  static constexpr std::int64_t width = 8;
  __m256 v;

  static F32 all(float x) { return {_mm256_set1_ps(x)}; }
  static F32 load(const float* from) { return {_mm256_loadu_ps(from)}; }
  void store(float* to) const { _mm256_storeu_ps(to, v); }
};
inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Mask32 operator>(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask32 operator<(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask32 operator>=(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask32 operator==(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline F32 where(Mask32 m, F32 a, F32 b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }

struct F64 {
  static constexpr std::int64_t width = 4;
  __m256d v;

  static F64 all(double x) { return {_mm256_set1_pd(x)}; }
  static F64 load(const double* from) { return {_mm256_loadu_pd(from)}; }
  void store(double* to) const { _mm256_storeu_pd(to, v); }
};
inline F64 operator+(F64 a, F64 b) { return {_mm256_add_pd(a.v, b.v)}; }
inline F64 operator-(F64 a, F64 b) { return {_mm256_sub_pd(a.v, b.v)}; }
inline F64 min(F64 a, F64 b) { return {_mm256_min_pd(a.v, b.v)}; }
inline F64 max(F64 a, F64 b) { return {_mm256_max_pd(a.v, b.v)}; }
inline Mask64 operator>(F64 a, F64 b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_GT_OQ)}; }
inline Mask64 operator<(F64 a, F64 b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask64 operator>=(F64 a, F64 b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_GE_OQ)}; }
inline Mask64 operator==(F64 a, F64 b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_EQ_OQ)}; }
inline F64 where(Mask64 m, F64 a, F64 b) { return {_mm256_blendv_pd(b.v, a.v, m.v)}; }

struct I32 {
  static constexpr std::int64_t width = 8;
  __m256i v;

  static I32 all(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
  static I32 load(const std::int32_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(from))}; }
  void store(std::int32_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(to), v); }
};
inline I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I32 where(Mask32 m, I32 a, I32 b) { return {_mm256_blendv_epi8(b.v, a.v, _mm256_castps_si256(m.v))}; }
inline I32 add_one(Mask32 m, I32 a) { return {_mm256_sub_epi32(a.v, _mm256_castps_si256(m.v))}; }

struct I64 {
  static constexpr std::int64_t width = 4;
  __m256i v;

  static I64 all(std::int64_t x) { return {_mm256_set1_epi64x(x)}; }
  static I64 load(const std::int64_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(from))}; }
  void store(std::int64_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(to), v); }
};
inline I64 where(Mask64 m, I64 a, I64 b) { return {_mm256_blendv_epi8(b.v, a.v, _mm256_castpd_si256(m.v))}; }

inline float reduce_min(F32 a) {
  const __m128 four = _mm_min_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_min_ss(two, _mm_movehdup_ps(two)));
}
inline double reduce_min(F64 a) {
  const __m128d two = _mm_min_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_min_sd(two, _mm_unpackhi_pd(two, two)));
}

// For each of the 256 masks, which lane goes to each place.
struct Permutations {
  std::uint8_t lanes[256][8] = {};

  constexpr Permutations() {
    for (unsigned mask = 0; mask < 256; ++mask) {
      int place = 0;
      for (std::uint8_t lane = 0; lane < 8; ++lane) {
        if ((mask >> lane) & 1u) lanes[mask][place++] = lane;
      }
    }
  }
};
constexpr Permutations permutations;

// Moves the chosen lanes together. A store writes a whole vector, of which the first `count` lanes mean something: the
// array needs room for that.
struct Packing {
  __m256i order;
  std::int64_t count;

  explicit Packing(Mask32 chosen)
      : order(_mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(permutations.lanes[bits(chosen)])))),
        count(_mm_popcnt_u32(bits(chosen))) {}
  void store(float* to, F32 from) const { _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(from.v, order)); }
  void store(std::int32_t* to, I32 from) const { I32{_mm256_permutevar8x32_epi32(from.v, order)}.store(to); }
};

#else  // vectors of 16 bytes as GCC and Clang offer them on every machine

struct Mask32 {
  typedef std::int32_t Lanes __attribute__((vector_size(16)));
  Lanes v;  // -1 or 0

  static Mask32 from_bits(std::uint32_t bits) {
    const auto own = static_cast<std::int32_t>(bits);
    return {(Lanes{own, own, own, own} & Lanes{1, 2, 4, 8}) != 0};
  }
  // The first n lanes, all of them for a larger n.
  static Mask32 first(std::int64_t n) {
    const auto end = static_cast<std::int32_t>(n < 4 ? n : 4);
    return {Lanes{0, 1, 2, 3} < Lanes{end, end, end, end}};
  }
};
inline std::uint32_t bits(Mask32 m) {
  const Mask32::Lanes own = m.v & Mask32::Lanes{1, 2, 4, 8};
  return static_cast<std::uint32_t>(own[0] | own[1] | own[2] | own[3]);
}
inline Mask32 operator&(Mask32 a, Mask32 b) { return {a.v & b.v}; }
inline Mask32 operator|(Mask32 a, Mask32 b) { return {a.v | b.v}; }
inline Mask32 operator~(Mask32 a) { return {~a.v}; }

struct Mask64 {
  typedef std::int64_t Lanes __attribute__((vector_size(16)));
  Lanes v;

  static Mask64 from_bits(std::uint32_t bits) { return {(Lanes{bits, bits} & Lanes{1, 2}) != 0}; }
  static Mask64 first(std::int64_t n) { return {Lanes{0, 1} < Lanes{n, n}}; }
};
inline std::uint32_t bits(Mask64 m) { return static_cast<std::uint32_t>((m.v[0] & 1) | (m.v[1] & 2)); }
inline Mask64 operator&(Mask64 a, Mask64 b) { return {a.v & b.v}; }
inline Mask64 operator|(Mask64 a, Mask64 b) { return {a.v | b.v}; }
inline Mask64 operator~(Mask64 a) { return {~a.v}; }

struct F32 {
  static constexpr std::int64_t width = 4;
  typedef float Lanes __attribute__((vector_size(16)));
  Lanes v;

  static F32 all(float x) { return {Lanes{x, x, x, x}}; }
  static F32 load(const float* from) { return {Lanes{from[0], from[1], from[2], from[3]}}; }
  void store(float* to) const { __builtin_memcpy(to, &v, sizeof v); }
};
inline F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
inline F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
inline F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
inline F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
inline Mask32 operator>(F32 a, F32 b) { return {a.v > b.v}; }
inline Mask32 operator<(F32 a, F32 b) { return {a.v < b.v}; }
inline Mask32 operator>=(F32 a, F32 b) { return {a.v >= b.v}; }
inline Mask32 operator==(F32 a, F32 b) { return {a.v == b.v}; }
inline F32 where(Mask32 m, F32 a, F32 b) { return {m.v ? a.v : b.v}; }
inline F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
inline F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }

struct F64 {
  static constexpr std::int64_t width = 2;
  typedef double Lanes __attribute__((vector_size(16)));
  Lanes v;

  static F64 all(double x) { return {Lanes{x, x}}; }
  static F64 load(const double* from) { return {Lanes{from[0], from[1]}}; }
  void store(double* to) const { __builtin_memcpy(to, &v, sizeof v); }
};
inline F64 operator+(F64 a, F64 b) { return {a.v + b.v}; }
inline F64 operator-(F64 a, F64 b) { return {a.v - b.v}; }
inline Mask64 operator>(F64 a, F64 b) { return {a.v > b.v}; }
inline Mask64 operator<(F64 a, F64 b) { return {a.v < b.v}; }
inline Mask64 operator>=(F64 a, F64 b) { return {a.v >= b.v}; }
inline Mask64 operator==(F64 a, F64 b) { return {a.v == b.v}; }
inline F64 where(Mask64 m, F64 a, F64 b) { return {m.v ? a.v : b.v}; }
inline F64 min(F64 a, F64 b) { return {a.v < b.v ? a.v : b.v}; }
inline F64 max(F64 a, F64 b) { return {a.v > b.v ? a.v : b.v}; }

struct I32 {
  static constexpr std::int64_t width = 4;
  Mask32::Lanes v;

  static I32 all(std::int32_t x) { return {Mask32::Lanes{x, x, x, x}}; }
  static I32 load(const std::int32_t* from) { return {Mask32::Lanes{from[0], from[1], from[2], from[3]}}; }
  void store(std::int32_t* to) const { __builtin_memcpy(to, &v, sizeof v); }
};
inline I32 operator+(I32 a, I32 b) { return {a.v + b.v}; }
inline I32 where(Mask32 m, I32 a, I32 b) { return {m.v ? a.v : b.v}; }
inline I32 add_one(Mask32 m, I32 a) { return {a.v - m.v}; }

struct I64 {
  static constexpr std::int64_t width = 2;
  Mask64::Lanes v;

  static I64 all(std::int64_t x) { return {Mask64::Lanes{x, x}}; }
  static I64 load(const std::int64_t* from) { return {Mask64::Lanes{from[0], from[1]}}; }
  void store(std::int64_t* to) const { __builtin_memcpy(to, &v, sizeof v); }
};
inline I64 where(Mask64 m, I64 a, I64 b) { return {m.v ? a.v : b.v}; }

inline float reduce_min(F32 a) {
  const float low = a.v[0] < a.v[1] ? a.v[0] : a.v[1], high = a.v[2] < a.v[3] ? a.v[2] : a.v[3];
  return low < high ? low : high;
}
inline double reduce_min(F64 a) { return a.v[0] < a.v[1] ? a.v[0] : a.v[1]; }

// Moves the chosen lanes together. A store writes a whole vector, of which the first `count` lanes mean something: the
// array needs room for that.
struct Packing {
  std::int64_t place[4];  // of each lane; one that is not chosen is written over by the next
  std::int64_t count;

  explicit Packing(Mask32 chosen) : count(0) {
    for (int lane = 0; lane < 4; ++lane) {
      place[lane] = count;
      count -= chosen.v[lane];
    }
  }
  void store(float* to, F32 from) const {
    for (int lane = 0; lane < 4; ++lane) to[place[lane]] = from.v[lane];
  }
  void store(std::int32_t* to, I32 from) const {
    for (int lane = 0; lane < 4; ++lane) to[place[lane]] = from.v[lane];
  }
};

#endif

inline bool any(Mask32 m) { return bits(m) != 0; }
inline bool any(Mask64 m) { return bits(m) != 0; }

}  // namespace
}  // namespace tallymill::TALLYMILL_PATH
