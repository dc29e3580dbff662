"""Rendezvous hashing (Thaler and Ravishankar 1998): who has the same places to choose from chooses the same. Pure code.

Ray Serve's HTTP proxies load this, so it imports nothing heavy.
"""

from __future__ import annotations

import hashlib


def weight(key: str, place: str) -> bytes:
    """Each pair draws a number, the highest wins: a place that goes moves only the keys that it has won."""
    return hashlib.blake2b(f"{place}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()
