"""Tensors: what goes in comes out, without a copy; bytes that do not fit are refused."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagar.arrays import DTYPES, Tensor
from gagar.errors import BadRecordError


@st.composite
def arrays(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Any bits of any allowed dtype, NaN and infinities among them."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    length = draw(st.integers(0, 50))
    data = draw(st.binary(min_size=length * DTYPES[dtype], max_size=length * DTYPES[dtype]))
    return np.frombuffer(data, np.dtype("<" + dtype))


@given(arrays())
def test_an_array_comes_back_bit_by_bit(array: npt.NDArray[Any]) -> None:
    sent = msgspec.msgpack.encode(Tensor.of(array))
    got = msgspec.msgpack.decode(sent, type=Tensor).view()
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


@given(arrays())
def test_wrapping_and_viewing_copy_nothing(array: npt.NDArray[Any]) -> None:
    view = Tensor.of(array).view()
    assert len(view) == len(array)
    assert len(array) == 0 or np.shares_memory(view, array)


@given(arrays(), st.integers(-3, 3).filter(bool))
def test_a_length_that_the_bytes_do_not_have_is_refused(array: npt.NDArray[Any], by: int) -> None:
    tensor = msgspec.structs.replace(Tensor.of(array), length=len(array) + by)
    with pytest.raises(BadRecordError, match=r"tensor.data: expected -?\d+ bytes for"):
        tensor.view()


def test_a_view_of_a_decoded_tensor_is_read_only() -> None:
    sent = msgspec.msgpack.encode(Tensor.of(np.array([1, 2], "<i4")))
    with pytest.raises(ValueError, match="read-only"):
        msgspec.msgpack.decode(sent, type=Tensor).view()[0] = 3


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, "<f8"),
        np.zeros(3, "<i8"),
        np.zeros(3, ">i4"),
        np.zeros((2, 2), "<f4"),
        np.zeros(6, "<f4")[::2],
    ],
    ids=["f8", "i8", "big-endian", "two dimensions", "strided"],
)
def test_an_array_that_the_wire_does_not_know_is_refused(array: npt.NDArray[Any]) -> None:
    with pytest.raises(BadRecordError, match=r"tensor: expected a contiguous \[T\] array of"):
        Tensor.of(array)


def test_a_dtype_from_the_wire_is_checked_before_it_is_used() -> None:
    tensor = Tensor(dtype="O", length=1, data=memoryview(b"12345678"))
    with pytest.raises(BadRecordError, match=r"tensor.dtype: expected one of .*, got 'O'"):
        tensor.view()
