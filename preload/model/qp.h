// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A managed queue pair: its state, its two queues, its peer.
//
// States (design §6), as the program moves them with ibv_modify_qp:
//   state        posts             peers' requests      unloaded requests
//   RESET, INIT  EINVAL            refused              none
//   RTR          EINVAL            served               none
//   RTS          issued            served               issued
//   SQD          queued            served               those issued finish before SQD is entered
//   ERR          flushed           refused              dropped and flushed by the provider
//   SQE          flushed           served               none; not RC
// The device moves it to ERR or SQE by itself, which is noticed when a completion, an event or
// ibv_query_qp says so: what the program cannot know yet has happened before it.
// A move to ERR or RESET and destroy are barriers: when they return no copy runs or will run
// through this queue pair here, nor at the peer if it answers in time. Of copies here the same
// holds when the program is first told of an error. RESET starts a new incarnation with a new
// handle. Peers' requests that come in the middle of such a move are answered when the device has
// made it.
//
// Locks: building_, then the device's progress lock, then lock_, then leaves. Under a CQ's
// poll_lock_ only lock_ and leaves are taken, and by the program's own calls the progress lock.
#pragma once

#include "link/links.h"
#include "model/context.h"
#include "model/cq.h"
#include "model/prover.h"
#include "model/receive_queue.h"
#include "policy/policy.h"
#include "queue/queue.h"
#include "queue/way_trace.h"
#include "transfer/message_lane.h"
#include "transfer/responder.h"
#include "world/sync.h"

#include <memory>
#include <string>

namespace adverb::model {

using namespace queue;

class Srq;

class Qp final : public transfer::Source,
                 public transfer::Target,
                 public QueueHost,
                 public QpLane::Device,
                 public Prover::Host,
                 public CqUser,
                 public std::enable_shared_from_this<Qp> {
public:
  struct Parts {
    std::shared_ptr<Context> context;
    std::shared_ptr<Pd> pd;
    std::shared_ptr<Cq> send_cq;
    std::shared_ptr<Cq> recv_cq;
    std::shared_ptr<Srq> srq; // null: own receive queue
  };
  Qp(Parts parts, ibv_qp* qp, ibv_qp_type type, const ibv_qp_cap& cap, bool all_signaled,
     uint32_t extra_send);
  virtual ~Qp();

  // The program's calls.
  int post_send(ibv_send_wr* wr, ibv_send_wr** bad);
  int post_recv(ibv_recv_wr* wr, ibv_recv_wr** bad);
  int bind_mw(ibv_mw* mw, ibv_mw_bind* bind); // of type 1
  int modify(ibv_qp_attr* attr, int mask);
  // The program learns now that its device may have put the queue pair in error.
  void look_at_state();
  // Another policy is in force.
  void steer_anew();

  // Extended posts: what is built between begin() and commit() or abort() is collected by build()
  // and posted like any list, or not at all. Meanwhile no lock is held that anything else waits
  // for: the program may do what it likes in between.
  void begin();
  struct Built {
    ibv_send_wr wr{};
    std::vector<ibv_sge> sges;
    std::vector<std::byte> inlined;
  };
  Built& build(); // one more, empty
  Built* built_last() noexcept { return built_ == 0 ? nullptr : &build_list_[built_ - 1]; }
  void build_failed(int why) noexcept { build_error_ = build_error_ != 0 ? build_error_ : why; }
  int commit();
  void abort();

  // Lifetime: announce() makes peers find it; close() is the barrier before the provider destroys
  // it, forget() follows when it has.
  void announce();
  void close();
  void reopen(); // it could not be destroyed
  void forget();

  // CqUser
  void on_completion(const Completion& completion, Cq& cq) override;
  bool take(ibv_wc& wc, Cq& cq) override;
  void passthrough_landed() override;
  bool waits_for_completion() override;
  void try_again() override;
  Numbers numbers() override;
  // ReceiveQueue's, of its own.
  bool awaits_copy(uintptr_t start, uint64_t bytes);
  bool awaits_placing(uintptr_t start, uint64_t bytes, const ReceiveQueue& unless);

  bool posted(const ibv_wc& wc) override;

  // transfer::Source
  void on_replies(std::span<const std::byte> replies) override;
  void on_credit() override;
  void on_keys_ended(std::span<const uint32_t> keys) override;
  void on_recall() override;
  void on_path_judged() override;
  void on_down() override;

  // transfer::Target
  bool allows(transfer::Right right) const override;
  bool leaving() const override { return leaving_; }
  const ibv_pd* pd() const override { return pd_->verbs; }
  registration::Regions& regions() const override { return context_->regions(); }
  bool settle_receives(const transfer::RequestHeader& request) override;
  void expect_immediate(uint64_t n, uint32_t bytes) override;
  transfer::Status take_ahead(const transfer::RequestHeader& request,
                              std::span<const std::byte> bytes) override;
  void lent_over_lost_link(transfer::Grants grants) override;

  // QueueHost and QpLane::Device: for the send queue, under lock_.
  steering::Facts facts(const steering::Request& r) override;
  bool is_real(uint32_t remote_key, steering::KeyAnswer& answer) override;
  const std::shared_ptr<transfer::Leases>* leases(uint64_t& longest) override;
  uint32_t epoch(const steering::Request& r) const noexcept override;
  void ask_peer() override;
  void ask_key(const steering::Request& r) override;
  void on_real(uint32_t remote_key) noexcept override;
  void on_leased(const ibv_send_wr& wr, uint64_t length) noexcept override;
  void on_way_chosen(const steering::Request& r, size_t row,
                     steering::Reason reason) noexcept override;
  bool may_replay() const noexcept override { return peer_ != steering::Peer::lost; }
  void complete(const Completion& completion, bool announced) override;
  void enter_error() override; // moves the provider's queue pair to ERR
  void later(std::chrono::nanoseconds delay, steering::Way& way) override;
  int post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) override;
  bool take_marker() override;
  void marker_landed() override;
  void aside_landed(bool ok) override;
  void executed_again() override;
  void request_drain() override;
  void request_drain_in_time() override;

  // Prover::Host
  uint64_t handle() const noexcept override { return handle_; }
  std::weak_ptr<Prover::Host> weak() noexcept override { return weak_from_this(); }
  void tell_prover(uint64_t handle, const std::function<Prover::Outcome(Prover&)>& tell) override;
  bool may_read() const noexcept override { return attr_.max_rd_atomic != 0; }
  bool learn_key(uint32_t key, steering::KeyVerdict::Kind kind) override;
  void on_serves_none() noexcept override { serves_none_ = true; }

  World& world() const noexcept;

  // The reported capabilities are the program's, not what adverb asked for in its place.
  uint32_t extra_send() const noexcept { return extra_send_; }

private:
  bool connected() const noexcept { return type_ == IBV_QPT_RC || type_ == IBV_QPT_UC; }
  Queue::Refused issue(uint64_t from, bool whole = false);
  bool open_passthrough();
  bool steers_away(const steering::Request& r, const steering::KeyVerdict& key);
  bool waits_to_be_steered(const steering::Request& r, const steering::Facts& facts) const noexcept;
  void prove_to_steer(const steering::Request& r) noexcept;
  void begin_steering() noexcept;
  void look_at_reliability() noexcept;
  void choose_sends() noexcept;
  bool goes_ahead(const steering::Request& r) const noexcept;
  void bring_in(const ibv_send_wr* list);
  void bring_inline_in(const ibv_send_wr* list) noexcept;
  [[gnu::noinline]] int post_contended(ibv_send_wr* list, ibv_send_wr** bad);
  [[gnu::noinline]] int post_unpinned(ibv_send_wr* list, ibv_send_wr** bad);
  [[gnu::noinline]] int post_leased(ibv_send_wr* list, ibv_send_wr** bad);
  [[gnu::noinline]] int post_locked(ibv_send_wr* list, ibv_send_wr** bad);
  int post_by_ring(ibv_send_wr* list, ibv_send_wr** bad);
  int post_bind(const ibv_send_wr& wr);
  int post_with_binds(ibv_send_wr* list, ibv_send_wr** bad);
  int to_error(ibv_qp_attr* attr, int mask);
  int to_reset(ibv_qp_attr* attr, int mask);
  void captured(const ibv_qp_attr& attr, int mask);
  void entered(ibv_qp_state before, ibv_qp_state now);
  bool broken(ibv_qp_state now);
  void fell(ibv_qp_state now);
  void receive_failed(bool here);
  void on_passthrough_completion(const Completion& completion, Cq& cq);
  void learn_length_max();
  ibv_qp_state device_state() const; // IBV_QPS_UNKNOWN if it does not say
  void incarnate();
  void part_from_peer();
  void end_target();
  void end_leases();
  void end_lent() noexcept; // the progress lock is held
  void end_rights() noexcept;
  void wait_until_unloaded();
  void stop_and_await_answers();
  void on_bound(uint64_t handle, const link::Bound& bound);
  std::shared_ptr<transfer::Initiator> leave_unproven();
  void trace(observe::TraceKind kind, uint8_t what) noexcept;
  static void warn_of_stock_peer(World& world, uint32_t qpn, const std::string& reason);
  link::LocalQp local() const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<Pd> pd_;
  std::shared_ptr<Cq> send_cq_;
  std::shared_ptr<Cq> recv_cq_;
  std::shared_ptr<Srq> srq_;
  ibv_qp* qp_;
  const ibv_qp_type type_;
  const uint32_t qpn_;
  const uint32_t extra_send_;
  const uint64_t first_number_; // of its requests

  const decltype(ibv_context_ops::post_send) post_send_; // the provider's

  QuickMutex lock_;
  AnyConditionVariable unloaded_;
  steering::Ring ring_;
  steering::Elements elements_;
  PassthroughSends passthrough_;
  QpLane device_;
  transfer::MessageLane messages_;
  Queue send_;
  std::unique_ptr<ReceiveQueue> receive_; // null: SRQ
  Atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  Atomic<bool> undelivered_{false}; // a message that the device took had no place to go
  Atomic<bool> leaving_{false};     // state_ is ERR or RESET, the device's perhaps not yet
  ibv_qp_state before_close_ = IBV_QPS_RESET;
  // Who carries requests to the peer's own keys; null: the device. And whether the peer's CPU
  // serves none of these, as it has said.
  std::unique_ptr<steering::Steer> steer_;
  bool serves_none_ = false;
  bool by_packets_ = false;    // as the policy says, or what was measured; lock_
  bool by_measure_ = false;    // the policy leaves that to what is measured; lock_
  bool may_go_ahead_ = false;  // bytes of long SENDs; lock_
  uint64_t last_unleased_ = 0; // of the requests under a virtual key; under lock_
  Atomic<unsigned> access_{0};
  Atomic<uint8_t> responder_resources_{0};  // max_dest_rd_atomic
  Atomic<uint64_t> length_max_{UINT64_MAX}; // of a message on its port
  ibv_qp_attr attr_{};                      // what the program set so far
  Mutex building_;                // held from begin() to commit() or abort(): of what follows
  std::vector<Built> build_list_; // as long as the longest list so far, so that none allocates
  size_t built_ = 0;              // of it, in the present list
  int build_error_ = 0;
  bool binds_ = false; // bind_mw() was called

  // Lent over links that are lost, for as long as a device may have an atomic under way; progress
  // lock.
  std::vector<std::shared_ptr<transfer::Grants>> orphans_;
  uint64_t handle_ = 0;
  Atomic<steering::Peer> peer_{steering::Peer::unknown};
  bool may_link_ = false; // by policy and type
  Prover prover_;
  WayTrace way_trace_;
  Receipts receipts_;
};

} // namespace adverb::model
