// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Matrices over GF(2^8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace adverb::reliability {

class Matrix {
public:
  // All elements are 0.
  Matrix(size_t rows, size_t columns) : rows_(rows), columns_(columns), elements_(rows * columns) {}

  // The parity rows of a systematic maximum distance separable code: element (i, j) is
  // 1 / ((k + i) + j), so that all square submatrices are regular (Blömer et al., "An XOR-Based
  // Erasure-Resilient Coding Scheme", 1995). gf_gen_cauchy1_matrix() of libisal makes the same
  // rows. k + m is at most 256.
  static Matrix cauchy(size_t k, size_t m);

  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  uint8_t& at(size_t row, size_t column) { return elements_[row * columns_ + column]; }
  uint8_t at(size_t row, size_t column) const { return elements_[row * columns_ + column]; }
  std::span<const uint8_t> elements() const { return elements_; } // by rows

  // This matrix is a square submatrix of a Cauchy matrix. Other matrices may have no inverse, or
  // need an exchange of rows, which is left out here.
  Matrix inverse() const;

private:
  // row `into` += factor * row `from`
  void add_row(size_t into, uint8_t factor, size_t from);
  void scale_row(size_t row, uint8_t factor);

  size_t rows_;
  size_t columns_;
  std::vector<uint8_t> elements_;
};

} // namespace adverb::reliability
