// Assignment of least cost, compiled once a path: no standard library here (see lanes.h).
//
// Jonker and Volgenant's algorithm (Computing 38, 1987) for rows <= columns: every row first takes a cheapest column if
// one is free; where that leaves many out and all columns get a row, every column takes a cheapest row instead. Rows that
// are left bid for columns, which lowers prices; those still left then look for the cheapest alternation of paired and
// unpaired edges that ends in a free column. Unless all columns get a row, the price of a column only falls below 0 once
// it has one, so that columns without one cost nothing, which is what optimality asks of them.
//
// Every choice is by least value and then least column, so that all paths give the same pairs.
#include "lanes.h"
#include "match.h"

namespace tallymill::TALLYMILL_PATH {
namespace {

template <typename Real>
constexpr Real infinity = static_cast<Real>(__builtin_inf());

// What differs between precisions.
struct Single {
  using Real = float;
  using Lanes = F32;
  using IndexLanes = I32;
  using Scratch = MatchScratch32;
  static constexpr bool reduces_columns = false;  // similarities are mostly 0, and a free cheapest column is common
  static IndexLanes index(std::int32_t i) { return I32::all(i); }
};
struct Double {
  using Real = double;
  using Lanes = F64;
  using IndexLanes = I64;
  using Scratch = MatchScratch64;
  static constexpr bool reduces_columns = true;
  static IndexLanes index(std::int32_t i) { return I64::all(i); }
};

// Rows begin at whole vectors.
template <typename Lanes>
std::int64_t stride_of(std::int64_t columns) {
  return (columns + Lanes::width - 1) / Lanes::width * Lanes::width;
}

// The two least of what a row would pay, and the first column that costs the least.
template <typename Real>
struct Offers {
  Real best, second;
  std::int64_t column;
};

// Blocks: how many vectors hold all columns, or 0 where only `blocks` tells. Knowing it, the compiler unrolls.
template <typename Kind, int Blocks>
class Problem {
  using Real = typename Kind::Real;
  using Lanes = typename Kind::Lanes;
  static constexpr std::int64_t width = Lanes::width;

 public:
  // Uneven: costs are of very different magnitudes. A bid may then lower a price by far more than the assignment will
  // cost, and what is small would be lost in rounding; so no row bids.
  Problem(const typename Kind::Scratch& scratch, std::int64_t rows, std::int64_t columns, bool uneven)
      : s(scratch), rows(rows), columns(columns), stride(stride_of<Lanes>(columns)), runtime_blocks(stride / width),
        uneven(uneven) {}

  // Leaves every row's column in column_of. False when some row can get none.
  bool solve() {
    std::int64_t left = take_cheapest();
    // Few rows are left out where there are many ties; those problems, and small ones, are solved sooner without.
    if (Kind::reduces_columns && rows == columns && !uneven && rows > 32 && left > rows / 5) left = reduce_columns();
    for (int round = 0; round < 2 && left > 0 && !uneven; ++round) left = bid(left);
    if (left < 0) return false;
    for (std::int64_t k = 0; k < left; ++k) {
      if (!find_alternation(s.looking[k])) return false;
    }
    return true;
  }

 private:
  const typename Kind::Scratch& s;
  std::int64_t rows, columns, stride, runtime_blocks;
  bool uneven;

  std::int64_t blocks() const { return Blocks > 0 ? Blocks : runtime_blocks; }
  const Real* row(std::int64_t i) const { return s.costs + i * stride; }

  void pair(std::int64_t i, std::int64_t j) {
    s.row_of[j] = static_cast<std::int32_t>(i);
    s.column_of[i] = static_cast<std::int32_t>(j);
    s.open[j / width] &= ~(1u << (j % width));
  }

  // Returns how many rows are left without a column, -1 when one can have none.
  std::int64_t take_cheapest() {
    for (std::int64_t b = 0; b < blocks(); ++b) {
      Lanes::all(0).store(s.price + width * b);
      const std::int64_t here = columns - width * b;
      s.open[b] = here >= width ? (1u << width) - 1u : here > 0 ? (1u << here) - 1u : 0u;
    }
    for (std::int64_t j = 0; j < stride; ++j) s.row_of[j] = -1;
    std::int64_t left = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const Real* cost = row(i);
      Lanes least = Lanes::load(cost);
      for (std::int64_t b = 1; b < blocks(); ++b) least = min(least, Lanes::load(cost + width * b));
      const Real cheapest = reduce_min(least);
      if (cheapest == infinity<Real>) return -1;
      s.column_of[i] = -1;
      const Lanes wanted = Lanes::all(cheapest);
      std::int64_t b = 0;
      std::uint32_t free = 0;
      while (b < blocks() && (free = bits(Lanes::load(cost + width * b) == wanted) & s.open[b]) == 0) ++b;
      if (free != 0) pair(i, width * b + __builtin_ctz(free));
      else s.looking[left++] = static_cast<std::int32_t>(i);
    }
    return left;
  }

  // The start for as many rows as columns, where prices may be anything: every column's price is its least cost, and the
  // row that has it takes it, the last such column. Returns as take_cheapest() does.
  std::int64_t reduce_columns() {
    for (std::int64_t b = 0; b < blocks(); ++b) {
      Lanes least = Lanes::load(s.costs + width * b);
      auto from = Kind::index(0);
      for (std::int64_t i = 1; i < rows; ++i) {
        const Lanes cost = Lanes::load(row(i) + width * b);
        from = where(cost < least, Kind::index(static_cast<std::int32_t>(i)), from);
        least = min(cost, least);
      }
      least.store(s.price + width * b);
      from.store(s.reached_from + width * b);
      const std::int64_t here = columns - width * b;
      s.open[b] = here >= width ? (1u << width) - 1u : here > 0 ? (1u << here) - 1u : 0u;
    }
    for (std::int64_t i = 0; i < rows; ++i) s.column_of[i] = -1;
    for (std::int64_t j = columns; j < stride; ++j) s.row_of[j] = -1, s.price[j] = 0;
    for (std::int64_t j = columns; j-- > 0;) {
      if (s.price[j] == infinity<Real>) return -1;
      s.row_of[j] = -1;
      const auto i = static_cast<std::int64_t>(s.reached_from[j]);
      if (s.column_of[i] < 0) pair(i, j);
    }
    std::int64_t left = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (s.column_of[i] < 0) s.looking[left++] = static_cast<std::int32_t>(i);
      else transfer(i);
    }
    return left;
  }

  // Lowers the price of a row's column until the row could as well have its second best.
  void transfer(std::int64_t i) {
    const std::int64_t own = s.column_of[i];
    const Real price = s.price[own];
    s.price[own] = -infinity<Real>;
    Lanes least = Lanes::all(infinity<Real>);
    for (std::int64_t b = 0; b < blocks(); ++b) {
      least = min(Lanes::load(row(i) + width * b) - Lanes::load(s.price + width * b), least);
    }
    const Real second = reduce_min(least), best = row(i)[own] - price;
    s.price[own] = second < infinity<Real> && second > best ? price - (second - best) : price;
  }

  Offers<Real> offers(std::int64_t i) const {
    const Real* cost = row(i);
    const Lanes none = Lanes::all(infinity<Real>);
    Lanes best = none, second = none;
    for (std::int64_t b = 0; b < blocks(); ++b) {
      const Lanes net = Lanes::load(cost + width * b) - Lanes::load(s.price + width * b);
      second = min(second, max(net, best));
      best = min(best, net);
    }
    const Real least = reduce_min(best);
    const Lanes wanted = Lanes::all(least);
    // The lanes of `best` that do not hold the least compete with `second`; two lanes that hold it are a tie.
    const std::uint32_t holders = bits(best == wanted);
    Real runner_up = least;
    if ((holders & (holders - 1)) == 0) {
      const Real rest = reduce_min(where(best == wanted, none, best)), other = reduce_min(second);
      runner_up = rest < other ? rest : other;
    }
    for (std::int64_t b = 0;; ++b) {
      const Lanes net = Lanes::load(cost + width * b) - Lanes::load(s.price + width * b);
      if (const std::uint32_t found = bits(net == wanted)) return {least, runner_up, width * b + __builtin_ctz(found)};
    }
  }

  // The first column without a row that a row would pay so much for; -1 for none.
  std::int64_t free_at(std::int64_t i, Real net) const {
    const Lanes wanted = Lanes::all(net);
    for (std::int64_t b = 0; b < blocks(); ++b) {
      const Lanes here = Lanes::load(row(i) + width * b) - Lanes::load(s.price + width * b);
      if (const std::uint32_t found = bits(here == wanted) & s.open[b]) return width * b + __builtin_ctz(found);
    }
    return -1;
  }

  // Every row that looks takes its best column from whoever has it and lowers the column's price until it is no better
  // than the second best. A row that was robbed looks again, at once. Returns how many are left, -1 when one can have no
  // column.
  std::int64_t bid(std::int64_t looking) {
    std::int64_t budget = 5 * looking + 8, left = 0;
    for (std::int64_t k = 0; k < looking;) {
      const std::int32_t i = s.looking[k++];
      if (budget-- <= 0) {
        s.later[left++] = i;
        continue;
      }
      Offers<Real> offer = offers(i);
      if (offer.best == infinity<Real>) return -1;
      std::int32_t robbed = s.row_of[offer.column];
      const Real price = s.price[offer.column] - (offer.second - offer.best);
      // Rounding may leave the price where it was; an only offer has no second.
      const bool moves = offer.second < infinity<Real> && price < s.price[offer.column];
      if (!moves && robbed >= 0) {
        // Robbing could go on for ever at the same price. Of columns that are as good, one may be free.
        offer.column = free_at(i, offer.best);
        if (offer.column < 0) {
          s.later[left++] = i;
          continue;
        }
        robbed = -1;
      }
      if (moves) s.price[offer.column] = price;
      pair(i, offer.column);
      if (robbed >= 0) {
        s.column_of[robbed] = -1;
        s.looking[--k] = robbed;
      }
    }
    for (std::int64_t k = 0; k < left; ++k) s.looking[k] = s.later[k];
    return left;
  }

  // Shortens distances by going on from row i, whose own net cost lies `base` below its distance; returns the least.
  template <bool First>
  Real extend(std::int32_t i, Real base) {
    const Real* cost = row(i);
    const Lanes from = Lanes::all(base);
    const auto here = Kind::index(i);
    Lanes least = Lanes::all(infinity<Real>);
    for (std::int64_t b = 0; b < blocks(); ++b) {
      const std::int64_t j = width * b;
      const Lanes way = from + (Lanes::load(cost + j) - Lanes::load(s.price + j));
      if constexpr (First) {
        way.store(s.distance + j);
        here.store(s.reached_from + j);
        least = min(least, way);
      } else {
        const Lanes known = Lanes::load(s.distance + j);
        const auto shorter = way < known;
        if (any(shorter)) {
          min(way, known).store(s.distance + j);
          where(shorter, here, Kind::IndexLanes::load(s.reached_from + j)).store(s.reached_from + j);
        }
        least = min(least, min(way, known));
      }
    }
    return reduce_min(least);
  }

  // The first column at that distance, if possible one without a row.
  std::int64_t nearest(Real distance) const {
    const Lanes wanted = Lanes::all(distance);
    std::int64_t taken = -1;
    for (std::int64_t b = 0; b < blocks(); ++b) {
      const std::uint32_t at = bits(Lanes::load(s.distance + width * b) == wanted);
      if (at == 0) continue;
      if (const std::uint32_t free = at & s.open[b]) return width * b + __builtin_ctz(free);
      if (taken < 0) taken = width * b + __builtin_ctz(at);
    }
    return taken;
  }

  // Dijkstra over columns from row `start`. A settled column's price is minus infinity meanwhile, which makes every way
  // to it infinitely long, as its distance is, so that the loops need not tell settled columns from others.
  bool find_alternation(std::int32_t start) {
    std::int64_t settled = 0;
    Real distance = extend<true>(start, 0);
    std::int64_t column = -1;
    while (distance < infinity<Real>) {
      column = nearest(distance);
      const std::int32_t next = s.row_of[column];
      if (next < 0) break;
      const Real net = row(next)[column] - s.price[column];
      s.settled[settled] = static_cast<std::int32_t>(column);
      s.settled_distance[settled] = distance;
      s.settled_price[settled++] = s.price[column];
      s.price[column] = -infinity<Real>;
      s.distance[column] = infinity<Real>;
      distance = extend<false>(next, distance - net);
    }
    const bool found = distance < infinity<Real>;
    for (std::int64_t k = 0; k < settled; ++k) {
      s.price[s.settled[k]] = s.settled_price[k] + (found ? s.settled_distance[k] - distance : 0);
    }
    if (!found) return false;
    for (std::int64_t j = column;;) {
      const auto i = static_cast<std::int32_t>(s.reached_from[j]);
      const std::int32_t before = s.column_of[i];
      pair(i, j);
      if (i == start) return true;
      j = before;
    }
  }
};

template <typename Kind>
bool solve(const typename Kind::Scratch& s, std::int64_t rows, std::int64_t columns, bool uneven) {
  switch (stride_of<typename Kind::Lanes>(columns) / Kind::Lanes::width) {
    case 1: return Problem<Kind, 1>(s, rows, columns, uneven).solve();
    case 2: return Problem<Kind, 2>(s, rows, columns, uneven).solve();
    case 3: return Problem<Kind, 3>(s, rows, columns, uneven).solve();
    case 4: return Problem<Kind, 4>(s, rows, columns, uneven).solve();
    default: return Problem<Kind, 0>(s, rows, columns, uneven).solve();
  }
}

// --- Costs as given ------------------------------------------------------------------------------------------------

struct Loaded {
  double least, most;           // of the finite entries
  double smallest, largest;     // of their magnitudes; 0 is none
  std::int64_t undefined;
  bool refused;

  bool uneven() const { return largest > 0x1p30 * smallest; }
};

// Lays costs out as rows <= columns, to be minimised, NaN as forbidden. Sums of what is huge must stay finite, so that
// such costs are scaled by a power of two, which changes no digit but of what is too small to matter beside them.
template <typename Real>
Loaded lay_out(const Costs& costs, const Real* entries, double scale, const MatchScratch64& s) {
  const bool turned = costs.rows > costs.columns;
  const std::int64_t rows = turned ? costs.columns : costs.rows, columns = turned ? costs.rows : costs.columns;
  const std::int64_t stride = stride_of<F64>(columns);
  const double sign = costs.maximize ? -scale : scale;
  const F64 zero = F64::all(0.0), above = F64::all(infinity<double>), below = F64::all(-infinity<double>);
  F64 least = above, most = below, smallest = above;
  std::int64_t undefined = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    double* to = s.costs + i * stride;
    if (turned) {
      for (std::int64_t j = 0; j < columns; ++j) to[j] = sign * static_cast<double>(entries[j * costs.columns + i]);
    } else {
      const Real* from = entries + i * columns;
      for (std::int64_t j = 0; j < columns; ++j) to[j] = sign * static_cast<double>(from[j]);
    }
    for (std::int64_t j = columns; j < stride; ++j) to[j] = infinity<double>;
    for (std::int64_t j = 0; j < columns; j += F64::width) {
      F64 cost = F64::load(to + j);
      if (const std::uint32_t broken = bits(~(cost == cost))) {
        undefined += __builtin_popcount(broken);
        cost = where(cost == cost, cost, above);
        cost.store(to + j);
      }
      const F64 magnitude = max(cost, zero - cost);
      least = min(cost, least);
      most = max(where(cost < above, cost, below), most);
      smallest = min(where(magnitude > zero, magnitude, above), smallest);
    }
  }
  Loaded loaded{reduce_min(least), -reduce_min(zero - most), reduce_min(smallest), 0.0, undefined, false};
  loaded.largest = loaded.most > -loaded.least ? loaded.most : -loaded.least;
  loaded.refused = loaded.least == -infinity<double>;
  return loaded;
}

Loaded lay_out(const Costs& costs, double scale, const MatchScratch64& s) {
  return costs.is_double ? lay_out(costs, static_cast<const double*>(costs.entries), scale, s)
                         : lay_out(costs, static_cast<const float*>(costs.entries), scale, s);
}

double entry(const Costs& costs, std::int64_t i, std::int64_t j) {
  const std::int64_t at = i * costs.columns + j;
  return costs.is_double ? static_cast<const double*>(costs.entries)[at] : static_cast<const float*>(costs.entries)[at];
}

// Where no assignment of all rows exists: forbidden pairs get a cost above that of any assignment without them, so that
// the least total has as few of them as can be.
void price_forbidden(const Loaded& loaded, std::int64_t rows, std::int64_t columns, const MatchScratch64& s) {
  const double range = loaded.most > loaded.least ? loaded.most - loaded.least : 1.0;
  const double forbidden = range * static_cast<double>(rows + 1);
  const std::int64_t stride = stride_of<F64>(columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double& cost = s.costs[i * stride + j];
      cost = cost < infinity<double> ? cost - loaded.least : forbidden;
    }
  }
}

}  // namespace

Solution assign(const Costs& costs, const MatchScratch64& s, std::int64_t* column) noexcept {
  constexpr double huge = 0x1p1000, shrink = 0x1p-24;  // 1e-300 stays a normal number
  const bool turned = costs.rows > costs.columns;
  const std::int64_t rows = turned ? costs.columns : costs.rows, columns = turned ? costs.rows : costs.columns;
  for (std::int64_t i = 0; i < costs.rows; ++i) column[i] = -1;
  Solution solution{0, 0, false, 0.0};
  if (rows == 0) return solution;
  Loaded loaded = lay_out(costs, 1.0, s);
  solution.undefined = loaded.undefined;
  solution.refused = loaded.refused;
  if (loaded.refused || loaded.least == infinity<double>) return solution;
  if (loaded.most > huge || loaded.least < -huge) loaded = lay_out(costs, shrink, s);
  if (!solve<Double>(s, rows, columns, loaded.uneven())) {
    price_forbidden(loaded, rows, columns, s);
    solve<Double>(s, rows, columns, loaded.uneven());
  }
  for (std::int64_t i = 0; i < costs.rows; ++i) {
    const std::int64_t j = turned ? s.row_of[i] : s.column_of[i];
    if (j < 0) continue;
    const double cost = entry(costs, i, j);
    if (cost - cost != 0.0) continue;  // infinite or NaN: forbidden
    column[i] = j;
    solution.total += cost;
    ++solution.pairs;
  }
  return solution;
}

// --- Boxes ---------------------------------------------------------------------------------------------------------

namespace {

void lay_out_boxes(const float* boxes, std::int64_t size, const MatchScratch32& s) {
  const std::int64_t stride = stride_of<F32>(size);
  float *x1 = s.corners, *y1 = x1 + stride, *x2 = y1 + stride, *y2 = x2 + stride, *area = y2 + stride;
  for (std::int64_t j = 0; j < size; ++j) {
    const float* box = boxes + 4 * j;
    x1[j] = box[0], y1[j] = box[1], x2[j] = box[2], y2[j] = box[3];
    area[j] = (box[2] - box[0]) * (box[3] - box[1]);
  }
  for (std::int64_t j = size; j < stride; ++j) x1[j] = y1[j] = x2[j] = y2[j] = area[j] = 0.0f;  // overlaps nothing
}

// Writes minus the IoU of one box with those laid out, 0 where it does not reach the gate; false if it never does.
// A degenerate box has no intersection with anything. An area beyond float32 makes the IoU NaN or 0: no match.
bool similarities(const float* box, std::int64_t size, float gate, const MatchScratch32& s, float* costs) {
  const std::int64_t stride = stride_of<F32>(size);
  const F32 zero = F32::all(0.0f), least = F32::all(gate);
  const F32 x1 = F32::all(box[0]), y1 = F32::all(box[1]), x2 = F32::all(box[2]), y2 = F32::all(box[3]);
  const F32 area = F32::all((box[2] - box[0]) * (box[3] - box[1]));
  Mask32 reached = Mask32::first(0);
  for (std::int64_t j = 0; j < stride; j += F32::width) {
    const float* corner = s.corners + j;
    const F32 width = min(x2, F32::load(corner + 2 * stride)) - max(x1, F32::load(corner));
    const F32 height = min(y2, F32::load(corner + 3 * stride)) - max(y1, F32::load(corner + stride));
    const Mask32 overlap = (width > zero) & (height > zero);
    const F32 intersection = width * height;
    const F32 iou = intersection / (area + F32::load(corner + 4 * stride) - intersection);
    const Mask32 counts = overlap & (iou >= least) & (iou > zero);
    reached = reached | counts;
    const F32 cost = where(counts, zero - iou, zero);
    where(Mask32::first(size - j), cost, F32::all(infinity<float>)).store(costs + j);
  }
  return any(reached);
}

}  // namespace

// Boxes that reach the gate with none stay out of the problem; the others may take a partner at no similarity, which is
// dropped afterwards.
void match(const Pairing& p, const MatchScratch32& s, std::int64_t* partner, float* iou) noexcept {
  for (std::int64_t i = 0; i < p.size_a; ++i) partner[i] = -1, iou[i] = 0.0f;
  const bool turned = p.size_a > p.size_b;
  const std::int64_t few = turned ? p.size_b : p.size_a, many = turned ? p.size_a : p.size_b;
  const float *rows = turned ? p.boxes_b : p.boxes_a, *columns = turned ? p.boxes_a : p.boxes_b;
  if (few == 0) return;
  lay_out_boxes(columns, many, s);
  const std::int64_t stride = stride_of<F32>(many);
  std::int64_t taking_part = 0;
  for (std::int64_t i = 0; i < few; ++i) {
    s.row_number[taking_part] = static_cast<std::int32_t>(i);
    taking_part += similarities(rows + 4 * i, many, p.gate, s, s.costs + taking_part * stride) ? 1 : 0;
  }
  if (taking_part == 0) return;
  solve<Single>(s, taking_part, many, false);
  for (std::int64_t k = 0; k < taking_part; ++k) {
    const std::int64_t j = s.column_of[k], i = s.row_number[k];
    const float similarity = -s.costs[k * stride + j];
    if (similarity == 0.0f) continue;
    partner[turned ? j : i] = turned ? i : j;
    iou[turned ? j : i] = similarity;
  }
}

}  // namespace tallymill::TALLYMILL_PATH
