// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program whose buffer is far larger than what it touches: registers MIB mebibytes on both ends,
// WRITEs a few scattered pages, READs them back and compares, ROUNDS times. Plain rdma_cm, no word
// of adverb.
//   server: demo-sparse -p PORT -m MIB -n ROUNDS ADDRESS        client: the same with -c
#include <endian.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kTouched = 64 };

struct Offer {
  uint64_t address; // big endian, as is all of it
  uint32_t key;
  uint32_t pages;
};

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static void check(int result, const char* what) {
  if (result)
    fail(what);
}

static void await(struct rdma_cm_id* id, int receive) {
  struct ibv_wc wc;
  const int got = receive ? rdma_get_recv_comp(id, &wc) : rdma_get_send_comp(id, &wc);
  if (got <= 0)
    fail("completion");
  if (wc.status != IBV_WC_SUCCESS) {
    fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
    exit(1);
  }
}

// Scattered over the whole region, no two the same.
static size_t page_of(unsigned i, size_t pages) {
  return (i * (pages / kTouched) + i % 7) % pages;
}

static unsigned char byte_of(unsigned i, size_t offset, unsigned round) {
  return (unsigned char)(i * 131 + offset * 7 + offset / 251 + round * 37);
}

static unsigned wrong_bytes(const unsigned char* page, unsigned i, unsigned round) {
  unsigned wrong = 0;
  for (size_t b = 0; b < kPage; ++b)
    wrong += page[b] != byte_of(i, b, round);
  return wrong;
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void serve(struct rdma_cm_id* id, struct ibv_mr* region, unsigned char* buffer, size_t pages,
                  unsigned rounds, struct Offer* message, struct ibv_mr* small) {
  *message = (struct Offer){htobe64((uintptr_t)buffer), htobe32(region->rkey), htobe32(pages)};
  check(rdma_post_recv(id, NULL, message, sizeof *message, small), "post receive");
  check(rdma_accept(id, NULL), "accept");
  check(rdma_post_send(id, NULL, message, sizeof *message, small, IBV_SEND_SIGNALED), "send");
  await(id, 0);
  await(id, 1); // the client has written and read back
  unsigned wrong = 0;
  for (unsigned i = 0; i < kTouched; ++i)
    wrong += wrong_bytes(buffer + page_of(i, pages) * kPage, i, rounds - 1);
  printf("server: %u pages written by the peer, %u wrong bytes\n", kTouched, wrong);
  if (wrong)
    exit(1);
}

// The client's side of all requests.
struct Remote {
  struct rdma_cm_id* id;
  struct ibv_mr* region;
  uint64_t address;
  uint32_t key;
};

// WRITEs page `at` of the buffer, or READs it, and waits. Microseconds.
static double request(const struct Remote* remote, unsigned char* buffer, size_t at, int reads) {
  const double begun = now_us();
  if (reads)
    check(rdma_post_read(remote->id, NULL, buffer + at, kPage, remote->region, IBV_SEND_SIGNALED,
                         remote->address + at, remote->key),
          "read");
  else
    check(rdma_post_write(remote->id, NULL, buffer + at, kPage, remote->region, IBV_SEND_SIGNALED,
                          remote->address + at, remote->key),
          "write");
  await(remote->id, 0);
  return now_us() - begun;
}

// All pages once. Adds what its requests took; returns how many bytes came back wrong.
static unsigned write_and_read(const struct Remote* remote, unsigned char* buffer, size_t pages,
                               unsigned round, double* took) {
  unsigned wrong = 0;
  for (unsigned i = 0; i < kTouched; ++i) {
    const size_t at = page_of(i, pages) * kPage;
    for (size_t b = 0; b < kPage; ++b)
      buffer[at + b] = byte_of(i, b, round);
    *took += request(remote, buffer, at, 0);
  }
  for (unsigned i = 0; i < kTouched; ++i) {
    const size_t at = page_of(i, pages) * kPage;
    memset(buffer + at, 0, kPage);
    *took += request(remote, buffer, at, 1);
    wrong += wrong_bytes(buffer + at, i, round);
  }
  return wrong;
}

static void ask(struct rdma_cm_id* id, struct ibv_mr* region, unsigned char* buffer, size_t pages,
                unsigned rounds, struct Offer* message, struct ibv_mr* small) {
  check(rdma_post_recv(id, NULL, message, sizeof *message, small), "post receive");
  check(rdma_connect(id, NULL), "connect");
  await(id, 1);
  const struct Remote remote = {id, region, be64toh(message->address), be32toh(message->key)};
  unsigned wrong = 0;
  double took = 0; // of the later half, when all is as it stays
  for (unsigned round = 0; round < rounds; ++round) {
    if (round == rounds / 2)
      took = 0;
    wrong += write_and_read(&remote, buffer, pages, round, &took);
  }
  printf("client: %u pages written and read back %u times, %u wrong bytes\n", kTouched, rounds,
         wrong);
  const unsigned timed = rounds - rounds / 2;
  printf("client: %.1f usec/request\n", took / (2.0 * kTouched * timed));
  check(rdma_post_send(id, NULL, message, sizeof *message, small, IBV_SEND_SIGNALED), "send");
  await(id, 0);
  if (wrong)
    exit(1);
}

int main(int argc, char** argv) {
  int client = 0, option;
  unsigned rounds = 1;
  const char* port = "7471";
  size_t mib = 512;
  while ((option = getopt(argc, argv, "cp:m:n:")) != -1) {
    if (option == 'c')
      client = 1;
    else if (option == 'p')
      port = optarg;
    else if (option == 'm')
      mib = strtoul(optarg, NULL, 10);
    else if (option == 'n')
      rounds = (unsigned)strtoul(optarg, NULL, 10);
    else
      return 2;
  }
  if (optind + 1 != argc || rounds == 0)
    return 2;

  struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = client ? 0 : RAI_PASSIVE};
  struct rdma_addrinfo* found = NULL;
  check(rdma_getaddrinfo(argv[optind], port, &hints, &found), "address");
  struct ibv_qp_init_attr attributes = {
      .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
      .sq_sig_all = 1};
  struct rdma_cm_id *listener = NULL, *id = NULL;
  if (client) {
    check(rdma_create_ep(&id, found, NULL, &attributes), "endpoint");
  } else {
    check(rdma_create_ep(&listener, found, NULL, &attributes), "endpoint");
    check(rdma_listen(listener, 1), "listen");
    check(rdma_get_request(listener, &id), "request");
  }

  const size_t bytes = mib << 20;
  unsigned char* buffer =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (buffer == MAP_FAILED)
    fail("buffer");
  // Of what lies beside the pages it touches it has no use.
  check(madvise(buffer, bytes, MADV_NOHUGEPAGE), "no huge pages");
  struct ibv_mr* region =
      ibv_reg_mr(id->pd, buffer, bytes,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  struct Offer message = {0, 0, 0};
  struct ibv_mr* small = rdma_reg_msgs(id, &message, sizeof message);
  if (region == NULL || small == NULL)
    fail("registration");
  (client ? ask : serve)(id, region, buffer, bytes / kPage, rounds, &message, small);

  rdma_disconnect(id);
  rdma_dereg_mr(region);
  rdma_dereg_mr(small);
  rdma_destroy_ep(id);
  if (listener != NULL)
    rdma_destroy_ep(listener);
  rdma_freeaddrinfo(found);
  munmap(buffer, bytes);
  return 0;
}
