// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A key-value store that its clients read and write by RDMA alone; see README.md.
#include "key-value.h"
#include "table.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "usage: key-value [OPTION]...           keeps a table and serves\n"
    "       key-value [OPTION]... SERVER    reads and writes the table of SERVER\n"
    "\n"
    "Both:\n" PLACE_USAGE "The server:\n"
    "  -m, --memory MIB       size of the table (256)\n"
    "  -r, --region MIB       size of its memory regions (256)\n"
    "  -s, --slot BYTES       size of a slot, one for each key (4096)\n"
    "  -c, --clients N        clients at a time, each with its part of the keys to write (1)\n"
    "  -f, --fill             gives every key a first value before it serves\n"
    "  -k, --keep             goes on when the last client has gone\n"
    "The client:\n"
    "  -l, --load             first writes every key that is its own to write\n"
    "  -n, --operations N     then that many GETs and PUTs (100000)\n"
    "  -D, --duration S       or as many as it does in S seconds\n"
    "  -a, --all              then reads every key of the table once\n"
    "  -g, --gets PERCENT     of the mix (95); the others are PUTs\n"
    "  -z, --zipf THETA       how uneven the keys' popularity is; 0: not at all (0.99)\n"
    "  -t, --depth N          requests outstanding (16)\n"
    "  -e, --events           sleeps until a completion comes, instead of polling for it\n"
    "  -S, --seed N           of the choice of keys (1)\n"
    "  -j, --json             tells its figures as JSON, an object for each phase\n";

static struct options read_options(int argc, char** argv) {
  struct options o = {.place = PLACE_DEFAULT,
                      .table_bytes = 256 << 20,
                      .region_bytes = 256 << 20,
                      .slot_bytes = 4096,
                      .writers = 1,
                      .operations = 100000,
                      .theta = 0.99,
                      .gets = 95,
                      .depth = 16,
                      .seed = 1};
  static const struct option known[] = {PLACE_OPTIONS,
                                        {"memory", required_argument, NULL, 'm'},
                                        {"region", required_argument, NULL, 'r'},
                                        {"slot", required_argument, NULL, 's'},
                                        {"clients", required_argument, NULL, 'c'},
                                        {"fill", no_argument, NULL, 'f'},
                                        {"keep", no_argument, NULL, 'k'},
                                        {"load", no_argument, NULL, 'l'},
                                        {"operations", required_argument, NULL, 'n'},
                                        {"duration", required_argument, NULL, 'D'},
                                        {"all", no_argument, NULL, 'a'},
                                        {"gets", required_argument, NULL, 'g'},
                                        {"zipf", required_argument, NULL, 'z'},
                                        {"depth", required_argument, NULL, 't'},
                                        {"events", no_argument, NULL, 'e'},
                                        {"seed", required_argument, NULL, 'S'},
                                        {"json", no_argument, NULL, 'j'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  int letter = 0;
  while ((letter = getopt_long(argc, argv, PLACE_LETTERS "m:r:s:c:fkln:D:ag:z:t:eS:jh", known,
                               NULL)) != -1) {
    if (place_option(&o.place, letter, optarg))
      continue;
    switch (letter) {
    case 'm':
      o.table_bytes = number('m', optarg, 1, 1 << 30) << 20;
      break;
    case 'r':
      o.region_bytes = number('r', optarg, 1, 1 << 30) << 20;
      break;
    case 's':
      o.slot_bytes = number('s', optarg, least_slot, 1 << 20);
      break;
    case 'c':
      o.writers = (unsigned)number('c', optarg, 1, 4096);
      break;
    case 'f':
      o.fill = 1;
      break;
    case 'k':
      o.keep = 1;
      break;
    case 'l':
      o.load = 1;
      break;
    case 'n':
      o.operations = number('n', optarg, 0, UINT64_MAX);
      break;
    case 'D':
      o.seconds = fraction('D', optarg, 0.001, 1e9);
      break;
    case 'a':
      o.sweep = 1;
      break;
    case 'g':
      o.gets = (unsigned)number('g', optarg, 0, 100);
      break;
    case 'z':
      o.theta = fraction('z', optarg, 0, 10);
      break;
    case 't':
      o.depth = (unsigned)number('t', optarg, 1, 4096);
      break;
    case 'e':
      o.events = 1;
      break;
    case 'S':
      o.seed = number('S', optarg, 0, UINT64_MAX);
      break;
    case 'j':
      o.json = 1;
      break;
    case 'h':
      fputs(usage, stdout);
      exit(0);
    default:
      fail("see key-value --help");
    }
  }
  if (argc - optind > 1)
    fail("one server, and not '%s' besides (see key-value --help)", argv[optind + 1]);
  o.server = argv[optind];
  if (o.slot_bytes % 8)
    fail("-s takes a multiple of 8, not %llu", (unsigned long long)o.slot_bytes);
  if (o.region_bytes > o.table_bytes)
    o.region_bytes = o.table_bytes;
  if (o.table_bytes / o.region_bytes >= most_regions)
    fail("a table of so small regions has more than %d of them: choose a larger -r", most_regions);
  return o;
}

int main(int argc, char** argv) {
  const struct options options = read_options(argc, argv);
  setvbuf(stdout, NULL, _IOLBF, 0); // what is told is there for who waits for it, also in a file
  return options.server ? ask(&options) : serve(&options);
}
