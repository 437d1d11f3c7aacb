// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// libisal, Intel's library of vector instructions for storage, if the host has it. adverb does not
// depend on libisal: it is loaded when a code first asks, and the program does not see its symbols.
#pragma once

#include <optional>

namespace adverb::reliability {

// The functions that erasure codes call, as <isa-l/erasure_code.h> declares them. Any thread may
// call them. They write to `tables`, and to `coding`, alone.
struct Isal {
  // Expands a matrix of `rows` by `k` elements, by rows, into 32 * k * rows bytes of tables.
  // Versions of libisal differ in how tables look.
  void (*ec_init_tables)(int k, int rows, unsigned char* matrix, unsigned char* tables);
  // coding[r] = sum of matrix[r][j] * data[j], in `length` bytes each.
  void (*ec_encode_data)(int length, int k, int rows, unsigned char* tables, unsigned char** data,
                         unsigned char** coding);
};

// Null: the host has no libisal, and codes use gf256.h. The first call loads the library and may
// wait for files; the answer never changes. Any thread may call it, also several at once.
const Isal* isal();

// Loads the library of this name, for good. Nothing: it cannot be loaded, or lacks a function.
std::optional<Isal> load_isal(const char* name);

} // namespace adverb::reliability
