// The inner loops of suppression, compiled once a path: no standard library here (see lanes.h).
#include "lanes.h"
#include "nms.h"

namespace tallymill::TALLYMILL_PATH {
namespace {

constexpr std::int64_t few_vectors = 4;     // of scores that are sorted soonest by comparing all with all
constexpr std::int64_t few_thousand = 2048;  // keys that insertion may finish after two digits
constexpr std::int64_t few_moves = 32;       // a key that insertion may make
constexpr int digit_bits = 7;

// Smaller for a better box: a float's bits, taken as an integer, grow with it once the negative ones are turned over.
// The index below makes all keys differ, so that ties come by rising index however they are sorted.
std::uint64_t sort_key(float score, std::uint32_t index) {
  const float no_minus_zero = score + 0.0f;  // -0 and +0 are a tie
  std::uint32_t bits;
  __builtin_memcpy(&bits, &no_minus_zero, sizeof bits);
  const std::uint32_t rising = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return (std::uint64_t{~rising} << 32) | index;
}

// Gives up, and returns false, when that takes more than `moves`; equal scores are by rising index even then if they were.
bool sort_by_insertion(std::uint64_t* keys, std::int64_t n, std::int64_t moves) {
  for (std::int64_t i = 1; i < n; ++i) {
    const std::uint64_t key = keys[i];
    std::int64_t j = i;
    for (; j > 0 && keys[j - 1] > key; --j) keys[j] = keys[j - 1];
    keys[j] = key;
    moves -= i - j;
    if (moves < 0) return false;
  }
  return true;
}

bool is_sorted(const std::uint64_t* keys, std::int64_t n) {
  for (std::int64_t j = 1; j < n; ++j) {
    if (keys[j] < keys[j - 1]) return false;
  }
  return true;
}

// Stable sort by the bits of the score (the upper half of a key) that lie below `width`, from `shift` on; `base` is the
// least score. Returns where the sorted keys are.
std::uint64_t* sort_by_digits(std::uint64_t* keys, std::uint64_t* spare, std::int64_t n, std::uint32_t base, int shift,
                              int width) {
  constexpr std::uint32_t digits = 1u << digit_bits;
  for (; shift < width; shift += digit_bits) {
    const auto digit = [=](std::uint64_t key) { return ((static_cast<std::uint32_t>(key >> 32) - base) >> shift) % digits; };
    std::uint32_t place[digits] = {};
    for (std::int64_t j = 0; j < n; ++j) ++place[digit(keys[j])];
    std::uint32_t next = 0;
    for (std::uint32_t& each : place) {
      const std::uint32_t count = each;
      each = next;
      next += count;
    }
    for (std::int64_t j = 0; j < n; ++j) spare[place[digit(keys[j])]++] = keys[j];
    std::uint64_t* sorted = spare;
    spare = keys;
    keys = sorted;
  }
  return keys;
}

// The place of each score when they are sorted, ties by rising place: how many go before it. Comparing all with all needs
// no branch and no chain of stores, which makes it the fastest way for a while.
void rank(const float* scores, std::int32_t* ranks, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += F32::width) {
    const F32 own = F32::load(scores + i);
    const std::int64_t end = i + F32::width < n ? i + F32::width : n;
    I32 before = I32::all(0);
    for (std::int64_t j = 0; j < i; ++j) before = add_one(F32::all(scores[j]) >= own, before);
    for (std::int64_t j = i; j < end; ++j) {
      const F32 other = F32::all(scores[j]);
      before = add_one((other > own) | ((other == own) & ~Mask32::first(j - i + 1)), before);
    }
    for (std::int64_t j = end; j < n; ++j) before = add_one(F32::all(scores[j]) > own, before);
    before.store(ranks + i);
  }
}

// Returns where the sorted keys are; `scores` are theirs.
const std::uint64_t* sort(std::int64_t n, const float* scores, const NmsScratch& s) {
  if (n <= few_vectors * F32::width) {
    rank(scores, s.index, n);
    for (std::int64_t j = 0; j < n; ++j) s.spare[s.index[j]] = s.keys[j];
    return s.spare;
  }
  if (is_sorted(s.keys, n)) return s.keys;  // many detectors answer in this order already
  std::uint32_t least = 0xFFFFFFFFu, most = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto score = static_cast<std::uint32_t>(s.keys[j] >> 32);
    least = score < least ? score : least;
    most = score > most ? score : most;
  }
  // Two digits put nearly all keys of a segment in order, and insertion mends the rest. A long one gets all of its
  // digits, and so does one whose scores share their two: insertion would take the square of their number.
  const int width = least == most ? 0 : 32 - __builtin_clz(most - least);
  const int shift = n <= few_thousand && width > 2 * digit_bits ? width - 2 * digit_bits : 0;
  std::uint64_t* keys = sort_by_digits(s.keys, s.spare, n, least, shift, width);
  if (shift == 0 || sort_by_insertion(keys, n, few_moves * n)) return keys;
  return sort_by_digits(keys, keys == s.keys ? s.spare : s.keys, n, least, 0, width);
}

// Lays the boxes that take part out best first, and returns how many there are.
std::int64_t lay_out(const Segment& segment, const NmsScratch& s) {
  std::int64_t n = 0;
  for (std::int64_t j = 0; j < segment.size; ++j) {
    const float score = segment.scores[j * segment.stride];
    s.keys[n] = sort_key(score, static_cast<std::uint32_t>(j));
    s.area[n] = score;
    n += score >= segment.least_score ? 1 : 0;
  }
  const std::uint64_t* keys = sort(n, s.area, s);
  for (std::int64_t j = 0; j < n; ++j) {
    const auto index = static_cast<std::uint32_t>(keys[j]);
    const float* box = segment.boxes + 4 * std::int64_t{index};
    s.index[j] = static_cast<std::int32_t>(index);
    s.x1[j] = box[0], s.y1[j] = box[1], s.x2[j] = box[2], s.y2[j] = box[3];
    s.area[j] = (box[2] - box[0]) * (box[3] - box[1]);
  }
  return n;
}

struct Lanes {
  F32 x1, y1, x2, y2, area;

  static Lanes load(const NmsScratch& s, std::int64_t j) {
    return {F32::load(s.x1 + j), F32::load(s.y1 + j), F32::load(s.x2 + j), F32::load(s.y2 + j), F32::load(s.area + j)};
  }
  static Lanes all(const NmsScratch& s, std::int64_t j) {
    return {F32::all(s.x1[j]), F32::all(s.y1[j]), F32::all(s.x2[j]), F32::all(s.y2[j]), F32::all(s.area[j])};
  }
};

struct Threshold {
  F32 value, next;  // the float, and the one above it
};

// Whether the IoU of two boxes exceeds the threshold t, as it is defined: float32, one rounding an operation.
//
// Division is slow, and nearly always multiplication tells. Rounding keeps order: if the exact i / u is at most t, so is
// the rounded one, and likewise for t', the next float above t. So for floats i and u > 0:
// - i > round(t' * u) implies i > t' * u, hence round(i / u) >= t': it does.
// - i < round(t * u) implies i < t * u, hence round(i / u) <= t: it does not.
// What lies between has to be divided. Where boxes are apart, i is negative, zero or NaN (one of the two lengths need
// not be cut off at zero for that), and they do not. An area that overflows makes u infinite or NaN, areas that
// underflow make it 0 with i = 0: every test below, division included, then says no.
struct Overlap {
  F32 intersection, joint;

  Overlap(const Lanes& a, const Lanes& b) {
    const F32 width = max(min(a.x2, b.x2) - max(a.x1, b.x1), F32::all(0.0f));
    const F32 height = min(a.y2, b.y2) - max(a.y1, b.y1);
    intersection = width * height;
    joint = a.area + b.area - intersection;
  }
  Mask32 surely_exceeds(const Threshold& t) const { return intersection > t.next * joint; }
  Mask32 may_exceed(const Threshold& t) const { return intersection >= t.value * joint; }
  Mask32 exceeds(const Threshold& t) const { return intersection / joint > t.value; }
};

// Which of these boxes overlap one of the boxes first..last-1.
Mask32 overlap_any(std::int64_t first, std::int64_t last, const Lanes& boxes, const Threshold& threshold,
                   const NmsScratch& s) {
  Mask32 surely = Mask32::first(0), maybe = surely;
  for (std::int64_t k = first; k < last; ++k) {
    const Overlap overlap(Lanes::all(s, k), boxes);
    surely = surely | overlap.surely_exceeds(threshold);
    maybe = maybe | overlap.may_exceed(threshold);
  }
  if (!any(maybe & ~surely)) return surely;
  for (std::int64_t k = first; k < last; ++k) surely = surely | Overlap(Lanes::all(s, k), boxes).exceeds(threshold);
  return surely;
}

// Which of the `alive` lanes stay when each that does suppresses those after it.
Mask32 survivors(std::int64_t first, Mask32 alive, const Lanes& boxes, const Threshold& threshold, const NmsScratch& s) {
  std::uint32_t suppressed_by[F32::width];  // worked out ahead, so that no comparison waits for another
  for (std::uint32_t left = bits(alive); left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const Overlap overlap(Lanes::all(s, first + lane), boxes);
    const Mask32 surely = overlap.surely_exceeds(threshold), maybe = overlap.may_exceed(threshold);
    suppressed_by[lane] = bits(any(maybe & ~surely) ? overlap.exceeds(threshold) : surely);
  }
  std::uint32_t staying = bits(alive);
  for (std::uint32_t left = staying; left != 0;) {
    const int lane = __builtin_ctz(left);
    const std::uint32_t after = ~1u << lane;
    staying &= ~(suppressed_by[lane] & after);
    left = staying & after;
  }
  return Mask32::from_bits(staying);
}

// Writes those of the boxes from place `from` on that stay to place `to` and following; returns how many they are.
std::int64_t move_up(Mask32 staying, std::int64_t from, std::int64_t to, const Lanes& boxes, const NmsScratch& s) {
  const Packing packing(staying);
  packing.store(s.x1 + to, boxes.x1), packing.store(s.y1 + to, boxes.y1);
  packing.store(s.x2 + to, boxes.x2), packing.store(s.y2 + to, boxes.y2);
  packing.store(s.area + to, boxes.area), packing.store(s.index + to, I32::load(s.index + from));
  return packing.count;
}

}  // namespace

// The first `kept` boxes are settled, those after them undecided. A round settles a vector of them, and takes what these
// suppress out of the rest. (One box at a time would wait on each comparison, and to load what it has just stored.)
std::int64_t suppress(const Segment& segment, const NmsScratch& s) noexcept {
  const Threshold threshold{F32::all(segment.iou_threshold), F32::all(segment.next_threshold)};
  std::int64_t n = lay_out(segment, s), kept = 0;
  while (kept < n) {
    const std::int64_t first = kept;
    const Lanes best = Lanes::load(s, first);
    kept += move_up(survivors(first, Mask32::first(n - first), best, threshold, s), first, first, best, s);
    std::int64_t end = kept;
    for (std::int64_t j = first + F32::width; j < n; j += F32::width) {
      const Lanes rest = Lanes::load(s, j);
      const Mask32 staying = Mask32::first(n - j) & ~overlap_any(first, kept, rest, threshold, s);
      end += move_up(staying, j, end, rest, s);
    }
    n = end;
  }
  return kept;
}

bool all_valid(const float* boxes, std::int64_t size, const float* score, std::int64_t scores) noexcept {
  const F32 zero = F32::all(0.0f);
  Mask32 good = Mask32::first(F32::width);
  std::int64_t i = 0;
  // x - x is 0 unless x is infinite or NaN.
  for (; i + F32::width <= scores; i += F32::width) good = good & (F32::load(score + i) - F32::load(score + i) == zero);
  bool rest = true;
  for (; i < scores; ++i) rest &= score[i] - score[i] == 0.0f;
  // Two floats on, x2 and y2 lie over x1 and y1; what lies over the other two lanes of a box does not matter.
  const Mask32 far_corner = Mask32::from_bits(0xCCCCu & bits(good));
  for (i = 0; i + F32::width + 2 <= 4 * size; i += F32::width) {
    const F32 box = F32::load(boxes + i);
    good = good & (box - box == zero) & (far_corner | (F32::load(boxes + i + 2) > box));
  }
  for (; i < 4 * size; i += 4) {
    const float* box = boxes + i;
    for (int k = 0; k < 4; ++k) rest &= box[k] - box[k] == 0.0f;
    rest &= (box[2] > box[0]) & (box[3] > box[1]);
  }
  return rest && bits(~good) == 0;
}

}  // namespace tallymill::TALLYMILL_PATH
