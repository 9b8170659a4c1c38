// The intrinsics of AVX2 and what goes with it.  Most of <immintrin.h> is AVX512, which GCC reads for 0.6 s in each unit, a
// sixth of the first build.  So the parts are named, for which GCC wants to see the guard of the whole; other compilers,
// and versions of GCC whose headers nobody here has read, take the whole.
#pragma once
#if defined(__clang__) || defined(__INTEL_COMPILER) || defined(__NVCOMPILER) || defined(__AVX512F__) || \
    __GNUC__ < 12 || __GNUC__ > 14
#include <immintrin.h>
#elif !defined(_IMMINTRIN_H_INCLUDED)
#define _IMMINTRIN_H_INCLUDED
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <avxvnniintrin.h>
#include <fmaintrin.h>
#include <f16cintrin.h>
#endif
