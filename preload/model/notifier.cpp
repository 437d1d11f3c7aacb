// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/notifier.h"

#include <utility>

namespace adverb::model {

int Notifier::open(ibv_pd* pd, ibv_cq* cq, const ibv_ah_attr& path) {
  const int rc = kick_.open(pd, cq, path);
  if (rc == 0)
    path_ = path;
  return rc;
}

void Notifier::wake(bool error) {
  if (!kick_.is_open())
    return;
  if (error && armed_solicited_) {
    if (kick_.fire(Kick::Kind::solicited))
      armed_ = armed_solicited_ = false;
    else
      missed_error_ = true;
  } else if (armed_) {
    if (kick_.fire(Kick::Kind::plain))
      armed_ = false;
    else
      missed_ = true;
  }
}

bool Notifier::take(const ibv_wc& wc, bool more) {
  if (!kick_.is_open() || wc.qp_num != kick_.qpn())
    return false;
  kick_.landed(wc);
  if (more) {
    const bool error = std::exchange(missed_error_, false);
    if (std::exchange(missed_, false) || error)
      wake(error);
  }
  return true;
}

} // namespace adverb::model
