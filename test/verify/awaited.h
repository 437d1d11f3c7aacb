// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a run waits for where nothing tells it that something came: asynchronous events, a state,
// the event of a CQ. A file says what comes, so that no span of time decides what a log says. It
// holds lines of a log (`case | step | what was seen`): those of a stock run, or some that were
// written by hand, where a case may be a pattern.
#pragma once

#include <string>
#include <vector>

namespace verify {

constexpr int hang_ms = 60000; // what does not come within it never comes

class Awaited {
public:
  bool read(const char* path);
  bool given() const { return !lines_.empty(); }

  // What stands behind `subject` in the nth line (from 0) of that case and step that begins with
  // it, or in the last one; nullptr where there is none. The first pattern that the case fits is
  // the only one.
  const char* at(const std::string& test, const std::string& step, const std::string& subject,
                 size_t nth) const;

private:
  struct Line {
    std::string test, step, text;
  };
  std::vector<Line> lines_;
};

} // namespace verify
