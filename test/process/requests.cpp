// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "process.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>

void requests(Ends& ends, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const uint32_t at = i * 64 % (Ends::memory_bytes / 2);
    uint8_t* const a = ends.at_a.data + at;
    uint8_t* const b = ends.at_b.data + at;
    const auto one = [&](ibv_wr_opcode opcode, uint8_t value) {
      std::fill_n(opcode == IBV_WR_RDMA_READ ? b : a, 64, value);
      ibv_sge sge{reinterpret_cast<uintptr_t>(a), 64, ends.mr_a->lkey};
      ibv_send_wr wr{};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = opcode;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.rdma = {reinterpret_cast<uintptr_t>(b), ends.outer_b->rkey};
      ibv_send_wr* bad = nullptr;
      errno = ibv_post_send(ends.pairs[0].a, &wr, &bad);
      must(errno == 0, "ibv_post_send");
      ends.of_a.await(1);
      must(std::equal(a, a + 64, b) && *a == value, "the bytes of a request");
    };
    one(IBV_WR_RDMA_WRITE, static_cast<uint8_t>(i));
    one(IBV_WR_RDMA_READ, static_cast<uint8_t>(i + 1));
  }
}

void requests(unsigned count) {
  const Device device;
  Ends ends(device.context, {});
  requests(ends, count);
}
