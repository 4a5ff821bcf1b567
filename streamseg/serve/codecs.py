"""Pictures of requests are decoded, and labels encoded, beside the thread that answers requests.

Codecs run in threads at first. When several requests come at once, processes are started that do it instead
(io/picture_process.py): they take nothing of Python's lock, which threads do even where they release it, as each has to
get it back. The memory that they share has no name in the system, and the processes end with their socket: nothing can
be left behind.

A job whose process is killed is done again by a thread. A picture that makes its process crash is not, as it would make
the server crash; and a process that does not answer in time is killed.
"""

import asyncio
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from streamseg.classes import Classes
from streamseg.io.codec_pool import ONE_THREAD, are_possible
from streamseg.io.images import decode_upload, write_labels
from streamseg.io.picture_process import MESSAGE_BYTES, SlotLayout, SlotMemory
from streamseg.io.pictures import TooLargeError, UnknownFormatError
from streamseg.machine import available_cores

if TYPE_CHECKING:
    import numpy

Result = TypeVar("Result")

LOGGER = logging.getLogger("streamseg")

MAX_PROCESSES = 8
"""A picture of 720 x 1280 takes a process 10 to 12 ms on a slow core: 8 do about 700 a second."""
END_SECONDS = 2.0
"""How long a process has to end by itself."""
MAX_DEATHS = 8
"""After this many processes have died before they did a job, no more are started, and threads do their work."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""The signals of a decoder that crashes. SIGKILL is not one: somebody sends it, or the system if memory is short."""
KEPT_BYTES = 2**24
"""A slot in which a picture took more memory gives it back to the system."""

Answer = dict[str, Any] | None
"""A message of a process; None if it has ended instead."""

ERRORS = {kind.__name__: kind for kind in (UnknownFormatError, TooLargeError, ValueError, MemoryError, TimeoutError)}
"""What may be answered instead of a result."""


def process_count() -> int:
    """Return how many processes may be started: 0 where codecs must run in threads."""
    if not are_possible() or os.environ.get("STREAMSEG_CODECS") == "threads":
        return 0
    return min(MAX_PROCESSES, available_cores())


class CodecWorker:
    """A process, and the job that it does now. Used by the thread of the event loop only."""

    def __init__(self, memory: SlotMemory) -> None:
        """Start the process."""
        path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
        layout = memory.layout
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.job: asyncio.Future[Answer] | None = None
        self.ready = self.useful = False
        """Whether it has started, and whether it has done a job."""
        with theirs:
            files = (memory.file, theirs.fileno())
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "streamseg.io.picture_process"]
                    + [str(number) for number in (*files, layout.given, layout.result)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=files,
                    start_new_session=True,  # a Ctrl-C in the terminal must not end it while it starts
                    env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **ONE_THREAD},
                )
            except BaseException:
                self.connection.close()
                raise
        self.connection.setblocking(False)

    def send(self, job: dict[str, Any]) -> "asyncio.Future[Answer]":
        """Send a job; the answer of a process that has gone is None, as if it died in the job."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            self.connection.send(json.dumps(job).encode())
            self.job = answer
        except OSError:
            answer.set_result(None)
        return answer

    def receive(self) -> Answer:
        """Return the message that has come; None if the process has ended."""
        try:
            message = self.connection.recv(MESSAGE_BYTES)
        except OSError:
            return None
        return json.loads(message) if message else None

    def end(self) -> None:
        """Wait for the process to end, now that its socket is closed."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def explain_death(worker: CodecWorker) -> Answer:
    """Return the error for a picture that has made its process crash; None if the process was killed."""
    await asyncio.to_thread(worker.end)
    status = worker.process.returncode
    LOGGER.warning("A process for pictures ended in a request, with status %s.", status)
    if -status not in CRASHES:
        return None
    return {"error": "ValueError", "text": "The picture makes its decoder crash: save it in another format."}


class Codecs:
    """Codecs of all requests: the processes, and the memory that is shared with them.

    Args:
        most_bytes: Of a picture's file.
        most_pixels: Of a picture.
        processes: How many may be started.
        seconds: How long a process may take for a job.
    """

    def __init__(self, most_bytes: int, most_pixels: int, processes: int, seconds: float = 30.0) -> None:
        self.most_pixels, self.most_processes, self.seconds = most_pixels, processes, seconds
        self.layout = SlotLayout.of(most_bytes, most_pixels)
        self.memory: SlotMemory | None = None
        """There is none before the first process."""
        self.free_slots: list[int] = []
        self.slots = 0
        self.workers: set[CodecWorker] = set()
        self.idle: list[CodecWorker] = []
        self.waiting: deque[asyncio.Future[CodecWorker | None]] = deque()
        self.in_threads = self.deaths = 0
        self.starting: set[asyncio.Task[None]] = set()
        self.closed = False

    @contextmanager
    def open(self) -> Iterator["RequestCodec"]:
        """Yield the codec of a request. Frames that it returns may be used until the end of the with statement."""
        codec = RequestCodec(self)
        try:
            yield codec
        finally:
            if codec.job and not codec.job.done():  # cancelled: the process still writes
                codec.job.add_done_callback(lambda _: self.free_slot(codec))
            else:
                self.free_slot(codec)

    def take_slot(self) -> int:
        if not self.free_slots:
            self.free_slots.append(self.slots)
            self.slots += 1
        return self.free_slots.pop()

    def free_slot(self, codec: "RequestCodec") -> None:
        if codec.slot is None:
            return
        if codec.used > KEPT_BYTES and self.memory:
            with suppress(OSError):
                self.memory.discard(codec.slot)
        self.free_slots.append(codec.slot)

    async def find_worker(self) -> CodecWorker | None:
        """Return an idle process, after a wait if all are busy; None while they start, or if there are none."""
        if self.idle:
            return self.idle.pop()
        if len(self.workers) + len(self.starting) < self.most_processes:
            # a single client is served as fast by a thread
            if self.in_threads and not self.closed and self.deaths < MAX_DEATHS:
                task = asyncio.ensure_future(self.start_worker())
                self.starting.add(task)
                task.add_done_callback(self.starting.discard)
            return None
        if not any(worker.ready for worker in self.workers):
            return None
        turn: asyncio.Future[CodecWorker | None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and (worker := turn.result()):  # it came just now
                self.offer(worker)
            raise

    async def start_worker(self) -> None:
        """Start a process; it counts as idle when it says that it is ready."""
        try:
            if self.memory is None:
                self.memory = SlotMemory(os.memfd_create("streamseg"), self.layout)
            worker = await asyncio.to_thread(CodecWorker, self.memory)
        except OSError as error:  # too many processes, or too little memory
            self.count_death(f"cannot be started ({error})")
            return
        self.workers.add(worker)
        asyncio.get_running_loop().add_reader(worker.connection, self.on_message, worker)

    def on_message(self, worker: CodecWorker) -> None:
        """Pass on the answer of a process, and give it the next job."""
        message, job = worker.receive(), worker.job
        worker.job = None
        if message is None:
            self.lose(worker)
        else:
            worker.ready, worker.useful = True, worker.useful or job is not None
            self.offer(worker)
        if job:
            job.set_result(message)

    def offer(self, worker: CodecWorker) -> None:
        """Give an idle process to the next request that waits for one."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        self.idle.append(worker)

    def lose(self, worker: CodecWorker) -> None:
        """Forget a process that has died; requests that wait do not wait for others to start."""
        if not worker.useful:
            self.count_death("die before they have done anything")
        asyncio.get_running_loop().remove_reader(worker.connection)
        worker.connection.close()
        worker.process.poll()
        self.workers.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def count_death(self, what: str) -> None:
        """Count a process that was of no use; say so after the last that is started."""
        self.deaths += 1
        if self.deaths == MAX_DEATHS:
            LOGGER.warning(
                "Processes for pictures %s: threads do their work from now on, which is slower for many clients.", what
            )

    async def close(self) -> None:
        """End the processes, and free the memory."""
        self.closed = True
        while self.starting:
            await asyncio.wait(self.starting)
        workers, self.workers, self.idle = self.workers, set(), []
        for worker in workers:  # all at once, then wait for each
            asyncio.get_running_loop().remove_reader(worker.connection)
            worker.connection.close()
        for worker in workers:
            await asyncio.to_thread(worker.end)
        if self.memory:
            os.close(self.memory.file)
            self.memory = None


class RequestCodec:
    """Decodes the picture of a request, and encodes its labels."""

    def __init__(self, codecs: Codecs) -> None:
        self.codecs, self.used = codecs, 0
        self.slot: int | None = None
        self.job: asyncio.Future[Answer] | None = None

    async def decode(self, data: bytes) -> Tensor:
        """Return the frame (3, H, W) in a picture file."""
        most = self.codecs.most_pixels
        done = await self.do("decode", data, len(data), most=most)
        if done is None:
            return await self.in_thread(decode_upload, data, most)
        if "error" in done:
            raise ERRORS.get(done["error"], RuntimeError)(done["text"])
        shape = done["shape"]
        # not a copy: the slot is this request's to the end
        return torch.from_numpy(self.result(shape[0] * shape[1] * shape[2]).reshape(shape))

    async def encode(self, labels: Tensor, classes: Classes) -> bytes:
        """Return labels (H, W) as an indexed PNG. The frame is gone after it."""
        done = await self.do("encode", labels.numpy(), labels.shape, colours=classes.colours)
        if done is None or "error" in done:  # the labels are right in any case
            file = io.BytesIO()
            await self.in_thread(write_labels, file, labels, classes)
            return file.getvalue()
        return self.result(done["bytes"]).tobytes()

    async def compress(self, labels: Tensor) -> bytes:
        """Return labels (H, W), row by row, compressed with zlib. The frame is gone after it."""
        done = await self.do("compress", labels.numpy(), labels.shape)
        if done is None or "error" in done:
            return await self.in_thread(zlib.compress, labels.contiguous().numpy().data, 1)
        return self.result(done["bytes"]).tobytes()

    async def do(self, kind: str, given: "bytes | numpy.ndarray", size: object, **more: object) -> Answer:
        """Let a process do a job; return its answer, or None if a thread has to, as there is no process or it died."""
        codecs, worker = self.codecs, await self.codecs.find_worker()
        if worker is None or codecs.memory is None:
            return None
        if self.slot is None:
            self.slot = codecs.take_slot()
        try:
            used = max(self.used, codecs.memory.put(self.slot, given))
        except OSError:  # the memory cannot grow
            codecs.offer(worker)
            return None
        self.used = codecs.layout.total  # unless there is an answer
        self.job = worker.send({"slot": self.slot, kind: size, **more})
        try:
            async with asyncio.timeout(codecs.seconds):
                # if the request is cancelled, the process goes on all the same
                done = await asyncio.shield(self.job)
        except TimeoutError:
            worker.process.kill()  # its socket tells the rest
            LOGGER.warning("A process for pictures did not answer within %g s, and was killed.", codecs.seconds)
            text = f"The picture was not decoded within {codecs.seconds:g} s: try again later."
            return {"error": "TimeoutError", "text": text}
        if done is None:
            return await explain_death(worker)
        self.used = used
        return done

    def result(self, count: int) -> "numpy.ndarray":
        """Return the bytes that a process has written."""
        assert self.codecs.memory
        assert self.slot is not None
        self.used = max(self.used, count)
        return self.codecs.memory.result(self.slot, count)

    async def in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Do a job in a thread."""
        self.codecs.in_threads += 1
        try:
            return await asyncio.to_thread(work, *arguments)
        finally:
            self.codecs.in_threads -= 1
