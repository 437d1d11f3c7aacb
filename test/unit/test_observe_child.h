// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// preload/observe is about a whole process, once: each test plays its part in a forked child.
#pragma once

#include "observe/exit.h"
#include "observe/page.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

namespace observe_test {

/// What a process has of this room, with its handlers of fork and exit, as interpose makes them.
struct Process {
  adverb::SteadyClock clock;
  adverb::observe::Counters counters;
  adverb::observe::Log log{counters, clock};
  adverb::observe::PeerTable peers;
  adverb::observe::Trace trace{clock};
  adverb::observe::SharedPage page{counters, peers, trace, log};
  Process();
};

/// For the life of the process: lines may come while it exits.
inline Process& process = *new Process;

inline Process::Process() {
  adverb::observe::finish_at_exit(page);
  pthread_atfork(nullptr, nullptr, [] {
    process.page.in_child();
    process.log.in_child();
  });
}

/// A private directory for pages, logs and statistics; $XDG_RUNTIME_DIR while it lives.
struct Sandbox {
  std::filesystem::path path;

  Sandbox() {
    char name[] = "/tmp/adverb-observe-XXXXXX";
    path = mkdtemp(name);
    setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
    for (const char* variable : {"ADVERB_LOG", "ADVERB_LOG_FILE", "ADVERB_STATS_FILE"})
      unsetenv(variable);
  }
  ~Sandbox() {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(path);
  }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  std::string file(const std::string& name) const { return (path / name).string(); }

  size_t files() const {
    size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      n += entry.is_regular_file() ? 1 : 0;
    return n;
  }
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A forked process running `body` with stderr in a pipe. `body` returns the exit status, which is
/// passed to exit(): destructors run as in a real program. The child can wait for the parent and
/// tell it that it got somewhere.
class Child {
public:
  explicit Child(const std::function<int(Child&)>& body) {
    if (pipe(err_) != 0 || pipe(up_) != 0 || pipe(down_) != 0)
      abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(err_[1], STDERR_FILENO);
      adverb::observe::take_stderr_as_first();
      close(err_[0]);
      close(err_[1]);
      close(up_[0]);
      close(down_[1]);
      exit(body(*this));
    }
    close(err_[1]);
    close(up_[1]);
    close(down_[0]);
  }
  ~Child() {
    if (pid_ > 0)
      finish();
    for (int fd : {err_[0], up_[0], down_[1]})
      close(fd);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }

  // In the child.
  void tell() { (void)!write(up_[1], "x", 1); }
  void wait_parent() {
    char c;
    (void)!read(down_[0], &c, 1);
  }
  // In the parent.
  bool wait_told() {
    char c;
    return read(up_[0], &c, 1) == 1;
  }
  void let_go() { (void)!write(down_[1], "x", 1); }

  /// Reads stderr to its end and the wait status; exit status, or 128 + signal.
  int finish() {
    char buffer[4096];
    ssize_t n;
    while ((n = read(err_[0], buffer, sizeof buffer)) > 0)
      err.append(buffer, static_cast<size_t>(n));
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string err;

private:
  pid_t pid_ = -1;
  int err_[2], up_[2], down_[2];
};

} // namespace observe_test
