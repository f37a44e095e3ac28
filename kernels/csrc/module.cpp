// The native module: one bind_* function an operation, each defined beside its kernel.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Compiled kernels of tallymill (arrays in, arrays out)."; }
