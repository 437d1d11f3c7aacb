// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "program.h"
#include "handlers.h"
#include "policy/rule.h"
#include "product_links.h"
#include "transfer/protocol.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

namespace sim {

namespace {

constexpr uint32_t cell_bytes = sizeof(uint64_t);

constexpr size_t page = 4096;
// Where leases give way to each other, which takes requests.
constexpr uint64_t narrow_budget = 16 << 10;
// What peers reach lies on two pages: its smaller region ends where the second begins.
constexpr size_t shared_offset = page - Program::side_cells * cell_bytes;

size_t pages_for(size_t bytes) {
  return (bytes + page - 1) / page * page;
}

std::span<uint64_t> cells_at(const Pages& pages, size_t offset, size_t cells) {
  return {reinterpret_cast<uint64_t*>(pages.kept() + offset), cells};
}

} // namespace

void Words::line(adverb::observe::LogLevel level, std::string_view text) noexcept {
  if (loud)
    printf("      %.*s: %.*s\n", static_cast<int>(to_string(level).size()), to_string(level).data(),
           static_cast<int>(text.size()), text.data());
}

Program::Program(uint32_t number, Choices& choices, Fabric& fabric, Net& net, Oracle& oracle,
                 const adverb::policy::Policy& policy, bool loud)
    : number_(number), choices_(choices), fabric_(fabric), net_(net), oracle_(oracle),
      // Processes that link for themselves are told apart by it, and their keys.
      entropy_(net.wires ? (number + 1) << 20 : 1, net.wires ? uint64_t{1} << 32 | 3 : 1),
      world({.clock = clock_,
             .entropy = entropy_,
             .service = service_,
             .real = &Fabric::real(),
             .policy = &policy,
             .edge = &edge_,
             .log_sink = &words_,
             .shared_page = false}),
      shared_pages_(pages_of(number, 0, pages_for(shared_offset + shared_cells * cell_bytes))),
      own_pages_(pages_of(number, 1, pages_for(size_t{slots} * slot_cells * cell_bytes))),
      shared_(cells_at(shared_pages_, shared_offset, shared_cells)),
      own_(cells_at(own_pages_, 0, size_t{slots} * slot_cells)),
      next_id_((number + 1) * 1'000'000ULL), next_value_((number + 1) * 1'000'000'000'000ULL),
      deep_(choices.once_in(24)), sleeps_(choices.once_in(3)),
      hasty_(sleeps_ && choices.once_in(2)),
      budget_(deep_ || policy.pinned_budget().value_or(0) == narrow_budget
                  ? choices.between(70, 105)
                  : choices.between(8, 40)),
      renewals_(choices.once_in(3) ? choices.between(1, 4) : 0),
      abrupt_(!fabric.reuses_keys && choices.once_in(4)),
      changes_(choices.once_in(3) ? choices.between(1, 4) : 0),
      patience_(choices.once_in(3) ? choices.between(1, 10) : 40),
      losses_(choices.once_in(5) ? choices.between(1, 3) : 0), mailbox_(choices.once_in(3)),
      odd_(choices.once_in(4)), downs_(choices.once_in(3) ? choices.between(1, 3) : 0),
      wrong_(std::array<uint32_t, 8>{0, 0, 200, 200, 40, 40, 10, 4}[choices.below(8)]) {
  words_.loud = loud;
  service_.is_short = choices.once_in(4);
  std::shared_ptr<adverb::link::Links> links;
  if (net.wires) {
    net.wires->add(world, service_of(number));
    links = std::make_shared<ProductLinks>(world, net);
  } else {
    links = std::make_shared<Links>(world, service_of(number), net);
  }
  net.reachable[links.get()] = [this] {
    const uint32_t cell = choices_.below(shared_cells - counter_cells);
    return std::pair{reinterpret_cast<uintptr_t>(shared_at(cell)) + shift_, shared_mr_->rkey};
  };
  links->serve(adverb::transfer::make_protocol(world, make_handlers(), world.targets()));
  world.parts.links.put(std::move(links));
  mappings_ = std::make_shared<Mappings>(!choices.once_in(4));
  world.parts.monitor.put(mappings_);
  views_ = std::make_shared<Views>(choices, fabric);
  world.parts.view_source.put(views_);
  recalls_ = std::make_shared<adverb::registration::Recalls>(adverb::registration::Recalls::Hooks{
      [this] { service_.run([this] { recalls_->serve(); }); }, [] {},
      [](const std::function<bool()>& done, std::chrono::milliseconds) { return done(); }});
  world.parts.recalls.put(recalls_);
  context_ = verbs_.open_device(fabric.device());
  pd_ = verbs_.alloc_pd(context_);
  shared_pages_.foreign = choices.once_in(24);
  own_pages_.foreign = choices.once_in(24);
  shared_pages_.huge = choices.once_in(3);
  register_all();
  const uint32_t cqs = choices.between(1, 3);
  for (uint32_t i = 0; i < cqs; ++i)
    cqs_.push_back(make_cq());
  if (choices.once_in(4)) {
    ibv_srq_init_attr init{nullptr, {64, 2, 0}};
    srq_ = verbs_.create_srq(pd_, &init);
  }
  for (uint32_t slot = deep_ ? slots : few_slots; slot-- > 0;)
    free_.push_back(slot);
}

Program::~Program() = default;

Program::Completions Program::make_cq() {
  Completions made;
  ibv_comp_channel* const channel = sleeps_ ? &channel_ : nullptr;
  made.extended = choices_.once_in(3);
  if (made.extended) {
    ibv_cq_init_attr_ex init{};
    init.cqe = 512;
    init.channel = channel;
    init.wc_flags = IBV_WC_STANDARD_FLAGS;
    if (choices_.once_in(2)) // such a one is polled by the extended functions beneath, too
      init.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    made.cq = ibv_cq_ex_to_cq(verbs_.create_cq_ex(context_, &init));
  } else {
    made.cq = verbs_.create_cq(context_, 512, nullptr, channel, 0);
  }
  return made;
}

void Program::close() {
  for (const auto& queue : queues_)
    verbs_.destroy_qp(queue->qp);
  for (const Completions& queue : cqs_)
    verbs_.destroy_cq(queue.cq);
  if (srq_ != nullptr)
    verbs_.destroy_srq(srq_);
  deregister_all();
  verbs_.close_device(context_);
}

void Program::make_qp(ibv_qp_type type) {
  auto queue = std::make_unique<Queue>();
  queue->transport = type == IBV_QPT_RC   ? Transport::rc
                     : type == IBV_QPT_UC ? Transport::uc
                                          : Transport::ud;
  ibv_qp_init_attr& init = queue->init;
  init.send_cq = cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))].cq;
  init.recv_cq = cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))].cq;
  init.qp_type = type;
  init.cap = {deep_ ? 100 : choices_.between(2, 16), 16, 2, 2, inline_max};
  init.sq_sig_all = choices_.once_in(4) ? 1 : 0;
  queue->all_signaled = init.sq_sig_all != 0;
  init.srq = srq_;
  queue->depth = init.cap.max_send_wr;
  constexpr unsigned write = IBV_ACCESS_REMOTE_WRITE;
  constexpr unsigned read = IBV_ACCESS_REMOTE_READ;
  constexpr unsigned atomic = IBV_ACCESS_REMOTE_ATOMIC;
  constexpr std::array<unsigned, 4> some{write, read, write | read, write | atomic};
  queue->access =
      choices_.once_in(3) ? some.at(choices_.below(some.size())) : write | read | atomic;
  queue->extended = choices_.once_in(3);
  create(*queue);
  queues_.push_back(std::move(queue));
}

bool Program::relaxed() {
  return world.policy().ask<&adverb::policy::Rule::order>({"sim", IBV_QPT_RC}) ==
         adverb::policy::Order::relaxed;
}

void Program::create(Queue& queue) {
  ibv_qp_init_attr init = queue.init;
  if (queue.extended) {
    ibv_qp_init_attr_ex extended{};
    memcpy(&extended, &init, offsetof(ibv_qp_init_attr, sq_sig_all) + sizeof init.sq_sig_all);
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.pd = pd_;
    queue.qp = verbs_.create_qp_ex(context_, &extended);
  } else {
    queue.qp = verbs_.create_qp(pd_, &init);
  }
  if (queue.qp == nullptr)
    trouble.emplace_back("ibv_create_qp fails");
  else
    queue.qpn = queue.qp->qp_num;
}

void Program::move_up(Queue& queue) {
  ibv_qp_attr attr{};
  const bool named = queue.transport != Transport::ud; // its peer
  const bool asked = queue.transport == Transport::rc;
  attr.qp_access_flags = asked ? queue.access : named ? IBV_ACCESS_REMOTE_WRITE : 0;
  attr.qp_state = IBV_QPS_INIT;
  verbs_.modify_qp(queue.qp, &attr, IBV_QP_STATE | (named ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY));
  attr.qp_state = IBV_QPS_RTR;
  attr.dest_qp_num = queue.other->qp->qp_num;
  attr.max_dest_rd_atomic = 1;
  verbs_.modify_qp(queue.qp, &attr,
                   IBV_QP_STATE | (named ? IBV_QP_DEST_QPN : 0) |
                       (asked ? IBV_QP_MAX_DEST_RD_ATOMIC : 0));
  attr.qp_state = IBV_QPS_RTS;
  attr.max_rd_atomic = 1;
  if (const int rc =
          verbs_.modify_qp(queue.qp, &attr, IBV_QP_STATE | (asked ? IBV_QP_MAX_QP_RD_ATOMIC : 0));
      rc != 0)
    trouble.push_back("ibv_modify_qp to RTS: " + std::string(strerror(rc)));
}

void Program::connect(Program& one, Program& other, size_t n) {
  Queue& mine = *one.queues_[n];
  Queue& theirs = *other.queues_[n];
  mine.peer = &other;
  mine.other = &theirs;
  theirs.peer = &one;
  theirs.other = &mine;
  Oracle& oracle = one.oracle_;
  mine.number = oracle.fresh();
  theirs.number = mine.number + 1;
  oracle.connected(mine.number, one.number_, theirs.number, other.number_, one.relaxed(),
                   mine.transport);
  oracle.connected(theirs.number, other.number_, mine.number, one.number_, other.relaxed(),
                   theirs.transport);
  for (const auto& [program, queue] : {std::pair{&one, &mine}, std::pair{&other, &theirs}})
    if (program->srq_ != nullptr)
      oracle.shares(queue->number, program->number_);
  ++one.net_.connecting;
  one.move_up(mine);
  other.move_up(theirs);
  --one.net_.connecting;
  for (Queue* queue : {&mine, &theirs})
    queue->leaving = queue->down = queue->failed = queue->told = false, queue->settled = 0;
}

// What is outstanding is flushed, and when the call has returned nothing lands any more.
void Program::put_in_error(Queue& queue) {
  oracle_.going(queue.number);
  queue.peer->hurries_ = choices_.once_in(2);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (verbs_.modify_qp(queue.qp, &attr, IBV_QP_STATE) != 0)
    trouble.emplace_back("ibv_modify_qp to ERR fails");
  fails(queue);
}

// A queue pair whose receives are shared goes when it is in error, has told of all the messages
// that it has taken, and these have been polled: nobody knew else which receives are left.
bool Program::may_leave(Queue& queue) {
  if (srq_ == nullptr)
    return true;
  if (!queue.failed) {
    put_in_error(queue);
    return false;
  }
  if (queue.settled == 0) {
    if (Fabric::settled(queue.qp))
      queue.settled = ++moment_;
    return false;
  }
  const auto its = std::ranges::find(cqs_, queue.init.recv_cq, &Completions::cq);
  return its->emptied > queue.settled;
}

// To RESET, or destroyed and made anew, with work outstanding: none of it completes, and when the
// call has returned its buffers are the program's again.
void Program::take_down(Queue& queue) {
  queue.leaving = true;
  queue.to_leave = false;
  oracle_.going(queue.number);
  if (choices_.once_in(2)) {
    if (verbs_.destroy_qp(queue.qp) != 0)
      trouble.emplace_back("ibv_destroy_qp fails");
    create(queue);
  } else {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    if (verbs_.modify_qp(queue.qp, &attr, IBV_QP_STATE) != 0)
      trouble.emplace_back("ibv_modify_qp to RESET fails");
  }
  oracle_.gone(queue.number, shared());
  for (auto* list : {&queue.order, &queue.waiting})
    for (const uint64_t id : std::exchange(*list, {})) {
      past_.insert(id);
      release(id);
    }
  queue.open = queue.receives = 0;
  queue.down = true;
}

// Where its requests alone have failed, and all of them have been polled.
bool Program::recover(Queue& queue) {
  if (queue.qp->state != IBV_QPS_SQE || queue.leaving || !queue.order.empty())
    return false;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  if (verbs_.modify_qp(queue.qp, &attr, IBV_QP_STATE) != 0)
    trouble.emplace_back("ibv_modify_qp from SQE to RTS fails");
  queue.failed = queue.told = false;
  oracle_.recovered(queue.number);
  return true;
}

size_t Program::kept_slots() const {
  size_t posted = srq_open_;
  for (const auto& queue : queues_)
    posted += queue->receives;
  return receives_max * queues_.size() - posted;
}

uint64_t* Program::cells_of(uint32_t slot) {
  return own_.data() + static_cast<size_t>(slot) * slot_cells;
}

uint64_t* Program::shared_at(uint32_t cell) const {
  return reinterpret_cast<uint64_t*>(shared_pages_.mine() + shared_offset) + cell;
}

uint64_t* Program::own_at(const uint64_t* cell) const {
  return reinterpret_cast<uint64_t*>(own_pages_.mine()) + (cell - own_.data());
}

void Program::use(uint64_t id, uint32_t slot) {
  slots_[id] = slot;
  ++users_[slot];
}

void Program::release(uint64_t id) {
  const auto at = slots_.find(id);
  if (--users_[at->second] == 0)
    free_.push_back(at->second);
  slots_.erase(at);
}

void Program::wind_up() {
  found_some_ = false;
  // A poll of one queue takes messages for another, too: one each, of which the last of several
  // parts brings a completion.
  constexpr int looks = 10;
  for (int look = 0; look < looks && !found_some_; ++look)
    for (Completions& queue : cqs_)
      found_some_ = poll(queue, 8) != 0 || found_some_;
  for (const auto& queue : queues_)
    post_receive(*queue);
}

void Program::act() {
  look_at_leases();
  look_at_own();
  if (views_->any() && choices_.once_in(8))
    return views_->one_goes();
  if (renewals_ != 0 && choices_.once_in(12))
    return renew_key();
  if (next_change_ != nullptr && choices_.once_in(3) && go_on_changing())
    return;
  if (changes_ != 0 && next_change_ == nullptr && choices_.once_in(12))
    return begin_change(&Program::change_region);
  if (odd_ && choices_.once_in(24))
    return ask_nonsense();
  if ((losses_ != 0 || hurries_) && next_change_ == nullptr && choices_.once_in(hurries_ ? 2 : 12))
    return begin_change(&Program::take_away);
  if ((shared_away_ || away_to_ != 0) && choices_.once_in(6) && give_back())
    return;
  if (!old_mrs_.empty() && choices_.once_in(3) && end_old_key())
    return;
  Queue& queue = *queues_[choices_.below(static_cast<uint32_t>(queues_.size()))];
  if (!queue.leaving &&
      (queue.to_leave || queue.other->leaving || (downs_ != 0 && choices_.once_in(40)))) {
    if (!queue.to_leave)
      downs_ -= std::min(downs_, 1U);
    if (!queue.to_leave && !queue.other->leaving && !queue.failed && choices_.once_in(3))
      return put_in_error(queue);
    queue.to_leave = true;
    if (!may_leave(queue))
      return;
    take_down(queue);
    if (queue.other->down) { // who is down last connects anew
      const auto at = std::ranges::find(queues_, &queue, [](const auto& q) { return q.get(); });
      connect(*this, *queue.peer, static_cast<size_t>(at - queues_.begin()));
    }
    return;
  }
  if (queue.failed && choices_.once_in(4) && recover(queue))
    return;
  switch (choices_.below(2 + habits_.eager())) {
  case 0:
    post_receive(queue);
    break;
  case 1:
    look();
    break;
  default:
    post(queue);
    break;
  }
}

void Program::offer_own(Steps& steps) {
  steps.emplace_back(poster_of(number_), [this] { act(); });
  if (!silent_ || budget_ > last_polled_)
    offer_poll(steps);
}

void Program::offer_poll(Steps& steps) {
  steps.emplace_back(poller_of(number_), [this] { poll(); });
}

void Program::offer(Steps& steps) {
  if (fabric_.has_messages(context_->device))
    steps.emplace_back(service_of(number_),
                       [this] { world.links().progress(context_->device)->progress(); });
  if (!service_.tasks.empty())
    steps.emplace_back(service_of(number_), [this] {
      const auto task = std::move(service_.tasks.front());
      service_.tasks.pop_front();
      task();
    });
  if (!service_.jobs.empty()) {
    const auto run = [this] {
      if (service_.jobs.empty())
        return; // another has run it
      const auto at =
          service_.jobs.begin() + choices_.below(static_cast<uint32_t>(service_.jobs.size()));
      adverb::service::Job* const job = *at;
      service_.jobs.erase(at);
      job->run();
    };
    steps.emplace_back(service_of(number_), run);
    for (uint32_t i = 0; i < copiers; ++i)
      steps.emplace_back(copier_of(number_, i), run);
  }
  if (!service_.timers.empty() &&
      service_.timers.begin()->first <= clock_.time + std::chrono::milliseconds(1))
    offer_late(steps);
}

// What may come before something that nobody keeps waiting for so long.
bool Program::offer_soon(Steps& steps) {
  return !service_.timers.empty() &&
         service_.timers.begin()->first <= clock_.time + std::chrono::seconds(30) &&
         offer_late(steps);
}

// What comes when nothing else can.
bool Program::offer_late(Steps& steps) {
  if (service_.timers.empty())
    return false;
  steps.emplace_back(service_of(number_), [this] {
    const auto first = service_.timers.begin();
    clock_.time = std::max(clock_.time, first->first);
    const auto task = std::move(first->second.second);
    service_.timers.erase(first);
    task();
  });
  return true;
}

// Nothing that it may wait for is outstanding.
bool Program::idle() const {
  return std::ranges::all_of(queues_, [&](const auto& queue) {
    return std::ranges::none_of(
        queue->order, [&](uint64_t id) { return queue->told || oracle_.operation(id)->signaled; });
  });
}

std::vector<uint64_t> Program::shared() const {
  return {shared_.begin(), shared_.end()};
}

} // namespace sim
