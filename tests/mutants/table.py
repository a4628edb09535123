"""The mutants: a rule of the runtime each, and the change of one function that breaks it."""

from tests.mutants.breaking import Mutant

ANY_DEATH = "test_a_process_that_dies_wherever_it_waits_loses_and_doubles_nothing"
LEARNER_DEATH = "test_a_learner_that_dies_wherever_it_waits_loses_and_doubles_nothing"

MUTANTS = (
    Mutant(
        "the answers of plain sends are awaited before the commit",
        "committing._write",
        "ref = await answer",
        "ref = await answer if link is not None else None",
        f"{ANY_DEATH}[source]",
    ),
    Mutant(
        "the answers of linked sends are awaited before the commit",
        "committing._write",
        """
        with _blamed_on(unit):
            await answer
        """,
        "pass",
        "test_an_output_that_the_log_refuses_makes_a_dead_letter_of_its_input_alone",
    ),
    Mutant(
        "a lane fences before it reads the offsets",
        "Lane._take_over",
        """
        self._producer = await transport.start_producer(self._name, self._context.router.outputs)
        committed = await self.committed()
        """,
        """
        committed = await self.committed()
        self._producer = await transport.start_producer(self._name, self._context.router.outputs)
        """,
        f"{ANY_DEATH}[transform]",
    ),
    Mutant(
        "a journal fences before it reads its dead letters",
        "LogJournal.open",
        """
        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)
        async for letter in scan_transport(self._transport, [self._dead_letters]):
            if letter.record.stage == self._stage.name:
                self._dead.add(letter.record.source)
        """,
        """
        async for letter in scan_transport(self._transport, [self._dead_letters]):
            if letter.record.stage == self._stage.name:
                self._dead.add(letter.record.source)
        self._producer = await self._transport.start_producer(f"{self._stage.name}.0", self._router.outputs)
        """,
        LEARNER_DEATH,
    ),
    Mutant(
        "what is finished beyond the watermark is skipped",
        "Frontier.deliver",
        "offset in self._restored",
        "False",
        "test_what_is_finished_is_passed_over",
    ),
    Mutant(
        "what is finished beyond the watermark is committed",
        "Lane._transact",
        "Committed(offset=offset, metadata=metadata)",
        "Committed(offset=offset)",
        "test_a_slow_item_holds_back_nothing_and_only_it_is_done_again",
    ),
    Mutant(
        "the committed offset is the first unfinished one",
        "Frontier.snapshot",
        "min(pending) if pending else self._next",
        "self._next",
        "test_a_full_span_refuses_and_recovers_over_restarts",
    ),
    Mutant(
        "a group's inputs are one unit",
        "ReducerWork._settle",
        "self._lane.finish(self._closed(entry, reduced))",
        """
        unit = self._closed(entry, reduced)
        for spot in unit.inputs[:-1]:
            self._lane.finish(Unit(inputs=(spot,), source=unit.source))
        self._lane.finish(Unit(inputs=unit.inputs[-1:], outputs=unit.outputs, source=unit.source))
        """,
        f"{ANY_DEATH}[reducer]",
    ),
    Mutant(
        "outputs and offsets are one transaction",
        "transact",
        "await producer.commit(group, offsets)",
        """
        await producer.commit(group, {})
        await producer.begin()
        await producer.commit(group, offsets)
        """,
        f"{ANY_DEATH}[transform]",
    ),
    Mutant(
        "a dead letter and the end of its input are one transaction",
        "transact",
        "await _write(producer, router, units)",
        """
        await _write(producer, router, [unit for unit in units if unit.kind == "dead"])
        await producer.commit(group, {})
        await producer.begin()
        await _write(producer, router, [unit for unit in units if unit.kind != "dead"])
        """,
        f"{ANY_DEATH}[transform]",
    ),
    Mutant(
        "what the cluster refuses a handler for good is no fault of its record",
        "guarded",
        "(BadRecordError, UnavailableError, MachineError, ClusterRefusalError)",
        "(BadRecordError, UnavailableError, MachineError)",
        "test_a_refusal_in_a_handler_ends_the_stage_and_is_no_fault_of_the_record",
    ),
    Mutant(
        "a dead letter ends its group",
        "Router.dead_unit",
        "outputs.append(self.encode(lost_group(group_id)))",
        "pass",
        "test_a_bad_record_becomes_a_dead_letter_as_it_came_and_ends_its_group",
    ),
    Mutant(
        "a lane's producer is built anew after an error",
        "Lane._serve",
        "await together(self._take_over())",
        """
        if self._producer is None:
            await together(self._take_over())
        """,
        "test_a_failing_log_is_met_by_a_new_producer_and_handlers_that_go_on",
    ),
    Mutant(
        "what was taken for a transaction that failed comes back",
        "Lane._transact",
        "self.queue.give_back()",
        "self.queue.done()",
        "test_a_failing_log_is_met_by_a_new_producer_and_handlers_that_go_on",
    ),
    Mutant(
        "units that a transaction of unknown outcome committed are dropped",
        "Lane._keep_work",
        "self.queue.drop(lambda unit: any(is_dropped(spot) for spot in unit.inputs))",
        "pass",
        f"{ANY_DEATH}[transform]",
    ),
    Mutant(
        "a source looks at the committed cursor after an unknown outcome",
        "SourceWork.resume",
        "not self._is_own(self._frontier.note)",
        "False",
        "test_a_source_ends_with_an_error_if_another_has_moved_the_cursor",
    ),
    Mutant(
        "a source's cursor is committed with its unit, though the producer was lost meanwhile",
        "SourceWork.resume",
        "self._frontier.note = self._cursor",
        "pass",
        f"{ANY_DEATH}[source]",
    ),
    Mutant(
        "a source ends if it loses its place",
        "StageRuntime.on_assigned",
        'self._break(FencedError(f"stage {name}: expected to keep its place, got a rebalance; start it again"))',
        "pass",
        "test_a_source_that_loses_its_place_ends_and_one_that_keeps_it_goes_on",
    ),
    Mutant(
        "a lane starts a producer only for a number that it owns now",
        "Lane._take_over",
        "self.number in await self._membership.confirm()",
        "True",
        "test_a_process_that_lost_its_place_without_knowing_starts_no_producer",
    ),
    Mutant(
        "what has finished is committed before the group is divided anew",
        "StageRuntime.on_revoked",
        "await bounded(gathered([lane.flush() for lane in lanes]), self._limits.revoke_s)",
        "lanes or self._limits.revoke_s >= 0",
        "test_what_has_finished_is_committed_before_the_group_is_divided_anew",
    ),
    Mutant(
        "nothing begins while the group is divided anew",
        "StageRuntime.on_revoked",
        "lane.pause()",
        "pass",
        "test_nothing_begins_between_a_revocation_and_the_division_and_what_ends_is_committed[memory]",
    ),
    Mutant(
        "a revocation waits for what is finished, not for an empty queue",
        "Lane.flush",
        "self.queue.wait_present()",
        "self.queue.wait_empty()",
        "test_a_revocation_waits_for_what_is_finished_and_not_for_what_ends_later",
    ),
    Mutant(
        "what is finished gets a last commit on a partition that went elsewhere",
        "Lane.abandon",
        "len(self.queue)",
        "0",
        "test_what_ends_after_a_revocation_gets_a_last_commit_or_is_counted",
    ),
    Mutant(
        "the new owner of a partition leaves the one before it time for its last commit",
        "StageRuntime.on_assigned",
        "self._limits.handover_s if is_shared else 0.0",
        "0.0",
        "test_the_new_owner_of_a_partition_leaves_the_one_before_it_time_for_its_last_commit",
    ),
    Mutant(
        "a stage that stops begins nothing on numbers that it wins",
        "StageRuntime.on_assigned",
        "sorted(due - self.lanes.keys()) if not self._is_draining else ()",
        "sorted(due - self.lanes.keys())",
        "test_partitions_on_which_work_goes_on_stay_while_a_stage_stops_and_another_comes[memory]",
    ),
    Mutant(
        "a stage that stops gives up what goes elsewhere meanwhile",
        "StageRuntime.on_assigned",
        "self._is_closing",
        "self._is_draining",
        "test_partitions_on_which_work_goes_on_stay_while_a_stage_stops_and_another_comes[memory]",
    ),
    Mutant(
        "a second word ends a stop at once",
        "StageRuntime.stop_at_once",
        "self._at_once.set()",
        "pass",
        "test_a_second_word_ends_a_stop_at_once_and_what_is_finished_is_committed[memory]",
    ),
    Mutant(
        "handlers of a number that comes back go on",
        "StageRuntime.on_assigned",
        "sorted(self.lanes.keys() - due)",
        "sorted(self.lanes.keys())",
        "test_a_rebalance_moves_partitions_and_disturbs_no_handler_that_stays",
    ),
    Mutant(
        "a number that went elsewhere is abandoned",
        "StageRuntime.on_assigned",
        "sorted(self.lanes.keys() - due)",
        "()",
        "test_a_rebalance_moves_partitions_and_disturbs_no_handler_that_stays",
    ),
    Mutant(
        "nothing begins on a partition that was lost",
        "Lane.abandon",
        "self.stop_reading()",
        "pass",
        "test_nothing_begins_on_a_partition_that_went_while_its_last_commit_is_made",
    ),
    Mutant(
        "handlers outlive the loss of their producer",
        "Lane._keep_work",
        "self._work.keeps_deliveries",
        "False",
        "test_a_lane_whose_producer_was_fenced_recovers_and_keeps_its_handlers",
    ),
    Mutant(
        "a partition whose span is full is paused",
        "LaneReader._release",
        "self._reader.pause(at)",
        "pass",
        "test_a_record_beyond_the_span_is_held_back_and_released_when_the_watermark_moves",
    ),
    Mutant(
        "a partition whose span is full is not fetched further",
        "LaneReader._fetch",
        "self._reader.pause(at)",
        "pass",
        "test_a_partition_whose_span_is_full_from_the_first_record_on_is_not_fetched_further",
    ),
    Mutant(
        "records that wait for their turn hold time back",
        "LaneReader.lagging",
        "[*self._reader.behind(), *(at for at in self._held_back if self._is_due(at))]",
        "self._reader.behind()",
        "test_records_that_wait_for_their_turn_hold_time_back",
    ),
    Mutant(
        "a reader that stalls is given up",
        "WatchedReader._watch",
        "self.silent_s > self._stall_s",
        "False",
        "test_a_reader_that_stalls_is_given_up_and_one_at_the_end_is_not",
    ),
    Mutant(
        "a reader that failed is opened anew",
        "WatchedReader.poll",
        "await self.close()",
        "pass",
        "test_a_reader_that_failed_is_opened_anew_at_its_positions_with_its_pauses",
    ),
    Mutant(
        "a turn to take work ends, whatever others hold",
        "Budget.portion",
        "(left_s := deadline - time.monotonic()) > 0",
        "(left_s := MAX_WAIT_S)",
        "test_a_lane_that_holds_something_gives_its_turn_back_and_one_that_has_become_idle_goes_on",
    ),
    Mutant(
        "a partition whose span has room again is resumed",
        "LaneReader._release",
        "self._reader.resume(at)",
        "pass",
        "test_a_record_beyond_the_span_is_held_back_and_released_when_the_watermark_moves",
    ),
    Mutant(
        "records that retention took away are not passed over in silence",
        "report_missing",
        "log.error",
        "log.debug",
        "test_offsets_that_are_gone_are_reported_counted_and_passed",
    ),
    Mutant(
        "a backlog is judged by its own time",
        "StreamTime.now",
        "[self._last_read.get(at, 0.0) for at in lagging]",
        "list[float]()",
        "test_stream_time_is_the_last_record_of_the_input_that_lags_most",
    ),
    Mutant(
        "a late verdict does not open its group again",
        "Gather.is_late",
        "isinstance(delivery.record, Verdict) and is_finished(delivery.record.attempt.request)",
        "False",
        "test_a_verdict_is_late_when_its_request_is_finished",
    ),
    Mutant(
        "a retry is for the stage alone that had rejected the record",
        "DeliveryWork.run",
        "is_for_another(raw, self._stage)",
        "False",
        "test_other_stages_that_read_the_topic_pass_a_retry_over",
    ),
    Mutant(
        "a retry stands for the record that was rejected",
        "routing.to_delivery",
        "mark.source if mark is not None else raw.ref",
        "raw.ref",
        "test_the_stage_that_rejected_a_record_gets_it_again_in_its_old_place",
    ),
    Mutant(
        "a retried request does not open its group again",
        "Gather.is_late",
        "delivery.is_retry",
        "False",
        "test_a_retried_request_of_a_group_that_is_not_open_is_late",
    ),
    Mutant(
        "who retries in a partition fences everyone who did before",
        "Retrier.retry",
        "f'{self._letters.name}.{self._number}'",
        "f'{self._letters.name}.{id(self)}'",
        "test_of_two_who_retry_at_the_same_time_one_writes",
    ),
    Mutant(
        "too many dead letters stop a stage",
        "DeadLetterLimits.note",
        "self._run > self._limits.max_dead_run or is_share",
        "False",
        "test_too_many_dead_letters_stop_the_stage",
    ),
    Mutant(
        "a learner reads on from its checkpoint",
        "rank._coordinator",
        "client.seek(base.positions)",
        "client.seek({})",
        LEARNER_DEATH,
    ),
    Mutant(
        "a learner passes over what is finished in its checkpoint",
        "rank._coordinator",
        "FinishedOffsets(base.positions, base.finished)",
        "FinishedOffsets(base.positions, {})",
        LEARNER_DEATH,
    ),
    Mutant(
        "a learner's new run names the one that it continues",
        "identify",
        "[*base.lineage, LineageEntry(run_id=base.run_id, last_step=base.step)]",
        "[]",
        "test_a_run_that_continues_names_the_steps_that_survive",
    ),
    Mutant(
        "a learner trains the batches of the abandoned steps again",
        "rank._coordinator",
        "past.replay",
        "{}",
        "test_the_batches_of_abandoned_steps_come_again_though_an_older_group_has_come_meanwhile",
    ),
)
