#include "paths.h"

#include <stdexcept>
#include <string>

#include "bind.h"

namespace tallymill {

bool supported(Path path) noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  if (path == Path::avx2) return avx2;
  if (path == Path::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return path == Path::portable;
}

Path best_path() noexcept {
  static const Path best = supported(Path::avx512) ? Path::avx512
                           : supported(Path::avx2) ? Path::avx2
                                                   : Path::portable;
  return best;
}

Path path_named(const char* name) {
  const std::string wanted = name;
  if (wanted == "cpu") return best_path();
  const Path path = wanted == "avx512" ? Path::avx512 : wanted == "avx2" ? Path::avx2 : Path::portable;
  if (path == Path::portable && wanted != "portable") throw std::invalid_argument("no path " + wanted);
  if (!supported(path)) throw std::invalid_argument("this machine cannot run " + wanted);
  return path;
}

void bind_paths(nanobind::module_& m) {
  m.def("paths", [] {
    nanobind::list names;
    if (supported(Path::avx512)) names.append("avx512");
    if (supported(Path::avx2)) names.append("avx2");
    names.append("portable");
    return names;
  }, "Return the names of the instruction paths that this machine can run, the best first.");
}

}  // namespace tallymill
