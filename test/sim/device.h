// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The provider of a schedule: RC queue pairs whose requests are carried out step by step, when the
// schedule says so. Every step that a fabric could take next is offered; which one is taken is the
// schedule's choice. What the rules of RC order is offered in order only.
//
// The life of a request: posted; carried out, its bytes read and written at the two ends; landed,
// the data of a READ or atomic in the initiator's memory; completed. A request's local bytes are
// read when it is carried out, not before.
#pragma once

#include "choices.h"
#include "provider/ops.h"
#include "provider/real.h"
#include "step.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace sim {

class Fabric {
public:
  Fabric();
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // The functions of the library, for Seams::real. Of one fabric at a time.
  static const adverb::provider::Real& real();
  // One more device; ibv_open_device of real() opens it.
  ibv_device* device();

  // Appends what could happen next.
  void offer(Steps& steps);

  // How an extended completion queue is polled.
  static adverb::provider::CqExOps poll_ops();
  // Every message that it has taken is in its completion queue.
  static bool settled(const ibv_qp* qp);

  static bool in_error(const ibv_qp* qp);

  // There are completions of connected queue pairs that nobody has taken.
  static bool has_completions(const ibv_cq* cq);

  // An event of the queue's that lies on its channel; false: none, who waits for one sleeps.
  static bool take_event(ibv_cq* cq);

  uint64_t registrations() const; // but adverb's own, for its links
  // Those that peers may read, write and do atomics on.
  void each_reachable(const ibv_context* context,
                      const std::function<void(const ibv_mr&)>& each) const;
  // What a queue pair in the domain of that region would reach; null: nothing.
  std::byte* at(uint32_t key, uint64_t address) const;
  // A region that peers may read, and what is read of it `read` says: bytes from that address of
  // the program on; `again`: of what has been read before it lands.
  using ReadView = std::function<void(uintptr_t from, std::byte* to, size_t bytes, bool again)>;
  uint32_t add_view(ibv_pd* pd, void* start, size_t length, uint64_t iova, ReadView read);
  void remove_view(uint32_t key);
  // Whether there is something in a queue of adverb's own, who has opened the device, too.
  bool has_messages(const ibv_device* device) const;
  bool cleans = false;      // RESET and destroy take a queue pair's completions out of its queues
  bool roomy = false;       // completion queues may have room for what nobody asked for
  bool reuses_keys = false; // those of regions that are gone
  bool stops_sends =
      false;            // alone, where a queue pair that is not reliable fails by its own request
  bool alike = false;   // its keys are such as a table that hashes them has in one place
  uint32_t windows = 0; // memory windows that the devices have left
  uint32_t longest = 1 << 30;    // message that a port takes
  std::set<const ibv_mr*> bound; // that has a memory window bound to it, so it cannot go
  bool loud = false;             // prints what it is given, and what it reports
  std::function<bool()>
      refuses;                 // asked at each registration, if there: it fails for want of memory
  std::function<bool()> loses; // asked of each message that may be lost, if there
  bool trails = false;    // WRITEs under way may land when their queue pair has been moved to ERR
  bool ends_keys = false; // by which requests are under way: a program does
  std::function<bool()> crowded; // asked at each request, if there: so it is not taken
  // Told of each that is carried out on a peer's memory, if there: whose, and what it names.
  std::function<void(uint32_t qpn, uint32_t key, uint64_t address)> reaches;
  // What a program or library has done that a device may answer with anything.
  std::vector<std::string> misuse;

private:
  struct Device;
  struct Mr;
  struct Cq;
  struct Receive;
  struct Srq;
  struct Qp;
  struct Request;
  friend struct Verbs;
  friend struct Requests;

  // Provider functions are given no other way to it.
  static Fabric& present() { return *present_; }
  // Whether adverb has opened it for its links: nothing is short there.
  static bool is_linking(const ibv_context* context);
  ibv_context* open(ibv_device* device);
  static Fabric* present_;

  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint32_t, std::unique_ptr<Mr>> mrs_; // by key
  std::map<uint32_t, Qp*> qps_;                 // by number
  uint32_t next_key_ = 0x1000;
  uint32_t next_qpn_ = 0x100;
  std::vector<Cq*> message_cqs_; // of those
  std::vector<uint32_t> free_keys_;
  std::vector<uint32_t> free_qpns_; // of those destroyed: used again at once
};

} // namespace sim
