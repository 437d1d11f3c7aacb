// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/matrix.h"
#include "reliability/gf256.h"

#include <cassert>

namespace adverb::reliability {

Matrix Matrix::cauchy(size_t k, size_t m) {
  Matrix parity(m, k);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < k; ++j)
      parity.at(i, j) = gf256::inverse(static_cast<uint8_t>((k + i) ^ j));
  return parity;
}

void Matrix::add_row(size_t into, uint8_t factor, size_t from) {
  for (size_t column = 0; column < columns_; ++column)
    at(into, column) ^= gf256::multiply(factor, at(from, column));
}

void Matrix::scale_row(size_t row, uint8_t factor) {
  for (size_t column = 0; column < columns_; ++column)
    at(row, column) = gf256::multiply(factor, at(row, column));
}

// Gauss and Jordan. No pivot is 0: a pivot is the quotient of two leading minors, which are
// determinants of square submatrices.
Matrix Matrix::inverse() const {
  assert(rows_ == columns_);
  Matrix rest = *this;
  Matrix result(rows_, rows_);
  for (size_t i = 0; i < rows_; ++i)
    result.at(i, i) = 1;
  for (size_t pivot = 0; pivot < rows_; ++pivot) {
    const uint8_t factor = gf256::inverse(rest.at(pivot, pivot));
    rest.scale_row(pivot, factor);
    result.scale_row(pivot, factor);
    for (size_t row = 0; row < rows_; ++row) {
      const uint8_t element = rest.at(row, pivot);
      if (row == pivot || element == 0)
        continue;
      rest.add_row(row, element, pivot);
      result.add_row(row, element, pivot);
    }
  }
  return result;
}

} // namespace adverb::reliability
