"""The host's end of a session's control pipes: requests go out as frames, results resolve futures."""

import asyncio
import json
import struct
from typing import Any, cast

from agentjax.envs.sandbox.api import SandboxLost

LENGTHS = struct.Struct(">II")  # of a frame's JSON header and of its raw bytes
COMPLAINT_BYTES = 4096  # kept of what the session writes to stderr

Reply = tuple[dict[str, Any], bytes]


class Channel(asyncio.SubprocessProtocol):
    """Matches results to requests by their random ids, and fails every request once the session is lost.

    Attributes:
        ready: Resolves when the server has started.
        exited: Set when the session's process is gone.
        lost: Why the session can take no more calls; None while it can.
        complaint: What the session wrote to stderr.
    """

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Reply] = loop.create_future()
        self.exited = asyncio.Event()
        self.lost: SandboxLost | None = None
        self.complaint = ""
        self._pending: dict[str, asyncio.Future[Reply]] = {"ready": self.ready}
        self._inbox = bytearray()
        self._loop = loop

    def request(self, header: dict[str, Any], payload: bytes) -> asyncio.Future[Reply]:
        """Send a request; its result resolves the returned future.

        Raises:
            SandboxLost: If the session is lost already.
        """
        if self.lost:
            raise SandboxLost(str(self.lost))
        future = self._pending[header["id"]] = self._loop.create_future()
        self._send(header, payload)
        return future

    def cancel(self, request_id: str) -> None:
        """Have a call killed that nobody waits for; its late result is dropped."""
        if not self.lost:
            self._send({"id": request_id, "kind": "cancel"})

    def hang_up(self) -> None:
        """Close the request pipe, at which the server ends; bubblewrap then leaves no zombie to the host."""
        self._stdin.close()

    def lose(self, why: str) -> None:
        """Take no more calls and fail those in flight. The first reason stays."""
        if self.lost:
            return
        self.lost = SandboxLost(f"sandbox session lost: {why}.")
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(SandboxLost(str(self.lost)))

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        head = json.dumps(header).encode()
        self._stdin.write(LENGTHS.pack(len(head), len(payload)) + head + payload)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.complaint = (self.complaint + data.decode("utf-8", "replace"))[-COMPLAINT_BYTES:]
            return
        self._inbox += data
        try:
            self._take_frames()
        except (ValueError, KeyError, TypeError) as error:
            self.lose(f"it sent a frame that no request explains ({error!r})")
            self._transport.kill()

    def _take_frames(self) -> None:
        while len(self._inbox) >= LENGTHS.size:
            header, body = LENGTHS.unpack_from(self._inbox)
            start = LENGTHS.size + header
            if len(self._inbox) < start + body:
                return
            reply = json.loads(self._inbox[LENGTHS.size : start]), bytes(self._inbox[start : start + body])
            del self._inbox[: start + body]
            future = self._pending.pop(reply[0]["id"])
            if not future.done():
                future.set_result(reply)

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        last_words = self.complaint.strip().rpartition("\n")[2]
        self.lose(f"its process ended ({last_words or 'no message'})")
