// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#if __has_include(<catch2/catch_all.hpp>)
#include "../unit/tap_listener.h"
#include <catch2/catch_session.hpp>
int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
#else
#define CATCH_CONFIG_MAIN
#include "../unit/tap_listener.h"
#endif
