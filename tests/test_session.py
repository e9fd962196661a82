"""Sessions: shapes that follow from a config, and nothing left behind by one that cannot be built."""

import dataclasses
import math
import signal
import threading

import pytest

from agentjax.config import load
from agentjax.session import Session, engine_shape
from tests.tiny_run import ROOT, whole_run


@pytest.fixture
def config(tmp_path):
    overrides = ["sandbox.backend=unsandboxed_subprocess", "tokenizer.transcripts=16", f"run_dir={tmp_path / 'run'}"]
    return load(str(ROOT / "tests" / "tiny.py"), overrides)


def holdings() -> tuple:
    return {t.name for t in threading.enumerate()} & {"host", "interrupts"}, signal.getsignal(signal.SIGTERM)


def test_a_session_gives_everything_back(config):
    before = holdings()
    with Session(config) as session:
        assert holdings() != before
        assert (config.folder / "tokenizer.json").exists() and session.checkpoints.latest() is None
        shape = engine_shape(config, session.fmt)
    assert holdings() == before
    episode = math.ceil(config.budget.total_tokens / config.rollout.page_size)
    assert shape.max_pages == episode
    assert shape.pages == episode * (config.rollout.slots + config.rollout.max_concurrent)


def test_the_tokenizer_of_the_run_folder_is_used_unless_it_starts_anew(config):
    with Session(config) as session:
        kept = session.fmt.tokenizer.fingerprint
    other = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=400))
    with Session(other) as session:
        assert session.fmt.tokenizer.fingerprint == kept
    anew = dataclasses.replace(other, checkpoint=dataclasses.replace(config.checkpoint, resume=False))
    with Session(anew) as session:
        assert session.fmt.tokenizer.fingerprint != kept and session.fmt.tokenizer.vocab_size == 400


def test_a_model_smaller_than_the_vocabulary_is_refused_and_nothing_is_left(config):
    small = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=400))
    before = holdings()
    with pytest.raises(ValueError, match=r"model.vocab_size \(400\) is smaller than the tokenizer's"):
        Session(small)
    assert holdings() == before


def test_checkpoints_of_another_model_are_refused_before_the_folder_changes(tmp_path):
    folder, _ = whole_run()
    written = (folder / "config.json").read_text()
    config = load(
        str(ROOT / "tests" / "tiny.py"),
        ["sandbox.backend=unsandboxed_subprocess", f"run_dir={folder}", "model.num_layers=2"],
    )
    with pytest.raises(ValueError, match="num_layers was 1 and is 2 now"):
        Session(config)
    assert (folder / "config.json").read_text() == written
