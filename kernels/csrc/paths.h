// The choice between instruction sets at run time: code written on lanes.h is compiled once a path (CMakeLists.txt),
// anything else may carry TALLYMILL_CLONES and leave the choice to the compiler.
#pragma once

namespace tallymill {

enum class Path { portable, avx2, avx512 };

// Whether this machine, and its operating system, can run code of the path.
bool supported(Path path) noexcept;
Path best_path() noexcept;

// "cpu" is the best path; "portable", "avx2" and "avx512" are themselves. std::invalid_argument for any other name, and
// for a path that this machine cannot run.
Path path_named(const char* name);

}  // namespace tallymill

// TALLYMILL_EACH_PATH(void f(int) noexcept;) declares f in the namespace of every path that is compiled for this
// architecture, and TALLYMILL_ON(path, f) is the one to call.
#if defined(__x86_64__)
#define TALLYMILL_EACH_PATH(...)      \
  namespace portable { __VA_ARGS__ }  \
  namespace avx2 { __VA_ARGS__ }      \
  namespace avx512 { __VA_ARGS__ }
#define TALLYMILL_ON(path, function)                        \
  ((path) == ::tallymill::Path::avx512 ? &avx512::function  \
   : (path) == ::tallymill::Path::avx2 ? &avx2::function    \
                                       : &portable::function)
#else
#define TALLYMILL_EACH_PATH(...) \
  namespace portable { __VA_ARGS__ }
#define TALLYMILL_ON(path, function) (static_cast<void>(path), &portable::function)
#endif

// Before a function: compiled for several instruction sets, of which the loader picks one by what the machine can do (a
// processor's name, such as arch=haswell, would fit that processor only). The loader does so before a sanitizer is set
// up, so not then. Arithmetic stays what it was: -ffp-contract=off holds for all of them.
#include <climits>  // any header of the C library tells which one it is
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && !defined(TALLYMILL_SANITIZE)
#define TALLYMILL_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TALLYMILL_CLONES
#endif
