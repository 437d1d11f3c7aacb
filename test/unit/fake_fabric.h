// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A provider of RC queue pairs without device or thread: a request is carried out, checks and all,
// while it is posted. What the devices of one fabric share, every World of a test is given through
// its provider table and the pointers of its contexts.
//
// One thread. It does what the verbs say for what the tests use, and no more.
#pragma once

#include "provider/real.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

namespace adverb::test {

class FakeFabric {
public:
  // `cqe_max`: of a completion queue.
  explicit FakeFabric(int cqe_max = 1 << 20);
  ~FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // The functions of the library, for Seams::real. Of one fabric at a time.
  static const provider::Real& real();

  // One more device; ibv_open_device of real() opens it.
  ibv_device* device();

  static constexpr uint32_t message_max = 62 << 10; // of its ports

  uint64_t posted = 0;     // requests given to queue pairs of the fabric
  uint64_t post_calls = 0; // by so many calls
  uint64_t registered = 0; // bytes
  // How often its channel was told.
  static uint64_t events(const ibv_cq* cq);
  size_t queue_pairs() const { return qps_.size(); }
  // Whether a byte of the process can be reached by the key.
  bool reaches(uint32_t key, const void* byte) const;

  // What devices do each in their way.
  bool drops_completions = false;  // of a queue pair that is reset or destroyed
  bool knows_sqe = true;           // as the state of a UC queue pair whose own request has failed
  bool flushes_at_destroy = false; // posted receives
  bool stalled = false;            // takes requests and carries none out
  uint32_t stuck = 0;              // so does the queue pair of this number
  int refuse_regions = 0;          // errno of every registration
  std::function<int()> modify;     // asked first, if any: errno
  std::function<void()> looked;    // called once, when a queue pair's state has been looked at
  std::function<void()> destroy;   // asked before a queue pair is destroyed
  std::function<void()> poll;      // asked once, before a completion queue gives what it has
  ibv_async_event event{};         // the next one
  int acknowledged = 0;            // events
  ibv_qp* made_last = nullptr;     // queue pair, adverb's own among them
  bool knows_all_memory = false;   // also what is not mapped in the process, a GPU's perhaps
  uint32_t next_qpn = 0x100;
  std::vector<uint32_t> bound; // keys of windows, as they were bound
  int refuse_post = 0;         // ENOMEM for the so-many-th request of the next call
  uint64_t last_send = 0;      // number of the request posted last
  ibv_sge last_element{};      // its first one
  uint64_t last_shared_receive = 0;

  // A completion that comes late.
  static void complete(ibv_cq* cq, const ibv_wc& wc);
  // The number under which the receive posted last to the queue pair is known to the device.
  static uint64_t last_receive(ibv_qp* qp);

private:
  struct Device;
  struct Mr;
  struct Cq;
  struct Srq;
  struct Qp;
  friend struct Verbs;

  const int cqe_max_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint32_t, std::unique_ptr<Mr>> mrs_; // by key
  std::map<uint32_t, Qp*> qps_;                 // by number
  uint32_t next_key_ = 0x1000;
  uint32_t next_pd_ = 1;
};

} // namespace adverb::test
