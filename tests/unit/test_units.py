"""The queue of finished units."""

import asyncio
import math

import pytest

from gagar.stream.lanes.units import LinkedSend, Spot, Unit, UnitQueue
from gagar.stream.transport import Partition, RawRecord, Send

AT = Partition("t", 0)


def make_unit(offset: int, num_bytes: int = 0) -> Unit:
    raw = RawRecord(at=AT, offset=offset, key=b"", value=b"", time=0.0)
    send = Send(topic="o", key=b"", value=b"x" * num_bytes)
    return Unit(inputs=(Spot(AT, offset),), outputs=[send] if num_bytes else (), source=raw)


def offsets(units: list[Unit]) -> list[int]:
    return [unit.inputs[0].offset for unit in units]


async def test_units_of_a_failed_transaction_come_back_in_their_order_before_all_others() -> None:
    queue = UnitQueue()
    for offset in range(5):
        queue.put(make_unit(offset))
    assert offsets(queue.take(3, 100)) == [0, 1, 2]
    queue.put(make_unit(5))
    assert len(queue) == 6
    queue.give_back()
    assert offsets(queue.take(10, 100)) == [0]
    queue.done()
    assert offsets(queue.take(10, 100)) == [1, 2]
    queue.done()
    assert offsets(queue.take(10, 100)) == [3, 4, 5]
    queue.done()
    assert len(queue) == 0


async def test_a_transaction_that_fails_is_tried_in_smaller_portions_down_to_one_unit_and_grows_again() -> None:
    queue, sizes = UnitQueue(), []
    for offset in range(100):
        queue.put(make_unit(offset))
    for _ in range(6):
        sizes.append(len(queue.take(16, 100)))
        queue.give_back()
    assert sizes == [16, 8, 4, 2, 1, 1]
    sizes.clear()
    for _ in range(6):
        sizes.append(len(queue.take(16, 100)))
        queue.done()
    assert sizes == [1, 2, 4, 8, 16, 16]
    for _ in range(2000):
        queue.done()
    assert queue._portion == math.inf, "what doubles with each transaction has a bound"


async def test_a_transaction_is_bounded_in_bytes_and_never_empty_for_that() -> None:
    queue = UnitQueue()
    for offset in range(4):
        queue.put(make_unit(offset, num_bytes=60))
    assert offsets(queue.take(10, 100)) == [0, 1]
    queue.done()
    assert offsets(queue.take(10, 1)) == [2]


async def test_a_spot_is_known_from_its_end_to_its_commit() -> None:
    queue = UnitQueue()
    queue.put(make_unit(7))
    assert Spot(AT, 7) in queue
    queue.take(1, 1)
    assert Spot(AT, 7) in queue
    queue.done()
    assert Spot(AT, 7) not in queue


async def test_dropped_units_are_gone_and_counted() -> None:
    queue = UnitQueue()
    for offset in range(4):
        queue.put(make_unit(offset))
    assert queue.drop(lambda unit: unit.inputs[0].offset % 2 == 0) == 2
    assert set(queue.spots()) == {Spot(AT, 1), Spot(AT, 3)}


async def test_empty_is_told_only_when_all_is_committed() -> None:
    queue = UnitQueue()
    queue.put(make_unit(0))
    waiting = asyncio.create_task(queue.wait_empty())
    queue.take(1, 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.give_back()
    queue.take(1, 1)
    queue.done()
    await waiting


async def test_waiting_for_a_unit_is_bounded() -> None:
    queue = UnitQueue()
    await queue.wait_filled(0.001)
    queue.put(make_unit(0))
    await queue.wait_filled(1000)


async def test_a_give_back_can_replace_one_unit() -> None:
    queue = UnitQueue()
    first, second = make_unit(0), make_unit(1)
    queue.put(first)
    queue.put(second)
    queue.take(2, 1)
    other = make_unit(1, num_bytes=5)
    queue.give_back(lambda unit: other if unit is second else unit)
    assert queue.take(2, 100) == [first, other]


def test_bytes_count_what_is_encoded() -> None:
    raw = RawRecord(at=AT, offset=0, key=b"", value=b"", time=0.0)
    link = LinkedSend(first=Send(topic="o", key=b"", value=b"123"), then=lambda ref: pytest.fail("not called"))
    tombstone = Send(topic="o", key=b"", value=None)
    assert Unit(inputs=(), outputs=[link, tombstone], source=raw).num_bytes == 3


async def test_a_wait_for_what_is_here_does_not_wait_for_what_comes_later() -> None:
    queue = UnitQueue()
    for offset in range(2):
        queue.put(make_unit(offset))
    queue.take(2, 100)
    waiting = asyncio.create_task(queue.wait_present())
    await asyncio.sleep(0)
    queue.put(make_unit(2))
    queue.give_back()
    queue.take(1, 100)
    queue.done()
    await asyncio.sleep(0)
    assert not waiting.done(), "one of the two is not committed"
    queue.take(1, 100)
    queue.done()
    await asyncio.wait_for(waiting, 1)
    assert len(queue) == 1
