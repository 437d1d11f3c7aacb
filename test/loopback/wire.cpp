// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Sending over a bad link, and what arrives from it.
#include "wire.h"
#include "transport.h"

namespace adverb::loopback {

namespace {

// What a device does with a packet that arrives now, whatever it was when the packet was sent.
void arrive(Packet& packet) {
  Process& process = *packet.origin.process;
  const uint32_t owner = process.fabric().qp[qp_index(packet.origin.dest)].process.load();
  const CriticalSection section(process, owner);
  Ranges local;
  local.add(reinterpret_cast<uint64_t>(packet.payload.data()), packet.payload.size());
  respond(packet.origin, owner, packet.wqe, local);
}

} // namespace

Ticket Wire::put(Packet&& packet, uint64_t due) {
  Ticket ticket;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    ticket = {due, next_number_++};
    packets_.emplace(ticket, std::move(packet));
    first = packets_.begin()->first == ticket;
    if (first)
      earliest_.store(due);
  }
  if (first)
    process_.ring(process_.index(), kLookAtRunList);
  return ticket;
}

std::optional<Packet> Wire::take(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  auto node = packets_.extract(ticket);
  if (node.empty())
    return {};
  earliest_.store(packets_.empty() ? UINT64_MAX : packets_.begin()->first.first);
  return std::move(node.mapped());
}

uint64_t Wire::deliver_due() {
  for (;;) {
    const uint64_t earliest = earliest_.load();
    if (earliest == UINT64_MAX || earliest > now_ns())
      return earliest;
    Ticket first;
    {
      const std::lock_guard lock(mutex_);
      if (packets_.empty())
        continue;
      first = packets_.begin()->first;
    }
    if (std::optional<Packet> packet = take(first))
      arrive(*packet);
  }
}

namespace {

// One packet of a queue pair, on its way to the link.
class Departure {
public:
  Departure(Qp& qp, SendWqe& wqe) : qp_(qp), wqe_(wqe), lane_(*qp.lane) {
    origin_ = origin_of(qp, wqe);
    origin_.over_link = true;
    origin_.place_unbacked = lane_.setting().place_unbacked;
  }

  const Origin& origin() const { return origin_; }

  // Sends one copy. Inside a CriticalSection of `owner`.
  ibv_wc_status send(Way way, uint32_t owner, const Ranges& local) {
    const LinkSetting& setting = lane_.setting();
    if (way == Way::prompt && setting.delay_ns == 0) {
      const Reply reply = respond(origin_, owner, wqe_, local);
      return reply.kind == Reply::requester_error ? reply.status : IBV_WC_SUCCESS;
    }
    Packet packet{origin_, wqe_, std::vector<char>(local.bytes)};
    Ranges copy;
    copy.add(reinterpret_cast<uint64_t>(packet.payload.data()), packet.payload.size());
    if (copy_out(qp_.process->pid(), local, copy, false) != Copied::all)
      return IBV_WC_LOC_PROT_ERR;
    uint64_t due = now_ns() + setting.delay_ns;
    if (way == Way::late)
      due += setting.late_ns;
    else if (way == Way::held)
      due += setting.reorder_wait_ns;
    const Ticket ticket = qp_.process->wire().put(std::move(packet), due);
    if (way == Way::held)
      lane_.hold(ticket);
    return IBV_WC_SUCCESS;
  }

private:
  Qp& qp_;
  SendWqe& wqe_;
  Lane& lane_;
  Origin origin_{};
};

// Lets the held packets go that enough others have overtaken.
void release_overtaken(Qp& qp) {
  Wire& wire = qp.process->wire();
  const uint64_t delay = qp.lane->setting().delay_ns;
  Ticket ticket;
  while (qp.lane->overtaken(ticket)) {
    std::optional<Packet> packet = wire.take(ticket);
    if (!packet)
      continue; // its wait was over
    if (delay == 0)
      arrive(*packet);
    else
      wire.put(std::move(*packet), now_ns() + delay);
  }
}

} // namespace

ibv_wc_status send_over_link(Qp& qp, uint64_t position) {
  SendWqe& wqe = qp.wqe(position);
  Process& process = *qp.process;
  const uint32_t count = packets(qp, wqe);
  Departure departure(qp, wqe);
  const uint32_t owner = process.fabric().qp[qp_index(departure.origin().dest)].process.load();
  ibv_wc_status status = IBV_WC_SUCCESS;
  {
    const CriticalSection section(process, owner);
    Ranges local;
    status = local_ranges(qp, position, 0, local);
    if (status != IBV_WC_SUCCESS)
      return status;
    const Fate fate = qp.lane->next_message(count);
    for (uint32_t copy = 0; copy < fate.copies && status == IBV_WC_SUCCESS; ++copy)
      status = departure.send(fate.way[copy], owner, local);
  }
  qp.next_psn = (qp.next_psn + count) & 0xffffff;
  release_overtaken(qp);
  return status;
}

} // namespace adverb::loopback
