# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Some tests at a time."""

from concurrent.futures import ThreadPoolExecutor


def in_order(parts, at_once):
    """What `parts`, functions that return results, find, in their order; `at_once` of them run at a time."""
    if at_once == 1:
        for part in parts:
            yield from part()
        return
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(lambda part=part: list(part())) for part in parts]:
            yield from done.result()
