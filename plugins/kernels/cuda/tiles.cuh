// Rows of K and V in shared memory, such that eight rows at the same column touch all 32 banks: ldmatrix without conflicts.
#include "attention.cuh"

// BYTES of a row in units of 16: swizzled where eight units fit evenly, else padded to an odd number of units.
template <int BYTES> struct Rows {
  static constexpr int CHUNKS = BYTES / 16;
  static constexpr bool SWIZZLED = CHUNKS % 8 == 0;
  static constexpr int STRIDE = (SWIZZLED || CHUNKS % 2) ? BYTES : BYTES + 16;
  static DEVICE int at(int row, int chunk) { return row * STRIDE + (SWIZZLED ? chunk ^ (row & 7) : chunk) * 16; }
  // at(row, chunk + more) from at(row, chunk), where the two numbers have no bit in common.
  static DEVICE int along(int place, int more) { return SWIZZLED ? place ^ more * 16 : place + more * 16; }
};
