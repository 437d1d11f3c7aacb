// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The queue pairs whose completions arrive at a CQ, those that it had last, and which of them a
// completion is of.
#pragma once

#include "queue/passthrough.h"
#include "steering/completion.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include <infiniband/verbs.h>

namespace adverb::model {

using namespace queue;

using steering::Completion;

class Cq;

// A queue pair whose completions arrive at a CQ; every call is under the CQ's poll_lock_.
class CqUser {
public:
  CqUser(PassthroughSends& passthrough, bool other_number) noexcept
      : passthrough(passthrough), other_number(other_number) {}
  // Of these only failures are told, and what on_completion_polled() says.
  PassthroughSends& passthrough;
  const bool other_number; // its completions may name another queue pair's
  // One of those has succeeded, and is the program's; what is pushed now comes behind it.
  virtual void passthrough_landed() = 0;

  // What the program is to get of it is pushed to `cq`.
  virtual void on_completion(const Completion& completion, Cq& cq) = 0;
  // The same while the program polls `cq`. True: `wc` itself has become what the program is to get,
  // and what was pushed meanwhile comes behind it.
  virtual bool take(ibv_wc& wc, Cq& cq) = 0;
  // One of its requests waits for a completion.
  virtual bool waits_for_completion() = 0;
  virtual void try_again() = 0; // there is room for a marker
  // Of the requests it has posted to the provider.
  struct Numbers {
    uint64_t from = 0;
    uint64_t end = 0;
  };
  virtual Numbers numbers() = 0;
  // With other_number: whether the completion, which names no queue pair that is attached, is of
  // one of its requests or receives.
  virtual bool posted(const ibv_wc& wc) = 0;

protected:
  ~CqUser() = default;
};

// Not thread-safe; the CQ's poll_lock_ guards it.
class CqUsers {
public:
  // The one that has this number now; null: none, as far as adverb manages it.
  CqUser* find(uint32_t qpn) {
    Recent& recent = recent_[qpn % recent_max];
    if (recent.qpn != qpn) [[unlikely]] {
      const auto at = all_.find(qpn);
      if (at == all_.end())
        return nullptr;
      recent = {qpn, at->second, &at->second->passthrough};
    }
    return recent.user;
  }
  // Those that were looked for last, by the low bits of their number: the one of this number, if
  // it is of the same `qpn`.
  struct alignas(32) Recent {
    uint32_t qpn = UINT32_MAX;
    CqUser* user = nullptr;
    PassthroughSends* passthrough = nullptr;
  };
  const Recent& recent(uint32_t qpn) const noexcept { return recent_[qpn % recent_max]; }
  // The one whose request or receive the completion is, which names no number that is known:
  // providers put that of the half of a queue pair into those of raw packets. Null: none.
  CqUser* find_by_request(const ibv_wc& wc) const;
  // Whether it is of one that was removed, though its provider should have none any more.
  bool is_late(const ibv_wc& wc) const noexcept;

  bool empty() const noexcept { return all_.empty(); }
  template <typename Function> void for_each(Function function) const {
    for (const auto& [qpn, user] : all_)
      function(*user);
  }

  // None of this number is there.
  void add(uint32_t qpn, CqUser& user);
  void remove(uint32_t qpn);

private:
  static constexpr uint32_t recent_max = 16;
  std::array<Recent, recent_max> recent_;
  std::unordered_map<uint32_t, CqUser*> all_;
  bool other_numbers_ = false; // some of them may come under others
  // The last that were removed. No completion of theirs is the program's, and none that another
  // queue pair has under their number is taken for one.
  struct Gone {
    uint32_t qpn = 0;
    CqUser::Numbers numbers;
  };
  std::array<Gone, 16> gone_;
  size_t next_gone_ = 0;
};

} // namespace adverb::model
