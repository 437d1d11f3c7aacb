// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Devices that are opened with a setting in the environment.
#pragma once
#include "test_ends.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <unistd.h>

// The setting of the devices that are opened in a scope.
class Setting {
public:
  Setting(const char* variable, const std::string& text) : variable(variable) {
    REQUIRE(setenv(variable, text.c_str(), 1) == 0);
  }
  ~Setting() { unsetenv(variable); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

private:
  const char* variable;
};

// What stderr says when a device is opened with a setting; "opened" if it opens.
inline std::string complaint_of(const char* variable, const std::string& text) {
  const Setting setting(variable, text);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  REQUIRE(count >= 1);
  std::array<int, 2> ends = {};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const int before = dup(STDERR_FILENO);
  REQUIRE(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  errno = 0;
  ibv_context* context = ibv_open_device(list[0]);
  const int error = errno;
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  std::array<char, 512> said = {};
  const ssize_t length = read(ends[0], said.data(), said.size());
  close(ends[0]);
  ibv_free_device_list(list);
  if (context != nullptr) {
    CHECK(ibv_close_device(context) == 0);
    return "opened";
  }
  CHECK(error == EINVAL);
  return {said.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))};
}
