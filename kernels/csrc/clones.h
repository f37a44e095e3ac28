// Compiles a function once for each of several instruction sets; the loader chooses.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && defined(__gnu_linux__) && !defined(TALLYMILL_SANITIZE)
#define TALLYMILL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TALLYMILL_CLONES
#endif
