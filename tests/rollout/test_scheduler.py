"""The scheduler against a program that keeps tokens instead of KV: every read of a page is checked."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.rollout import exchange
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.request import TurnRequest
from agentjax.rollout.scheduler import Scheduler

STOP = 7


def next_token(trajectory: int, history: np.ndarray) -> int:
    """What the fake policy samples: any function of the seed and the whole history."""
    return int((np.dot(history.astype(np.int64) + 1, np.arange(1, len(history) + 1)) + 13 * trajectory) % 23)


class TokenProgram:
    """Runs blocks as the device would, with a token in place of each key and value."""

    def __init__(self, shape: EngineShape):
        self.shape = shape
        self.pages = np.full((shape.pages, shape.page_size), -1, np.int64)

    def run(self, inbox: np.ndarray) -> np.ndarray:
        box = exchange.inbox(self.shape).views(inbox.copy())
        sent = np.zeros((self.shape.slots, exchange.outbox(self.shape).width), np.int32)
        out = exchange.outbox(self.shape).views(sent)
        targets = box["copy_to"] >= 0
        self.pages[box["copy_to"][targets]] = self.pages[box["copy_from"][targets]]
        for slot in box["order"][: box["rows"][0]]:
            for i in range(box["chunk_len"][slot]):
                self._write(box["page_table"][slot], box["chunk_start"][slot] + i, box["chunk"][slot, i])
        for slot in np.flatnonzero(box["active"]):
            self._decode(slot, box, out)
        out["ran"][:] = 1
        return sent

    def _write(self, table, position, token):
        self.pages[table[position // self.shape.page_size], position % self.shape.page_size] = token

    def _decode(self, slot, box, out):
        token, position, budget = box["token"][slot], box["position"][slot], box["budget"][slot]
        for step in range(self.shape.block_steps):
            self._write(box["page_table"][slot], position, token)
            stream = self.pages[box["page_table"][slot]].reshape(-1)[: position + 1]
            assert (stream >= 0).all()
            token, position = next_token(int(box["trajectory"][slot]), stream), position + 1
            out["tokens"][slot, step], out["logprobs"][slot, step] = token, -0.5
            out["count"][slot] += 1
            budget -= 1
            if token in box["stop_ids"][slot] or budget == 0:
                out["stopped"][slot] = 1
                return


def expected(request: TurnRequest) -> list[int]:
    """The turn sampled alone, with the whole history at hand."""
    stream, sampled = list(request.ids), []
    while len(sampled) < request.max_tokens:
        sampled.append(next_token(request.trajectory, np.array(stream)))
        stream.append(sampled[-1])
        if sampled[-1] in request.stop_ids:
            break
    return sampled


def shape_of(slots=3, block_steps=4, chunk=5, page_size=4, max_pages=12, pages=40) -> EngineShape:
    return EngineShape(
        slots=slots,
        block_steps=block_steps,
        chunk=chunk,
        prefill_rows=2,
        page_size=page_size,
        pages=pages,
        max_pages=max_pages,
        pages_per_block=2,
    )


def play(scheduler: Scheduler, program: TokenProgram, until, drop=lambda: False) -> None:
    for _ in range(3000):
        inbox = scheduler.plan()
        scheduler.check_pages()
        if until():
            return
        if drop():
            scheduler.commit(np.zeros((program.shape.slots, exchange.outbox(program.shape).width), np.int32))
        else:
            scheduler.commit(program.run(inbox))
        scheduler.check_pages()
    raise AssertionError("The scheduler made no progress.")


@st.composite
def workloads(draw):
    page_size = draw(st.sampled_from([2, 4, 8]))
    max_pages = -(-48 // page_size)
    shape = shape_of(
        slots=draw(st.integers(1, 5)),
        block_steps=draw(st.integers(1, 6)),
        chunk=draw(st.integers(1, 9)),
        page_size=page_size,
        max_pages=max_pages,
        pages=draw(st.integers(max_pages, 3 * max_pages)),
    )
    groups = draw(st.lists(st.tuples(st.integers(1, 14), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
    return shape, groups, random.Random(draw(st.integers(0, 2**32)))


@settings(max_examples=120)
@given(workloads())
def test_turns_sample_the_same_whatever_the_company_and_no_page_is_lost(workload):
    shape, groups, rng = workload
    scheduler, program = Scheduler(shape), TokenProgram(shape)
    wanted, got = {}, {}

    def ask(key, ids, trajectory, turns):
        request = TurnRequest(trajectory, key.split("/")[0], np.array(ids, np.int32), 6, (STOP,))
        wanted[key, turns] = expected(request)

        def deliver(turn):
            got[key, turns] = turn.ids.tolist()
            if turns > 1:
                ask(
                    key, [*ids, *turn.ids.tolist(), *rng.choices(range(20), k=rng.randint(1, 6))], trajectory, turns - 1
                )

        scheduler.submit(request, deliver)

    for g, (length, samples, turns) in enumerate(groups):
        prompt = rng.choices(range(20), k=length)
        for sample in range(samples):
            ask(f"{g}/{sample}", prompt, 10 * g + sample, turns)
    play(scheduler, program, lambda: not scheduler.has_work, drop=lambda: rng.random() < 0.2)
    assert got == wanted
    assert scheduler.load == 0


def test_a_group_prefills_its_prompt_once():
    shape = shape_of(slots=4)
    scheduler, program = Scheduler(shape), TokenProgram(shape)
    prompt = np.arange(1, 14, dtype=np.int32)
    for sample in range(4):
        scheduler.submit(TurnRequest(sample, "g", prompt, 5, ()), lambda turn: None)
    play(scheduler, program, lambda: not scheduler.has_work)
    assert scheduler.counters.prefilled == len(prompt) - 1
    assert scheduler.counters.reused == 3 * (len(prompt) - 1)


def test_a_next_turn_prefills_only_what_is_new():
    scheduler, program = Scheduler(shape_of()), TokenProgram(shape_of())
    turns = []
    ids = np.arange(1, 10, dtype=np.int32)
    scheduler.submit(TurnRequest(0, "g", ids, 5, ()), turns.append)
    play(scheduler, program, lambda: not scheduler.has_work)
    before = scheduler.counters.prefilled
    scheduler.submit(TurnRequest(0, "g", np.concatenate([ids, turns[0].ids, [3, 4, 5]]), 5, ()), turns.append)
    play(scheduler, program, lambda: not scheduler.has_work)
    assert scheduler.counters.prefilled - before == 1 + 3 - 1  # the stop token and the observation but its last token


def test_new_weights_recompute_turns_under_way_and_mark_the_tokens_after():
    shape = shape_of(block_steps=2)
    scheduler, program = Scheduler(shape), TokenProgram(shape)
    request = TurnRequest(3, "g", np.arange(1, 8, dtype=np.int32), 9, ())
    turns = []
    scheduler.submit(request, turns.append)
    scheduler.commit(program.run(scheduler.plan()))  # the prompt is longer than a chunk: prefill only
    scheduler.commit(program.run(scheduler.plan()))
    scheduler.drop_cache(version=1)
    program.pages[:] = -1
    play(scheduler, program, lambda: not scheduler.has_work)
    assert turns[0].ids.tolist() == expected(request)
    assert turns[0].policy_versions.tolist() == [0, 0] + [1] * 7


def test_a_stop_string_rewinds_the_turn_to_the_token_that_completes_it():
    shape = shape_of(block_steps=6)
    text = lambda ids: "".join(chr(97 + int(i)) for i in ids)
    scheduler, program = Scheduler(shape, decode=text), TokenProgram(shape)
    plain = TurnRequest(5, "g", np.arange(1, 6, dtype=np.int32), 12, ())
    full = expected(plain)
    turns = []
    scheduler.submit(TurnRequest(5, "g", plain.ids, 12, (), stop_strings=(text(full[2:4]),)), turns.append)
    play(scheduler, program, lambda: not scheduler.has_work)
    assert turns[0].ids.tolist() == full[:4] and turns[0].stop == "stop_string"
    scheduler.submit(TurnRequest(5, "g", np.concatenate([plain.ids, turns[0].ids, [2]]), 3, ()), turns.append)
    play(scheduler, program, lambda: not scheduler.has_work)
    assert turns[1].ids.tolist() == expected(TurnRequest(5, "g", np.concatenate([plain.ids, full[:4], [2]]), 3, ()))


def test_a_cancelled_turn_frees_its_slot_and_delivers_nothing():
    scheduler, program = Scheduler(shape_of()), TokenProgram(shape_of())
    run = scheduler.submit(TurnRequest(0, "g", np.arange(1, 5, dtype=np.int32), 20, ()), pytest.fail)
    scheduler.commit(program.run(scheduler.plan()))
    scheduler.cancel(run)
    scheduler.plan()
    assert not scheduler.has_work and scheduler.load == 0
    scheduler.check_pages()


def test_a_turn_begun_earlier_goes_on():
    scheduler, program = Scheduler(shape_of()), TokenProgram(shape_of())
    request = TurnRequest(2, "g", np.arange(1, 6, dtype=np.int32), 8, ())
    full = expected(request)
    resumed = TurnRequest(
        2, "g", request.ids, 8, (), sampled=tuple(full[:3]), sampled_logprobs=(-1.0,) * 3, sampled_versions=(4,) * 3
    )
    turns = []
    scheduler.submit(resumed, turns.append)
    play(scheduler, program, lambda: not scheduler.has_work)
    assert turns[0].ids.tolist() == full
    assert turns[0].policy_versions.tolist() == [4, 4, 4] + [0] * 5


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (TurnRequest(0, "g", np.arange(40, dtype=np.int32), 20, ()), "does not fit a stream of 48"),
        (TurnRequest(0, "g", np.zeros(0, np.int32), 20, ()), "needs a prompt"),
        (TurnRequest(0, "g", np.arange(4, dtype=np.int32), 2, (1, 2, 3, 4, 5)), "At most 4 stop ids"),
        (TurnRequest(0, "g", np.arange(4, dtype=np.int32), 2, (), stop_strings=("x",)), "tokenizer"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(shape_of()).submit(request_, pytest.fail)
