#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 900
# The verifier with its two sides in two processes of one host: stock, nothing pinned, and the default.
. "$(dirname "$0")/verify_cases.sh"
verify_both pair pair "unpinned default"
