// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/request.h"
#include "steering/opcode.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace adverb::steering {

namespace {
constexpr size_t slots_at_first = 4;
}

Ring::Ring(const ibv_qp_cap& cap, bool all_signaled, uint64_t first, bool connected)
    : all_signaled_(all_signaled), connected_(connected), sges_(std::max(cap.max_send_sge, 1U)),
      inline_bytes_(cap.max_inline_data), capacity_(std::max(cap.max_send_wr, 1U)),
      mask_(std::bit_ceil(std::min(capacity_, slots_at_first)) - 1),
      room_(std::min(capacity_, mask_ + 1)), requests_(mask_ + 1), elements_((mask_ + 1) * sges_),
      holds_((mask_ + 1) * sges_), inline_((mask_ + 1) * inline_bytes_), head_(first),
      tail_(first) {}

// Twice as many slots; what is in the ring moves.
void Ring::grow() {
  const size_t slots = 2 * (mask_ + 1);
  std::vector<Request> requests(slots);
  std::vector<ibv_sge> elements(slots * sges_);
  std::vector<registration::Hold> holds(slots * sges_);
  std::vector<std::byte> inlined(slots * inline_bytes_);
  for (uint64_t seq = head_; seq < tail_; ++seq) {
    const size_t from = slot(seq);
    const size_t to = seq & (slots - 1);
    requests[to] = requests_[from];
    std::copy_n(&elements_[from * sges_], sges_, &elements[to * sges_]);
    std::copy_n(&holds_[from * sges_], sges_, &holds[to * sges_]);
    std::copy_n(inline_.data() + from * inline_bytes_, inline_bytes_,
                inlined.data() + to * inline_bytes_);
    if (requests[to].wr.sg_list == &elements_[from * sges_])
      requests[to].wr.sg_list = &elements[to * sges_];
  }
  requests_ = std::move(requests);
  elements_ = std::move(elements);
  holds_ = std::move(holds);
  inline_ = std::move(inlined);
  mask_ = slots - 1;
  room_ = std::min(capacity_, slots);
}

int Ring::append(const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > sges_)
    return EINVAL;
  // One that has to wait its turn could only be told by its completion, in error.
  if (connected_ && !goes_on_connected(wr.opcode))
    return EINVAL;
  if (tail_ - head_ == room_) [[unlikely]] {
    if (room_ == capacity_)
      return ENOMEM;
    try {
      grow();
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    }
  }
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i)
    length += wr.sg_list[i].length;
  const bool inlined = is_inline(wr);
  if (inlined && length > inline_bytes_)
    return EINVAL;

  Request& r = at(tail_);
  r.start(tail_, wr);
  if (!inlined) // it says nothing of what brings data
    r.wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  r.length = length;
  r.signaled = all_signaled_ || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (inlined) {
    // The program may reuse its buffer as soon as post returns, queued or not.
    for (int i = 0; i < wr.num_sge; ++i) {
      memcpy(this->inlined(r) + r.inlined, reinterpret_cast<const void*>(wr.sg_list[i].addr),
             wr.sg_list[i].length);
      r.inlined += wr.sg_list[i].length;
    }
  } else if (wr.num_sge > 0) {
    ibv_sge* store = &elements_[slot(tail_) * sges_];
    std::copy_n(wr.sg_list, wr.num_sge, store);
    r.wr.sg_list = store;
  }
  ++tail_;
  return 0;
}

} // namespace adverb::steering
