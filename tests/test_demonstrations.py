"""Demonstrations: the same ones every time, in the shares asked for, as rows whose trained part is what players said."""

import dataclasses

import numpy as np
import pytest

from agentjax.chat.registry import CHAT_FORMATS, get_chat_format
from agentjax.config import load
from agentjax.demonstrations import demonstration_rows, play_demonstrations
from agentjax.envs.api import EnvFault
from agentjax.envs.registry import make_env
from agentjax.envs.sandbox import make_pool
from agentjax.rollout.host import HostLoop
from agentjax.session import train_on_transcripts
from agentjax.trajectory import Source
from tests.tiny_envs import Faulty
from tests.tiny_run import ROOT

COUNT = 60


@pytest.fixture(scope="module")
def config():
    return load(str(ROOT / "tests" / "tiny.py"), ["env.name=python_math", "sandbox.backend=unsandboxed_subprocess"])


@pytest.fixture(scope="module")
def host(config):
    with HostLoop() as host:
        pool = make_pool(config.sandbox)
        host.call(pool.start())
        yield host, pool
        host.call(pool.close())


def play(config, host, count=COUNT):
    loop, pool = host
    env = make_env(config.env.name, args=config.env.args, sandboxes=pool)
    return play_demonstrations(env, config, loop, count=count)


def said(transcript) -> list:
    return [(message.role, message.content, message.tool_calls) for message in transcript.messages]


def test_they_are_the_same_every_time_and_mixed_as_asked(config, host):
    played = play(config, host)
    assert list(map(said, played)) == list(map(said, play(config, host)))
    solved = np.mean([any(m.tool_calls for m in transcript.messages) for transcript in played])
    assert solved == pytest.approx(config.env.players["solver"], abs=0.2)
    assert all((t.reward == 1) == any(m.tool_calls for m in t.messages) for t in played)


def test_rows_train_what_players_said_and_nothing_else(config, host):
    loop, pool = host
    env = make_env(config.env.name, args=config.env.args, sandboxes=pool)
    fmt = get_chat_format(config.chat.format, train_on_transcripts(config, env, loop))
    played = play(config, host)
    for transcript, row in zip(played, demonstration_rows(played, fmt), strict=True):
        spoken = [fmt.render_assistant(message) for message in transcript.messages if message.role == "assistant"]
        trained = [segment.ids for segment in row.segments if segment.source is Source.POLICY]
        assert [list(ids) for ids in trained] == [list(ids) for ids in spoken]
        assert row.loss_mask.sum() == sum(map(len, spoken))
        whole = CHAT_FORMATS[config.chat.format].transcript(transcript.messages, transcript.tools)
        assert whole.startswith(fmt.tokenizer.decode(row.tokens.tolist()))


def with_env(config, name: str, **budget):
    changes = {"env": dataclasses.replace(config.env, name=name)}
    return dataclasses.replace(config, budget=dataclasses.replace(config.budget, **budget), **changes)


def test_a_fault_is_played_again(config, host, monkeypatch):
    faulty = with_env(config, "tests.tiny_envs:Faulty")
    monkeypatch.setattr(Faulty, "failures", 2)
    assert list(map(said, play(faulty, host, count=4))) == list(map(said, play(config, host, count=4)))


def test_an_environment_that_keeps_failing_or_hangs_ends_the_run(config, host, monkeypatch):
    monkeypatch.setattr(Faulty, "failures", 10**6)
    with pytest.raises(EnvFault, match="lost"):
        play(with_env(config, "tests.tiny_envs:Faulty"), host, count=1)
    with pytest.raises(EnvFault, match="longer than budget.episode_s"):
        play(with_env(config, "tests.tiny_envs:Hanging", episode_s=0.1), host, count=1)
