// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "steering/request.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace adverb::steering {

Ring::Ring(const ibv_qp_cap& cap, bool all_signaled, uint64_t first)
    : all_signaled_(all_signaled), sges_(std::max(cap.max_send_sge, 1U)),
      inline_bytes_(cap.max_inline_data), capacity_(std::max(cap.max_send_wr, 1U)),
      mask_(std::bit_ceil(capacity_) - 1), requests_(mask_ + 1), elements_((mask_ + 1) * sges_),
      holds_((mask_ + 1) * sges_), inline_((mask_ + 1) * inline_bytes_), head_(first),
      tail_(first) {}

int Ring::append(const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > sges_)
    return EINVAL;
  if (tail_ - head_ == capacity_)
    return ENOMEM;
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i)
    length += wr.sg_list[i].length;
  const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined && length > inline_bytes_)
    return EINVAL;

  Request& r = at(tail_);
  r.start(tail_, wr);
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
