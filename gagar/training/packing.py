"""Trajectories over ranks and micro-batches. Pure: lengths in, indices out, the same for the same lengths.

Promised: every index is placed exactly once; ranks differ by at most the longest trajectory; a micro-batch, padded to its
longest member, stays within the token budget unless it is a single longer trajectory; all ranks have equally many micro-
batches, since each one is a collective (ZeRO reduces gradients in it): a rank that has run out of work gets empty ones.
"""

from collections.abc import Sequence


def balance(lengths: Sequence[int], num_ranks: int, loads: Sequence[int] = ()) -> list[list[int]]:
    """Indices of `lengths` for each rank: longest first to the least loaded. `loads` [num_ranks] is what ranks hold already."""
    totals = list(loads) if loads else [0] * num_ranks
    owned: list[list[int]] = [[] for _ in range(num_ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(num_ranks), key=lambda r: (totals[r], r))
        owned[rank].append(index)
        totals[rank] += lengths[index]
    return owned


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of `lengths` in micro-batches of neighbours in length, so that little is padded."""
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * longest > token_budget:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


def pack(owned: Sequence[Sequence[int]], lengths: Sequence[int], token_budget: int) -> list[list[list[int]]]:
    """Micro-batches [rank][number] of indices, equally many for each rank; `owned` [rank] holds indices of `lengths`."""
    packed = [[[mine[i] for i in batch] for batch in micro_batches([lengths[i] for i in mine], token_budget)] for mine in owned]
    most = max((len(batches) for batches in packed), default=0)
    return [batches + [[] for _ in range(most - len(batches))] for batches in packed]
