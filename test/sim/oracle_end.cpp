// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is judged when all is known: what was found in memory and in receives, and what must have
// come to its end.
#include "oracle.h"

#include <algorithm>

namespace sim {

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

bool Oracle::before(const Known& write, const Look& look) const {
  if (write.over != never && write.status != Status::success)
    return false;      // nobody knows whether it did
  if (is_lossy(write)) // nor here, unless its own immediate has come: that is its last packet's
    return look.after == &write && !write.wrong;
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
  if (source != nullptr && source->wrong && !source->wrong_here && !source->torn)
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

bool Oracle::was_emptied(const Look& look) const {
  const auto at = emptied_.find({look.program, look.cell});
  return at != emptied_.end() && at->second.front().at < look.until;
}

// What is found has been seen before, and taken out.
bool Oracle::comes_again(const Look& look, const Known& write) const {
  const auto at = emptied_.find({look.program, look.cell});
  if (is_lossy(write) && liars_.contains(look.program))
    return false;
  return at != emptied_.end() && look.value != 0 && write.from == never &&
         write.values.size() <= flag_cells &&
         std::ranges::any_of(at->second, [&](const Emptied& one) {
           return one.at < look.from && one.value == look.value;
         });
}

// A value tells its writer, but what a READ has brought may be written once more: then it is enough
// that it may come from one of those.
void Oracle::judge(const Look& look) {
  if (look.value == 0 && was_emptied(look))
    return;
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
  if (sources.size() == 1 && sources[0] != nullptr && comes_again(look, *sources[0]))
    return found(name(*sources[0]) + " is carried out a second time: program " +
                 std::to_string(look.program) + " had emptied cell " + std::to_string(look.cell));
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
    if (queue.owner != program || queue.gone || troubled(queue) || queue.transport != Transport::rc)
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
    if (queue.gone || queue.transport != Transport::rc)
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
