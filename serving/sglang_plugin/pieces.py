"""How much of a victim leaves: no more than is asked for, from its end on.

A prompt comes into the tree as one node, which SGLang keeps or loses as a whole. Whoever needs the end of a node needs
its beginning, too, and whoever asks for room seldom needs as much as the victim has: what is left is kept.
"""

from __future__ import annotations

# Pieces are not smaller than this share of the tier, so that many small requests for room do not each cut a node.
PIECES = 1024


def kept(tokens: int, wanted: int, smallest: int, page: int) -> int:
    """How many tokens of a victim stay, from its beginning on; 0: it leaves as a whole.

    Args:
        tokens: that the victim has, whole pages.
        wanted: that are still asked for; not above 0: what was asked for did not do, and nothing is spared.
        smallest: piece that is worth a cut, on either side of it.
        page: tokens that can only leave together.
    """
    if wanted <= 0:
        return 0
    leaving = -(-max(wanted, smallest) // page) * page
    staying = tokens - leaving
    return staying if staying >= smallest else 0
