// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whose a receipt is.
#include "catch.h"
#include "model/receipt.h"

using namespace adverb;

TEST_CASE("what a handler foretold is an immediate's, and no message's") {
  using model::Receipt;
  model::Receipts receipts;
  receipts.expect({.number = 1, .bytes = 16});
  receipts.expect({.number = 2, .bytes = 32});
  ibv_wc wc{};
  wc.byte_len = 64;
  wc.opcode = IBV_WC_RECV; // the first immediate was lost on UC, say
  const Receipt message = receipts.consume(wc);
  CHECK(message.bytes == 64);
  CHECK(message.source == Receipt::Source::staged);
  wc.byte_len = 0;
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  const Receipt immediate = receipts.consume(wc);
  CHECK(immediate.bytes == 32);
  CHECK(immediate.source == Receipt::Source::in_place);
}

TEST_CASE("on UC a message that was lost takes no other's receipt along") {
  using model::Receipt;
  model::Receipts receipts;
  for (const uint32_t immediate : {7, 8, 9})
    receipts.expect({.number = transfer::by_immediate | immediate, .bytes = immediate * 2});
  ibv_wc wc{};
  wc.byte_len = 64;
  wc.opcode = IBV_WC_RECV;
  CHECK(receipts.consume(wc).bytes == 64);
  wc.byte_len = 0;
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  wc.imm_data = 8; // 7 was lost
  CHECK(receipts.consume(wc).bytes == 16);
  wc.imm_data = 7; // another, of no data
  CHECK(receipts.consume(wc).bytes == 0);
  wc.imm_data = 9;
  CHECK(receipts.consume(wc).bytes == 18);
}
