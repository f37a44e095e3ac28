// Assignment over batches: costs as given, and boxes by their IoU. Contract and checks: kernels/match/__init__.py.
#include "match.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "floats.h"
#include "threads.h"

namespace tallymill {
namespace {

using Index = Vector<const std::int64_t>;
constexpr std::int64_t ALL_WELL = -1;

// The greatest extents of any problem, either way round: a long thin one and a square one need not be one that is both.
struct Room {
  std::int64_t few = 0, many = 0, entries = 0;

  static std::int64_t stride(std::int64_t columns) {
    constexpr std::int64_t widest = MatchScratch64::widest;
    return (columns + widest - 1) / widest * widest;
  }
  void take(std::int64_t rows, std::int64_t columns) {
    const std::int64_t shorter = std::min(rows, columns), longer = std::max(rows, columns);
    few = std::max(few, shorter);
    many = std::max(many, longer);
    if (longer > std::numeric_limits<std::int32_t>::max()) {
      throw std::length_error("a problem of over 2^31 rows or columns");
    }
    entries = std::max(entries, shorter * stride(longer));
  }
};

// The memory behind a MatchScratch.
template <typename Real, typename Wide>
class MatchMemory {
 public:
  using Scratch = MatchScratch<Real, Wide>;

  MatchMemory(const Room& room, bool of_boxes)
      : few_(static_cast<std::size_t>(room.few)),
        stride_(static_cast<std::size_t>(Room::stride(room.many))),
        costs_(std::make_unique_for_overwrite<Real[]>(static_cast<std::size_t>(room.entries))),
        columns_((of_boxes ? 7 : 2) * stride_ + 2 * few_),
        wide_(stride_),
        narrow_(stride_ + 5 * few_),
        open_(stride_) {}

  Scratch scratch() noexcept {
    Real* real = columns_.data();
    std::int32_t* narrow = narrow_.data();
    Scratch s{};
    s.costs = costs_.get();
    s.price = real, s.distance = real + stride_;
    s.settled_distance = real + 2 * stride_, s.settled_price = s.settled_distance + few_;
    s.corners = s.settled_price + few_;
    s.reached_from = wide_.data();
    s.row_of = narrow;
    s.column_of = narrow + stride_, s.looking = s.column_of + few_, s.later = s.looking + few_;
    s.settled = s.later + few_, s.row_number = s.settled + few_;
    s.open = open_.data();
    return s;
  }

 private:
  std::size_t few_, stride_;
  std::unique_ptr<Real[]> costs_;  // not zeroed: most of what a single call would do
  std::vector<Real> columns_;
  std::vector<Wide> wide_;
  std::vector<std::int32_t> narrow_;
  std::vector<std::uint32_t> open_;
};
using Memory32 = MatchMemory<float, std::int32_t>;
using Memory64 = MatchMemory<double, std::int64_t>;

// Problems one after another, of one shape or of shapes of their own.
struct Shapes {
  std::int64_t problems, rows, columns;
  const std::int64_t *each_rows = nullptr, *each_columns = nullptr, *starts = nullptr, *row_starts = nullptr;

  std::int64_t rows_of(std::int64_t b) const noexcept { return each_rows != nullptr ? each_rows[b] : rows; }
  std::int64_t columns_of(std::int64_t b) const noexcept { return each_columns != nullptr ? each_columns[b] : columns; }
  std::int64_t start(std::int64_t b) const noexcept { return starts != nullptr ? starts[b] : b * rows * columns; }
  std::int64_t first_row(std::int64_t b) const noexcept { return row_starts != nullptr ? row_starts[b] : b * rows; }
};

struct Found {
  std::int64_t* column;
  double* total;
  bool* complete;
  std::int64_t* undefined;
};

// Returns ALL_WELL, or a problem that has an infinitely good entry.
template <typename Entry>
std::int64_t assign_all(const Entry* entries, const Shapes& shapes, bool maximize, std::int64_t threads, Path path,
                        const Found& found) {
  nanobind::gil_scoped_release unlocked;
  const auto solve = TALLYMILL_ON(path, assign);
  Room room;
  for (std::int64_t b = 0; b < shapes.problems; ++b) {
    room.take(shapes.rows_of(b), shapes.columns_of(b));
    if (shapes.each_rows == nullptr) break;
  }
  std::atomic<std::int64_t> refused{ALL_WELL};
  share_out(
      shapes.problems, threads, fair_grain(shapes.problems, threads),
      [room] { return Memory64(room, false); },
      [&](std::int64_t first, std::int64_t last, Memory64& memory) noexcept {
        const MatchScratch64 scratch = memory.scratch();
        for (std::int64_t b = first; b < last; ++b) {
          const std::int64_t rows = shapes.rows_of(b), columns = shapes.columns_of(b);
          const Costs problem{entries + shapes.start(b), sizeof(Entry) == sizeof(double), maximize, rows, columns};
          const Solution solution = solve(problem, scratch, found.column + shapes.first_row(b));
          if (solution.refused) refused = b;
          found.total[b] = solution.total;
          found.complete[b] = solution.pairs == std::min(rows, columns);
          found.undefined[b] = solution.undefined;
        }
      });
  return refused;
}

template <typename Entry>
std::int64_t assign_dense(Vector<const Entry> costs, std::int64_t rows, std::int64_t columns, bool maximize,
                          std::int64_t threads, const char* path, Vector<std::int64_t> column, Vector<double> total,
                          Vector<bool> complete, Vector<std::int64_t> undefined) {
  return assign_all(costs.data(), {static_cast<std::int64_t>(total.size()), rows, columns}, maximize, threads,
                    path_named(path), {column.data(), total.data(), complete.data(), undefined.data()});
}

template <typename Entry>
std::int64_t assign_ragged(Vector<const Entry> costs, Index rows, Index columns, Index starts, Index row_starts,
                           bool maximize, std::int64_t threads, const char* path, Vector<std::int64_t> column,
                           Vector<double> total, Vector<bool> complete, Vector<std::int64_t> undefined) {
  const Shapes shapes{static_cast<std::int64_t>(rows.size()), 0, 0, rows.data(), columns.data(), starts.data(),
                      row_starts.data()};
  return assign_all(costs.data(), shapes, maximize, threads, path_named(path),
                    {column.data(), total.data(), complete.data(), undefined.data()});
}

bool all_finite(const float* values, std::int64_t size) noexcept {
  std::uint32_t broken = 0;
  for (std::int64_t i = 0; i < size; ++i) broken |= values[i] - values[i] == 0.0f ? 0u : 1u;
  return broken == 0;
}

// Returns ALL_WELL, or a pair of sets with a coordinate that is not finite.
std::int64_t match_all(Boxes<const float> boxes_a, Index offsets_a, Boxes<const float> boxes_b, Index offsets_b,
                       double gate, std::int64_t threads, const char* path_name, Vector<std::int64_t> partner,
                       Vector<float> iou) {
  const Path path = path_named(path_name);
  const auto run = TALLYMILL_ON(path, match);
  const auto problems = static_cast<std::int64_t>(offsets_a.size()) - 1;
  const float *a = boxes_a.data(), *b = boxes_b.data();
  const std::int64_t *begin_a = offsets_a.data(), *begin_b = offsets_b.data();
  std::int64_t* partners = partner.data();
  const float least = least_float_not_below(gate);
  nanobind::gil_scoped_release unlocked;
  Room room;
  for (std::int64_t i = 0; i < problems; ++i) room.take(begin_a[i + 1] - begin_a[i], begin_b[i + 1] - begin_b[i]);
  std::atomic<std::int64_t> refused{ALL_WELL};
  share_out(
      problems, threads, fair_grain(problems, threads), [room] { return Memory32(room, true); },
      [&](std::int64_t first, std::int64_t last, Memory32& memory) noexcept {
        const MatchScratch32 scratch = memory.scratch();
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t from_a = begin_a[i], from_b = begin_b[i];
          const Pairing pairing{a + 4 * from_a, b + 4 * from_b, begin_a[i + 1] - from_a, begin_b[i + 1] - from_b, least};
          if (!all_finite(pairing.boxes_a, 4 * pairing.size_a) || !all_finite(pairing.boxes_b, 4 * pairing.size_b)) {
            refused = i;
            continue;
          }
          run(pairing, scratch, partners + from_a, iou.data() + from_a);
          for (std::int64_t k = from_a; k < begin_a[i + 1]; ++k) {
            if (partners[k] >= 0) partners[k] += from_b;
          }
        }
      });
  return refused;
}

template <typename Entry>
void bind_assign(nanobind::module_& m, const char* dense, const char* ragged) {
  using nanobind::arg;
  const char* about =
      "Write each row's column, each problem's total, whether it is complete, and its NaN entries; return -1, or a problem "
      "with an entry that is infinitely good.";
  m.def(dense, &assign_dense<Entry>, arg("costs").noconvert(), arg("rows"), arg("columns"), arg("maximize"),
        arg("threads"), arg("path"), arg("column").noconvert(), arg("total").noconvert(), arg("complete").noconvert(),
        arg("undefined").noconvert(), about);
  m.def(ragged, &assign_ragged<Entry>, arg("costs").noconvert(), arg("rows").noconvert(), arg("columns").noconvert(),
        arg("starts").noconvert(), arg("row_starts").noconvert(), arg("maximize"), arg("threads"), arg("path"),
        arg("column").noconvert(), arg("total").noconvert(), arg("complete").noconvert(), arg("undefined").noconvert(),
        about);
}

}  // namespace

void bind_match(nanobind::module_& m) {
  using nanobind::arg;
  bind_assign<float>(m, "assign_dense_f32", "assign_ragged_f32");
  bind_assign<double>(m, "assign_dense_f64", "assign_ragged_f64");
  m.def("match", &match_all, arg("boxes_a").noconvert(), arg("offsets_a").noconvert(), arg("boxes_b").noconvert(),
        arg("offsets_b").noconvert(), arg("gate"), arg("threads"), arg("path"), arg("partner").noconvert(),
        arg("iou").noconvert(),
        "Write each a's partner among b, or -1, and their IoU; return -1, or a pair of sets with a coordinate that is not "
        "finite.");
}

}  // namespace tallymill
