import copy
import gc
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from preparing import SlowEngine, agreement, batch_of, engine as engine, frames as frames, slow as slow
from waiting import PATIENCE, until

import streamseg
from streamseg.engine import fast, prepare
from streamseg.engine.engine import EagerEngine, FrameBatch
from streamseg.engine.fast import FastEngine
from streamseg.engine.open import open_preparing_engine
from streamseg.engine.pick import accelerate
from streamseg.engine.prepare import PreparingEngine
from streamseg.stream.label_frames import label_frames, segment, step_batch
from streamseg.stream.state import Fading, LastFrames

CUDA = torch.cuda.is_available()


def prepared(engine, *shape):
    return (torch.Size((shape[0], 3, *shape[1:])), False, False, False, None) in engine.fast.ready


@pytest.mark.parametrize("window", [1, 3, Fading(0.5), LastFrames(2, steady=1.0)])
def test_a_stream_that_changes_engines_in_the_middle_keeps_its_past(engine, slow, plus, frames, window):
    ours = []
    for number, (_, labels) in enumerate(label_frames(engine, frames, window)):
        ours.append(labels)
        if number == 3:
            slow.may_go_on.set()
            until(lambda: prepared(engine, 1, 96, 160))
    assert len(slow.labelled) == 4  # the others were labelled by the eager engine, without waiting
    assert agreement(ours, [labels for _, labels in label_frames(plus, frames, window)]) > 0.995
    if window == 3:  # so much of the labels is due to the past
        alone = [segment(frame, plus) for frame in frames[4:]]
        assert agreement(ours[4:], alone) < 0.99


def test_the_first_labels_come_before_anything_is_prepared_and_a_single_picture_starts_nothing(engine, slow, frames):
    segment(frames[0], engine)
    assert engine.preparation.thread is None
    segment(frames[1], engine)
    assert slow.started.acquire(timeout=PATIENCE)
    segment(frames[2], engine)
    assert slow.labelled == []


def test_one_size_is_prepared_at_a_time_and_each_once(engine, slow):
    shapes = [(1, 32, 32), (1, 32, 64), (2, 32, 32)]
    for shape in [*shapes, *shapes, *shapes]:
        engine.predict(batch_of(*shape))
    assert slow.started.acquire(timeout=PATIENCE)
    assert not slow.started.acquire(blocking=False)
    slow.may_go_on.set()
    until(lambda: engine.preparation.thread is None)
    assert [tuple(shape) for shape, *_ in slow.asked] == [(1, 3, 32, 32), (1, 3, 32, 64), (2, 3, 32, 32)]
    for shape in shapes:
        engine.predict(batch_of(*shape))
    assert len(slow.labelled) == 3
    # the thread has ended, and another one prepares what comes later
    for _ in range(2):
        engine.predict(batch_of(1, 64, 64))
    until(lambda: prepared(engine, 1, 64, 64))


def test_confidence_is_another_graph(engine, slow):
    slow.may_go_on.set()
    for confidence in (False, True):
        for _ in range(2):
            (prediction,), _ = engine.predict(batch_of(1, 32, 32, confidence=confidence))
            assert (prediction.confidence is not None) == confidence
    until(lambda: len(slow.ready) == 2)


def test_a_size_can_be_asked_for_before_a_frame_comes(engine, slow):
    batch = batch_of(4, 32, 32)._replace(images=torch.empty(4, 3, 32, 32, device="meta"))
    engine.request(batch)
    assert not engine.is_settled(batch)
    slow.may_go_on.set()
    until(lambda: engine.is_settled(batch))
    engine.predict(batch_of(4, 32, 32))
    assert len(slow.labelled) == 1


def test_sizes_that_are_rare_among_many_are_not_prepared(engine, slow):
    slow.may_go_on.set()
    slow.buffers = {(torch.Size((1, 3, 32, side)), False, False, False, None): None for side in range(fast.MAX_GRAPHS)}
    for key in [*slow.buffers] * 10:
        slow.sizes.add(key)
    for _ in range(5):
        engine.predict(batch_of(1, 64, 64))
    assert engine.preparation.thread is None
    assert slow.asked == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB"),
            "CUDA out of memory. Tried to allocate",
        ),
        (RuntimeError("Failed to find C compiler."), "Failed to find C compiler."),
        (PermissionError(13, "Permission denied"), "[Errno 13] Permission denied"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_if_a_size_cannot_be_prepared_the_eager_engine_keeps_it_with_one_sentence(
    engine, slow, frames, monkeypatch, error, reason
):
    told = []
    monkeypatch.setattr(prepare.LOG, "warning", lambda sentence, *given: told.append(sentence % given))
    slow.error = error
    slow.may_go_on.set()
    labels = [labels for _, labels in label_frames(engine, frames[:4], 2)]
    until(lambda: engine.is_settled(batch_of(1, 96, 160)))
    more = [labels for _, labels in label_frames(engine, frames[:4], 2)]
    assert agreement(labels, more) == 1
    for _ in range(2):
        engine.predict(batch_of(1, 32, 32))
    until(lambda: len(engine.preparation.failed) == 2)
    assert len(slow.asked) == 2  # neither is tried again
    assert slow.labelled == []
    assert len(told) == 1
    assert told[0].startswith(f"The fast engine could not be prepared for frames of 96 x 160 ({reason}")
    assert told[0].endswith("): the network itself goes on, more slowly.")


def test_after_a_failure_other_sizes_are_prepared(engine, slow):
    slow.error = MemoryError("no room")
    slow.may_go_on.set()
    engine.request(batch_of(1, 64, 64))
    until(lambda: engine.preparation.failed)
    slow.error = None
    engine.request(batch_of(1, 32, 32))
    until(lambda: prepared(engine, 1, 32, 32))


def test_many_threads_share_an_engine_while_it_changes(engine, slow, plus, frames):
    expected = [segment(frame, plus) for frame in frames]
    agreements = []

    def work(number):
        for turn in range(6):
            if turn == 3:
                slow.may_go_on.set()
            labels = segment(frames[number], engine)
            agreements.append((labels == expected[number]).float().mean().item())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(agreements) == 24
    assert min(agreements) > 0.995
    until(lambda: engine.preparation.thread is None)  # it has given way to them
    assert len(slow.asked) == 1


def test_a_copy_prepares_its_own_sizes(plus, frames):
    engine = PreparingEngine(EagerEngine(plus), accelerate(plus))
    twin = copy.deepcopy(engine)
    assert twin.fast is not engine.fast
    assert twin.eager.model is not engine.eager.model
    assert twin.preparation.fast is twin.fast
    assert segment(frames[0], twin).equal(segment(frames[0], engine))


def test_an_engine_that_is_not_needed_any_more_stops_its_thread(plus):
    slow = SlowEngine(plus)
    engine = PreparingEngine(EagerEngine(plus), slow)
    engine.request(batch_of(1, 32, 32))
    assert slow.started.acquire(timeout=PATIENCE)
    thread, gone = engine.preparation.thread, weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert not thread.is_alive()


def test_a_module_is_imported_whole_by_a_thread_that_is_stopped_meanwhile(tmp_path, monkeypatch):
    source = "import threading\nmay_go_on = threading.Event()\nmay_go_on.wait()\nwhole = True\n"
    (tmp_path / "streamseg_slow_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    ended = []

    def work():
        try:
            prepare.import_whole("streamseg_slow_module", nullcontext())
        except prepare.PreparationStopped:
            ended.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: hasattr(sys.modules.get("streamseg_slow_module"), "may_go_on"))
    prepare.raise_in_thread(thread, prepare.PreparationStopped)
    sys.modules["streamseg_slow_module"].may_go_on.set()
    thread.join(PATIENCE)
    assert ended == ["stopped"]
    assert sys.modules.pop("streamseg_slow_module").whole


def test_the_preparation_gives_way_to_the_eager_network_if_frames_are_live(plus, slow, monkeypatch):
    for live in (True, False):
        engine = PreparingEngine(EagerEngine(plus), slow)
        engine.preparation.gives_way = live
        found = {}

        def predict(batch, way=engine.preparation.right_of_way, found=found):
            found["running"] = way.running
            return [], torch.zeros(0)

        def prepare_one(batch, found=found):
            found["hook"] = sys.getprofile()

        monkeypatch.setattr(engine.eager, "predict", predict)
        monkeypatch.setattr(slow, "prepare", prepare_one)
        engine.predict(batch_of(1, 32, 32))
        engine.request(batch_of(1, 32, 32))
        until(lambda engine=engine: engine.preparation.thread is None)
        assert found["running"] == 1
        assert engine.preparation.right_of_way.running == 0
        assert (found["hook"] is not None) == live


def test_an_engine_is_preparing_until_the_last_batch_of_a_size_is_prepared(engine, slow, plus):
    size, other = (32, 64), (64, 32)
    assert not prepare.is_preparing(engine, size)
    for count in (1, 2):
        engine.request(batch_of(count, *size))
    assert prepare.is_preparing(engine, size)
    assert not prepare.is_preparing(engine, other)
    slow.may_go_on.set()
    until(lambda: not prepare.is_preparing(engine, size))
    assert prepared(engine, 1, *size)
    assert prepared(engine, 2, *size)
    assert not prepare.is_preparing(EagerEngine(plus), size)


def test_a_stopped_preparation_takes_no_more_sizes(engine, slow):
    engine.preparation.stop()
    engine.request(batch_of(1, 32, 32))
    assert engine.preparation.thread is None
    assert slow.asked == []
    engine.predict(batch_of(1, 32, 32))  # and frames are labelled as before


def test_the_end_of_a_program_neither_waits_for_a_preparation_nor_is_aborted_by_it(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(
        textwrap.dedent("""
            import threading
            import torch
            import streamseg
            from streamseg.engine.engine import EagerEngine, FrameBatch
            from streamseg.engine.fast import FastEngine
            from streamseg.engine.prepare import PreparingEngine

            started = threading.Event()

            class Endless(FastEngine):
                def is_prepared(self, key):
                    return False

                def prepare(self, batch):
                    while True:  # as a compiler and a network do
                        started.set()
                        torch.nn.functional.conv2d(torch.ones(1, 8, 32, 32), torch.ones(8, 8, 3, 3))

            torch.set_num_threads(1)
            network = streamseg.fanet18(classes=3).eval()
            engine = PreparingEngine(EagerEngine(network), Endless(network, torch.float32))
            engine.request(FrameBatch(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), None, [0.0], [(32, 32)]))
            assert started.wait(60)
            print("labelled")
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "labelled\n", "")


def test_on_the_cpu_nothing_has_to_be_prepared(plus):
    engine = accelerate(plus)
    batch = batch_of(1, 32, 32)
    assert engine.is_prepared((batch.images.shape, False, False, False, None))
    engine.prepare(batch)
    assert isinstance(open_preparing_engine(None, torch.device("cpu")).engine, FastEngine)


# on a GPU


needs_gpu = pytest.mark.skipif(not CUDA, reason="no CUDA device")


@pytest.fixture
def on_gpu():
    opened = open_preparing_engine(None, torch.device("cuda"))
    yield opened.engine
    opened.engine.preparation.stop()


def street_frames(count, height=360, width=640):
    picture = streamseg.read_image("samples/suburb-1.jpg")
    still = torch.nn.functional.interpolate(picture[None].float(), (height, width), mode="bilinear")[0].byte()
    return [still.roll(4 * i, dims=2).cuda() for i in range(count)]


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_the_eager_network_labels_until_the_graph_is_captured(on_gpu, monkeypatch):
    assert isinstance(on_gpu, PreparingEngine)
    prepare_at_once, may_go_on = on_gpu.fast.prepare, threading.Event()

    def delayed(batch):
        assert may_go_on.wait(PATIENCE)
        prepare_at_once(batch)

    monkeypatch.setattr(on_gpu.fast, "prepare", delayed)
    frames, ours = street_frames(40), []
    key = (torch.Size((1, *frames[0].shape)), False, False, False, None)
    for number, (_, labels) in enumerate(label_frames(on_gpu, frames, 3)):
        ours.append(labels)
        if number == 10:
            assert not on_gpu.fast.is_prepared(key)
            may_go_on.set()
        if number == 20:
            until(lambda: on_gpu.fast.is_prepared(key))
    expected = [labels for _, labels in label_frames(on_gpu.eager, frames, 3)]
    assert agreement(ours, expected) > 0.98
    # the same frame without the past of the eager engine has other labels
    assert agreement(ours[30:], [segment(frame, on_gpu.eager) for frame in frames[30:]]) < 1


@pytest.mark.gpu
@needs_gpu
def test_sizes_are_captured_while_other_threads_label_frames_of_prepared_ones(on_gpu):
    frame = street_frames(1)[0]
    first = FrameBatch(frame[None], None, [0.0], [(360, 640)])
    on_gpu.fast.prepare(first)
    expected, _ = on_gpu.fast.predict(first)
    others = [street_frames(1, 32 * side, 32 * side + 64)[0] for side in range(4, 4 + fast.MAX_GRAPHS - 1)]
    for other in others:
        on_gpu.request(FrameBatch(other[None], None, [0.0], [tuple(other.shape[1:])]))
    wrong = calls = 0
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        while on_gpu.preparation.thread is not None or not calls:
            for batch in (first, FrameBatch(others[-1][None], None, [0.0], [(200, 300)])):
                predictions, _ = on_gpu.predict(batch)  # of one size by its graph, of the other by either engine
                if batch is first:
                    wrong += int((predictions[0].labels != expected[0].labels).sum())
            calls += 1
    assert wrong == 0
    assert not on_gpu.preparation.failed
    for other in others:
        labels, eager = segment(other, on_gpu.fast), segment(other, on_gpu.eager)
        assert (labels == eager).float().mean() > 0.98


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_a_batch_is_labelled_frame_by_frame_until_it_is_prepared(on_gpu):
    policy, frames = LastFrames(1, steady=streamseg.STEADY_LOW), street_frames(12)
    single = FrameBatch(frames[0][None], None, [0.0], [(360, 640)], steady=policy.steady, needs_contexts=False)
    on_gpu.fast.prepare(single)
    on_gpu.preparation.stop()  # nothing else is prepared
    states, alone = [None] * 3, [None] * 3
    for number in range(4):
        images = torch.stack(frames[3 * number : 3 * number + 3])
        given = {"sizes": [(360, 640)] * 3, "times": [0.04 * number] * 3}
        found, states = step_batch(on_gpu, images, states, policy, **given)
        expected, alone = step_batch(on_gpu.eager, images, alone, policy, **given)
        assert agreement([one.labels for one in found], [one.labels for one in expected]) > 0.98
    assert len(on_gpu.fast.buffers) == 1


@pytest.mark.gpu
@needs_gpu
def test_hysteresis_and_confidence_need_no_kernel_that_was_not_prepared(on_gpu):
    frames = street_frames(4, 720, 1280)
    images = torch.nn.functional.interpolate(frames[0][None].float(), (360, 640)).byte()
    policy = LastFrames(2, steady=1.0)
    batch = FrameBatch(images, None, [0.0], [(720, 1280)], True, 1.0, [None])
    on_gpu.fast.prepare(batch)
    predictions, states = step_batch(on_gpu, images, [None], policy, sizes=[(720, 1280)], with_confidence=True)
    assert predictions[0].labels.shape == predictions[0].confidence.shape == (720, 1280)
    assert len(on_gpu.fast.buffers) == 1
    assert states[0].low_res_labels is not None


@pytest.mark.gpu
@needs_gpu
def test_with_an_empty_folder_of_kernels_frames_are_labelled_while_they_are_compiled():
    program = Path(__file__).parents[2] / "benchmarks" / "first_labels.py"
    done = subprocess.run([sys.executable, program, "160", "240"], capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stderr
    cold = done.stdout.splitlines()[0]
    found = {name: float(value) for name, value in re.findall(r"([a-z][a-z0-9 ]+) ([\d.]+)(?:,|$)", cold)}
    assert found["first labels after s"] < found["fast engine after s"]
    assert found["frames by the eager network"] > 10
    assert found["same labels"] > 0.95
