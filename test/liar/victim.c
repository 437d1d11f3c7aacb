// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One end of an ordinary verbs program that knows nothing of adverb: does what lines on stdin say,
// one at a time, and answers each by a line of JSON on stdout. It tells all its numbers; what it
// keeps is what its memory holds. Ends with stdin.
//
//   victim DEVICE GID-INDEX
//
//   qp DOMAIN RIGHTS                  makes a queue pair in that protection domain
//   connect QP NUMBER GID             to that queue pair, on the host of that GID (in hex)
//   region DOMAIN BYTES RIGHTS SEED   registers memory that holds the pattern of SEED
//   check                             whether all regions with a SEED hold what they did
//   fresh DOMAIN BYTES COUNT          how many regions can be registered at once; they end again
//   ask QP COUNT BYTES SEED SECRET KEY SCRATCH KEY
//                                     COUNT rounds: READs a piece of the secret of BYTES, WRITEs
//                                     to the scratch region and READs that back. COUNT 0: without
//                                     end; from its third round on another line ends it, but
//                                     "rounds", which asks how many there were
//   put QP SEED ADDRESS KEY          WRITEs the first bytes of the pattern of SEED
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
  most = 512,      // regions
  most_qps = 8192, // an attack may have thousands made
  domains = 4,
  piece = 256,   // bytes of the secret that are read at once
  told = 64,     // bytes that are written at once
  patience = 75, // seconds for a completion
  least = 3,     // rounds before a line ends them
  pause_us = 500 // between two rounds
};

static struct ibv_context* context;
static uint8_t gid_index;
static struct ibv_pd* pds[domains];
static struct ibv_comp_channel* events;
static struct ibv_cq* cq;
static struct ibv_mr* local; // what is asked for lands here, and what is told lies there
static char* buffer;
static struct ibv_qp* qps[most_qps];
static int qp_count;
static struct region {
  struct ibv_mr* mr;
  uint64_t seed;
} regions[most];
static int region_count;
static char line[512]; // what it is told
static int unheeded;   // `line` was read while it asked, and is to be obeyed next

static void must(int good, const char* what) {
  if (good)
    return;
  fprintf(stderr, "victim: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Of functions that return their error.
static void well(int error, const char* what) {
  errno = error;
  must(error == 0, what);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

// The n-th word of a region: none is alike, and none can be guessed by who has not the seed.
static uint64_t word(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

static void make_qp(unsigned domain, unsigned rights) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 16, 1, 1, 0}};
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)rights};
  union ibv_gid gid;
  must(qp_count < most_qps && domain < domains, "too many");
  struct ibv_qp* qp = ibv_create_qp(pds[domain], &init);
  must(qp != NULL, "ibv_create_qp");
  well(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
       "INIT");
  well(ibv_query_gid(context, 1, gid_index, &gid), "ibv_query_gid");
  printf("{\"qp\": %d, \"qpn\": %u, \"gid\": \"", qp_count, qp->qp_num);
  for (int i = 0; i < 16; ++i)
    printf("%02x", gid.raw[i]);
  puts("\"}");
  qps[qp_count++] = qp;
}

static void connect_qp(int which, uint32_t peer, const char* gid) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = peer,
                             .max_dest_rd_atomic = 4,
                             .min_rnr_timer = 1};
  must(which >= 0 && which < qp_count, "no such queue pair");
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = gid_index;
  for (int i = 0; i < 16; ++i)
    must(sscanf(gid + (size_t)2 * i, "%2hhx", &attr.ah_attr.grh.dgid.raw[i]) == 1, "no GID");
  well(ibv_modify_qp(qps[which], &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
       "RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  well(ibv_modify_qp(qps[which], &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
       "RTS");
  printf("{\"qp\": %d}\n", which);
}

static void make_region(unsigned domain, size_t bytes, unsigned rights, uint64_t seed) {
  must(region_count < most && domain < domains, "too many");
  uint64_t* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  for (size_t i = 0; seed != 0 && i < bytes / sizeof *memory; ++i)
    memory[i] = word(seed, i);
  struct region* r = &regions[region_count];
  *r = (struct region){ibv_reg_mr(pds[domain], memory, bytes, (int)rights), seed};
  must(r->mr != NULL, "ibv_reg_mr");
  printf("{\"region\": %d, \"address\": %" PRIu64 ", \"key\": %u, \"bytes\": %zu}\n",
         region_count++, (uint64_t)(uintptr_t)memory, r->mr->rkey, bytes);
}

static void check(void) {
  int changed = -1;
  for (int r = 0; r < region_count; ++r) {
    const uint64_t* memory = regions[r].mr->addr;
    for (size_t i = 0; regions[r].seed != 0 && i < regions[r].mr->length / sizeof *memory; ++i)
      if (memory[i] != word(regions[r].seed, i))
        changed = r;
  }
  printf("{\"changed\": %d}\n", changed);
}

static void fresh(unsigned domain, size_t bytes, int count) {
  struct ibv_mr* mrs[most];
  int made = 0;
  must(count <= most && domain < domains, "too many");
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(memory != MAP_FAILED, "mmap");
  errno = 0;
  while (made < count &&
         (mrs[made] = ibv_reg_mr(pds[domain], memory, bytes, IBV_ACCESS_LOCAL_WRITE)) != NULL)
    ++made;
  const int error = made < count ? errno : 0;
  const uint32_t key = made != 0 ? mrs[made - 1]->rkey : 0;
  const int all = made;
  while (made > 0)
    well(ibv_dereg_mr(mrs[--made]), "ibv_dereg_mr");
  munmap(memory, bytes);
  printf("{\"made\": %d, \"errno\": %d, \"key\": %u}\n", all, error, key);
}

// One request and its completion, whose status is returned; -1: none has come.
static int request(int which, enum ibv_wr_opcode opcode, size_t at, uint32_t bytes,
                   uint64_t address, uint32_t key) {
  struct ibv_sge sge = {(uintptr_t)buffer + at, bytes, local->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  struct ibv_wc wc;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = key;
  well(ibv_post_send(qps[which], &wr, &bad), "ibv_post_send");
  const double until = now_us() + patience * 1e6;
  for (;;) {
    well(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
    const int n = ibv_poll_cq(cq, 1, &wc);
    must(n >= 0, "ibv_poll_cq");
    if (n == 1)
      return wc.status;
    const double left = until - now_us();
    struct pollfd event = {events->fd, POLLIN, 0};
    if (left <= 0 || poll(&event, 1, (int)(left / 1e3) + 1) == 0)
      return -1;
    struct ibv_cq* which_cq;
    void* unused;
    if (ibv_get_cq_event(events, &which_cq, &unused) == 0)
      ibv_ack_cq_events(which_cq, 1);
  }
}

static int before(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

struct asked {
  uint64_t bytes, seed, secret, scratch;
  unsigned secret_key, scratch_key;
};

static void ask(int which, uint64_t count, const struct asked* what) {
  enum { kept = 1 << 14 };
  static double times[kept];
  const uint64_t pieces = what->bytes / piece;
  uint64_t rounds = 0, wrong = 0;
  int failed = 0;
  double worst = 0;
  must(which >= 0 && which < qp_count && pieces != 0, "no such queue pair");
  while (count == 0 || (!failed && rounds < count)) {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    if (count == 0 && (failed || rounds >= least) && poll(&input, 1, failed ? -1 : 0) != 0) {
      unheeded = fgets(line, sizeof line, stdin) != NULL && strcmp(line, "rounds\n") != 0;
      if (unheeded || feof(stdin))
        break;
      printf("{\"rounds\": %" PRIu64 ", \"failed\": %d}\n", rounds, failed);
    }
    if (failed)
      continue;
    const uint64_t n = rounds % pieces, first = n * piece / sizeof n;
    const double began = now_us();
    memset(buffer, 0, 4096);
    failed = request(which, IBV_WR_RDMA_READ, 0, piece, what->secret + n * piece, what->secret_key);
    const double took = now_us() - began;
    times[rounds % kept] = took;
    worst = took > worst ? took : worst;
    for (uint64_t i = 0; !failed && i < piece / sizeof n; ++i)
      wrong += ((uint64_t*)buffer)[i] != word(what->seed, first + i);
    for (uint64_t i = 0; i < told / sizeof n; ++i)
      ((uint64_t*)buffer)[128 + i] = word(rounds, i);
    if (!failed)
      failed = request(which, IBV_WR_RDMA_WRITE, 1024, told, what->scratch, what->scratch_key);
    if (!failed)
      failed = request(which, IBV_WR_RDMA_READ, 2048, told, what->scratch, what->scratch_key);
    wrong += !failed && memcmp(buffer + 1024, buffer + 2048, told) != 0;
    ++rounds;
    if (count == 0)
      usleep(pause_us);
  }
  const size_t n = rounds < kept ? rounds : kept;
  qsort(times, n, sizeof *times, before);
  printf("{\"rounds\": %" PRIu64 ", \"wrong\": %" PRIu64 ", \"failed\": %d, \"median\": %.1f, "
         "\"worst\": %.1f}\n",
         rounds, wrong, failed, n != 0 ? times[n / 2] : 0.0, worst);
}

static void put(int which, uint64_t seed, uint64_t address, uint32_t key) {
  must(which >= 0 && which < qp_count, "no such queue pair");
  for (uint64_t i = 0; i < told / sizeof i; ++i)
    ((uint64_t*)buffer)[i] = word(seed, i);
  const int failed = request(which, IBV_WR_RDMA_WRITE, 0, told, address, key);
  printf("{\"rounds\": 1, \"wrong\": 0, \"failed\": %d}\n", failed);
}

static void obey(void) {
  uint64_t a, b, c, d;
  int which;
  char gid[33];
  struct asked what;
  if (sscanf(line, "qp %" SCNu64 " %" SCNu64, &a, &b) == 2)
    make_qp((unsigned)a, (unsigned)b);
  else if (sscanf(line, "connect %d %" SCNu64 " %32s", &which, &a, gid) == 3)
    connect_qp(which, (uint32_t)a, gid);
  else if (sscanf(line, "region %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4)
    make_region((unsigned)a, b, (unsigned)c, d);
  else if (strcmp(line, "check\n") == 0)
    check();
  else if (sscanf(line, "fresh %" SCNu64 " %" SCNu64 " %d", &a, &b, &which) == 3)
    fresh((unsigned)a, b, which);
  else if (sscanf(line, "ask %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %" SCNu64 " %u",
                  &which, &a, &what.bytes, &what.seed, &what.secret, &what.secret_key,
                  &what.scratch, &what.scratch_key) == 8)
    ask(which, a, &what);
  else if (sscanf(line, "put %d %" SCNu64 " %" SCNu64 " %u", &which, &a, &b, &what.secret_key) == 4)
    put(which, a, b, what.secret_key);
  else
    must(0, line);
}

int main(int argc, char** argv) {
  int n = 0;
  struct ibv_device** list = ibv_get_device_list(&n);
  must(list != NULL && argc == 3, "ibv_get_device_list");
  while (*list != NULL && strcmp(ibv_get_device_name(*list), argv[1]) != 0)
    ++list;
  must(*list != NULL, argv[1]);
  gid_index = (uint8_t)atoi(argv[2]);
  context = ibv_open_device(*list);
  must(context != NULL, "ibv_open_device");
  for (int i = 0; i < domains; ++i)
    must((pds[i] = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
  events = ibv_create_comp_channel(context);
  must(events != NULL, "ibv_create_comp_channel");
  must(fcntl(events->fd, F_SETFL, fcntl(events->fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
  cq = ibv_create_cq(context, 4096, NULL, events, 0);
  must(cq != NULL, "ibv_create_cq");
  buffer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(buffer != MAP_FAILED, "mmap");
  local = ibv_reg_mr(pds[0], buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
  must(local != NULL, "ibv_reg_mr");
  setvbuf(stdin, NULL, _IONBF, 0); // what is there is to be seen by poll()
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (unheeded || fgets(line, sizeof line, stdin) != NULL) {
    unheeded = 0;
    obey();
  }
  return 0; // objects go with the process
}
