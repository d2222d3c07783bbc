"""Which values some options of a model can have: what command lines, settings and their readers share."""

from __future__ import annotations

from typing import Literal, get_args

KvCacheChoice = Literal["auto", "fp32", "fp16", "fp8", "q8", "q6", "q4"]
KV_CACHES: tuple[KvCacheChoice, ...] = get_args(KvCacheChoice)
"""Precision of keys and values; which of them a model's heads allow is known to `exlchat.ext.kv_formats`."""

MOST_CACHE_TOKENS = 10**9
MOST_CACHE_GB = 100_000
"""More than any machine has; far more would overflow."""

ROUNDED_HEAD_BITS = (4, 6, 8)
"""What an output head that a model's files have in floats may be rounded to when it is loaded."""

LARGEST_SEED = 2**63 - 1
MOST_ANSWERS = 8
"""To one prompt at once: as many as the kernels take rows."""
MOST_LOGPROBS = 100
