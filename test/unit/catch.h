// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One place that knows which Catch2 the distribution ships: v2 (Debian 12) or v3 (Debian 13).
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
