"""Connections with limits of time: a client that sends or reads too slowly keeps nobody else out."""

from asyncio import TimerHandle, Transport
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 20.0  # longest time for a request to arrive
HALVES = 512  # most connections whose request has not arrived
BURST = 0.1  # seconds that a connection has in any case: of many clients at the same time, each is read first
UNREAD = 60.0  # seconds that a client may read nothing of an answer that is larger than the system's buffers


class Connection(H11Protocol):
    """One connection of uvicorn's. arriving: the server's connections whose next request has not arrived, oldest
    first, with their timers; one more than HALVES closes the oldest, BURST later."""

    def __init__(self, arriving: dict["Connection", TimerHandle], **settings: Any):
        super().__init__(**settings)
        self.arriving = arriving
        self.unread: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read on; a request that is whole waits no more."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """Wait for the client to read; one that does not is cut off, which frees the row of its request."""
        super().pause_writing()
        self.unread = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._stop_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_waiting()
        self._stop_unread()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self in self.arriving:
            return
        self.arriving[self] = self.loop.call_later(SECONDS, self.transport.close)
        if len(self.arriving) > HALVES:
            self.loop.call_later(BURST, self._close_oldest)

    def _close_oldest(self) -> None:
        if len(self.arriving) > HALVES:
            oldest = next(iter(self.arriving))
            oldest._stop_waiting()
            oldest.transport.close()

    def _stop_waiting(self) -> None:
        if timer := self.arriving.pop(self, None):
            timer.cancel()

    def _stop_unread(self) -> None:
        if self.unread:
            self.unread.cancel()
