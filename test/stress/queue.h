// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One queue pair of the stress test, its memory, and the books it keeps: what was posted, what must
// still complete, what the peer must have sent.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>

#include <infiniband/verbs.h>

namespace stress {

enum Promise : unsigned { completions = 1, data = 2, atomics = 4, progress = 8 };

// What was broken so far, and the first few complaints on stderr. Thread-safe.
unsigned broken();
void complain(Promise promise, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The first one of it, of this process or of one forked since, once that has ended; else empty.
const char* first_complaint(Promise promise);

// What one side tells the other about a queue pair.
struct Address {
  uint32_t qpn = 0;
  uint32_t rkey = 0;
  uint64_t memory = 0;
};

inline constexpr uint32_t window = 16;       // work requests of each queue in flight
inline constexpr uint32_t receives = 16;     // posted at any time
inline constexpr uint32_t large = 40 * 1024; // bytes: more than two parts of a message
inline constexpr uint32_t small = 4096;      // bytes of a receive
inline constexpr uint32_t write_slots = 4;
inline constexpr uint32_t inline_bytes = 64;

// Every queue pair has a region of its own, laid out alike on both sides.
struct Memory {
  uint64_t consumed; // the peer's count of our messages it is done with; written by the peer
  uint64_t swapped;  // compare-and-swap
  uint64_t added;    // fetch-and-add; of the side's first queue pair, shared by all
  std::byte written[write_slots][large];
  std::byte announced[receives][small];
  std::byte received[receives][small];
  std::byte own[window][large]; // buffers of the work requests in flight
};

class Queue {
public:
  // `shared_counter`: the peer's word for fetch-and-add.
  Queue(ibv_pd* pd, ibv_cq* cq, unsigned number);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Address address() const;
  bool connect(ibv_context* context, const Address& peer, const Address& shared_counter);

  // Posts work of a random kind if there is room; any thread. Whether it did.
  bool work(std::minstd_rand& random);
  // A completion that names this queue pair; any thread.
  void on(const ibv_wc& wc);

  bool drained();
  uint64_t messages(); // receive-consuming messages sent
  uint64_t received();
  // Sum of, and number of, values that fetch-and-add returned.
  uint64_t added_sum() const { return added_sum_; }
  uint64_t added_count() const { return added_count_; }
  Memory& memory() const { return *memory_; }
  uint64_t operations() const { return next_; }
  void describe();

private:
  enum class Kind : uint8_t { write, read, message, announce, tell, add, swap };
  struct Posted {
    Kind kind;
    bool signaled, handled;
    uint64_t value; // of the pattern
    uint32_t bytes;
  };
  Posted& at(uint64_t n) { return posted_[n % window]; }
  std::byte* buffer(uint64_t n) { return memory_->own[n % window]; }
  uint32_t room() const { return window - static_cast<uint32_t>(next_ - oldest_); }
  void post(Kind kind, uint64_t value, uint32_t bytes, uint64_t remote, bool signaled);
  void post_receive();
  void tell_consumed();
  void on_send(const ibv_wc& wc);
  void on_receive(const ibv_wc& wc);

  ibv_pd* pd_;
  unsigned number_;
  Memory* memory_;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  Address peer_, shared_counter_;

  std::mutex lock_;
  std::array<Posted, window> posted_{};
  uint64_t oldest_ = 0, next_ = 0;
  uint32_t silent_ = 0; // unsignaled in a row
  uint64_t messages_ = 0;
  uint64_t writes_ = 0, swaps_ = 0;
  std::array<bool, receives> got_{};
  uint64_t receives_posted_ = 0, consumed_ = 0, told_ = 0;
  uint64_t added_sum_ = 0, added_count_ = 0;
};

} // namespace stress
