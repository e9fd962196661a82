"""Python math: arithmetic too large to do in the head in, a number checked exactly out, a Python tool in between.

A single problem takes one call, a chain problem two, because a program may hold only so many characters. A prompt is
one user message, such as either of

    x? x=1234*5678-912        y? y=x*34 x=1234*5678-912

next to the tool `python(code: str)`, which answers what the program printed. A message without a call is the final
answer, such as `The answer is 7005740`; its last number counts. Reward 1 if that is exact, else 0.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentjax.envs.api import EnvError, EnvFault, EnvSpec, Message, TaskSource, ToolCall
from agentjax.envs.sandbox import SandboxError
from agentjax.envs.tasks import DrawnTasks
from agentjax.envs.tool_env import Outcome, ToolEnv
from agentjax.envs.tools import Tool, ToolError, tool_spec

_LEAST_RESULT = 1000  # smaller ones can be done in the head
_MAX_DRAWS = 10_000
_OPERATORS = "+-*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PythonMathArgs:
    """Arguments of `PythonMath`."""

    chain_fraction: float = 0.25  # share of problems that need the result of a first call in a second one
    operators: str = "+-*"  # what may stand between two operands
    min_operations: int = 1  # operations of x, at least
    max_operations: int = 2  # operations of x, at most; a chain adds one
    min_digits: int = 2  # digits of an operand, at least
    max_digits: int = 4  # digits of an operand, at most
    result_digits: int = 10  # digits of every result, at most
    max_code_chars: int = 24  # characters of a program, at most
    timeout_s: float = 5.0  # wall seconds one program may take
    max_output_bytes: int = 200  # output kept of one program
    broken_tool: bool = False  # every call answers an error: what does the policy do without the tool?

    def __post_init__(self):
        if not 0.0 <= self.chain_fraction <= 1.0:
            raise ValueError(f"env.args.chain_fraction must be within [0, 1], got {self.chain_fraction}.")
        if not self.operators or set(self.operators) - set(_OPERATORS):
            raise ValueError(f"env.args.operators must be some of {_OPERATORS!r}, got {self.operators!r}.")
        if not 1 <= self.min_operations <= self.max_operations:
            raise ValueError(
                f"env.args.min_operations ({self.min_operations}) and env.args.max_operations "
                f"({self.max_operations}) must be at least 1, in this order."
            )
        if not 1 <= self.min_digits <= self.max_digits <= 9:
            raise ValueError(
                f"env.args.min_digits ({self.min_digits}) and env.args.max_digits ({self.max_digits}) must be "
                "within [1, 9], in this order."
            )
        if self.result_digits < 4:
            raise ValueError(f"env.args.result_digits must be >= 4, got {self.result_digits}.")
        if not self.timeout_s > 0:
            raise ValueError(f"env.args.timeout_s must be > 0 seconds, got {self.timeout_s}.")
        if self.max_output_bytes < self.result_digits + 2:
            raise ValueError(
                f"env.args.max_output_bytes ({self.max_output_bytes}) must hold a result: env.args.result_digits + 2."
            )


@dataclasses.dataclass(frozen=True)
class Expression:
    """Operands with an operator between each two, as in 12*34-5.

    Attributes:
        operands: Whole numbers.
        operators: "+", "-" or "*", one fewer.
    """

    operands: tuple[int, ...]
    operators: str

    @property
    def value(self) -> int:
        """Its exact value; products before sums."""
        terms = [self.operands[0]]
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            if operator == "*":
                terms[-1] *= operand
            else:
                terms.append(operand if operator == "+" else -operand)
        return sum(terms)

    def __str__(self) -> str:
        rest = zip(self.operators, self.operands[1:], strict=True)
        return str(self.operands[0]) + "".join(f"{operator}{operand}" for operator, operand in rest)

    @classmethod
    def read(cls, text: str) -> "Expression":
        """Reads what `str` wrote; only the first operand may be negative."""
        operands = re.findall(r"^-?\d+|\d+", text)
        return cls(tuple(map(int, operands)), re.sub(r"^-|\d+", "", text))


@dataclasses.dataclass(frozen=True)
class Problem:
    """x = first; a chain problem goes on with y = x operator operand.

    Attributes:
        first: The expression of x.
        then: Operator and operand that make y of x, as "*34"; empty in a single problem.
    """

    first: Expression
    then: str = ""

    @property
    def last(self) -> Expression:
        """The expression whose value is the answer."""
        return Expression.read(f"{self.first.value}{self.then}")

    @property
    def answer(self) -> int:
        """The number asked for."""
        return self.last.value

    @property
    def question(self) -> str:
        """The prompt."""
        return f"y? y=x{self.then} x={self.first}" if self.then else f"x? x={self.first}"

    @classmethod
    def read(cls, question: str) -> "Problem":
        """Reads a prompt."""
        then, first = re.findall(r"^(?:x\?|y\? y=x(\S+)) x=(\S+)$", question)[0]
        return cls(Expression.read(first), then)

    @property
    def one_call(self) -> str:
        """The shortest program that names every operand and prints the answer."""
        sums = any(operator in "+-" for operator in self.first.operators)
        first = f"({self.first})" if self.then.startswith("*") and sums else str(self.first)
        return program(first + self.then)


def program(expression: object) -> str:
    """A program that prints an expression."""
    return f"print({expression})"


def draw_problem(rng: np.random.Generator, args: PythonMathArgs, *, chain: bool) -> Problem:
    """Draws a problem at random: as many operations as the arguments allow, in a chain the most, and then one more.

    Raises:
        ValueError: If the arguments leave no problem.
    """
    for _ in range(_MAX_DRAWS):
        most = args.max_operations
        operands = _draw_operands(rng, most + 2, args)
        operators = "".join(args.operators[index] for index in rng.integers(len(args.operators), size=most + 1))
        count = most if chain else int(rng.integers(args.min_operations, most + 1))
        first = Expression(operands[: count + 1], operators[:count])
        problem = Problem(first, f"{operators[-1]}{operands[-1]}" if chain else "")
        if _fits(problem, args):
            return problem
    raise ValueError(
        f"python_math: no {'chain' if chain else 'single'} problem among {_MAX_DRAWS} drawn fits "
        f"env.args.max_code_chars={args.max_code_chars}, env.args.min_digits={args.min_digits}, "
        f"env.args.max_digits={args.max_digits} and env.args.result_digits={args.result_digits}."
    )


def _draw_operands(rng: np.random.Generator, count: int, args: PythonMathArgs) -> tuple[int, ...]:
    digits = rng.integers(args.min_digits, args.max_digits + 1, size=count)
    return tuple(int(operand) for operand in rng.integers(10 ** (digits - 1), 10**digits))


def _fits(problem: Problem, args: PythonMathArgs) -> bool:
    """Whether each step fits into a program, a chain as a whole does not, and no result is too small or too large."""
    steps = (problem.first, problem.last) if problem.then else (problem.first,)
    results_fit = all(_LEAST_RESULT <= abs(step.value) < 10**args.result_digits for step in steps)
    programs_fit = all(len(program(step)) <= args.max_code_chars for step in steps)
    return results_fit and programs_fit and (not problem.then or len(problem.one_call) > args.max_code_chars)


class PythonMath(ToolEnv):
    """Arithmetic with a Python tool; see the module."""

    spec = EnvSpec("python_math", "1", "step", sync=False, concurrency=0, seeds="exact", needs=frozenset({"sandbox"}))
    Args = PythonMathArgs
    args: PythonMathArgs

    @classmethod
    def source(cls, args: PythonMathArgs) -> TaskSource:
        """Endless problems; a task's data holds "question", "answer" (text) and "kind", "single" or "chain".

        Raises:
            ValueError: If the arguments leave no problem of a kind that they ask for.
        """
        for chain in {args.chain_fraction > 0.0, args.chain_fraction == 1.0}:
            draw_problem(np.random.default_rng(0), args, chain=chain)

        def draw(rng: np.random.Generator) -> Mapping[str, Any]:
            chain = bool(rng.random() < args.chain_fraction)
            problem = draw_problem(rng, args, chain=chain)
            kind = "chain" if chain else "single"
            return {"question": problem.question, "answer": str(problem.answer), "kind": kind}

        return DrawnTasks("python_math", draw)

    def tools(self) -> Sequence[Tool]:
        """The Python tool, its description telling the longest program."""
        # The sandbox ends a program in time; waiting for a free sandbox is not the program's fault. So no second clock.
        spec = tool_spec(self.python, timeout_s=math.inf)
        limit = f"{spec.description} At most {self.args.max_code_chars} characters."
        return (Tool(dataclasses.replace(spec, description=limit), self.python),)

    async def python(self, code: str) -> str:
        """Runs Python code and returns what it prints.

        Args:
            code: A whole program; nothing is kept between calls.
        """
        if self.args.broken_tool:
            raise ToolError("error: python is unavailable")
        if len(code) > self.args.max_code_chars:
            raise ToolError(f"error: {len(code)} characters; at most {self.args.max_code_chars}")
        try:
            result = await self.sandboxes.run_python(
                code, timeout_s=self.args.timeout_s, max_output=self.args.max_output_bytes
            )
        except SandboxError as error:
            raise EnvFault(EnvError("sandbox", str(error), retryable=True, mask=True)) from error
        return _printed(result, self.args.timeout_s)

    def reward(self, outcome: Outcome) -> Mapping[str, float]:
        """`correct`: 1 if the last number of the final message is exactly the answer, else 0."""
        numbers = re.findall(r"-?[0-9]+", outcome.answer)
        return {"correct": float(numbers[-1:] == [outcome.data["answer"]])}


def _printed(result: Any, timeout_s: float) -> str:
    output = result.output.strip()
    if result.timed_out:
        raise ToolError(f"error: took longer than {timeout_s:g} s")
    if result.returncode != 0:
        last_line = output.rpartition("\n")[2] or f"exit status {result.returncode}"
        raise ToolError(f"error: {last_line}")
    if result.truncated:
        raise ToolError(f"error: printed {result.truncated} bytes too many")
    return output or "nothing printed"


class Solver:
    """Solves the problem with one call a step, each copying what it needs, and answers with the last output."""

    def __init__(self, *, seed: int = 0):
        self._programs: list[str] = []
        self._problem: Problem | None = None
        self._calls = 0

    def act(self, observation_messages: Sequence[Message]) -> Message:
        """The next call, or the answer."""
        text = str(observation_messages[-1].content)
        if self._problem is None:
            self._problem = Problem.read(text)
            return self._call(str(self._problem.first))
        if self._problem.then and self._calls == 1:
            return self._call(text + self._problem.then)
        return say(text)

    def _call(self, expression: str) -> Message:
        self._calls += 1
        arguments = json.dumps({"code": program(expression)})
        return Message("assistant", None, (ToolCall(f"call_{self._calls}", "python", arguments),))


class Guesser:
    """Answers at once, off the top of the head: the right length and first two digits, the rest made up and wrong."""

    def __init__(self, *, seed: int = 0):
        self._rng = np.random.default_rng(seed)

    def act(self, observation_messages: Sequence[Message]) -> Message:
        """The wrong answer."""
        answer = Problem.read(str(observation_messages[-1].content)).answer
        digits = str(abs(answer))
        made_up = "".join(map(str, self._rng.integers(10, size=len(digits) - 2)))
        if digits.endswith(made_up):
            made_up = made_up[:-1] + str((int(made_up[-1]) + 1) % 10)
        return say(f"{'-' if answer < 0 else ''}{digits[:2]}{made_up}")


def say(answer: str) -> Message:
    """A final answer. It opens with words, so that whether to call or to answer is one choice between two tokens."""
    return Message("assistant", f"The answer is {answer}")


PythonMath.players = {"solver": Solver, "guesser": Guesser}
players = PythonMath.players
