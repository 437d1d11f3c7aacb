// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reads the policy's file again when it has changed (inotify(7)), and has the queue pairs obey it.
//
//   the file is written and closed, or another takes its name
//     -> a moment later, as several changes may come -> Current::reread()
//     -> refused: the log says why, and what was in force stays
//        taken: rules get their counters; each queue pair takes its rules of steering anew
//
// What else the rules say holds for objects that are made from then on; a region's backend never
// changes. On the service's thread, but for start().
#pragma once

#include "world/sync.h"

#include <memory>
#include <string>

namespace adverb {
class World;
}

namespace adverb::model {

class Reload : public std::enable_shared_from_this<Reload> {
public:
  explicit Reload(World& world) : world_(world) {}

  /// From here on; once, if the policy was read from a file. A kernel that gives no watch leaves
  /// the policy as it is, and the log says so.
  void start();

private:
  bool watch_folder();
  void look_for_folder();
  void watch_file();
  void changed();
  void read_again();

  World& world_;
  Atomic<bool> started_{false};
  std::string folder_;
  std::string name_; // of the file in it
  int inotify_ = -1;
  int folder_watch_ = -1;
  bool due_ = false; // it is read soon
};

} // namespace adverb::model
