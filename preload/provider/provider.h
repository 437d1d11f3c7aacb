// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What stands behind adverb: the real libibverbs, and the pointers providers had put into contexts
// before adverb patched them.
//
// Call what real() and ops() give under an Inside guard (real.h): what the real library calls in
// turn then goes straight through the hooks. All functions are thread-safe.
#pragma once

#include "observe/log.h"
#include "provider/ops.h"
#include "provider/real.h"
#include "world/sync.h"

#include <array>

namespace adverb::provider {

class Provider {
public:
  /// `table` null: the installed library's functions, looked up at first use. A test's table must
  /// outlive this.
  explicit Provider(observe::Log& log, const Real* table = nullptr) noexcept
      : log_(log), table_(table) {}
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;

  /// The first call resolves. A required function that is missing is logged once; its pointer
  /// stays null and its hook answers with the verb's own error.
  const Real& real() noexcept {
    const Real* table = table_.load(std::memory_order_acquire);
    return table != nullptr ? *table : resolve();
  }

  /// Of a patched context what was kept, of another what stands there now. Lock-free.
  const ContextOps& ops(ibv_context* context) const noexcept;

  /// Remembers `context`'s pointers, or forgets them: for who patches it. False: no room for one
  /// more context, which must then not be patched.
  bool keep_ops(ibv_context* context);
  void drop_ops(ibv_context* context) noexcept;

  void in_child() noexcept;

private:
  const Real& resolve() noexcept;

  // A process opens few devices: a short list that readers walk without a lock. A slot is written
  // before its key; a key taken away leaves the slot for the next context.
  struct Slot {
    Atomic<ibv_context*> key{nullptr};
    ContextOps ops;
  };

  observe::Log& log_;
  Atomic<const Real*> table_;
  Real found_;
  Mutex resolving_;
  std::array<Slot, 64> slots_;
  Mutex slots_lock_;
};

} // namespace adverb::provider
