"""Session: a config in, everything the loops work with out, built in order and taken down in reverse."""

import contextlib
import dataclasses
import functools
import hashlib
import math

import jax

from agentjax.chat.format import ChatFormat
from agentjax.chat.registry import CHAT_FORMATS, get_chat_format
from agentjax.chat.tokenizer import Tokenizer, train_tokenizer
from agentjax.checkpoint import Checkpoints
from agentjax.config import Config, to_json
from agentjax.demonstrations import play_demonstrations
from agentjax.envs.registry import EnvFactory, find_env, make_env
from agentjax.envs.sandbox import SandboxPool, make_pool
from agentjax.interrupts import Interrupts
from agentjax.models.config import ModelConfig
from agentjax.monitor import CompileCounter, Monitor
from agentjax.rollout.engine import Engine
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.groups import Rollouts
from agentjax.rollout.host import HostLoop
from agentjax.rollout.phase import RolloutPhase
from agentjax.rollout.request import SamplingParams
from agentjax.sharding.mesh import make_mesh


class Session:
    """What a run holds open: host loop, sandboxes, environment, tokenizer, engine, monitor, checkpoints, interrupts.

    Attributes:
        config: The experiment.
        mesh: The devices.
        host: The asyncio loop where episodes live.
        sandboxes: The pool, or None if the environment needs none.
        env: Makes environments.
        fmt: Between messages and ids.
        engine: Samples turns.
        monitor: What a person sees.
        checkpoints: What a killed run goes on from.
        interrupts: Whether somebody asked to stop.
        compiles: Counts XLA compilations.
    """

    def __init__(self, config: Config, *, read_only: bool = False):
        """Build everything; nothing compiles yet.

        Args:
            config: The experiment.
            read_only: Leave the run folder as it is: no monitor.

        Raises:
            SandboxUnavailable: If the sandbox cannot run here; says what to install or set.
            ValueError: If tokenizer and model do not fit, or the run folder holds another experiment's checkpoints.
        """
        self.config = config
        self._read_only = read_only
        self._warm_compiles: int | None = None
        with contextlib.ExitStack() as building:
            self._build(building)
            self._open = building.pop_all()

    def _build(self, building: contextlib.ExitStack) -> None:
        config = self.config
        self.mesh = make_mesh(config.mesh)
        self.interrupts = building.enter_context(Interrupts())
        self.compiles = building.enter_context(CompileCounter())
        self.host = building.enter_context(HostLoop())
        self.sandboxes = self._start_sandboxes(building)
        self.env = make_env(config.env.name, args=config.env.args, sandboxes=self.sandboxes)
        tokenizer = self._tokenizer()
        self.fmt = get_chat_format(config.chat.format, tokenizer)
        _check_vocabulary(config.model, tokenizer)
        self.engine = self._engine()
        self.interrupts.on_request = self.engine.notify
        self.checkpoints = building.enter_context(
            Checkpoints(
                config.folder / "checkpoints",
                keep=config.checkpoint.keep,
                identity={"model": dataclasses.asdict(config.model), "tokenizer": tokenizer.fingerprint},
                read_only=self._read_only,
            )
        )
        self._check_checkpoints()
        if not self._read_only:
            self.monitor = building.enter_context(Monitor(config, decode=tokenizer.decode))
            if self.sandboxes is not None:
                self.monitor.notice(str(self.sandboxes.limits))

    def _check_checkpoints(self) -> None:
        """Refuse those of another experiment before anything in the run folder changes; or begin without them."""
        if not (self.config.checkpoint.resume or self._read_only):
            self.checkpoints.clear()
        newest = self.checkpoints.latest()
        if newest is not None:
            self.checkpoints.meta(newest)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc_info) -> None:
        self._open.__exit__(*exc_info)

    def warmed_up(self) -> None:
        """Say that everything has been compiled once; the first call counts."""
        if self._warm_compiles is None:
            self._warm_compiles = self.compiles.count

    @property
    def compiles_after_warmup(self) -> int:
        """XLA compilations since everything had been compiled once."""
        return self.compiles.count - (self.compiles.count if self._warm_compiles is None else self._warm_compiles)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifies model and config in trajectories."""
        return hashlib.sha256(to_json(self.config).encode()).hexdigest()[:16]

    def rollouts(self, *, sampling: SamplingParams, seed: int) -> RolloutPhase:
        """A set of groups to play.

        Args:
            sampling: How tokens are drawn.
            seed: From which the seeds of trajectories derive.
        """
        rollout = self.config.rollout

        def make() -> Rollouts:
            return Rollouts(
                self.env,
                self.fmt,
                self.engine,
                seed=seed,
                sampling=sampling,
                max_concurrent=rollout.max_concurrent,
                retries=rollout.retries,
                fingerprint=self.fingerprint,
            )

        return RolloutPhase(self.host, self.engine, make)

    def _start_sandboxes(self, building: contextlib.ExitStack) -> SandboxPool | None:
        if "sandbox" not in find_env(self.config.env.name).spec.needs:
            return None
        pool = make_pool(self.config.sandbox)
        building.callback(lambda: self.host.call(pool.close()))
        self.host.call(pool.start())
        return pool

    def _tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, or one trained on demonstrations and kept there."""
        path = self.config.folder / "tokenizer.json"
        if path.exists() and (self.config.checkpoint.resume or self._read_only):
            return Tokenizer.load(path)
        if self._read_only:
            raise ValueError(f"{self.config.run_dir} has no {path.name}: train first.")
        tokenizer = train_on_transcripts(self.config, self.env, self.host)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.part")
        tokenizer.save(unfinished)
        unfinished.replace(path)
        return tokenizer

    def _engine(self) -> Engine:
        config = self.config
        return Engine(
            config.model,
            engine_shape(config, self.fmt),
            self.mesh,
            seed=config.seed,
            unroll=_unrolls(config),
            driver=config.rollout.driver,
            decode=self.fmt.tokenizer.decode,
        )


def train_on_transcripts(config: Config, env: EnvFactory, host: HostLoop) -> Tokenizer:
    """A tokenizer trained on what the environment's players say in it."""
    played = play_demonstrations(env, config, host, count=config.tokenizer.transcripts)
    transcript = CHAT_FORMATS[config.chat.format].transcript
    return train_tokenizer(
        [transcript(play.messages, play.tools) for play in played],
        vocab_size=config.tokenizer.vocab_size,
        pattern=config.tokenizer.pattern,
    )


def engine_shape(config: Config, fmt: ChatFormat) -> EngineShape:
    """The engine's shapes: by default pages for every slot, and for every episode in flight beside them."""
    rollout = config.rollout
    max_pages = math.ceil(config.budget.total_tokens / rollout.page_size)
    return EngineShape(
        slots=rollout.slots,
        block_steps=rollout.block_steps,
        chunk=rollout.chunk,
        prefill_rows=rollout.prefill_rows,
        page_size=rollout.page_size,
        pages=rollout.pages or max_pages * (rollout.slots + rollout.max_concurrent),
        max_pages=max_pages,
        pages_per_block=rollout.pages_per_block,
        stop_ids=len(fmt.stop_ids),
    )


def _unrolls(config: Config) -> bool:
    """Unrolled layers decode faster on CPU (docs/performance.md); elsewhere scanning keeps compilation flat."""
    if config.rollout.layers == "auto":
        return jax.default_backend() == "cpu"
    return config.rollout.layers == "unroll"


def _check_vocabulary(model: ModelConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"model.vocab_size ({model.vocab_size}) is smaller than the tokenizer's vocabulary "
            f"({tokenizer.vocab_size}): raise it, or delete the tokenizer.json of another run from the run folder."
        )
