// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// main() of every unit test program, compiled once per program by Catch2 v2 and supplied by the
// library in v3.
#if __has_include(<catch2/catch_all.hpp>)
#include "tap_listener.h"
#include <catch2/catch_session.hpp>
int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
#else
#define CATCH_CONFIG_MAIN
#include "tap_listener.h"
#endif
