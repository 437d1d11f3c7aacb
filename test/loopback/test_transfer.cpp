// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What arrives, and how it completes.
#include "test_ends.h"

TEST_CASE("a WRITE places its bytes and completes once") {
  Pair p;
  for (uint32_t length : {0u, 1u, 7u, 8u, 9u, 4096u, 40000u}) {
    for (uint32_t i = 0; i < length; ++i)
      p.a.buffer[i] = static_cast<char>(i * 7 + length);
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 3, length, IBV_SEND_SIGNALED, 42) == 0);
    const ibv_wc wc = p.a.completion();
    CHECK(wc.status == IBV_WC_SUCCESS);
    CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
    CHECK(wc.wr_id == 42);
    CHECK(wc.qp_num == p.a.qp->qp_num);
    CHECK(memcmp(p.a.buffer.data(), p.b.buffer.data() + 3, length) == 0);
    CHECK(p.b.quiet());
  }
}

TEST_CASE("who polls a completion has room for one more") {
  EndOptions options;
  options.send_wr = 1;
  Pair p(options);
  for (uint64_t id = 0; id < 20000; ++id) {
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8, IBV_SEND_SIGNALED, id) == 0);
    REQUIRE(p.a.completion().wr_id == id);
  }
}

TEST_CASE("a READ fetches, its region needing LOCAL_WRITE") {
  Pair p;
  strcpy(p.b.buffer.data() + 100, "from there");
  REQUIRE(p.a.post(IBV_WR_RDMA_READ, p.b.address(), 0, 100, 11) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(std::string(p.a.buffer.data()) == "from there");
}

TEST_CASE("SEND and WRITE_WITH_IMM consume receives in order") {
  Pair p;
  for (uint64_t id = 0; id < 3; ++id)
    REQUIRE(p.b.receive(1000 * id, 1000, id) == 0);
  strcpy(p.a.buffer.data(), "one");
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 4) == 0);
  REQUIRE(p.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, p.b.address(), 0, 5000, 4) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND_WITH_IMM, p.b.address(), 0, 0, 4, 0) == 0);
  ibv_wc wc = p.b.completion();
  CHECK(wc.wr_id == 0);
  CHECK(wc.opcode == IBV_WC_RECV);
  CHECK(wc.byte_len == 4);
  CHECK(wc.src_qp == p.a.qp->qp_num);
  CHECK(wc.wc_flags == 0);
  wc = p.b.completion();
  CHECK(wc.wr_id == 1);
  CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(wc.imm_data == 0x77);
  CHECK(wc.byte_len == 4);
  wc = p.b.completion();
  CHECK(wc.wr_id == 2);
  CHECK(wc.wc_flags == IBV_WC_WITH_IMM);
  CHECK(std::string(p.b.buffer.data()) == "one");
  CHECK(std::string(p.b.buffer.data() + 5000) == "one");
  CHECK(std::string(p.b.buffer.data() + 2000) == "one");
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.a.quiet()); // the third was unsignaled
}

TEST_CASE("atomics return what was there before") {
  Pair p;
  auto* there = reinterpret_cast<uint64_t*>(p.b.buffer.data());
  auto* here = reinterpret_cast<uint64_t*>(p.a.buffer.data());
  *there = 40;
  REQUIRE(p.a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, p.b.address(), 0, 2) == 0);
  ibv_wc wc = p.a.completion();
  CHECK(wc.status == IBV_WC_SUCCESS);
  CHECK(wc.opcode == IBV_WC_FETCH_ADD);
  CHECK(*here == 40);
  CHECK(*there == 42);
  REQUIRE(p.a.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, p.b.address(), 0, 41, 1) == 0);
  CHECK(p.a.completion().opcode == IBV_WC_COMP_SWAP);
  CHECK(*there == 42);
  REQUIRE(p.a.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, p.b.address(), 0, 42, 7) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(*here == 42);
  CHECK(*there == 7);
}

TEST_CASE("inline data may be reused as soon as the post returns") {
  Pair p;
  char local[16] = "inlined";
  ibv_sge part = {reinterpret_cast<uint64_t>(local), 8, 0xdead};
  ibv_send_wr wr = {}, *bad = nullptr;
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = p.b.address().buffer;
  wr.wr.rdma.rkey = p.b.mr->rkey;
  REQUIRE(ibv_post_send(p.a.qp, &wr, &bad) == 0);
  memset(local, 'x', sizeof(local));
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(std::string(p.b.buffer.data()) == "inlined");
  part.length = 129;
  CHECK(ibv_post_send(p.a.qp, &wr, &bad) != 0);
  CHECK(bad == &wr);
}

TEST_CASE("the extended API posts and polls as the plain one") {
  EndOptions options;
  options.extended = true;
  Pair p(options, options);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(p.a.qp);
  REQUIRE(qp != nullptr);
  strcpy(p.a.buffer.data(), "extended");
  REQUIRE(p.b.receive(500, 100, 9) == 0);
  ibv_wr_start(qp);
  qp->wr_id = 5;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, p.b.mr->rkey, p.b.address().buffer);
  ibv_wr_set_sge(qp, p.a.mr->lkey, p.a.address().buffer, 9);
  qp->wr_id = 6;
  ibv_wr_send(qp);
  char word[] = "word";
  ibv_wr_set_inline_data(qp, word, 5);
  REQUIRE(ibv_wr_complete(qp) == 0);
  ibv_poll_cq_attr attr = {};
  while (ibv_start_poll(p.b.cq_ex, &attr) != 0) {
  }
  CHECK(p.b.cq_ex->wr_id == 9);
  CHECK(ibv_wc_read_byte_len(p.b.cq_ex) == 5);
  ibv_end_poll(p.b.cq_ex);
  CHECK(std::string(p.b.buffer.data()) == "extended");
  CHECK(std::string(p.b.buffer.data() + 500) == "word");
  REQUIRE(ibv_start_poll(p.a.cq_ex, &attr) == 0);
  CHECK(p.a.cq_ex->wr_id == 5);
  CHECK(p.a.cq_ex->status == IBV_WC_SUCCESS);
  CHECK(ibv_wc_read_opcode(p.a.cq_ex) == IBV_WC_RDMA_WRITE);
  while (ibv_next_poll(p.a.cq_ex) != 0) {
  }
  CHECK(p.a.cq_ex->wr_id == 6);
  CHECK(ibv_next_poll(p.a.cq_ex) == ENOENT);
  ibv_end_poll(p.a.cq_ex);
  CHECK(ibv_start_poll(p.a.cq_ex, &attr) == ENOENT);
}

TEST_CASE("a batch that is aborted posts nothing") {
  EndOptions options;
  options.extended = true;
  Pair p(options, options);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(p.a.qp);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, p.b.mr->rkey, p.b.address().buffer);
  ibv_wr_set_sge(qp, p.a.mr->lkey, p.a.address().buffer, 9);
  ibv_wr_abort(qp);
  CHECK(p.a.quiet());
}

TEST_CASE("UC drops what it cannot deliver, and says nothing") {
  Pair p(IBV_QPT_UC);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 4) == 0); // no receive
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.b.quiet());
  Address wrong = p.b.address();
  wrong.rkey += 256;
  REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, wrong, 0, 0, 4) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  REQUIRE(p.b.receive(0, 100) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 4) == 0);
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("UD delivers behind a GRH, by Q_Key") {
  Pair p(IBV_QPT_UD);
  REQUIRE(p.b.receive(0, 200) == 0);
  ibv_ah_attr route = {};
  p.a.fill_route(route);
  ibv_ah* ah = ibv_create_ah(p.a.pd, &route);
  REQUIRE(ah != nullptr);
  strcpy(p.a.buffer.data(), "datagram");
  ibv_sge part = p.a.sge(0, 9);
  ibv_send_wr wr = {}, *bad = nullptr;
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = p.b.qp->qp_num;
  wr.wr.ud.remote_qkey = 0x9999;
  REQUIRE(ibv_post_send(p.a.qp, &wr, &bad) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
  CHECK(p.b.quiet());
  wr.wr.ud.remote_qkey = 0x1234;
  REQUIRE(ibv_post_send(p.a.qp, &wr, &bad) == 0);
  const ibv_wc wc = p.b.completion();
  CHECK(wc.byte_len == 49);
  CHECK((wc.wc_flags & IBV_WC_GRH) != 0);
  CHECK(std::string(p.b.buffer.data() + 40) == "datagram");
  CHECK(ibv_destroy_ah(ah) == 0);
}
