import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import streamseg
from streamseg.engine import fast
from streamseg.engine.engine import EagerEngine, FrameBatch
from streamseg.engine.pick import accelerate
from streamseg.engine.steadying import STEADY_HIGH
from streamseg.models.fanet import fanet18, init_as_identity
from streamseg.stream.label_frames import label_batch, label_frame, label_frames, segment, step_batch
from streamseg.stream.state import Fading, LastFrames

CUDA = torch.cuda.is_available()


@pytest.fixture(scope="module")
def street():
    return streamseg.read_image("samples/suburb-1.jpg")


@pytest.fixture(scope="module", params=["FANet", "FANet+"])
def model(request, street):
    return streamseg.load()[0] if request.param == "FANet+" else make_fanet(street)


def make_fanet(street):
    """Return a FANet-18 with the trained encoder of the bundled weights, and a last layer fitted to their labels."""
    torch.manual_seed(0)
    trained, classes = streamseg.load()
    network = fanet18(classes=len(classes))
    network.encoder.load_state_dict(trained.encoder.state_dict(), strict=False)  # but for Res-1's new shortcut
    init_as_identity(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics are those of the next call
    places = [(top, left) for top in (200, 600) for left in range(0, 1600, 160)]
    parts = torch.stack([street[:, top : top + 160, left : left + 240] for top, left in places])
    classify = network.classify[1]
    inputs = []
    hook = classify.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    with torch.no_grad():
        network(parts)
        network.eval()(parts)
        hook.remove()
        pixels = inputs[-1].permute(0, 2, 3, 1).flatten(0, 2).double()
        truth = trained.outputs(parts)[0]
        truth = F.interpolate(truth, inputs[-1].shape[-2:], mode="bilinear").argmax(dim=1).flatten()
        wanted = F.one_hot(truth, len(classes)).double() - 0.5
        gram = pixels.T @ pixels
        ridge = 1e-2 * gram.diagonal().mean() * torch.eye(len(gram))
        fitted = torch.linalg.solve(gram + ridge, pixels.T @ wanted)
        classify.weight.copy_(10 * fitted.T[:, :, None, None])
    return network


@pytest.fixture
def frames(street):
    """Frames of a camera that pans."""
    return [street[:, 480:640, 300 + 8 * i : 540 + 8 * i].contiguous() for i in range(10)]


def agreement(ours, theirs):
    return min((a.cpu() == b.cpu()).float().mean().item() for a, b in zip(ours, theirs, strict=True))


def test_the_fast_form_gives_the_same_labels(model, frames):
    quick = accelerate(model)
    assert agreement([quick(frame) for frame in frames[:3]], [segment(frame, model) for frame in frames[:3]]) > 0.999
    assert agreement(quick(torch.stack(frames[:3])), [segment(frame, model) for frame in frames[:3]]) > 0.999


@pytest.mark.parametrize("window", [1, 3, Fading(0.5)])
def test_every_function_that_takes_a_network_takes_its_fast_form(model, frames, window):
    quick = accelerate(model)
    assert segment(frames[0], quick).shape == (160, 240)
    ours = [labels for _, labels in label_frames(quick, frames[:4], window)]
    assert agreement(ours, [labels for _, labels in label_frames(model, frames[:4], window)]) > 0.999
    smaller, _ = label_frame(quick, frames[0], size=(96, 128))
    assert agreement([smaller], [label_frame(model, frames[0], size=(96, 128))[0]]) > 0.999


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no GPU"))])
def test_steps_carry_the_context_from_frame_to_frame(model, frames, device):
    network = copy.deepcopy(model).to(device)
    frames = [frame.to(device) for frame in frames[:4]]
    quick, context, ours = accelerate(network), None, []
    for frame in frames:
        labels, context = quick.step(frame, context)
        ours.append(labels.clone())
    theirs = [labels for _, labels in label_frames(network, frames, 2)]
    assert agreement(ours, theirs) > (0.999 if device == "cpu" else 0.98)
    assert agreement(ours[1:], [quick(frame).clone() for frame in frames[1:]]) < 1


def test_a_state_of_the_eager_form_works_in_the_fast_form(model, frames):
    _, state = label_frame(model, frames[0], None, 2)
    ours, after = label_frame(accelerate(model), frames[1], state, 2)
    theirs, expected = label_frame(model, frames[1], state, 2)
    assert agreement([ours], [theirs]) > 0.999
    torch.testing.assert_close(after.contexts, expected.contexts, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("steady", [1.0, STEADY_HIGH])
@pytest.mark.parametrize("size", [None, (96, 128)])
def test_hysteresis_works_in_the_fast_form(model, frames, size, steady):
    policy = LastFrames(2, steady=steady)
    ours, theirs = (
        [labels for _, labels in label_frames(network, frames, policy, size=size)]
        for network in (accelerate(model), model)
    )
    assert agreement(ours, theirs) > 0.999
    assert agreement(theirs, [labels for _, labels in label_frames(model, frames, 2, size=size)]) < 0.9999


def test_averaging_works_in_the_fast_form(model, frames):
    twin = copy.deepcopy(model)
    twin.averages = True
    states = [None, label_frame(twin, frames[0], None, 3)[1]]
    ours, _ = label_batch(accelerate(twin), frames[1:3], states, 3)
    assert agreement(ours, label_batch(twin, frames[1:3], states, 3)[0]) > 0.999


def test_the_fast_form_gives_confidence(model, frames):
    images = frames[0][None]
    ours, theirs = (
        step_batch(network, images, [None], sizes=[(100, 150)], with_confidence=True)[0][0]
        for network in (accelerate(model), model)
    )
    assert agreement(ours[:1], theirs[:1]) > 0.999
    assert (ours[1].int() - theirs[1].int()).abs().max() <= 2


def test_a_network_without_a_fast_form_comes_back_as_an_engine(frames):
    for factory, options in (
        (streamseg.fanet18, {"attention": streamseg.NoAttention}),
        (streamseg.fanet18, {"reduction": "Conv-0"}),
        (streamseg.fanetplus18, {"attention": streamseg.DotAttention}),
    ):
        network = factory(classes=3, **options).eval()
        engine = accelerate(network)
        assert isinstance(engine, EagerEngine)
        assert segment(frames[0], engine).equal(segment(frames[0], network))


@pytest.mark.skipif(CUDA, reason="int8 runs on the CPU only")
def test_int8_gives_nearly_the_same_labels_as_fp32(model, frames):
    quick = accelerate(model, "int8", frames[:2])
    assert agreement([quick(frame) for frame in frames[5:]], [segment(frame, model) for frame in frames[5:]]) > 0.97


@pytest.mark.skipif(CUDA, reason="int8 runs on the CPU only")
def test_int8_is_calibrated_with_the_first_frames(model, frames):
    quick = accelerate(model, "int8")
    exact = accelerate(model)
    for number, frame in enumerate(frames):
        labels = quick(frame)
        if number < fast.CALIBRATION_FRAMES:
            assert labels.equal(exact(frame))
        assert quick.calibrating == (number + 1 < fast.CALIBRATION_FRAMES)
    assert quick.calibration == []
    assert not labels.equal(exact(frames[-1]))


def test_what_cannot_be_accelerated_is_refused_in_a_sentence(model, frames):
    with pytest.raises(ValueError, match="precision is 'int4'; choose one of"):
        accelerate(model, "int4")
    with pytest.raises(ValueError, match="The model is a tuple; expected the network"):
        accelerate(streamseg.load())
    with pytest.raises(ValueError, match="in training mode"):
        accelerate(streamseg.fanet18())
    with pytest.raises(ValueError, match=r"The frame is a tensor of torch\.float32; expected RGB bytes"):
        accelerate(model)(frames[0].float())
    with pytest.raises(ValueError, match="on meta, and the network on"):
        accelerate(model)(frames[0].to("meta"))


@pytest.fixture(scope="module")
def gpu(model):
    return copy.deepcopy(model).cuda()


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_gpu_s_graph_gives_the_labels_of_the_network(gpu, street, precision):
    quick = accelerate(gpu, precision)
    for height, width in ((512, 1024), (333, 517), (512, 1024)):
        frame = F.interpolate(street[None].float(), (height, width), mode="bilinear").byte()[0].cuda()
        expected = segment(frame, gpu)
        for _ in range(3):
            assert (quick(frame) == expected).float().mean() > (0.99 if precision == "fp16" else 0.97)
    assert len(quick.buffers) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("window", [1, 3, Fading(0.5), LastFrames(3, steady=1.0), LastFrames(3, steady=STEADY_HIGH)])
def test_a_gpu_s_streams_carry_their_state_through_graphs(gpu, frames, window):
    quick = accelerate(gpu)
    on_gpu = [frame.cuda() for frame in frames]
    ours = [labels for _, labels in label_frames(quick, on_gpu, window)]
    assert agreement(ours, [labels for _, labels in label_frames(gpu, on_gpu, window)]) > 0.98
    states = [None, None]
    for frame in on_gpu[:4]:  # two streams in one batch, and labels of another size
        (first, second), states = label_batch(quick, [frame, frame.flip(2)], states, window, size=(128, 192))
    assert first.shape == second.shape == (160, 240)
    assert not first.equal(second)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_a_gpu_s_memory_does_not_grow_with_calls_or_sizes(gpu):
    quick = accelerate(gpu)
    for side in range(64, 64 + 32 * (fast.MAX_GRAPHS + 4), 32):
        quick(torch.zeros(3, side, 64, dtype=torch.uint8, device="cuda"))
    assert len(quick.buffers) == fast.MAX_GRAPHS
    frame = torch.zeros(3, 64, 64, dtype=torch.uint8, device="cuda")
    quick(frame)
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        quick(frame)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_the_same_frame_has_the_same_labels_and_context_every_time(gpu, frames):
    quick = accelerate(gpu)
    frame = frames[0].cuda()[None]
    results = [quick.predict(FrameBatch(frame, None, [0.0], [(160, 240)])) for _ in range(5)]
    assert all(
        predictions[0].labels.equal(results[-1][0][0].labels) and context.equal(results[-1][1])
        for predictions, context in results[2:]
    )
