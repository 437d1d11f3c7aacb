// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "end.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// What the two ends tell each other of a queue pair. Both are of one byte order and one version of
// this file, or `magic` tells.
struct address {
  uint32_t magic, qpn, psn;
  uint16_t lid;
  uint8_t mtu, reads;
  union ibv_gid gid;
};
enum { address_magic = 0x01564461 };

static void complain(const char* format, va_list arguments) {
  fflush(stdout);
  fprintf(stderr, "%s: ", program_invocation_short_name);
  vfprintf(stderr, format, arguments);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  complain(format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

void fail_for(int error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  complain(format, arguments);
  va_end(arguments);
  fprintf(stderr, ": %s\n", strerror(error));
  exit(1);
}

int read_number(const char* value, uint64_t least, uint64_t most, uint64_t* number) {
  char* end = NULL;
  errno = 0;
  *number = strtoull(value, &end, 10);
  return !errno && end != value && !*end && *value != '-' && *number >= least && *number <= most;
}

uint64_t number(int letter, const char* value, uint64_t least, uint64_t most) {
  uint64_t got = 0;
  if (!read_number(value, least, most, &got))
    fail("-%c takes a number from %llu to %llu, not '%s'", letter, (unsigned long long)least,
         (unsigned long long)most, value);
  return got;
}

double fraction(int letter, const char* value, double least, double most) {
  char* end = NULL;
  const double got = strtod(value, &end);
  if (end == value || *end || !(got >= least && got <= most))
    fail("-%c takes a number from %g to %g, not '%s'", letter, least, most, value);
  return got;
}

int place_option(struct place* place, int letter, const char* value) {
  switch (letter) {
  case 'd':
    place->device = value;
    return 1;
  case 'i':
    place->port = (int)number(letter, value, 1, 255);
    return 1;
  case 'p':
    place->tcp_port = (int)number(letter, value, 1, 65535);
    return 1;
  case 'x':
    place->gid_index = (int)number(letter, value, 0, 255);
    return 1;
  default:
    return 0;
  }
}

int place_device(struct place* place, char* name) {
  char* const index = strchr(name, ':');
  uint64_t got = 0;
  if (index && !read_number(index + 1, 0, 255, &got))
    return 0;
  if (index) {
    *index = 0;
    place->gid_index = (int)got;
  }
  place->device = name;
  return *name != 0;
}

uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

uint64_t status_kib(const char* name) {
  char line[256];
  const size_t length = strlen(name);
  unsigned long long kib = 0;
  FILE* status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    if (!strncmp(line, name, length) && line[length] == ':')
      kib = strtoull(line + length + 1, NULL, 10);
  if (status)
    fclose(status);
  return kib;
}

// The first IPv4 address among the port's GIDs, of RoCE v2 where there are several: routers know
// it.
static int ipv4_index(struct ibv_context* context, int port, int entries) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  int found = -1;
  for (int i = 0; i < entries; i++) {
    struct ibv_gid_entry entry;
    if (ibv_query_gid_ex(context, (uint32_t)port, (uint32_t)i, &entry, 0) ||
        memcmp(entry.gid.raw, mapped, sizeof mapped) != 0)
      continue;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2)
      return i;
    if (found < 0)
      found = i;
  }
  return found;
}

static struct ibv_context* open_by_name(const char* name) {
  struct ibv_context* context = NULL;
  struct ibv_device** list = ibv_get_device_list(NULL);
  if (!list || !list[0])
    fail("there is no RDMA device here (ibv_devices lists them)");
  for (int i = 0; list[i] && !context; i++) {
    if (name && strcmp(ibv_get_device_name(list[i]), name) != 0)
      continue;
    context = ibv_open_device(list[i]);
    if (!context)
      fail_for(errno, "cannot open device %s", ibv_get_device_name(list[i]));
  }
  if (!context)
    fail("there is no RDMA device '%s' (ibv_devices lists those there are)", name);
  ibv_free_device_list(list);
  return context;
}

void open_device(struct device* device, const struct place* place) {
  struct ibv_context* context = open_by_name(place->device);
  const char* name = ibv_get_device_name(context->device);
  struct ibv_device_attr limits;
  struct ibv_port_attr port;
  int error = ibv_query_device(context, &limits);
  if (error)
    fail_for(error, "%s: ibv_query_device", name);
  error = ibv_query_port(context, (uint8_t)place->port, &port);
  if (error)
    fail_for(error, "%s has no port %d", name, place->port);
  if (port.state != IBV_PORT_ACTIVE)
    fail("port %d of %s is %s, not active", place->port, name, ibv_port_state_str(port.state));
  device->ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  device->gid_index = place->gid_index;
  if (device->gid_index < 0)
    device->gid_index = device->ethernet ? ipv4_index(context, place->port, port.gid_tbl_len) : 0;
  if (device->gid_index < 0)
    fail("port %d of %s has no IPv4 address: choose a GID by -x", place->port, name);
  error = ibv_query_gid(context, (uint8_t)place->port, device->gid_index, &device->gid);
  if (error)
    fail("port %d of %s has no GID %d", place->port, name, device->gid_index);
  device->pd = ibv_alloc_pd(context);
  if (!device->pd)
    fail_for(errno, "%s: ibv_alloc_pd", name);
  device->context = context;
  device->lid = port.lid;
  device->port = place->port;
  device->mtu = port.active_mtu;
  device->reads = limits.max_qp_rd_atom < limits.max_qp_init_rd_atom ? limits.max_qp_rd_atom
                                                                     : limits.max_qp_init_rd_atom;
  if (device->reads > 16)
    device->reads = 16;
}

struct ibv_mr* register_memory(struct device* device, void* at, size_t bytes, int access,
                               const char* what) {
  struct ibv_mr* region = ibv_reg_mr(device->pd, at, bytes, access);
  if (region)
    return region;
  const int error = errno;
  struct rlimit limit = {0, 0};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (error != ENOMEM && error != EAGAIN && error != EPERM)
    fail_for(error, "%s (%zu bytes) cannot be registered", what, bytes);
  if (limit.rlim_cur == RLIM_INFINITY)
    fail_for(error,
             "%s (%zu bytes) cannot be registered: it would be pinned, and there is not so much "
             "memory for it",
             what, bytes);
  fail_for(error,
           "%s (%zu bytes) cannot be registered: it would be pinned, and RLIMIT_MEMLOCK allows "
           "%llu KiB in all; raise it (ulimit -l, LimitMEMLOCK=) or register less",
           what, bytes, (unsigned long long)limit.rlim_cur / 1024);
}

void* map_memory(size_t bytes, const char* what) {
  void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    fail_for(errno, "no address space for %s (%zu bytes): memory and swap together are less", what,
             bytes);
  return at;
}

static struct addrinfo* resolve(const char* name, int port, int flags) {
  char service[16];
  struct addrinfo hints = {.ai_flags = flags, .ai_socktype = SOCK_STREAM}, *found = NULL;
  snprintf(service, sizeof service, "%d", port);
  const int error = getaddrinfo(name, service, &hints, &found);
  if (error)
    fail("server '%s': %s", name ? name : "", gai_strerror(error));
  return found;
}

int tcp_listen(int port) {
  // One socket for both families, where there are both.
  int listener = socket(AF_INET6, SOCK_STREAM, 0), on = 1, off = 0;
  struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
  struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const int six = listener >= 0;
  if (!six)
    listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (six)
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(listener, six ? (struct sockaddr*)&any6 : (struct sockaddr*)&any4,
           six ? sizeof any6 : sizeof any4) ||
      listen(listener, 64))
    fail_for(errno, "cannot listen on TCP port %d", port);
  return listener;
}

static int without_delay(int tcp) {
  int on = 1;
  setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return tcp;
}

int tcp_accept(int listener) {
  int tcp = -1;
  do
    tcp = accept(listener, NULL, NULL);
  while (tcp < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (tcp < 0)
    fail_for(errno, "accept");
  return without_delay(tcp);
}

int tcp_connect(const char* name, int port) {
  struct addrinfo* found = resolve(name, port, 0);
  int tcp = -1, error = 0;
  for (struct addrinfo* one = found; one && tcp < 0; one = one->ai_next) {
    tcp = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
    if (tcp >= 0 && connect(tcp, one->ai_addr, one->ai_addrlen) == 0)
      break;
    error = errno;
    if (tcp >= 0)
      close(tcp);
    tcp = -1;
  }
  freeaddrinfo(found);
  if (tcp < 0)
    fail_for(error, "no server at %s, TCP port %d", name, port);
  return without_delay(tcp);
}

void tcp_bound(int tcp, unsigned seconds) {
  const struct timeval most = {.tv_sec = seconds};
  setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  setsockopt(tcp, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

int tcp_meet(const char* server, int port, unsigned seconds) {
  int tcp = -1;
  if (server) {
    tcp = tcp_connect(server, port);
  } else {
    const int listener = tcp_listen(port);
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    if (poll(&wait, 1, (int)seconds * 1000) != 1)
      fail("no client has come to TCP port %d within %u s", port, seconds);
    tcp = tcp_accept(listener);
    close(listener);
  }
  tcp_bound(tcp, seconds);
  return tcp;
}

void tell(int tcp, const void* message, size_t bytes) {
  const char* from = message;
  while (bytes) {
    // A peer that has gone is found out by who hears from it.
    const ssize_t sent = send(tcp, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent <= 0)
      return;
    from += sent;
    bytes -= (size_t)sent;
  }
}

int hear(int tcp, void* message, size_t bytes) {
  char* to = message;
  while (bytes) {
    const ssize_t got = recv(tcp, to, bytes, 0);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return 0;
    to += got;
    bytes -= (size_t)got;
  }
  return 1;
}

static void move(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask, const char* to) {
  const int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);
  if (error)
    fail_for(error, "the queue pair does not come to %s", to);
}

struct ibv_qp* make_qp(struct device* device, struct ibv_cq* cq, unsigned sends, unsigned receives,
                       int access) {
  struct ibv_qp_init_attr init = {
      .send_cq = cq,
      .recv_cq = cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(device->pd, &init);
  if (!qp)
    fail_for(errno, "no queue pair for %u requests and %u receives", sends, receives);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = (uint8_t)device->port,
                             .qp_access_flags = (unsigned)access};
  move(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
  return qp;
}

int connect_qp(struct device* device, struct ibv_qp* qp, int tcp) {
  const struct address mine = {.magic = address_magic,
                               .qpn = qp->qp_num,
                               .psn = (uint32_t)now_ns() & 0xffffff,
                               .lid = device->lid,
                               .mtu = (uint8_t)device->mtu,
                               .reads = (uint8_t)device->reads,
                               .gid = device->gid};
  struct address theirs;
  tell(tcp, &mine, sizeof mine);
  if (!hear(tcp, &theirs, sizeof theirs) || theirs.magic != address_magic)
    return 0;

  const uint8_t reads = theirs.reads < mine.reads ? theirs.reads : mine.reads;
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = theirs.mtu < mine.mtu ? theirs.mtu : mine.mtu,
      .dest_qp_num = theirs.qpn,
      .rq_psn = theirs.psn,
      .max_dest_rd_atomic = reads,
      .min_rnr_timer = 12,
      .ah_attr = {
          .is_global = (uint8_t)device->ethernet,
          .dlid = theirs.lid,
          .port_num = (uint8_t)device->port,
          .grh = {.dgid = theirs.gid, .sgid_index = (uint8_t)device->gid_index, .hop_limit = 64}}};
  move(qp, &attr,
       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER,
       "RTR");
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .timeout = 14,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .sq_psn = mine.psn,
                              .max_rd_atomic = reads};
  move(qp, &attr,
       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC,
       "RTS");
  char ready = 1; // nobody sends before both ends can receive
  tell(tcp, &ready, 1);
  return hear(tcp, &ready, 1);
}

static int poll_once(struct ibv_cq* cq, struct ibv_wc* wc, int most) {
  const int n = ibv_poll_cq(cq, most, wc);
  if (n < 0)
    fail("ibv_poll_cq failed");
  return n;
}

int take_completions(struct ibv_cq* cq, struct ibv_comp_channel* channel, struct ibv_wc* wc,
                     int most) {
  int n = poll_once(cq, wc, most);
  while (n == 0 && channel) {
    struct ibv_cq* told = NULL;
    void* context = NULL;
    const int error = ibv_req_notify_cq(cq, 0);
    if (error)
      fail_for(error, "ibv_req_notify_cq");
    n = poll_once(cq, wc, most); // what came before it was armed wakes nobody
    if (n)
      break; // and what it tells of later is found out by a poll for nothing
    if (ibv_get_cq_event(channel, &told, &context))
      fail_for(errno, "ibv_get_cq_event");
    ibv_ack_cq_events(told, 1);
    n = poll_once(cq, wc, most);
  }
  return n;
}
