"""What the ranks of a learner say to each other beside gradients: small byte strings over gloo, on the CPU.

With one rank every call answers at once and no process group is needed.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

M = TypeVar("M")


class Ranks:
    """Rank `rank` of `world_size`. All ranks must make the same calls in the same order."""

    def __init__(self, rank: int = 0, world_size: int = 1, timeout_s: float = 600.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self._group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def open(self) -> None:
        """Makes the group of the control messages; the default process group must exist."""
        import torch.distributed as dist

        if self.world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout_s))

    def broadcast(self, make: Callable[[], M], into: type[M]) -> M:
        """What `make` answers on rank 0, on every rank; `make` is called there only."""
        value = make() if self.is_first else None
        if self.world_size == 1:
            assert value is not None
            return value
        data = self._exchange(msgspec.msgpack.encode(value) if self.is_first else b"", source=0)
        return msgspec.msgpack.decode(data, type=into)

    def gather(self, value: M, into: type[M]) -> list[M]:
        """The values of all ranks in order, on every rank."""
        if self.world_size == 1:
            return [value]
        mine = msgspec.msgpack.encode(value)
        every = [self._exchange(mine if rank == self.rank else b"", source=rank) for rank in range(self.world_size)]
        return [msgspec.msgpack.decode(data, type=into) for data in every]

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.gather(0, int)

    def _exchange(self, data: bytes, source: int) -> bytes:
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(size, src=source, group=self._group)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(buffer, src=source, group=self._group)
        return buffer.numpy().tobytes()
