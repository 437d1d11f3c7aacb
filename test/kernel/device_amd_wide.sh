#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# AMD, addresses of 64 bits, which the kernel takes when those below 4 GiB are used up: six levels. Linux 7.2
# takes 48 bits, and four levels. One device only: the emulated IOMMU remembers translations of several under
# one name above 48 bits.
# vm: qemu=7.2 iommu=amd append=iommu.forcedac=1 device=edu,dma_mask=0xffffffffffffffff nodes=2
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
drivers=(adverb_test_edu)
row 7.2 amd
load "${drivers[@]}"
case "$(uname -r)" in
  6.*) directed 64 page ;;
  *) directed 48 page ;;
esac
unload "${drivers[@]}"
