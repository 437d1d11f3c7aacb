// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Requests for which adverb copies in the thread that posts them: small ones from a region of local
// rights, which the default policy leaves unpinned.
#pragma once

#include <infiniband/verbs.h>

namespace signals {

class Copies {
public:
  Copies();
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // A WRITE from good memory; whether it succeeded and its bytes are there.
  bool good();
  // The same from a page without access; whether the status was LOC_PROT_ERR.
  bool bad();
  // Both, said as a line.
  void say();

private:
  struct Pair {
    ibv_qp* from;
    ibv_qp* to;
  };
  Pair connect();
  void disconnect(Pair pair);
  ibv_wc_status write(Pair pair, const char* from);

  ibv_context* context_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  char* source_; // two pages, the second one without access
  char* target_;
  ibv_mr* source_mr_;
  ibv_mr* target_mr_;
  Pair good_;
  unsigned char count_ = 0;
};

// Ends the process with what went wrong.
void must(bool good, const char* what);

} // namespace signals
