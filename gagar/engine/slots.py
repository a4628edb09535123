"""A key-value cache of rows that live and end each on its own: what lets requests join and leave a running batch.

Every sequence has a row that holds its keys and values at positions 0 .. length - 1, whatever the others' lengths are. Rows in
use are always 0 .. n - 1, so attention reads a view and copies nothing; when a row ends, the last one moves into its place.
Positions beyond a row's length hold leftovers (finite numbers) that the caller's mask must hide.
Not promised: sliding windows or recurrent state; `gagar.engine.transformers` refuses such models.
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

GRANULE = 64
"""Rows' capacity is a multiple of this many positions."""


class Aim:
    """Where the next forward pass writes; shared by all layers."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.capacity = 0
        self.first_row = 0
        self.sources: torch.Tensor | None = None
        """[num new rows] which row of the forward pass each new row copies; None while decoding."""
        self.rows = torch.empty(0, dtype=torch.long)
        self.positions = torch.empty(0, dtype=torch.long)
        self.length = 0


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [rows, heads, capacity, head size] each."""

    def __init__(self, aim: Aim) -> None:
        super().__init__()
        self._aim = aim

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        shape = (self._aim.num_rows, like.shape[1], self._aim.capacity, like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        aim = self._aim
        if aim.sources is not None:
            last = aim.first_row + len(aim.sources)
            stored[aim.first_row : last, :, : new.shape[2]] = new[aim.sources]
            return new
        stored[aim.rows, :, aim.positions] = new[:, :, 0]
        return stored[: len(aim.rows), :, : aim.length]

    def grow(self) -> None:
        """Takes the sizes of the aim; what is stored stays."""
        if self.is_initialized:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def _grown(self, stored: torch.Tensor) -> torch.Tensor:
        larger = self._allocate(stored)
        larger[: stored.shape[0], :, : stored.shape[2]] = stored
        return larger

    def move(self, source: int, target: int, length: int) -> None:
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A prefill sees only itself; decoding brings its own mask and never asks."""
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """All layers. Aim it before each forward pass: at new rows (prefill) or at the ends of rows (decoding)."""

    def __init__(self, num_layers: int) -> None:
        self._aim = Aim()
        super().__init__(layers=[SlotLayer(self._aim) for _ in range(num_layers)])

    def reserve(self, num_rows: int, length: int) -> None:
        """Makes room for `num_rows` rows of `length` positions; grows by doubling."""
        aim = self._aim
        if num_rows <= aim.num_rows and length <= aim.capacity:
            return
        if num_rows > aim.num_rows:
            aim.num_rows = max(num_rows, 2 * aim.num_rows)
        if length > aim.capacity:
            aim.capacity = -(-max(length, 2 * aim.capacity) // GRANULE) * GRANULE
        for layer in self.layers:
            layer.grow()

    def aim_at_new_rows(self, first_row: int, sources: torch.Tensor) -> None:
        """The next pass prefills: new row `first_row + i` takes what row `sources[i]` of the pass computes."""
        self._aim.first_row, self._aim.sources = first_row, sources

    def aim_at_ends(self, positions: torch.Tensor, length: int) -> None:
        """The next pass decodes: row i writes at `positions[i]` [num rows]; attention sees `length` positions."""
        aim = self._aim
        aim.sources, aim.positions, aim.length = None, positions, length
        aim.rows = torch.arange(len(positions), device=positions.device)

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of a row to another."""
        for layer in self.layers:
            layer.move(source, target, length)

    def release(self) -> None:
        """Forgets every row and frees the memory."""
        self._aim.num_rows = self._aim.capacity = 0
        for layer in self.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False
