"""python_math: answers against Python's own arithmetic, chains that one call cannot do, players, the tool."""

import asyncio
import json
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.envs import sandbox
from agentjax.envs.api import EnvFault, Message, ToolCall
from agentjax.envs.contract import EnvContract
from agentjax.envs.play import action_of, play
from agentjax.envs.python_math import Expression, Guesser, Problem, PythonMath, PythonMathArgs, draw_problem
from agentjax.envs.registry import make_env
from agentjax.envs.sandbox import ExecResult, SandboxConfig, SandboxError
from agentjax.envs.tasks import first_tasks
from agentjax.envs.tools import ToolError

ARGS = st.builds(PythonMathArgs, min_digits=st.integers(2, 3), max_code_chars=st.integers(20, 24))


def problems(chain):
    return st.builds(
        lambda args, seed: (draw_problem(np.random.default_rng(seed), args, chain=chain), args),
        ARGS,
        st.integers(0, 2**32),
    )


def value_of(question):
    """The answer, by Python itself."""
    names = {}
    asked, *definitions = question.split(" ")
    for line in reversed(definitions):
        exec(line, {}, names)
    return names[asked.rstrip("?")]


class TestPythonMath(EnvContract):
    @pytest.fixture(autouse=True)
    def _pool(self, pool):
        self.pool = pool

    def factory(self):
        return make_env("python_math", args={"chain_fraction": 0.5}, sandboxes=self.pool)


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    st.text("+-*", min_size=4, max_size=4),
    st.sampled_from([1, -1]),
)
def test_expressions_are_pythons(operands, operators, sign):
    expression = Expression((sign * operands[0], *operands[1:]), operators[: len(operands) - 1])
    assert expression.value == eval(str(expression))
    assert Expression.read(str(expression)) == expression


@settings(deadline=None)
@given(problems(chain=False) | problems(chain=True))
def test_answers_are_exact_and_questions_can_be_read_back(drawn):
    problem, args = drawn
    assert problem.answer == value_of(problem.question)
    assert Problem.read(problem.question) == problem
    assert 4 <= len(str(abs(problem.answer))) <= args.result_digits


@settings(deadline=None)
@given(problems(chain=True))
def test_one_call_cannot_do_a_chain(drawn):
    """Every way to write it in one expression that holds each operand once is too long."""
    problem, args = drawn
    first, then = str(problem.first), problem.then
    operands = re.findall(r"\d+", first + then)
    for code in (f"{first}{then}", f"({first}){then}", f"{then[1:]}{then[0]}({first})"):
        if eval(code) == problem.answer:
            assert len(f"print({code})") > args.max_code_chars
    bare = sum(map(len, operands)) + len(operands) - 1 + len("print()")
    assert bare + 2 > args.max_code_chars, "with the one pair of brackets that may be needed"


@settings(deadline=None)
@given(problems(chain=True))
def test_each_step_fits_into_a_call(drawn):
    problem, args = drawn
    for code in (f"print({problem.first})", f"print({problem.first.value}{problem.then})"):
        assert len(code) <= args.max_code_chars


def test_kinds_come_in_the_given_share():
    source = PythonMath.source(PythonMathArgs(chain_fraction=0.3))
    kinds = [source.task("train", index, 0).data["kind"] for index in range(400)]
    assert kinds.count("chain") / 400 == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_solver_always_solves_and_the_guesser_never(pool, split):
    factory = make_env("python_math", args={"chain_fraction": 0.5}, sandboxes=pool)

    async def play_all(name):
        tasks = first_tasks(factory.source, split, 60, seed=1)
        return [await play(factory(), task, factory.player(name, seed=task.seed)) for task in tasks]

    solved, guessed = (asyncio.run(play_all(name)) for name in ("solver", "guesser"))
    assert [transcript.reward for transcript in solved] == [1.0] * 60
    assert [transcript.reward for transcript in guessed] == [0.0] * 60
    for transcript in solved:
        calls = sum(step.metrics.get("tool_calls", 0) for step in transcript.steps)
        assert calls == (2 if transcript.task.data["kind"] == "chain" else 1)
    assert all(len(transcript.steps) == 1 for transcript in guessed)


@given(seed=st.integers(0, 2**32), drawn=problems(chain=False))
@settings(deadline=None)
def test_guesses_look_right_and_are_wrong(seed, drawn):
    answer = str(drawn[0].answer)
    guess = Guesser(seed=seed).act([Message("user", drawn[0].question)]).content
    guess = guess.removeprefix("The answer is ")
    start = 3 if answer.startswith("-") else 2
    assert (guess[:start], len(guess)) == (answer[:start], len(answer))
    assert guess != answer


def answer_to(pool, message, **args):
    """What an episode of the first task answers to a first message."""

    async def run():
        env = PythonMath(sandboxes=pool, **args)
        await env.reset(env.source(env.args).task("train", 0, 0))
        return await env.step(action_of(message))

    return asyncio.run(run())


def run_code(pool, code, **args):
    call = ToolCall("1", "python", json.dumps({"code": code}))
    return answer_to(pool, Message("assistant", None, (call,)), **args).tool_results[0]


class Scripted:
    """A pool that answers what it was told to."""

    def __init__(self, result):
        self.result = result

    async def run_python(self, code, *, timeout_s, max_output):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "ok", "content"),
    [
        (ExecResult(0, "42\n"), True, "42"),
        (ExecResult(0, ""), True, "nothing printed"),
        (ExecResult(1, "Traceback ...\nZeroDivisionError: division by zero\n"), False, "ZeroDivisionError: division"),
        (ExecResult(-9, ""), False, "exit status -9"),
        (ExecResult(-9, "4", timed_out=True), False, "took longer than 5 s"),
        (ExecResult(0, "9" * 200, truncated=800), False, "800 bytes too many"),
    ],
)
def test_what_the_policy_sees_of_a_program(result, ok, content):
    shown = run_code(Scripted(result), "print(42)")
    assert shown.ok == ok
    assert content in shown.content


def test_a_lost_sandbox_is_a_fault_and_no_reward():
    call = ToolCall("1", "python", '{"code": "1"}')
    step = answer_to(Scripted(SandboxError("the session died")), Message("assistant", None, (call,)))
    assert step.reward is None
    assert step.error is not None and (step.error.kind, step.error.retryable) == ("sandbox", True)


def test_programs_may_be_so_long_and_no_longer(pool):
    assert run_code(pool, "print(1234567890123456)", max_code_chars=23).content == "1234567890123456"
    longer = run_code(pool, "print(12345678901234567)", max_code_chars=23)
    assert (longer.ok, longer.content) == (False, "error: 24 characters; at most 23")


def test_the_tool_says_how_long_programs_may_be(pool):
    env = PythonMath(sandboxes=pool, max_code_chars=21)
    start = asyncio.run(env.reset(env.source(env.args).task("train", 0, 0)))
    assert "At most 21 characters" in start.tools[0].description


def test_a_broken_tool_answers_errors_only(pool):
    shown = run_code(pool, "print(1)", broken_tool=True)
    assert (shown.ok, shown.content) == (False, "error: python is unavailable")


@pytest.mark.parametrize("text", ["{}", " {}\n", "The answer is {}", "x={}", "not 1 but {}."])
def test_the_last_number_is_the_answer(pool, text):
    answer = PythonMath.source(PythonMathArgs()).task("train", 0, 0).data["answer"]
    step = answer_to(pool, Message("assistant", text.format(answer)))
    assert (step.reward, step.terminated, step.parts) == (1.0, True, {"correct": 1.0})


@pytest.mark.parametrize("text", ["", "{}.0", "0{}", "{}0", "{} or 7", "1,{}.5"])
def test_anything_else_is_wrong(pool, text):
    answer = PythonMath.source(PythonMathArgs()).task("train", 0, 0).data["answer"]
    assert answer_to(pool, Message("assistant", text.format(answer))).reward == 0.0


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_real_sandbox_gives_the_same_answers():
    async def run():
        pool = sandbox.make_pool(SandboxConfig(sessions=2))
        await pool.start()
        try:
            factory = make_env("python_math", args={"chain_fraction": 0.5}, sandboxes=pool)
            tasks = first_tasks(factory.source, "eval", 12, seed=0)
            episodes = [play(factory(), task, factory.player("solver", seed=0)) for task in tasks]
            rewards = [transcript.reward for transcript in await asyncio.gather(*episodes)]
            with pytest.raises(ToolError, match="took longer than 0.2 s"):
                await PythonMath(sandboxes=pool, timeout_s=0.2).python("while 1:1")
            return rewards
        finally:
            await pool.close()

    assert asyncio.run(run()) == [1.0] * 12


def test_faults_stop_a_demonstration():
    factory = make_env("python_math", sandboxes=Scripted(SandboxError("gone")))
    task = factory.source.task("train", 0, 0)
    with pytest.raises(EnvFault, match="gone"):
        asyncio.run(play(factory(), task, factory.player("solver", seed=0)))
