// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/reload.h"
#include "memory/own_fds.h"
#include "model/objects.h"
#include "model/qp.h"
#include "world/no_cancel.h"
#include "world/world.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

namespace adverb::model {
namespace {

using observe::Counter;

constexpr std::chrono::milliseconds settles{50}; // what writes it may have more to do
// A file that is only made is not looked at: who makes it closes it when it is whole.
constexpr uint32_t in_folder =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR;
constexpr uint32_t at_file = IN_CLOSE_WRITE | IN_ATTRIB; // who may write it, too
constexpr std::chrono::seconds looks_for_folder{2};      // each

} // namespace

void Reload::start() {
  if (started_.exchange(true))
    return;
  const std::string& file = world_.policy_source().file();
  const size_t slash = file.rfind('/');
  if (slash == std::string::npos)
    return;
  folder_ = file.substr(0, slash + 1);
  name_ = file.substr(slash + 1);
  inotify_ = own_fds::raised(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (inotify_ < 0 || !watch_folder()) {
    world_.log.info("{} is not watched ({}): a change takes effect when the program starts anew",
                    file, strerror(errno));
    own_fds::shut(std::exchange(inotify_, -1));
    return;
  }
  watch_file();
  world_.service.watch(inotify_, EPOLLIN, [weak = weak_from_this()](uint32_t) {
    if (const auto self = weak.lock())
      self->changed();
  });
  world_.service.run([weak = weak_from_this()] { // it may have changed since it was read
    if (const auto self = weak.lock())
      self->read_again();
  });
}

bool Reload::watch_folder() {
  folder_watch_ = inotify_add_watch(inotify_, folder_.c_str(), in_folder);
  return folder_watch_ >= 0;
}

// Another may take its name.
void Reload::look_for_folder() {
  if (watch_folder())
    return read_again();
  world_.service.after(looks_for_folder, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->look_for_folder();
  });
}

// It may be a link to one that lies elsewhere, and is written there.
void Reload::watch_file() {
  inotify_add_watch(inotify_, (folder_ + name_).c_str(), at_file);
}

// Of other files in the folder nothing is read; but the folder that a link leads to is changed by
// renaming, under names that begin with two dots, where volumes of a cluster's manager are mounted.
void Reload::changed() {
  const NoCancel whole;
  alignas(inotify_event) std::array<char, 2048> events;
  bool its = false;
  bool moved = false;
  for (ssize_t n = 0; (n = read(inotify_, events.data(), events.size())) > 0;) {
    for (ssize_t at = 0; at < n;) {
      inotify_event event{};
      memcpy(&event, events.data() + at, sizeof event);
      const std::string_view name =
          event.len != 0 ? events.data() + at + sizeof event : std::string_view(name_);
      its = its || name == name_ || name.starts_with("..") || (event.mask & IN_Q_OVERFLOW) != 0;
      moved = moved ||
              (event.wd == folder_watch_ && (event.mask & (IN_MOVE_SELF | IN_DELETE_SELF)) != 0);
      at += static_cast<ssize_t>(sizeof event + event.len);
    }
  }
  if (moved) {
    world_.log.warn("the folder of {}{} is gone; the policy that was in force stays until there is "
                    "another one",
                    folder_, name_);
    inotify_rm_watch(inotify_, folder_watch_);
    return look_for_folder();
  }
  if (!its || due_)
    return;
  world_.service.after(settles, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->read_again();
  });
  due_ = true;
}

void Reload::read_again() {
  due_ = false;
  watch_file();
  using What = policy::Current::Reread::What;
  policy::Current& source = world_.policy_source();
  const auto result = source.reread();
  if (result.what == What::same)
    return;
  if (result.what == What::refused) {
    world_.counters.count(Counter::policy_refusals);
    for (const policy::Error& error : result.errors)
      world_.log.error("{}", error.text());
    world_.log.error("{} is not obeyed as it is now; the policy that was in force stays",
                     source.file());
    return;
  }
  world_.counters.count(Counter::policy_reloads);
  size_t slot = 0;
  for (const std::string& name : source.slots())
    world_.page.label_rule(slot++, name);
  std::string later;
  for (const std::string& key : result.later)
    later += (later.empty() ? "" : ", ") + key;
  if (!later.empty())
    world_.log.warn("{}: the change of {} takes effect when the program starts anew", source.file(),
                    later);
  world_.trace.add({.kind = observe::TraceKind::policy});
  for (const auto& qp : world_.objects().qps.all())
    qp->steer_anew();
  world_.log.info("{} has changed and is in force", source.file());
}

} // namespace adverb::model

namespace adverb {

model::Reload& World::reload() {
  return parts.reload.get([this] { return std::make_shared<model::Reload>(*this); });
}

} // namespace adverb
