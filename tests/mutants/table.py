"""The mutants: a rule of the runtime each, and the exact source whose change breaks it."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` occurs exactly once in `file`, and is replaced by `new`."""

    rule: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "the answers of plain sends are awaited before the commit",
        "gagar/stream/lanes/committing.py",
        "            ref = await answer\n            if link is not None:\n",
        "            if link is not None:\n                ref = await answer\n",
    ),
    Mutant(
        "the answers of linked sends are awaited before the commit",
        "gagar/stream/lanes/committing.py",
        "        with _blamed_on(unit):\n            await answer\n",
        "        pass\n",
    ),
    Mutant(
        "a lane fences before it reads the offsets",
        "gagar/stream/lanes/lane.py",
        "        self._producer = await transport.start_producer(self._name, self._context.router.outputs)\n"
        "        committed = await self._membership.committed(self._partitions)\n",
        "        committed = await self._membership.committed(self._partitions)\n"
        "        self._producer = await transport.start_producer(self._name, self._context.router.outputs)\n",
    ),
    Mutant(
        "a source fences before it reads the cursor",
        "gagar/stream/lanes/sourcing.py",
        '        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)\n'
        "        self._cursor = await self._committed_cursor()\n",
        "        self._cursor = await self._committed_cursor()\n"
        '        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)\n',
    ),
    Mutant(
        "a journal fences before it reads its dead letters",
        "gagar/stream/journal.py",
        '        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)\n'
        "        await self._open_reader()\n"
        "        async for letter in scan_transport(self._transport, [self._dead_letters]):\n"
        "            if letter.record.stage == self._stage.name:\n"
        "                self._dead.add(letter.record.source)\n",
        "        await self._open_reader()\n"
        "        async for letter in scan_transport(self._transport, [self._dead_letters]):\n"
        "            if letter.record.stage == self._stage.name:\n"
        "                self._dead.add(letter.record.source)\n"
        '        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)\n',
    ),
    Mutant(
        "what is finished beyond the watermark is skipped",
        "gagar/stream/lanes/frontier.py",
        "        was_finished = offset in self._restored\n",
        "        was_finished = False\n",
    ),
    Mutant(
        "what is finished beyond the watermark is committed",
        "gagar/stream/lanes/lane.py",
        "Committed(offset=offset, metadata=metadata) for at, (offset, metadata)",
        "Committed(offset=offset) for at, (offset, metadata)",
    ),
    Mutant(
        "the committed offset is the first unfinished one",
        "gagar/stream/lanes/frontier.py",
        "        low = min(pending) if pending else self._next\n",
        "        low = self._next\n",
    ),
    Mutant(
        "a group's inputs are one unit",
        "gagar/stream/lanes/reducing.py",
        "            self._lane.finish(self._closed(entry, reduced))\n",
        "            unit = self._closed(entry, reduced)\n"
        "            for spot in unit.inputs[:-1]:\n"
        "                self._lane.finish(Unit(inputs=(spot,), source=unit.source))\n"
        "            self._lane.finish(Unit(inputs=unit.inputs[-1:], outputs=unit.outputs, source=unit.source))\n",
    ),
    Mutant(
        "outputs and offsets are one transaction",
        "gagar/stream/lanes/committing.py",
        "            await producer.commit(group, offsets)\n",
        "            await producer.commit(group, {})\n"
        "            await producer.begin()\n"
        "            await producer.commit(group, offsets)\n",
    ),
    Mutant(
        "a dead letter and the end of its input are one transaction",
        "gagar/stream/lanes/committing.py",
        "            await _write(producer, router, units)\n",
        '            await _write(producer, router, [unit for unit in units if unit.kind == "dead"])\n'
        "            await producer.commit(group, {})\n"
        "            await producer.begin()\n"
        '            await _write(producer, router, [unit for unit in units if unit.kind != "dead"])\n',
    ),
    Mutant(
        "a dead letter ends its group",
        "gagar/stream/routing.py",
        "            outputs.append(self.encode(lost_group(group_id)))\n",
        "            pass\n",
    ),
    Mutant(
        "a lane's producer is built anew after an error",
        "gagar/stream/lanes/lane.py",
        "                    await together(self._take_over())\n",
        "                    if self._producer is None:\n                        await together(self._take_over())\n",
    ),
    Mutant(
        "a source's producer is built anew after an error",
        "gagar/stream/lanes/sourcing.py",
        "            await self._close_producer()\n            await asyncio",
        "            await asyncio",
    ),
    Mutant(
        "what was taken for a transaction that failed comes back",
        "gagar/stream/lanes/lane.py",
        "        except BaseException:\n            self.queue.give_back()\n            raise\n",
        "        except BaseException:\n            self.queue.done()\n            raise\n",
    ),
    Mutant(
        "units that a transaction of unknown outcome committed are dropped",
        "gagar/stream/lanes/lane.py",
        "        self.queue.drop(lambda unit: any(is_dropped(spot) for spot in unit.inputs))\n",
        "",
    ),
    Mutant(
        "a source looks at the committed cursor after an unknown outcome",
        "gagar/stream/lanes/sourcing.py",
        "        if self._cursor != before or self._producer is None:\n            return\n",
        "        assert self._producer is not None\n",
    ),
    Mutant(
        "a lane starts a producer only for a number that it owns now",
        "gagar/stream/lanes/lane.py",
        "            if self.number in await self._membership.confirm():\n                break\n",
        "            break\n",
    ),
    Mutant(
        "a source starts a producer only if it owns its place now",
        "gagar/stream/lanes/sourcing.py",
        "            if 0 in await self._membership.confirm():\n                break\n",
        "            break\n",
    ),
    Mutant(
        "what has finished is committed before the group is divided anew",
        "gagar/stream/runtime.py",
        "        if not await bounded(gathered([lane.flush() for lane in lanes]), self._limits.revoke_s):\n",
        "        if not lanes and self._limits.revoke_s < 0:\n",
    ),
    Mutant(
        "handlers of a number that comes back go on",
        "gagar/stream/runtime.py",
        "        for number in sorted(self.lanes.keys() - numbers):\n",
        "        for number in sorted(self.lanes.keys()):\n",
    ),
    Mutant(
        "a number that went elsewhere is abandoned",
        "gagar/stream/runtime.py",
        "        for number in sorted(self.lanes.keys() - numbers):\n",
        "        for number in ():\n",
    ),
    Mutant(
        "handlers outlive the loss of their producer",
        "gagar/stream/lanes/lane.py",
        "        keeps = self._work.keeps_deliveries\n",
        "        keeps = False\n",
    ),
    Mutant(
        "a partition whose span is full is paused",
        "gagar/stream/lanes/reading.py",
        "        if held:\n            self._reader.pause(at)\n",
        "        if held:\n            pass\n",
    ),
    Mutant(
        "a partition whose span is full is not fetched further",
        "gagar/stream/lanes/reading.py",
        "            elif not self._is_due(at):\n                self._reader.pause(at)\n",
        "",
    ),
    Mutant(
        "records that wait for their turn hold time back",
        "gagar/stream/lanes/reading.py",
        "        return [*unread, *(at for at in self._held_back if self._is_due(at))]\n",
        "        return unread\n",
    ),
    Mutant(
        "a turn to take work ends, whatever others hold",
        "gagar/stream/lanes/budget.py",
        " and (left_s := patience - time.monotonic()) > 0:\n",
        " and (left_s := PATIENCE_S):\n",
    ),
    Mutant(
        "a partition whose span has room again is resumed",
        "gagar/stream/lanes/reading.py",
        "            self._reader.resume(at)\n",
        "            pass\n",
    ),
    Mutant(
        "records that retention took away are not passed over in silence",
        "gagar/stream/lanes/reading.py",
        "        log.error(\n",
        "        log.debug(\n",
    ),
    Mutant(
        "a backlog is judged by its own time",
        "gagar/stream/lanes/reducing.py",
        "        times = [self._last_read.get(at, 0.0) for at in lagging]\n",
        "        times: list[float] = []\n",
    ),
    Mutant(
        "a late verdict does not open its group again",
        "gagar/groups/gathering.py",
        "        return isinstance(delivery.record, Verdict) and is_finished(delivery.record.request)\n",
        "        return False\n",
    ),
    Mutant(
        "too many dead letters stop a stage",
        "gagar/stream/limits.py",
        "        if self._run > self._limits.max_dead_run or is_share:\n",
        "        if False:\n",
    ),
    Mutant(
        "a learner reads on from its checkpoint",
        "consumers/learner/rank.py",
        "    client.seek(base.positions)\n",
        "    client.seek({})\n",
    ),
    Mutant(
        "a learner passes over what is finished in its checkpoint",
        "consumers/learner/rank.py",
        "Progress(base.positions, base.finished)",
        "Progress(base.positions, {})",
    ),
    Mutant(
        "a learner's new run names the one that it continues",
        "consumers/learner/facts.py",
        "lineage=[*base.lineage, LineageEntry(run_id=base.run_id, last_step=base.step)])\n",
        "lineage=[])\n",
    ),
    Mutant(
        "a learner trains the batches of the abandoned steps again",
        "consumers/learner/rank.py",
        "if identity.lineage else {}",
        "if not identity else {}",
    ),
)
