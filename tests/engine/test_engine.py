"""Engines called from threads, in and out of inference mode, copied, and with wrong inputs."""

import copy
import pickle
import threading
import warnings

import numpy
import plain
import pytest
import torch
from torch import nn

import streamseg
from streamseg.engine import convolutions, fast
from streamseg.engine.engine import EagerEngine, ImageEngine
from streamseg.engine.pick import accelerate
from streamseg.models import baselines
from streamseg.models.fanet_plus import fanetplus18
from streamseg.models.layers import check_image
from streamseg.stream.label_frames import label_frame, label_frames, segment, step_batch

CUDA = torch.cuda.is_available()
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])
ATTENTIONS = [
    streamseg.SelfAttention,
    streamseg.ChannelAttention,
    streamseg.DotAttention,
    streamseg.NoAttention,
    streamseg.FastAttention,
]
SIZES = [(40, 64), (64, 40), (48, 48), (33, 70)]


@pytest.fixture(scope="module", params=[streamseg.fanet18, fanetplus18], ids=["FANet", "FANet+"])
def network(request):
    return plain.randomise(request.param(classes=7)).float()


@pytest.fixture(scope="module")
def fanet():
    return plain.randomise(streamseg.fanet18(classes=7)).float()


def noise(height, width, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator, device="cpu")


def call_from_threads(engine, frames, calls):
    """Return what the thread of each frame got, call by call."""
    start, found, faults = threading.Barrier(len(frames)), [[] for _ in frames], []

    def work(i):
        try:
            start.wait()
            for _ in range(calls):
                found[i].append(engine(frames[i]))
        except BaseException as error:
            faults.append(error)
            start.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(frames))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    return found


@pytest.mark.parametrize("sizes", [SIZES, [(40, 64)] * 4], ids=["sizes", "one-size"])
@pytest.mark.parametrize(
    ("device", "precision", "calls"),
    [
        ("cpu", "fp32", 12),
        pytest.param("cpu", "int8", 12, marks=pytest.mark.skipif(not convolutions.has_int8(), reason="no int8")),
        pytest.param("cuda", "fp16", 1000, marks=GPU.marks),
    ],
)
def test_every_thread_gets_the_labels_of_one_thread_alone(network, device, precision, calls, sizes):
    frames = [noise(*size, seed).to(device) for seed, size in enumerate(sizes)]
    calibration = [frame.cpu() for frame in frames] if precision == "int8" else ()
    engine = accelerate(copy.deepcopy(network).to(device), precision, calibration)
    expected = [engine(frame) for frame in frames]
    for labels, theirs in zip(expected, call_from_threads(engine, frames, calls), strict=True):
        assert len(theirs) == calls
        assert all(labels.equal(found) for found in theirs)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_threads_in_different_cuda_streams_get_the_labels_of_one_thread(network):
    frames = [noise(*size, seed).cuda() for seed, size in enumerate(SIZES)]
    streams = {frame.data_ptr(): torch.cuda.Stream() for frame in frames}
    engine = accelerate(copy.deepcopy(network).cuda())
    expected = [engine(frame) for frame in frames]
    torch.cuda.synchronize()

    def call(frame):
        with torch.cuda.stream(streams[frame.data_ptr()]):
            labels = engine(frame)
            torch.cuda.current_stream().synchronize()
        return labels

    for labels, theirs in zip(expected, call_from_threads(call, frames, 1000), strict=True):
        assert all(labels.equal(found) for found in theirs)


def test_streams_in_threads_do_not_mix(network):
    engine = accelerate(network)
    videos = [[noise(40, 64, 10 * i + j) for j in range(4)] for i in range(3)]
    expected = [[labels for _, labels in label_frames(engine, video, 3)] for video in videos]
    found = call_from_threads(lambda video: [labels for _, labels in label_frames(engine, video, 3)], videos, 3)
    for labels, theirs in zip(expected, found, strict=True):
        assert all(torch.stack(labels).equal(torch.stack(again)) for again in theirs)


@pytest.mark.skipif(not convolutions.has_int8(), reason="no int8")
def test_threads_calibrate_int8_together(network):
    engine = accelerate(network, "int8")
    call_from_threads(engine, [noise(40, 64, seed) for seed in range(4)], fast.CALIBRATION_FRAMES)
    assert not engine.calibrating
    assert engine.calibration == []
    frame = noise(40, 64)
    assert engine(frame).equal(engine(frame))


@pytest.mark.skipif(not convolutions.has_int8(), reason="no int8")
def test_int8_is_calibrated_with_copies_of_the_frames(network):
    buffer, frames = (
        torch.empty(3, 40, 64, dtype=torch.uint8),
        [noise(40, 64, seed) for seed in range(fast.CALIBRATION_FRAMES)],
    )
    ours, theirs = accelerate(network, "int8"), accelerate(network, "int8", frames)
    for frame in frames:
        ours(buffer.copy_(frame))
        buffer.zero_()
    assert ours(frames[0]).equal(theirs(frames[0]))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_results_belong_to_the_caller(network, device):
    engine = accelerate(copy.deepcopy(network).to(device))
    first, second = noise(40, 64).to(device), noise(40, 64, 1).to(device)
    labels, context = engine.step(first)
    kept = labels.clone(), context.clone()
    engine.step(second, context)
    assert labels.equal(kept[0])
    assert context.equal(kept[1])
    engine(second).zero_()
    assert engine(first).equal(labels)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("inside", [True, False])
def test_inference_mode_may_begin_and_end_between_calls(network, device, inside):
    frames = [noise(*size).to(device) for size in SIZES[:2]]
    with torch.inference_mode(inside):
        engine = accelerate(copy.deepcopy(network).to(device))
        expected = [engine(frame) for frame in frames]
        _, context = engine.step(frames[0])
    for mode in (not inside, inside, not inside):
        with torch.inference_mode(mode):
            assert all(engine(frame).equal(labels) for frame, labels in zip(frames, expected, strict=True))
            engine(noise(56 + 8 * mode, 56).to(device))
            engine.step(frames[0], context)
    labels = engine(frames[0])
    labels[0] = 3  # made outside of inference mode, so it can be changed


@pytest.mark.skipif(not convolutions.has_int8(), reason="no int8")
def test_int8_may_be_calibrated_in_inference_mode_and_used_outside_of_it(network):
    frame, engine = noise(40, 64), accelerate(network, "int8")
    for number in range(fast.CALIBRATION_FRAMES):
        with torch.inference_mode(number % 2 == 0):
            engine(frame)
    with torch.inference_mode():
        expected = engine(frame)
    assert engine(frame).equal(expected)


def test_the_bundled_weights_may_be_loaded_in_inference_mode(monkeypatch):
    streamseg.stream.label_frames.bundled_model.cache_clear()
    with torch.inference_mode():
        expected = segment(noise(40, 64))
    assert segment(noise(40, 64)).equal(expected)
    assert not any(weight.is_inference() for weight in streamseg.stream.label_frames.bundled_model().parameters())


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_network_of_any_attention_becomes_an_engine_to_call(attention):
    model = plain.randomise(streamseg.fanet18(classes=5, attention=attention)).float()
    engine, frames = accelerate(model), torch.stack([noise(40, 64), noise(40, 64, 1)])
    expected = [segment(frame, model) for frame in frames]
    assert (engine(frames[0]) == expected[0]).float().mean() > 0.999
    both, contexts = engine.step(frames)
    assert (both == torch.stack(expected)).float().mean() > 0.999
    assert contexts.shape == (2, *engine.context_shape)
    labels, _ = engine.step(frames[1], contexts[:1])
    after = label_frame(model, frames[1], label_frame(model, frames[0], None, 2)[1], 2)[0]
    assert (labels == after).float().mean() > 0.999
    for alone, theirs in zip(expected, call_from_threads(engine, list(frames), 3), strict=True):
        assert all((found == alone).float().mean() > 0.999 for found in theirs)


@pytest.mark.parametrize("kind", ["fast", "int8", "eager", "baseline"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))])
def test_a_copy_labels_as_the_original_does(network, kind, copied):
    frame = noise(40, 64)
    if kind == "int8" and not convolutions.has_int8():
        pytest.skip("no int8")
    engine = {
        "fast": lambda: accelerate(network),
        "int8": lambda: accelerate(network, "int8", [frame]),
        "eager": lambda: EagerEngine(network),
        "baseline": lambda: accelerate(baselines.enet(5).eval()),
    }[kind]()
    expected = engine(frame)
    twin = copied(engine)
    assert type(twin) is type(engine)
    assert twin(frame).equal(expected)
    for labels in call_from_threads(lambda one: one(frame), [engine, twin], 5):
        assert all(found.equal(expected) for found in labels)


def test_a_deep_copy_shares_no_weights(network):
    frame, engine = noise(40, 64), accelerate(baselines.enet(5).eval())
    assert isinstance(engine, ImageEngine)
    expected, twin = engine(frame), copy.deepcopy(engine)
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.zero_()
    assert twin(frame).equal(expected)
    quick = accelerate(network)
    expected, twin = quick(frame), copy.deepcopy(quick)
    quick.fold().classify.weight.zero_()
    assert twin(frame).equal(expected)
    assert twin.lock is not quick.lock


def test_later_changes_to_a_network_do_not_affect_its_fast_form(network):
    frame, model = noise(40, 64), copy.deepcopy(network)
    engine = accelerate(model)
    expected = engine(frame)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    model.train()
    assert engine(frame).equal(expected)
    model.to("meta")
    assert engine.device.type == "cpu"
    assert segment(frame, engine).equal(expected)


def test_an_eager_engine_checks_its_network_at_every_call(network):
    for engine in (EagerEngine(copy.deepcopy(network)), accelerate(baselines.enet(5).eval())):
        engine.model.train()
        with pytest.raises(ValueError, match="in training mode"):
            engine(noise(40, 64))
        engine.model.eval()
        engine.model.to("meta")
        with pytest.raises(ValueError, match="The frame is on cpu, and the network on meta"):
            engine(noise(40, 64))


@pytest.fixture(params=["fast", "eager"])
def engine(request, fanet):
    return accelerate(fanet) if request.param == "fast" else EagerEngine(fanet)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (None, "The frame is a NoneType; expected RGB bytes"),
        ("nothere.png", "No picture at nothere.png"),
        ([1, 2], "The frame is a list; expected RGB bytes"),
        (torch.zeros(3, 40, 64), r"expected RGB bytes, a tensor of torch.uint8: give \(255 \* frame\).byte\(\)"),
        (torch.zeros(3, 40, 64).int(), "The frame is a tensor of torch.int32; expected RGB bytes"),
        (torch.zeros(40, 64, 3).byte(), r"expected RGB, channels first: \(3, H, W\): give frame.permute\(2, 0, 1\)"),
        (torch.zeros(1, 1, 3, 40, 64).byte(), r"The frame's shape is \(1, 1, 3, 40, 64\)"),
        (torch.zeros(0, 3, 40, 64).byte(), "The batch has no frames"),
        (torch.zeros(3, 31, 64).byte(), "The image is 31 x 64 pixels; the least is 32 x 32"),
        (torch.zeros(3, 40, 64, device="meta").byte(), "The frame is on meta, and the network on cpu"),
        (numpy.zeros((3, 40, 64), numpy.uint8), r"an array of shape \(3, 40, 64\); expected RGB .H, W, 3."),
        (numpy.ones((40, 64, 3)), "expected bytes in 0–255: numpy.uint8, after multiplying by 255"),
    ],
)
def test_what_is_not_a_frame_is_refused_in_a_sentence(engine, frame, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        engine(frame)


@pytest.mark.parametrize(
    ("past", "sentence"),
    [
        ("past", "The past is a str; expected a context"),
        (torch.zeros(1, 32, 960).int(), "The past is a tensor of torch.int32"),
        (torch.zeros(1, 32, 100), r"The past's shape is \(1, 32, 100\); expected \(1, 32, 960\)"),
        (torch.zeros(2, 32, 960), r"The past's shape is \(2, 32, 960\); expected \(1, 32, 960\)"),
    ],
)
def test_what_is_not_a_past_is_refused_in_a_sentence(engine, past, sentence):
    with pytest.raises(ValueError, match=sentence):
        engine.step(noise(40, 64), past)


def test_the_gradient_of_a_past_is_ignored(engine):
    labels, context = engine.step(noise(40, 64), torch.zeros(1, 32, 960, requires_grad=True))
    assert labels.equal(engine(noise(40, 64)))
    assert not context.requires_grad


def test_frames_may_have_any_memory_layout(engine):
    frame = noise(40, 64)
    expected = engine(frame)
    for other in (frame.flip(2).flip(2), torch.stack([frame, frame], -1)[..., 0], frame.permute(1, 2, 0).contiguous()):
        other = other if other.shape == frame.shape else other.permute(2, 0, 1)
        assert engine(other).equal(expected)


def test_arrays_are_accepted_wherever_frames_are(engine, fanet, tmp_path):
    frame = noise(40, 64)
    array = frame.permute(1, 2, 0).numpy().copy()
    readonly = numpy.frombuffer(array.tobytes(), numpy.uint8).reshape(array.shape)
    expected = engine(frame)
    assert engine(array).equal(expected)
    assert engine(readonly[::-1, ::-1][::-1, ::-1]).equal(expected)
    assert engine(numpy.stack([array, array])).equal(torch.stack([expected, expected]))
    assert engine.step(array)[0].equal(expected)
    assert segment(array, engine).equal(expected)
    assert label_frame(engine, array)[0].equal(expected)
    for taken, labels in label_frames(engine, [array, readonly]):
        assert taken.equal(frame)
        assert labels.equal(expected)
    tiled, _ = streamseg.label_tiled(fanet, array, tile=(64, 64), margin=0)
    assert tiled.equal(streamseg.label_tiled(fanet, frame, tile=(64, 64), margin=0)[0])
    quick = accelerate(fanet, "int8", [array]) if convolutions.has_int8() else engine
    assert quick(array).shape == (40, 64)


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        (None, "The frames are a NoneType; expected an iterable of frames"),
        ("drive.mp4", "The frames are 'drive.mp4'; expected frames: read them with streamseg.read_frames"),
        (noise(40, 64), "The frames are a single frame; expected several"),
        (numpy.zeros((40, 64, 3), numpy.uint8), "The frames are a single frame; expected several"),
    ],
)
def test_one_frame_or_a_name_is_not_a_stream(engine, frames, sentence):
    with pytest.raises(ValueError, match=sentence):
        next(label_frames(engine, frames))


def test_floats_from_0_to_1_cause_a_warning_at_the_caller_s_line(network):
    image = noise(40, 64)[None] / 255
    calls = [
        lambda: network(image),
        lambda: network.step(image),
        lambda: baselines.enet(5).eval()(image),
        lambda: step_batch(network, image, [None], sizes=[(40, 64)]),
        lambda: step_batch(accelerate(network), image, [None], sizes=[(40, 64)]),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="values from 0 to 1; expected 0 to 255: multiply by 255") as warned:
            call()
        assert {warning.filename for warning in warned} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for quiet in (255 * image, 0 * image, image - 0.5, 1.01 * image / image.max(), image.byte()):
            network(quiet)


class Checked(nn.Module):
    def forward(self, image):
        check_image(image)
        return 2 * image


def test_the_warning_does_not_disturb_compilers():
    image = torch.rand(1, 3, 64, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert torch.export.export(Checked(), (image,)).module()(image).equal(2 * image)
        assert torch.compile(Checked(), fullgraph=True, backend="eager")(image).equal(2 * image)
        assert torch.vmap(Checked())(image[None]).equal(2 * image[None])
    assert Checked()(image.to("meta")).is_meta
