// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program of the installed adverb.h, in the C that is C++, too: one message between two
// endpoints.
#include <adverb.h>

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

enum { bytes = 300001 };
static const int64_t second = INT64_C(1000000000);
static unsigned char source[bytes], target[bytes + 1];

static int need(int rc, const char* what) {
  if (rc)
    printf("not ok - %s: %s\n", what, strerror(rc));
  return rc;
}

static int meet(adverb_endpoint left, adverb_endpoint right) {
  struct adverb_address of_left, of_right;
  return need(adverb_endpoint_address(left, &of_left), "an address") ||
         need(adverb_endpoint_address(right, &of_right), "an address") ||
         need(adverb_endpoint_connect(left, &of_right), "a connection") ||
         need(adverb_endpoint_connect(right, &of_left), "a connection");
}

static int carry(adverb_endpoint left, adverb_endpoint right) {
  adverb_message send = 0, receive = 0;
  for (int i = 0; i < bytes; i++)
    source[i] = (unsigned char)(i * 7 + i / 251);
  if (need(adverb_receive(right, target, bytes, NULL, &receive), "a receive") ||
      need(adverb_send(left, source, bytes, NULL, &send), "a send") ||
      need(adverb_wait_end(receive, 20 * second), "the end of the receive") ||
      need(adverb_wait_end(send, 20 * second), "the end of the send"))
    return 1;
  if (adverb_notify(receive, 1) != ECANCELED) {
    puts("not ok - a receive that has ended gives no further event");
    return 1;
  }
  if (memcmp(source, target, bytes) != 0 || target[bytes] != 0) {
    puts("not ok - the bytes are the same");
    return 1;
  }
  return need(adverb_release(send), "a release") || need(adverb_release(receive), "a release");
}

int main(void) {
  int count = 0;
  struct ibv_device** const list = ibv_get_device_list(&count);
  struct ibv_context* const context = count ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* const pd = context ? ibv_alloc_pd(context) : NULL;
  adverb_endpoint left = 0, right = 0;
  if (!pd)
    return need(19, "a device");
  if (need(adverb_endpoint_create(pd, NULL, &left), "an endpoint") ||
      need(adverb_endpoint_create(pd, NULL, &right), "an endpoint") || meet(left, right) ||
      carry(left, right))
    return 1;
  puts("ok - a message");
  return 0;
}
