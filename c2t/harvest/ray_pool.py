"""A function mapped over many items by Ray actors, each of which holds an object that the function needs, such as a
pair.

An actor that dies is restarted with the same item. So every item has one result, and results are in the order of items.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from c2t.errors import InputError, one_line

RETRIES = 3  # retries of an item whose actor has died
COMPARED = ("c2t", "torch", "transformers")  # packages whose versions can change results
NO_LOGS: Any = {"log_to_driver": False, "logging_level": "ERROR"}
LOCAL = "local"  # in place of an address: a cluster of this machine alone, which ends with the pool

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Worker:
    """An actor, which makes its object whenever it starts."""

    def __init__(self, make: Callable[[], Any]):
        self.wrong: InputError | None = None  # for `about` to raise: from here Ray would wrap it in another error
        try:
            self.held = make()
        except InputError as error:
            self.wrong = error

    def about(self) -> tuple[str, dict[str, str]]:
        """Return this machine's name, and the versions of COMPARED."""
        if self.wrong:
            raise self.wrong
        return socket.gethostname(), versions()

    def call(self, function: Callable, arguments: tuple) -> Any:
        """Return function(object, *arguments)."""
        if self.wrong:  # of an actor that was restarted
            raise self.wrong
        return function(self.held, *arguments)


def _knock(address: str) -> None:
    """Raise OSError unless something listens at HOST:PORT. Ray itself would retry for minutes."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _sigterm_as_before() -> Iterator[None]:
    """Give SIGTERM its handler back, which Ray replaces by one that raises SystemExit: in the main thread alone."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # the signal came while Ray started
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def versions() -> dict[str, str]:
    """Return the versions of COMPARED."""
    return {name: version(name) for name in COMPARED}


class RayPool:
    """Pool of `workers` actors in a Ray cluster; a context manager, which ends the actors.

    address: of a running cluster, or LOCAL. make: returns the object of an actor; it runs in the actor. gpus: GPUs per
    actor; None: one if the cluster has any. Raises InputError for a cluster that does not answer or is too small, for
    workers of other versions, and for an InputError of `make`.
    """

    def __init__(self, make: Callable[[], Any], address: str, workers: int, gpus: int | None = 0):
        if workers < 1:
            raise InputError(f"workers = {workers}: use at least 1")
        self.address = address
        try:
            with _sigterm_as_before():
                if address == LOCAL:
                    ray.init("local", num_cpus=workers, include_dashboard=False, **NO_LOGS)
                else:
                    _knock(address)
                    ray.init(address, **NO_LOGS)
        except Exception as error:  # Ray raises a plain Exception if a node does not start in time
            what = "Ray does not start here" if address == LOCAL else f"no Ray cluster answers at {address}"
            raise InputError(f"{what} ({one_line(error)}): try again, or give the address of a cluster") from error
        try:
            gpus = self._check_size(workers, gpus)
            options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
            actor: Any = ray.remote(_Worker).options(**options)  # type: ignore[call-overload]  # the stubs want a decorator
            self.actors = [actor.remote(make) for _ in range(workers)]
            self._check_versions()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors and a local cluster."""
        ray.shutdown()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return function(object, *arguments), computed by one of the actors."""
        return _get(self.actors[0].call.remote(function, arguments))

    def map(
        self,
        function: Callable[[Any, Item], Result],
        items: Iterable[Item],
        finished: Callable[[Item], None] = lambda item: None,
    ) -> Iterator[Result]:
        """Yield function(object, item) for all items, in their order.

        finished(item) is called when the item's result arrives, in any order. The number of items in flight is limited,
        so that memory does not grow with the number of items.
        """
        waiting, free = enumerate(items), [*self.actors, *self.actors]  # each actor has one item running and one queued
        running: dict[Any, tuple[int, Item, Any]] = {}
        results: dict[int, Result] = {}
        following = 0
        while True:
            while free and len(results) < 2 * len(self.actors) and (pair := next(waiting, None)) is not None:
                actor = free.pop(0)
                running[actor.call.remote(function, (pair[1],))] = (*pair, actor)
            if following in results:
                yield results.pop(following)
                following += 1
            elif running:
                [done], _ = ray.wait([*running], num_returns=1)
                number, item, actor = running.pop(done)
                results[number] = _get(done)
                free.append(actor)
                finished(item)
            else:
                return

    def _check_size(self, workers: int, gpus: int | None) -> int:
        """Return the number of GPUs of each actor. InputError if the cluster is too small."""
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0) >= 1) if gpus is None else gpus
        for name, per_actor in (("GPU", gpus), ("CPU", 1)):
            if resources.get(name, 0) < per_actor * workers:
                raise InputError(
                    f"the Ray cluster {self.address} has {resources.get(name, 0):g} {name}s, and {workers} workers "
                    f"need {per_actor * workers}: use fewer --workers" + (", or --device cpu" if name == "GPU" else "")
                )
        return gpus

    def _check_versions(self) -> None:
        here = versions()
        for host, there in _get([actor.about.remote() for actor in self.actors]):
            for name in COMPARED:
                if there.get(name) != here[name]:
                    raise InputError(
                        f"the Ray worker on {host} has {name} {there.get(name)}, this process {here[name]}: install "
                        "the same on all machines"
                    )


def _get(results: Any) -> Any:
    """Wait for results. InputError for those that actors raise, and for one that Ray cannot get."""
    try:
        return ray.get(results)
    except RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        raise
    except RayError as error:
        died = f"a Ray worker cannot start, or died {RETRIES + 1} times on the same item"
        what = died if isinstance(error, RayActorError) else "Ray cannot get a worker's result"
        raise InputError(
            f"{what} ({one_line(error).rstrip('.')}): look into Ray's logs; where memory is short, a smaller --batch "
            "helps"
        ) from error
