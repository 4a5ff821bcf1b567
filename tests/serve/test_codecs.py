"""Processes that decode and encode give what threads do; requests survive their death, and nothing is left behind."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from serving import FRAME, PICTURE, read_labels, run_server, to_png
from waiting import PATIENCE, until
from websockets.sync.client import connect

from streamseg.classes import CAMVID
from streamseg.io import codec_pool
from streamseg.io.pictures import TooLargeError, UnknownFormatError
from streamseg.serve import codecs as codecs_module
from streamseg.serve.codecs import Codecs
from streamseg.stream.label_frames import label_frame

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")

LABELS = torch.arange(72 * 96, dtype=torch.int64).remainder(251).to(torch.uint8).view(72, 96)


def run(work, processes=1, most_pixels=10_000):
    """Run a coroutine function with codecs whose processes are ready."""

    async def main():
        codecs = Codecs(100_000, most_pixels, processes, PATIENCE)
        codecs.in_threads = 1  # as if another request were in a thread
        try:
            async with asyncio.timeout(PATIENCE):
                for _ in range(processes):
                    assert await codecs.find_worker() is None
                while len(codecs.idle) < processes:
                    await asyncio.sleep(0.01)
                codecs.in_threads = 0
                return await work(codecs)
        finally:
            await codecs.close()

    return asyncio.run(main())


def test_a_process_decodes_and_encodes_as_a_thread_does():
    async def use(codecs):
        with codecs.open() as codec:
            frame = (await codec.decode(PICTURE)).clone()
            png, packed = await codec.encode(LABELS.T, CAMVID), await codec.compress(LABELS)
            assert (codec.slot is None) is (not codecs.workers)
        return frame, png, packed

    async def without():
        return await use(Codecs(100_000, 10_000, 0))

    for frame, png, packed in (run(use), asyncio.run(without())):
        assert frame.equal(FRAME)
        assert read_labels(png).equal(LABELS.T)
        assert zlib.decompress(packed) == LABELS.numpy().tobytes()


def test_wrong_pictures_are_the_same_errors():
    async def use(codecs):
        with codecs.open() as codec:
            with pytest.raises(UnknownFormatError, match="The data is no picture"):
                await codec.decode(b"no picture")
            with pytest.raises(TooLargeError, match="more than 6,911 pixels"):
                await codec.decode(PICTURE)
            with pytest.raises(ValueError, match="damaged"):
                await codec.decode(small[: len(small) // 2])
            assert codec.slot is not None

    small = to_png(FRAME[:, :60, :60])
    run(use, most_pixels=72 * 96 - 1)


def test_requests_wait_for_a_process_and_each_gets_its_own_picture():
    pictures = [torch.full((3, 10, 10 + i), i, dtype=torch.uint8) for i in range(12)]

    async def ask(codecs, picture):
        with codecs.open() as codec:
            frame = await codec.decode(to_png(picture))
            await asyncio.sleep(0.01)
            return frame.equal(picture)

    async def use(codecs):
        same = await asyncio.gather(*(ask(codecs, picture) for picture in pictures))
        assert sorted(codecs.free_slots) == list(range(codecs.slots))
        return same, codecs.in_threads

    assert run(use, processes=2) == ([True] * 12, 0)


def test_a_request_whose_process_is_killed_is_answered_and_another_is_started():
    async def use(codecs):
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGSTOP)
        with codecs.open() as codec:
            first = asyncio.ensure_future(codec.decode(PICTURE))
            with codecs.open() as other:
                second = asyncio.ensure_future(other.decode(PICTURE))
                await asyncio.sleep(0.05)
                os.kill(worker.process.pid, signal.SIGKILL)
                assert (await first).equal(FRAME)
                assert (await second).equal(FRAME)
        assert not codecs.workers
        await asyncio.gather(*(ask(codecs) for _ in range(2)))
        while not codecs.idle:
            await asyncio.sleep(0.01)

    async def ask(codecs):
        with codecs.open() as codec:
            assert (await codec.decode(PICTURE)).equal(FRAME)

    run(use)


def test_a_picture_that_crashes_its_process_is_an_error_and_no_thread_decodes_it():
    async def use(codecs):
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGSTOP)
        with codecs.open() as codec, pytest.raises(ValueError, match="makes its decoder crash"):
            decoding = asyncio.ensure_future(codec.decode(PICTURE))
            await asyncio.sleep(0)
            os.kill(worker.process.pid, signal.SIGSEGV)
            os.kill(worker.process.pid, signal.SIGCONT)
            await decoding
        assert codecs.free_slots == [0]

    run(use)


def test_a_process_that_hangs_is_killed_and_its_request_gets_an_error():
    async def use(codecs):
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGSTOP)
        codecs.seconds = 0.1
        with codecs.open() as codec, pytest.raises(TimeoutError, match=r"not decoded within 0\.1 s"):
            await codec.decode(PICTURE)
        while codecs.workers or not codecs.free_slots:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(worker.process.wait, PATIENCE) == -signal.SIGKILL

    run(use)


def test_labels_are_encoded_by_a_thread_if_the_process_hangs():
    async def use(codecs):
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGSTOP)
        codecs.seconds = 0.1
        with codecs.open() as codec:
            assert read_labels(await codec.encode(LABELS, CAMVID)).equal(LABELS)

    run(use)


def test_a_process_that_has_gone_unnoticed_is_not_waited_for():
    async def use(codecs):
        worker = await codecs.find_worker()
        codecs.lose(worker)  # before the request comes to use it
        assert await worker.send({"slot": 0, "decode": 1, "most": 1}) is None

    run(use)


def test_memory_that_cannot_grow_is_left_to_threads_and_the_process_is_kept(monkeypatch):
    def refuse(slot, data):
        raise OSError("no memory")

    async def use(codecs):
        monkeypatch.setattr(codecs.memory, "put", refuse)
        with codecs.open() as codec:
            assert (await codec.decode(PICTURE)).equal(FRAME)
        assert len(codecs.idle) == 1

    run(use)


def test_threads_do_the_work_while_processes_start():
    async def use(codecs):
        (worker,) = codecs.workers
        codecs.idle.clear()
        worker.ready = False
        assert await codecs.find_worker() is None

    run(use)


def test_processes_that_cannot_be_started_are_given_up_with_a_warning(monkeypatch, capsys):
    def refuse(name):
        raise PermissionError("memfd_create is not allowed")

    async def start():
        codecs = Codecs(1000, 1000, 1)
        for _ in range(codecs_module.MAX_DEATHS):
            await codecs.start_worker()
        codecs.in_threads = 1
        assert await codecs.find_worker() is None
        assert not codecs.starting

    monkeypatch.setattr(os, "memfd_create", refuse)
    asyncio.run(start())
    assert "cannot be started (memfd_create is not allowed)" in capsys.readouterr().err


def test_the_death_of_a_process_that_has_done_jobs_does_not_count():
    async def use(codecs):
        with codecs.open() as codec:
            await codec.decode(PICTURE)
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGKILL)
        while codecs.workers:
            await asyncio.sleep(0.01)
        assert codecs.deaths == 0

    run(use)


def test_clients_are_told_of_a_picture_that_was_not_decoded(monkeypatch):
    async def late(codec, data):
        raise TimeoutError("The picture was not decoded within 1 s: try again later.")

    async def fail(codec, data):
        raise RuntimeError("a bug")

    with run_server() as server:
        monkeypatch.setattr(codecs_module.RequestCodec, "decode", late)
        answer = server.ask("/segment", PICTURE)
        assert answer.status == 503
        assert answer.json["error"] == "The picture was not decoded within 1 s: try again later."
        assert int(answer.headers["retry-after"]) >= 1
        assert server.count_dropped("late") == 1
        monkeypatch.setattr(codecs_module.RequestCodec, "decode", fail)
        with connect(server.stream) as client:
            client.send(PICTURE)
            assert "failed to decode this picture" in json.loads(client.recv(PATIENCE))["error"]


def test_processes_that_keep_dying_are_no_longer_started():
    async def use(codecs):
        codecs.deaths, codecs.in_threads = codecs_module.MAX_DEATHS - 1, 1
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGKILL)
        while codecs.workers:
            await asyncio.sleep(0.01)
        assert await codecs.find_worker() is None
        assert not codecs.starting

    run(use)


def test_the_slot_of_a_cancelled_request_is_free_when_its_process_has_answered():
    async def use(codecs):
        (worker,) = codecs.workers
        os.kill(worker.process.pid, signal.SIGSTOP)

        async def ask():
            with codecs.open() as codec:
                await codec.decode(PICTURE)

        first, second = asyncio.ensure_future(ask()), asyncio.ensure_future(ask())
        await asyncio.sleep(0.05)
        for request in (first, second):
            request.cancel()
        await asyncio.wait((first, second))
        assert codecs.free_slots == []
        os.kill(worker.process.pid, signal.SIGCONT)
        while not codecs.idle:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert codecs.free_slots == [0]

    run(use)


def test_large_slots_give_their_memory_back(monkeypatch):
    monkeypatch.setattr(codecs_module, "KEPT_BYTES", 1000)

    async def use(codecs):
        with codecs.open() as codec:
            await codec.decode(PICTURE)
        return codecs.memory.result(0, 100).any()

    assert not run(use)


def test_a_single_client_is_served_by_threads_and_several_by_processes(monkeypatch):
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    with run_server() as server:
        expected, _ = label_frame(server.engine.engine, FRAME)
        for _ in range(2):
            assert read_labels(server.ask("/segment", PICTURE).body).equal(expected)
        assert not server.gate.codecs.workers
        with ThreadPoolExecutor(4) as clients:

            def ask_until_ready():
                answers = [*clients.map(lambda _: server.ask("/segment", PICTURE), range(8))]
                assert all(read_labels(answer.body).equal(expected) for answer in answers)
                return server.gate.codecs.slots

            until(ask_until_ready)
        processes = [worker.process for worker in server.gate.codecs.workers]
        assert processes
    assert all(process.poll() is not None for process in processes)


def test_a_process_ends_with_the_server_that_is_killed():
    program = (
        "import asyncio, time\nfrom streamseg.serve.codecs import Codecs\n"
        "async def main():\n"
        "    codecs = Codecs(1000, 1000, 1)\n    await codecs.start_worker()\n"
        "    print(*(worker.process.pid for worker in codecs.workers), flush=True)\n    time.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() or ") Z" in Path(f"/proc/{pid}/stat").read_text())


def test_threads_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("STREAMSEG_CODECS", "threads")
    assert codecs_module.process_count() == 0
    monkeypatch.delenv("STREAMSEG_CODECS")
    assert 1 <= codecs_module.process_count() <= codecs_module.MAX_PROCESSES


def test_an_overlay_is_drawn_on_the_frame_of_a_process(monkeypatch):
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    picture = Image.fromarray(numpy.full((20, 20, 3), 200, numpy.uint8))
    file = io.BytesIO()
    picture.save(file, format="PNG")
    with run_server() as server, ThreadPoolExecutor(4) as clients:

        def ask(_):
            return server.ask("/segment?alpha=0", file.getvalue(), Accept="image/jpeg").body

        def ask_until_ready():
            for body in clients.map(ask, range(8)):
                pixels = numpy.asarray(Image.open(io.BytesIO(body)))
                assert abs(numpy.median(pixels) - 200) < 8
            return server.gate.codecs.slots

        until(ask_until_ready)
