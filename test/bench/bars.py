# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Rows, and whether they keep their bars.

A row is a dictionary: `name`, `table` (a key of the module's TABLES), `title` and `value`. `at_most` or `at_least` is
its bar. A count decides by its value. A ratio of times has `low` and `high`, the 95% interval of its median, and `pairs`.
It misses its bar only if the whole interval lies beyond it. An interval that straddles the bar decides nothing."""

PAIRS = 15  # of a stock and an adverb run: fewer decide nothing


def judge(row):
    """failed, missed, undecided or held; None: the row was measured and has no bar"""
    if row.get("value") is None:
        return "failed"
    if "at_most" not in row and "at_least" not in row:
        return None
    if "low" in row and row["pairs"] < PAIRS:
        return "undecided"
    low, high = row.get("low", row["value"]), row.get("high", row["value"])
    most, least = row.get("at_most", float("inf")), row.get("at_least", float("-inf"))
    if low > most or high < least:
        return "missed"
    return "held" if high <= most and low >= least else "undecided"


def bar(row):
    """The row's bar in words"""
    return ", ".join(f"at {which} {row[f'at_{which}']:.4g}" for which in ("most", "least") if f"at_{which}" in row)


def attempt(measure, **row):
    """The row with the figures of measure(); if measure() fails, without a value and with the reason."""
    try:
        return row | measure()
    except Exception as error:  # whatever it was, the bench goes on with the next row
        return row | failure(error)


def failure(error):
    said = getattr(error, "stderr", None) or str(error) or type(error).__name__
    return {"value": None, "failed": str(said).strip()[-400:]}


def scope(options, quick, default, long):
    """What a bench takes of three"""
    return quick if options.quick else long if options.long else default
