// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The smallest RDMA program: both ends register memory, exchange keys over TCP, the client WRITEs
// into the server's memory. Errors end the program; see README.md.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { size = 4096, port = 18515 };

struct address { // what the other end must know
  union ibv_gid gid;
  uint32_t qpn, rkey;
  uint64_t buffer;
};

static void check(int good, const char* what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static int meet(const char* server) { // a TCP connection between the two
  int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (server) {
    check(inet_pton(AF_INET, server, &at.sin_addr) == 1, "server address");
    check(connect(s, (struct sockaddr*)&at, sizeof at) == 0, "connect");
    return s;
  }
  check(bind(s, (struct sockaddr*)&at, sizeof at) == 0, "bind");
  check(listen(s, 1) == 0, "listen");
  return accept(s, NULL, NULL);
}

int main(int argc, char** argv) {
  const char* server = argc > 2 ? argv[2] : NULL; // none: this is the server
  check(argc > 1, "usage: hello-write DEVICE:GID_INDEX [SERVER]");
  char* index = strchr(argv[1], ':');
  int gid_index = index ? atoi(index + 1) : 0;
  if (index)
    *index = 0;

  struct ibv_context* context = NULL;
  struct ibv_device** list = ibv_get_device_list(NULL);
  for (int i = 0; list && list[i] && !context; i++)
    if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
      context = ibv_open_device(list[i]);
  check(context != NULL, "no such device");

  struct ibv_pd* pd = ibv_alloc_pd(context);
  struct ibv_cq* cq = ibv_create_cq(context, 4, NULL, NULL, 0);
  char* buffer = aligned_alloc(4096, size);
  memset(buffer, 0, size);
  struct ibv_mr* mr =
      ibv_reg_mr(pd, buffer, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  check(mr != NULL, "ibv_reg_mr");
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  check(qp != NULL, "ibv_create_qp");

  int tcp = meet(server);
  struct address mine = {.qpn = qp->qp_num, .rkey = mr->rkey, .buffer = (uintptr_t)buffer}, theirs;
  check(ibv_query_gid(context, 1, gid_index, &mine.gid) == 0, "ibv_query_gid");
  check(write(tcp, &mine, sizeof mine) == sizeof mine, "write");
  check(recv(tcp, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "recv");

  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  check(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        "to INIT");
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = theirs.qpn,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.is_global = 1,
                  .port_num = 1,
                  .grh = {.dgid = theirs.gid, .sgid_index = gid_index, .hop_limit = 64}}};
  check(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        "to RTR");
  attr = (struct ibv_qp_attr){
      .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  check(!ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
        "to RTS");
  char ready = 1; // nobody writes before both ends can receive
  check(write(tcp, &ready, 1) == 1 && read(tcp, &ready, 1) == 1, "handshake");

  if (server) {
    strcpy(buffer, "hello, write");
    struct ibv_sge sge = {(uintptr_t)buffer, size, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {theirs.buffer, theirs.rkey}},
                       *bad;
    check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) == 0)
      ;
    printf("client: WRITE of %d bytes: %s\n", size, ibv_wc_status_str(wc.status));
    check(write(tcp, &ready, 1) == 1, "done"); // a WRITE tells its target nothing
    return wc.status != IBV_WC_SUCCESS;
  }
  check(read(tcp, &ready, 1) == 1, "client");
  printf("server: my memory says \"%s\"\n", buffer);
  return strcmp(buffer, "hello, write") != 0;
}
