"""Token arrays inside records: little-endian bytes with dtype and shape, decoded without a copy.

Promised: `Tensor.view` of a decoded record shares memory with the record. Not promised: that the view outlives it cheaply;
a view keeps its whole record alive, so copy what outlives the batch.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from gagar.errors import BadRecordError

if TYPE_CHECKING:
    import numpy.typing as npt

DTYPES = {"u1": 1, "i4": 4, "f4": 4}
"""Allowed dtypes and their item size in bytes; all little-endian."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A one-dimensional array on the wire. Example: `Tensor.of(np.array([3, 1], "<i4"))`."""

    dtype: str
    """One of `DTYPES`."""
    length: int
    """Number of elements, [T]."""
    data: memoryview
    """`length` elements, little-endian."""

    @classmethod
    def of(cls, array: "npt.NDArray[Any]") -> "Tensor":
        """Wraps a contiguous one-dimensional array; its memory is referred to, not copied."""
        dtype = array.dtype.str.lstrip("<|")
        if dtype not in DTYPES or array.ndim != 1 or not array.flags.c_contiguous:
            raise BadRecordError(
                f"tensor: expected a contiguous [T] array of {sorted(DTYPES)}, got {array.dtype} {array.shape}"
            )
        return cls(dtype=dtype, length=len(array), data=array.view("u1").data)

    def view(self) -> "npt.NDArray[Any]":
        """The elements, [length], read-only, without a copy; raises BadRecordError if the bytes do not fit dtype and length."""
        self.check()
        import numpy as np

        return np.frombuffer(self.data, dtype=np.dtype("<" + self.dtype))

    def check(self) -> None:
        """Raises BadRecordError unless dtype is allowed and the bytes are exactly `length` elements."""
        if self.dtype not in DTYPES:
            raise BadRecordError(f"tensor.dtype: expected one of {sorted(DTYPES)}, got {self.dtype!r}")
        expected = self.length * DTYPES[self.dtype]
        got = self.data.nbytes
        if expected != got:
            raise BadRecordError(f"tensor.data: expected {expected} bytes for {self.length} x {self.dtype}, got {got}")
