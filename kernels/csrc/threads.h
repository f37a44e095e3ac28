// Shares the items of a batch out over threads. Not for *_paths.cpp: what is here instantiates the standard library.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tallymill {

// Calls work(first, last, scratch) for pieces of [0, items) of up to `grain` items, on up to `threads` threads of which
// the caller is one. Each has a scratch of its own, made by make(); all are made before the first thread starts, so that
// nothing that runs on a thread need throw: work has to be noexcept. Which thread takes which piece is left to chance.
template <typename Make, typename Work>
void share_out(std::int64_t items, std::int64_t threads, std::int64_t grain, Make make, Work work) {
  using Scratch = decltype(make());
  static_assert(noexcept(work(items, items, std::declval<Scratch&>())));
  const std::int64_t pieces = (items + grain - 1) / grain;
  const auto workers = static_cast<std::size_t>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(pieces, 1)));
  std::vector<Scratch> scratch;
  scratch.reserve(workers);
  for (std::size_t i = 0; i < workers; ++i) scratch.push_back(make());
  std::atomic<std::int64_t> next{0};
  const auto take = [&](Scratch& own) noexcept {
    for (auto first = next.fetch_add(grain); first < items; first = next.fetch_add(grain)) {
      work(first, std::min(first + grain, items), own);
    }
  };
  std::vector<std::jthread> pool;
  pool.reserve(workers - 1);
  try {
    for (std::size_t i = 1; i < workers; ++i) pool.emplace_back([&take, &own = scratch[i]]() noexcept { take(own); });
  } catch (const std::system_error&) {
    // The system has no more threads to give: those that run take all pieces, with the same result.
  }
  take(scratch[0]);
}

// Items a piece, for many that take about as long: all of them for one thread, several pieces a thread otherwise.
inline std::int64_t fair_grain(std::int64_t items, std::int64_t threads) noexcept {
  return std::max<std::int64_t>(threads > 1 ? items / (8 * threads) : items, 1);
}

}  // namespace tallymill
