// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "oracle.h"

#include <algorithm>
#include <cstdio>

namespace sim {

const char* to_text(Kind kind) {
  switch (kind) {
  case Kind::write:
    return "WRITE";
  case Kind::write_imm:
    return "WRITE_WITH_IMM";
  case Kind::send:
    return "SEND";
  case Kind::read:
    return "READ";
  default:
    return "FETCH_ADD";
  }
}

void Oracle::found(const std::string& what) {
  findings_.push_back(what);
}

std::string Oracle::name(const Known& operation) const {
  return std::string(to_text(operation.kind)) + " " + std::to_string(operation.id) +
         " of queue pair " + std::to_string(operation.qp);
}

void Oracle::connected(uint32_t qp, uint32_t owner, uint32_t peer, uint32_t there, bool relaxed,
                       Transport transport) {
  Queue& queue = queues_[qp];
  queue.relaxed = relaxed;
  queue.transport = transport;
  queue.going = queue.starved = parted_;
  queue.owner = owner;
  queue.peer = peer;
  queue.there = there;
}

void Oracle::posted(Operation operation) {
  Queue& queue = queues_[operation.qp];
  Known known;
  static_cast<Operation&>(known) = std::move(operation);
  known.place = queue.operations.size();
  known.at = ++now_;
  meet_what_is_away(known);
  auto& kept = all_[known.id] = std::move(known);
  queue.operations.push_back(&kept);
  kept.barred = is_barred(kept);
  queue.wrong |= kept.wrong;
  if (loud)
    printf("  %4llu  program %u posts %s%s%s%s of cells %u+%u%s\n",
           static_cast<unsigned long long>(now_), queue.owner, name(kept).c_str(),
           kept.signaled ? ", signaled" : "", kept.fenced ? ", fenced" : "",
           kept.wrong ? ", wrong" : "", kept.target.cell, kept.target.count,
           kept.from == never ? "" : (" from " + std::to_string(kept.from)).c_str());
  if (kept.kind == Kind::send || kept.kind == Kind::write_imm)
    queue.sent.push_back(&kept);
}

void Oracle::receive_posted(uint32_t qp, uint64_t id, uint32_t room, uint64_t filler) {
  ++now_;
  queues_[qp].receives.push_back({id, room, filler});
  if (loud)
    printf("  %4llu  receive %llu is posted on queue pair %u\n",
           static_cast<unsigned long long>(now_), static_cast<unsigned long long>(id), qp);
}

void Oracle::shares(uint32_t qp, uint32_t pool) {
  queues_[qp].pool = pool;
}

void Oracle::shared_receive_posted(uint32_t pool, uint64_t id, uint32_t room, uint64_t filler) {
  ++now_;
  pools_[pool][id] = {id, room, filler};
  if (loud)
    printf("  %4llu  receive %llu is posted to the shared queue %u\n",
           static_cast<unsigned long long>(now_), static_cast<unsigned long long>(id), pool);
}

void Oracle::refused(uint64_t id) {
  const Known& gone = all_.at(id);
  if (loud)
    printf("        %s is not taken\n", name(gone).c_str());
  Queue& queue = queues_[gone.qp];
  std::erase(queue.operations, &gone);
  std::erase(queue.sent, &gone);
  queue.wrong = std::ranges::any_of(queue.operations, [](const Known* one) { return one->wrong; });
  all_.erase(id);
}

void Oracle::receive_refused(uint32_t qp, uint64_t id) {
  std::erase_if(queues_[qp].receives, [id](const Receive& one) { return one.id == id; });
}

void Oracle::starved() {
  for (auto& [number, queue] : queues_)
    queue.going = queue.starved = true;
}

const Operation* Oracle::operation(uint64_t id) const {
  const auto at = all_.find(id);
  return at == all_.end() ? nullptr : &at->second;
}

// Its queue pair may fail for what came over the other.
bool Oracle::troubled(const Queue& queue) const {
  const Queue& peer = queues_.at(queue.peer);
  return queue.wrong || peer.wrong || queue.going || peer.going;
}

// Behind one that must be refused, which it may not pass.
bool Oracle::is_barred(const Known& operation) const {
  const auto& earlier = queues_.at(operation.qp).operations;
  if (is_lossy(operation)) // a responder drops what it does not take (IBTA, Volume 1, 9.8)
    return std::ranges::any_of(earlier, [&](const Known* one) {
      return one->wrong_here && one->over == never && in_order(*one, operation);
    });
  // Where the result has no place to go that is found out when it comes.
  const auto late = [](const Known& one) {
    return one.wrong_here && (one.kind == Kind::read || one.kind == Kind::fetch_add);
  };
  return std::ranges::any_of(earlier, [&](const Known* one) {
    return one->wrong && before(*one, operation) && (!late(*one) || operation.fenced);
  });
}

// Posted when one end of its connection was known to be in error.
bool Oracle::came_too_late(const Known& operation) const {
  const Queue& queue = queues_.at(operation.qp);
  if (is_lossy(operation))
    return operation.at > queue.broken; // it goes out, whoever is there
  return operation.at > queue.broken || operation.at > queues_.at(queue.peer).broken;
}

bool Oracle::uses_key(uint32_t there, uint32_t key) const {
  return std::ranges::any_of(all_, [&](const auto& entry) {
    const Known& one = entry.second;
    return one.key == key && one.target.there == there && one.over == never &&
           !queues_.at(one.qp).gone;
  });
}

void Oracle::key_ends(uint32_t there, uint32_t key) {
  for (auto& [id, one] : all_)
    if (one.key == key && one.target.there == there && one.over == never)
      one.doomed = queues_[one.qp].going = true;
}

bool Oracle::reaches_what_is_away(const Known& operation) const {
  const auto at = away_.find(operation.target.there);
  if (at == away_.end() || !operation.follows || operation.kind == Kind::send)
    return false;
  const Away& away = at->second;
  return operation.target.count != 0 && operation.target.cell < away.cell + away.count &&
         away.cell < operation.target.cell + operation.target.count;
}

void Oracle::meet_what_is_away(Known& operation) {
  if (!reaches_what_is_away(operation))
    return;
  if (operation.wrong) { // at home, or there, whoever finds out first
    operation.doomed = operation.wrong_here;
    return;
  }
  const Away& away = away_.at(operation.target.there);
  if (operation.kind == Kind::fetch_add || away.late) {
    operation.doomed = queues_[operation.qp].going = true;
    return;
  }
  operation.wrong = true;
  operation.torn = operation.target.cell < away.cell ||
                   operation.target.cell + operation.target.count > away.cell + away.count;
}

void Oracle::memory_goes(uint32_t there, uint32_t cell, uint32_t count, bool late) {
  ++now_;
  if (loud)
    printf("  %4llu  program %u takes away cells %u+%u%s\n", static_cast<unsigned long long>(now_),
           there, cell, count, late ? ", which are leased" : "");
  away_[there] = {{there, cell, count}, late};
  for (auto& [id, one] : all_)
    if (one.over == never && reaches_what_is_away(one))
      one.doomed = queues_[one.qp].going = true;
}

// Of one that was flushed, or whose queue pair has gone before it was over, a message may still be
// on its way: it would be carried out, for a destroyed queue pair bars only what comes to its own
// end.
bool Oracle::memory_returns(uint32_t there) {
  for (const auto& [id, one] : all_) {
    const bool open = one.over == never && !queues_.at(one.qp).gone;
    const bool unheard = // of its refusal
        is_lossy(one) && one.over != never && one.status == Status::success;
    const bool unrefused = !one.wrong_here && one.status != Status::remote_access && !unheard;
    if (one.target.there == there && one.wrong && (open || unrefused) && reaches_what_is_away(one))
      return false;
  }
  ++now_;
  if (loud)
    printf("  %4llu  program %u has all its memory again\n", static_cast<unsigned long long>(now_),
           there);
  away_.erase(there);
  return true;
}

void Oracle::going(uint32_t qp) {
  queues_[qp].going = true;
}

void Oracle::gone(uint32_t qp, std::vector<uint64_t> cells) {
  Queue& queue = queues_[qp];
  if (loud)
    printf("  %4llu  queue pair %u has gone\n", static_cast<unsigned long long>(now_), qp);
  queue.gone = true;
  if (queue.broken != never)
    return;
  queue.broken = ++now_;
  queue.broken_memory = std::move(cells);
}

void Oracle::broken(uint32_t qp, std::vector<uint64_t> cells) {
  Queue& queue = queues_[qp];
  if (queue.broken != never)
    return;
  queue.broken = ++now_;
  queue.broken_memory = std::move(cells);
}

void Oracle::brought(uint64_t id, std::vector<uint64_t> result) {
  all_.at(id).result = std::move(result);
}

void Oracle::finish(Known& operation, Status status) {
  operation.over = now_;
  operation.status = status;
  if (operation.kind == Kind::read && status == Status::success)
    for (uint32_t i = 0; i < operation.target.count; ++i)
      looks_.push_back({operation.target.there, operation.target.cell + i, operation.result.at(i),
                        operation.at, now_, &operation, nullptr});
}

// With order "relaxed" a later WRITE that must be refused may be so first.
bool Oracle::may_be_passed_by_a_failure(const Known& mine) const {
  const auto& all = queues_.at(mine.qp).operations;
  return mine.kind == Kind::write &&
         std::any_of(all.begin() + static_cast<ptrdiff_t>(mine.place) + 1, all.end(),
                     [this](const Known* later) {
                       return later->kind == Kind::write &&
                              (is_lossy(*later) ? later->wrong_here
                                                : later->wrong || later->doomed);
                     });
}

void Oracle::completed(const Completion& c) {
  ++now_;
  if (loud)
    printf("  %4llu  %llu completes with %s on queue pair %u\n",
           static_cast<unsigned long long>(now_), static_cast<unsigned long long>(c.id),
           c.status_text.c_str(), c.qp);
  const auto at = all_.find(c.id);
  if (at == all_.end())
    return found("a completion of a request that nobody posted: " + std::to_string(c.id));
  Known& mine = at->second;
  if (mine.qp != c.qp)
    return found("the completion of " + name(mine) + " names queue pair " + std::to_string(c.qp));
  if (mine.over != never)
    return found(name(mine) + " completes a second time, or after a later one");
  Queue& queue = queues_[c.qp];
  if (queue.gone)
    found(name(mine) + " completes, and its queue pair has gone");
  // Those before it had no completion of their own: they were not to have one.
  for (; queue.open < mine.place; ++queue.open) {
    Known& silent = *queue.operations[queue.open];
    if (silent.signaled || queue.failed)
      found(name(mine) + " completes before " + name(silent));
    finish(silent, Status::success);
  }
  queue.open = mine.place + 1;
  finish(mine, c.status);
  if (c.status == Status::success && !mine.signaled)
    found(name(mine) + " completes with success, and was not signaled");
  // With order "relaxed" it may have failed before one that is told of first, and is flushed.
  const bool passed = queue.failed && queue.relaxed && mine.kind == Kind::write &&
                      c.status != Status::success && c.status != Status::flushed &&
                      !before(*queue.first_failed, mine);
  const bool unheard = is_lossy(mine) && !mine.wrong_here; // of its refusal
  const bool right =
      queue.failed && !passed ? c.status == Status::flushed
      : unheard
          ? c.status == Status::success || queue.going ||
                (queue.relaxed && c.status == Status::flushed && may_be_passed_by_a_failure(mine))
      : mine.wrong
          ? c.status == (mine.wrong_here ? Status::other : Status::remote_access) || mine.doomed ||
                queue.going || queues_[queue.peer].going || queues_[queue.peer].wrong ||
                (queue.relaxed && c.status == Status::flushed && may_be_passed_by_a_failure(mine))
          : c.status == Status::success || (troubled(queue) && (c.status != Status::remote_access ||
                                                                mine.doomed || queue.starved));
  const bool late = c.status == Status::success && came_too_late(mine);
  if (!right || late || (mine.wrong && c.status == Status::success && !unheard))
    found(name(mine) + (mine.wrong ? ", which the peer must refuse, " : " ") + "completes with " +
          c.status_text +
          (queue.failed ? " behind one that failed"
           : late       ? ", posted when its connection was known to be in error"
                        : ""));
  if (c.status != Status::success && !std::exchange(queue.failed, true))
    queue.first_failed = &mine;
  if (c.status != Status::success)
    return;
  if (c.opcode_right == 0)
    found(name(mine) + " completes with another's opcode");
  const bool reads = mine.kind == Kind::read || mine.kind == Kind::fetch_add;
  if (reads && c.byte_len != mine.target.count * sizeof(uint64_t))
    found(name(mine) + " completes with byte_len " + std::to_string(c.byte_len));
}

void Oracle::received(const Completion& c, const std::vector<uint64_t>& got) {
  ++now_;
  last_received_ = nullptr;
  if (loud)
    printf("  %4llu  receive %llu completes with %s\n", static_cast<unsigned long long>(now_),
           static_cast<unsigned long long>(c.id), c.status_text.c_str());
  Queue& queue = queues_[c.qp];
  const Receive* const next = next_receive(queue, c);
  if (next == nullptr)
    return found("receive " + std::to_string(c.id) + " completes on queue pair " +
                 std::to_string(c.qp) + ", which has none, or not this");
  const Receive receive = *next;
  if (receive.id != c.id)
    found("receive " + std::to_string(c.id) + " completes before " + std::to_string(receive.id));
  if (c.status == Status::flushed) {
    queue.receives_flushed = true;
    return;
  }
  if (queue.receives_flushed || c.status != Status::success)
    found("receive " + std::to_string(c.id) + " completes with " + c.status_text);
  const Queue& sender = queues_[queue.peer];
  const size_t place = queue.receives_done - 1;
  Known* const sent = queue.transport != Transport::rc ? message_of(queue, c, got)
                      : place < sender.sent.size()     ? sender.sent[place]
                                                       : nullptr;
  if (sent == nullptr)
    return found("receive " + std::to_string(c.id) + " completes, and nothing was sent");
  Known& message = *sent;
  if (std::exchange(message.came, true))
    found("receive " + std::to_string(c.id) + " has " + name(message) + " a second time");
  last_received_ = &message;
  if (message.barred)
    found("receive " + std::to_string(c.id) + " has " + name(message) +
          ", which stands behind one that must be refused");
  if (c.with_imm != (message.kind == Kind::write_imm || message.with_imm))
    found("receive " + std::to_string(c.id) + " of " + name(message) + " has another's opcode");
  if (c.with_imm && c.imm != static_cast<uint32_t>(message.id))
    found("receive " + std::to_string(c.id) + " has the immediate of another than " +
          name(message));
  arrivals_.push_back({&message, c.id, receive.filler, c.byte_len, got});
}

// Which of those that may be lost has come: its immediate says so, or its first bytes do.
Oracle::Known* Oracle::message_of(Queue& queue, const Completion& c,
                                  const std::vector<uint64_t>& got) {
  const auto& sent = queues_[queue.peer].sent;
  const auto at = std::ranges::find_if(sent, [&](const Known* one) {
    return c.with_imm ? c.imm == static_cast<uint32_t>(one->id)
                      : !one->values.empty() && !got.empty() && one->values[0] == got[0];
  });
  if (at == sent.end())
    return nullptr;
  const auto place = static_cast<size_t>(at - sent.begin());
  // Of UC they come in order; datagrams may pass each other (IBTA, Volume 1, 9.8).
  if (queue.transport == Transport::uc && place + 1 < std::exchange(queue.came, place + 1))
    found("receive " + std::to_string(c.id) + " has " + name(**at) + " behind a later one");
  return *at;
}

// Of its own they complete in order; of shared ones each once.
const Oracle::Receive* Oracle::next_receive(Queue& queue, const Completion& c) {
  if (queue.pool == never)
    return queue.receives_done < queue.receives.size() ? &queue.receives[queue.receives_done++]
                                                       : nullptr;
  auto& pool = pools_[queue.pool];
  const auto at = pool.find(c.id);
  if (at == pool.end() || (c.status == Status::flushed && !queue.failed && !troubled(queue)))
    return nullptr;
  taken_ = at->second;
  pool.erase(at);
  ++queue.receives_done;
  return &taken_;
}

void Oracle::looked(uint32_t program, uint32_t cell, uint64_t value, uint64_t after) {
  ++now_;
  looks_.push_back(
      {program, cell, value, now_, now_, nullptr, after == never ? nullptr : &all_.at(after)});
}

void Oracle::emptied(uint32_t program, uint32_t cell, uint64_t value) {
  looked(program, cell, value, never);
  if (loud)
    printf("%6llu  program %u empties cell %u of %llu\n", static_cast<unsigned long long>(now_),
           program, cell, static_cast<unsigned long long>(value));
  emptied_[{program, cell}].push_back({now_, value});
}

// Whether `a` has taken effect before `b` can.
bool Oracle::before(const Known& a, const Known& b) const {
  if (is_lossy(a))
    return false; // it may not have come at all
  return a.qp == b.qp ? in_order(a, b) : a.status == Status::success && a.over < b.at;
}

// Of one queue pair: whether `b` may not pass `a`.
bool Oracle::in_order(const Known& a, const Known& b) const {
  if (a.place < b.place && a.kind == Kind::write && b.kind == Kind::write) {
    const Queue& queue = queues_.at(a.qp);
    // What stands between and is no WRITE passes neither; but a READ may be passed.
    const auto from = queue.operations.begin() + static_cast<ptrdiff_t>(a.place) + 1;
    const auto until = queue.operations.begin() + static_cast<ptrdiff_t>(b.place);
    return !queue.relaxed || std::any_of(from, until, [&](const Known* between) {
      return between->kind != Kind::write && (between->kind != Kind::read || b.fenced);
    });
  }
  return a.place < b.place && (a.kind != Kind::read || b.fenced);
}

} // namespace sim
