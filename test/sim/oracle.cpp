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

void Oracle::connected(uint32_t qp, uint32_t owner, uint32_t peer, uint32_t there, bool relaxed) {
  Queue& queue = queues_[qp];
  queue.relaxed = relaxed;
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
  const bool right =
      queue.failed && !passed ? c.status == Status::flushed
      : mine.wrong ? c.status == (mine.wrong_here ? Status::other : Status::remote_access) ||
                         mine.doomed || troubled(queues_[queue.peer])
                   : c.status == Status::success ||
                         (troubled(queue) &&
                          (c.status != Status::remote_access || mine.doomed || queue.starved));
  const bool late = c.status == Status::success && came_too_late(mine);
  if (!right || late || (mine.wrong && c.status == Status::success))
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
  if (place >= sender.sent.size())
    return found("receive " + std::to_string(c.id) + " completes, and nothing was sent");
  const Known& message = *sender.sent[place];
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

void Oracle::judge(const Arrival& arrival) {
  const Known& message = *arrival.message;
  if (message.from != never && all_.at(message.from).result.empty())
    return; // nobody knows what it carries
  const auto values = values_of(message);
  const auto who = [&] {
    return "receive " + std::to_string(arrival.receive) + " of " + name(message) + " has ";
  };
  const size_t words = message.kind == Kind::send ? values.size() : message.target.count;
  if (arrival.byte_len != words * sizeof(uint64_t))
    return found(who() + "byte_len " + std::to_string(arrival.byte_len));
  const size_t filled = message.kind == Kind::send ? values.size() : 0;
  for (size_t i = 0; i < arrival.found.size(); ++i)
    if (arrival.found[i] != (i < filled ? values[i] : arrival.filler))
      return found(who() + (i < filled ? "other bytes" : "bytes beyond its end") + " at word " +
                   std::to_string(i));
}

// What an operation carries. Of a READ that is not over: not known yet, none.
std::vector<uint64_t> Oracle::values_of(const Known& operation) const {
  if (operation.from == never)
    return operation.values;
  auto values = all_.at(operation.from).result;
  values.resize(std::min(values.size(), static_cast<size_t>(operation.target.count)));
  return values;
}

void Oracle::looked(uint32_t program, uint32_t cell, uint64_t value, uint64_t after) {
  ++now_;
  looks_.push_back(
      {program, cell, value, now_, now_, nullptr, after == never ? nullptr : &all_.at(after)});
}

// Whether `a` has taken effect before `b` can.
bool Oracle::before(const Known& a, const Known& b) const {
  if (a.qp == b.qp && a.place < b.place && a.kind == Kind::write && b.kind == Kind::write) {
    const Queue& queue = queues_.at(a.qp);
    // What stands between and is no WRITE passes neither; but a READ may be passed.
    const auto from = queue.operations.begin() + static_cast<ptrdiff_t>(a.place) + 1;
    const auto until = queue.operations.begin() + static_cast<ptrdiff_t>(b.place);
    return !queue.relaxed || std::any_of(from, until, [&](const Known* between) {
      return between->kind != Kind::write && (between->kind != Kind::read || b.fenced);
    });
  }
  if (a.qp == b.qp)
    return a.place < b.place && (a.kind != Kind::read || b.fenced);
  return a.status == Status::success && a.over < b.at;
}

bool Oracle::before(const Known& write, const Look& look) const {
  if (write.over != never && write.status != Status::success)
    return false; // nobody knows whether it did
  if (look.rest != never && queues_.at(write.qp).owner == look.rest && write.at < look.from &&
      !troubled(queues_.at(write.qp)))
    return true;
  if (look.read != nullptr)
    return before(write, *look.read);
  return write.over < look.from ||
         (look.after != nullptr && write.qp == look.after->qp && write.place <= look.after->place);
}

// Whether the write cannot have taken effect before the look.
bool Oracle::after(const Known& write, const Look& look) const {
  if (write.at > look.until)
    return true;
  return look.read != nullptr && before(*look.read, write);
}

// What is wrong with the look's having found what `source` wrote; null: what was there at first.
std::string Oracle::against(const Look& look, const Known* source) const {
  const auto who = [&] {
    return (look.read != nullptr ? name(*look.read) : "program " + std::to_string(look.program)) +
           " finds in cell " + std::to_string(look.cell) + " of program " +
           std::to_string(look.program) + " ";
  };
  if (source == nullptr && look.value != 0)
    return who() + "what nobody wrote there: " + std::to_string(look.value);
  // With an element that is wrong, the packets before that go out.
  if (source != nullptr && source->wrong && !source->wrong_here)
    return who() + "the bytes of the refused " + name(*source);
  if (source != nullptr && source->barred)
    return who() + "the bytes of " + name(*source) +
           ", which stands behind one that must be refused";
  if (source != nullptr && after(*source, look))
    return who() + "the bytes of the later " + name(*source);
  const auto writers = writers_.find({look.program, look.cell});
  if (writers == writers_.end())
    return {};
  for (const Known* between : writers->second)
    if (between != source && !between->wrong && before(*between, look) &&
        (source == nullptr || before(*source, *between)))
      return who() + (source == nullptr ? "nothing" : "the bytes of " + name(*source)) +
             ", which " + name(*between) + " has overwritten";
  return {};
}

// A value tells its writer, but what a READ has brought may be written once more: then it is enough
// that it may come from one of those.
void Oracle::judge(const Look& look) {
  std::vector<const Known*> sources;
  for (const Known* write : writers_[{look.program, look.cell}]) {
    const auto values = values_of(*write);
    if (values.empty() && !write->wrong && !write->barred)
      return; // it carries what a READ has brought of which nobody was told
    const uint32_t at = look.cell - write->target.cell;
    if (at < values.size() && values[at] == look.value && (look.value != 0 || write->from != never))
      sources.push_back(write);
  }
  if (sources.empty() || look.value == 0)
    sources.push_back(nullptr);
  std::string against_first;
  for (const Known* source : sources) {
    auto what = against(look, source);
    if (what.empty())
      return;
    if (against_first.empty())
      against_first = std::move(what);
  }
  found(against_first);
}

// What lies in a program's memory at the end, and did not when it saw a queue pair in error, has
// not come through that one.
void Oracle::judge_barriers(const std::vector<std::vector<uint64_t>>& cells) {
  for (const auto& [number, queue] : queues_) {
    if (queue.broken_memory.empty())
      continue;
    const auto& now = cells[queue.owner];
    for (const Known* write : queues_.at(queue.peer).operations)
      for (uint32_t i = 0; i < write->values.size() && write->kind != Kind::send; ++i) {
        const uint32_t cell = write->target.cell + i;
        // A WRITE of what a READ has brought may have put it there once more.
        const bool again = std::ranges::any_of(writers_[{queue.owner, cell}],
                                               [](const Known* one) { return one->from != never; });
        if (!again && now[cell] == write->values[i] &&
            queue.broken_memory[cell] != write->values[i])
          return found(name(*write) + " has landed in cell " + std::to_string(cell) +
                       " of program " + std::to_string(queue.owner) + " through queue pair " +
                       std::to_string(number) + ", known to be in error");
      }
  }
}

void Oracle::rested(uint32_t program, const std::vector<std::vector<uint64_t>>& cells) {
  ++now_;
  for (const auto& [number, queue] : queues_) {
    if (queue.owner != program || queue.gone || troubled(queue))
      continue;
    const Queue& peer = queues_.at(queue.peer);
    if (peer.receives_done < queue.sent.size())
      found(name(*queue.sent[peer.receives_done]) + " has not gone out, and nobody polls for it");
    std::set<uint32_t> written;
    for (const Known* one : queue.operations)
      if (one->kind == Kind::write || one->kind == Kind::write_imm)
        for (uint32_t i = 0; i < one->target.count; ++i)
          written.insert(one->target.cell + i);
    for (const uint32_t cell : written)
      looks_.push_back(
          {queue.there, cell, cells[queue.there][cell], now_, now_, nullptr, nullptr, program});
  }
}

void Oracle::ended(const std::vector<std::vector<uint64_t>>& cells) {
  ++now_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<const Known*>> adders;
  for (auto& [id, operation] : all_) {
    const Queue& queue = queues_[operation.qp];
    if (operation.over == never && (operation.signaled || queue.failed) && !queue.gone)
      found(name(operation) + " never completes");
    else if (operation.over == never && !troubled(queue))
      operation.over = now_; // all is quiet: it must have been carried out
    if (operation.kind == Kind::write || operation.kind == Kind::write_imm)
      for (uint32_t i = 0; i < operation.target.count; ++i)
        writers_[{operation.target.there, operation.target.cell + i}].push_back(&operation);
    if (operation.kind == Kind::fetch_add)
      adders[{operation.target.there, operation.target.cell}].push_back(&operation);
  }
  for (const auto& [number, queue] : queues_) {
    const Queue& sender = queues_[queue.peer];
    if (queue.gone)
      continue;
    // What its sender has seen complete has arrived; a failed queue pair's receives are flushed.
    size_t due = 0;
    for (const Known* message : sender.sent)
      due += message->over != never && message->status == Status::success ? 1 : 0;
    if (queue.receives_done < (queue.pool == never ? std::min(due, queue.receives.size()) : due))
      found("queue pair " + std::to_string(number) + ": " + std::to_string(due) +
            " messages were sent to it, and " + std::to_string(queue.receives_done) +
            " receives completed");
  }
  for (uint32_t program = 0; program < programs_; ++program)
    for (uint32_t cell = 0; cell < cells_; ++cell)
      if (!adders.contains({program, cell}))
        looks_.push_back(
            {program, cell, cells[program][cell], now_ + 1, now_ + 1, nullptr, nullptr});
  judge_barriers(cells);
  for (const Look& look : looks_)
    judge(look);
  for (const Arrival& arrival : arrivals_)
    judge(arrival);
  // Each adds one: whoever finds n is the one after n others.
  for (auto& [where, operations] : adders) {
    std::set<uint64_t> results;
    size_t unsure = 0;
    for (const Known* one : operations) {
      if (one->over == never || one->status != Status::success || one->result.empty()) {
        unsure += one->compares || one->barred || (one->wrong && !one->wrong_here) ? 0 : 1;
        continue;
      }
      if (!one->compares && !results.insert(one->result[0]).second)
        found(name(*one) + " finds " + std::to_string(one->result[0]) + ", as another does");
      for (const Known* other : operations)
        if (other->over != never && other->status == Status::success && !other->result.empty() &&
            before(*one, *other) && one->result[0] + (one->compares ? 0 : 1) > other->result[0])
          found(name(*other) + " finds less than the earlier " + name(*one));
    }
    const uint64_t sum = cells[where.first][where.second];
    if (sum < results.size() || sum > results.size() + unsure)
      found("cell " + std::to_string(where.second) + " of program " + std::to_string(where.first) +
            " counts " + std::to_string(sum) + " of " + std::to_string(operations.size()) +
            " FETCH_ADDs");
  }
}

} // namespace sim
