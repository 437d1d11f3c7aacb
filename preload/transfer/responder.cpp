// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/responder.h"
#include "world/world.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

namespace adverb::transfer {

using observe::Counter;

namespace {

void run_unsupported(const Request& request, ReplyToken token) {
  (void)request;
  token.answer(Status::unsupported);
}

// Stands in for the row that a request of a kind or version not known here has none of.
constexpr HandlerRow unsupported_row{0,         "unsupported", 0,          Right::none,
                                     Key::free, Order::none,   Shape::any, run_unsupported};

} // namespace

void Targets::add(uint64_t handle, Target* target) {
  const std::lock_guard hold(lock_);
  targets_[handle] = target;
}

void Targets::remove(uint64_t handle) {
  const std::lock_guard hold(lock_);
  targets_.erase(handle);
}

Target* Targets::find(uint64_t handle) {
  const std::lock_guard hold(lock_);
  const auto it = targets_.find(handle);
  return it == targets_.end() ? nullptr : it->second;
}

ReplyToken::~ReplyToken() {
  assert(!responder_ || std::uncaught_exceptions() != 0);
  if (responder_)
    answer(Status::refused);
}

ReplyHeader& ReplyToken::reply() const noexcept {
  return responder_->slots_[slot_].reply;
}

std::span<std::byte> ReplyToken::room() const noexcept {
  const Responder::Slot& slot = responder_->slots_[slot_];
  const size_t begin = slot.filled + sizeof(ReplyHeader);
  const size_t end = responder_->channel_->message_max() - slot.left * sizeof(ReplyHeader);
  // Where others follow they begin at their place.
  return {slot.out + begin, (slot.left != 0 ? end & ~size_t{7} : end) - begin};
}

void ReplyToken::answer(Status status, size_t payload) noexcept {
  assert(responder_);
  if (const auto responder = std::move(responder_))
    responder->answer(responder->slots_[slot_], status, payload);
}

Responder::Responder(World& world, std::shared_ptr<link::Channel> channel,
                     std::shared_ptr<const Handlers> handlers, Targets& targets)
    : world_(world), channel_(std::move(channel)), handlers_(std::move(handlers)),
      targets_(targets), told_(std::make_shared<ToldKeys>(world, targets.key_ends(), channel_)),
      lessor_(std::make_shared<Lessor>(world, channel_, told_)),
      slots_count_(2 * channel_->credits()), slots_(new Slot[slots_count_]) {
  order_.reserve(slots_count_);
  free_.reserve(slots_count_);
  to_copy_.reserve(slots_count_);
  for (uint32_t i = slots_count_; i-- > 0;) {
    slots_[i].of_responder(*this);
    free_.push_back(i);
  }
}

Responder::~Responder() = default;

const HandlerRow* Responder::known(const RequestHeader& header) const noexcept {
  const HandlerRow* row = handlers_->find(header.kind);
  return row != nullptr && header.version <= row->version ? row : nullptr;
}

const HandlerRow& Responder::row_of(const RequestHeader& header) const {
  if (const HandlerRow* row = known(header))
    return *row;
  const HandlerRow* row = handlers_->find(header.kind);
  if (world_.log.every("unsupported-request", 10))
    world_.log.warn("a peer asked for {} {} (version {}), which this adverb does not know; the "
                    "peer runs a newer adverb",
                    row != nullptr ? row->name : "request kind", header.kind, header.version);
  return unsupported_row;
}

Shape Responder::shape_of(const RequestHeader& header) const noexcept {
  const HandlerRow* row = known(header);
  return row != nullptr ? row->shape : unsupported_row.shape;
}

// How many requests a message has; 0: it is malformed. Those of one queue pair may share it, which
// wait for each other anyway.
uint32_t Responder::count(std::span<const std::byte> message) const {
  const auto shape = [this](const RequestHeader& h) { return shape_of(h); };
  const auto in_order = [this](const RequestHeader& h) {
    const HandlerRow* row = known(h);
    return row != nullptr && row->order == Order::queue_pair;
  };
  const auto first = next_request(message, shape);
  if (!first)
    return 0;
  uint32_t requests = 1;
  for (; !message.empty(); ++requests) {
    const auto next = next_request(message, shape);
    if (!next || !in_order(first->header) || !in_order(next->header) ||
        next->header.target != first->header.target || next->header.source != first->header.source)
      return 0;
  }
  return requests;
}

void Responder::on_message(link::RxBuffer message) {
  assert(channel_->progress().lock().held());
  ++arrivals_;
  if (!is_notice(message.bytes()))
    return on_request(std::move(message));
  const auto parsed = parse_notice(message.bytes());
  if (!parsed || parsed->header.count != 0 || note_ || !told_->awaits(parsed->header.number))
    return reject("a malformed acknowledgement", message.bytes().size());
  note_ = Note{parsed->header.number, arrivals_};
  take_note();
}

void Responder::take_note() {
  if (!note_ || (!order_.empty() && slots_[order_.front()].arrival < note_->arrival))
    return;
  const uint32_t number = note_->number;
  note_.reset();
  told_->acknowledged(number);
  lessor_->returned(told_->take_returned());
  lessor_->sweep();
}

void Responder::reject(const char* what, size_t bytes) {
  world_.counters.count(Counter::malformed_messages);
  if (channel_->peer() != nullptr)
    channel_->peer()->count(link::Peer::Number::malformed_messages);
  if (world_.log.every("malformed-request", 10))
    world_.log.error("a peer sent {} of {} bytes; closing the link", what, bytes);
  channel_->close();
}

void Responder::on_request(link::RxBuffer message) {
  const uint32_t requests = count(message.bytes());
  if (requests == 0)
    return reject("a malformed request", message.bytes().size());
  if (free_.empty() || held_.load() == channel_->credits())
    return reject("a request beyond its credits", message.bytes().size());
  held_.fetch_add(1);
  const uint32_t index = free_.back();
  Slot& slot = slots_[index];
  free_.pop_back();
  slot.message.emplace(std::move(message));
  slot.rest = slot.message->bytes();
  slot.left = requests;
  slot.filled = 0;
  slot.arrival = arrivals_;
  take_next(slot);
  order_.push_back(index);
  serve_waiting();
}

// The next request of the slot's message, which is known to be well-formed.
void Responder::take_next(Slot& slot) {
  const auto request =
      next_request(slot.rest, [this](const RequestHeader& h) { return shape_of(h); });
  assert(request && slot.left != 0);
  --slot.left;
  slot.brought = false;
  slot.header = request->header;
  slot.payload = request->payload;
  slot.row = &row_of(slot.header);
  slot.state.store(State::waiting, std::memory_order_relaxed);
}

void Responder::on_tx_free() {
  told_->on_tx_free();
  serve_waiting();
}

// Whether an earlier request of the same domain is not answered yet.
bool Responder::waits_for_another(size_t place) const {
  const Slot& mine = slots_[order_[place]];
  if (mine.row->order == Order::none)
    return false;
  return std::any_of(
      order_.begin(), order_.begin() + static_cast<ptrdiff_t>(place), [&](uint32_t index) {
        const Slot& other = slots_[index];
        return other.row->order == mine.row->order &&
               (mine.row->order == Order::channel || other.header.target == mine.header.target);
      });
}

// Starts what may start, in the order it came. What finishes can only let later ones go. What finds
// no message to reply by is passed by those that have one, and by nothing else: these may have them
// all.
void Responder::serve_waiting() {
  assert(channel_->progress().lock().held());
  if (channel_->down())
    return; // nobody hears of it
  bool full = false;
  for (size_t place = 0; place < order_.size();) {
    const uint32_t index = order_[place];
    const Slot& slot = slots_[index];
    if (slot.state.load(std::memory_order_relaxed) != State::waiting ||
        (full && slot.out == nullptr) || waits_for_another(place)) {
      ++place;
      continue;
    }
    switch (start(index)) {
    case Started::done:
      order_.erase(order_.begin() + static_cast<ptrdiff_t>(place));
      take_note();
      break;
    case Started::next:
      break;
    case Started::no_room:
      full = true;
      ++place;
      break;
    default:
      ++place;
    }
  }
}

// The queue pair that is meant, if the peer's is bound to it over this channel: whoever else knows
// its name may ask nothing of it, nor who has not proven yet to be that peer.
Target* Responder::target_of(const RequestHeader& r) const noexcept {
  using Binding = link::Channel::Binding;
  if (channel_->down())
    return nullptr;
  return channel_->binding(r.target, r.source) == Binding::bound ? targets_.find(r.target)
                                                                 : nullptr;
}

void Responder::note_unbound(const RequestHeader& r) {
  using Binding = link::Channel::Binding;
  if (r.target == 0 || channel_->binding(r.target, r.source) != Binding::none)
    return; // it was sent before the peer unbound, or the queue pair has ended here
  world_.counters.count(Counter::requests_unbound);
  if (channel_->peer() != nullptr)
    channel_->peer()->count(link::Peer::Number::requests_unbound);
  if (world_.log.every("unbound-request", 60))
    world_.log.warn("a peer asked in the name of a queue pair that it is not bound to, or "
                    "has not proven to be its own; refused");
}

// What a row asks for is checked before it runs.
std::optional<Status> Responder::judge(const HandlerRow& row, const RequestHeader& r,
                                       Target* target) {
  const bool needs_target =
      row.order == Order::queue_pair || row.right != Right::none || row.key == Key::named;
  if (!needs_target)
    return std::nullopt;
  if (target == nullptr)
    return Status::refused;
  if (row.order == Order::queue_pair && r.run <= target->binding(*channel_).halted_run)
    return Status::halted;
  if (row.key == Key::named && !target->regions().is_virtual_to_peer(target->pd(), r.key))
    return Status::not_virtual;
  if (row.key == Key::named)
    told_->tell(target->regions(), r.key);
  if (row.right != Right::none && !target->allows(row.right))
    return Status::refused;
  return std::nullopt;
}

Responder::Started Responder::start(uint32_t index) {
  Slot& slot = slots_[index];
  const HandlerRow& row = *slot.row;
  Target* target = target_of(slot.header);
  if (target == nullptr)
    note_unbound(slot.header);
  if (row.order == Order::queue_pair && target != nullptr &&
      (target->leaving() || !target->settle_receives(slot.header))) {
    retry_soon();
    return Started::unsettled;
  }
  if (row.order == Order::queue_pair)
    retries_ = 0;
  if (slot.out == nullptr)
    slot.out = channel_->acquire();
  if (slot.out == nullptr)
    return Started::no_room;
  slot.reply = {};
  slot.reply.kind = slot.header.kind;
  slot.reply.run = slot.header.run;
  slot.reply.source = slot.header.source;
  slot.reply.request = slot.header.request;
  if (told_->tells_served() && channel_->version() >= version_spares &&
      world_.service.short_of_cpu())
    slot.reply.flags = short_of_cpu;
  slot.state.store(State::running, std::memory_order_relaxed);
  slot.target = target;
  // What the peer has given back for a lease it does not have any more, whatever comes of that.
  if (slot.header.kind == static_cast<uint8_t>(Kind::lease) && slot.header.receive != 0)
    lessor_->yielded(static_cast<uint32_t>(slot.header.receive));
  try {
    ReplyToken token(shared_from_this(), index);
    if (const auto status = judge(row, slot.header, target); status == Status::not_virtual)
      answer_not_virtual(world_, channel_->peer(), *target, slot.header.key, std::move(token));
    else if (status)
      token.answer(*status);
    else
      row.run({world_, slot.header, slot.payload, target,
               target != nullptr ? &target->binding(*channel_) : nullptr,
               std::exchange(slot.brought, false), *lessor_, *told_, channel_->peer()},
              std::move(token));
  } catch (const std::exception& e) { // the token has answered
    world_.counters.count(Counter::exceptions_caught);
    world_.log.error("internal error while serving a peer's {}: {}", row.name, e.what());
  }
  if (slot.state.load(std::memory_order_relaxed) == State::copying) {
    begin_copies();
    return Started::later;
  }
  State expected = State::running;
  if (slot.state.compare_exchange_strong(expected, State::later, std::memory_order_acq_rel))
    return Started::later;
  return finish(slot, target) ? Started::done : Started::next;
}

void Responder::answer(Slot& slot, Status status, size_t payload) noexcept {
  slot.status = status;
  slot.reply.status = static_cast<uint8_t>(status);
  slot.reply.length = status == Status::ok ? static_cast<uint32_t>(payload) : 0;
  memcpy(slot.out + slot.filled, &slot.reply, sizeof slot.reply);
  slot.filled += sizeof slot.reply + slot.reply.length;
  if (slot.left == 0) {
    // Its buffer is there again before its peer hears that it may send another.
    slot.payload = {};
    slot.message.reset();
    held_.fetch_sub(1);
    channel_->send(std::exchange(slot.out, nullptr), slot.filled);
  }
  slot.filled = next_place(slot.filled);
  if (slot.state.exchange(State::answered, std::memory_order_acq_rel) == State::later)
    world_.service.run([self = shared_from_this()] {
      const std::lock_guard progress(self->channel_->progress().lock());
      self->collect();
    });
}

// What an answered request leaves behind: its place to the next one of its message, and after a
// failure the halt of its run. True: it was the last one, and the slot is free.
bool Responder::finish(Slot& slot, Target* target) {
  if (slot.row->order == Order::queue_pair && slot.status != Status::ok &&
      slot.status != Status::halted && target != nullptr) {
    target->binding(*channel_).halted_run = slot.header.run;
    world_.counters.count(Counter::responder_naks);
    if (slot.status == Status::fault && world_.log.every("responder-fault", 1))
      world_.log.warn("a peer's operation of {} bytes met memory that this process has unmapped "
                      "or protected after registering it; the peer gets an error",
                      slot.header.total);
  }
  if (slot.row->order == Order::queue_pair && slot.status == Status::ok &&
      channel_->peer() != nullptr)
    channel_->peer()->count(link::Peer::Number::requests);
  if (slot.left != 0 && !channel_->down()) {
    take_next(slot);
    return false;
  }
  free(slot);
  return true;
}

void Responder::free(Slot& slot) {
  if (slot.out != nullptr)
    channel_->abandon(std::exchange(slot.out, nullptr));
  if (slot.message) {
    slot.message.reset();
    held_.fetch_sub(1);
  }
  slot.state.store(State::free, std::memory_order_relaxed);
  free_.push_back(static_cast<uint32_t>(&slot - slots_.get()));
}

// Goes on behind what was answered after its handler had returned.
void Responder::collect() {
  std::erase_if(order_, [this](uint32_t index) {
    Slot& slot = slots_[index];
    return slot.state.load(std::memory_order_acquire) == State::answered &&
           finish(slot, target_of(slot.header));
  });
  take_note();
  serve_waiting();
}

void Responder::retry_soon() {
  if (retrying_)
    return;
  retrying_ = true;
  // Soon, for the program polls; but it may also destroy the queue pair, and that may take a while.
  constexpr uint32_t soon = 16;
  constexpr uint32_t doublings = 4;
  const uint32_t shift = std::min(retries_ - std::min(retries_, soon), doublings);
  ++retries_;
  world_.service.after(std::chrono::microseconds(50 << shift), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard hold(self->channel_->progress().lock());
    self->retrying_ = false;
    self->serve_waiting();
  });
}

// What is under way for it stays: it lands as what a device has begun, or is judged anew.
void Responder::on_unbound(uint64_t handle) {
  if (Target* const target = targets_.find(handle))
    target->revoke(target->unbind(*channel_));
}

// Those that a handler keeps stay until it answers; nobody hears it.
void Responder::on_down() {
  note_.reset();
  told_->close();
  const std::shared_ptr<LeftLeases> left = lessor_->close();
  channel_->each_bound([&](uint64_t handle) {
    Target* const target = targets_.find(handle);
    if (target == nullptr)
      return;
    if (left != nullptr)
      target->keep(left);
    if (Grants lent = target->unbind(*channel_); !lent.empty())
      target->lent_over_lost_link(std::move(lent));
  });
  std::erase_if(order_, [this](uint32_t index) {
    Slot& slot = slots_[index];
    if (slot.state.load(std::memory_order_relaxed) != State::waiting)
      return false;
    free(slot);
    return true;
  });
}

} // namespace adverb::transfer
