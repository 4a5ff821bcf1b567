import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import complaint, run
from exports import SIZE, exported as exported, moving, small, small_plus

import streamseg
from streamseg import Fading, LastFrames, NoAttention
from streamseg.deploy import export
from streamseg.deploy.export import MIN_SAME_LABELS, compare_labels, export_model, pan
from streamseg.engine.runtime import open_exported
from streamseg.io.images import write_image
from streamseg.models.bundled import find_weights
from streamseg.stream.label_frames import step_batch
from streamseg.stream.together import label_together

SAMPLES = Path(__file__).parents[2] / "samples"

# The operators of TensorRT's ONNX parser that a network like ours could be made of; version 10.15, opsets 9 to 24.
# Axes of reductions must be constants, and resizes linear or nearest, without antialiasing.
TENSORRT = (
    "Add ArgMax AveragePool BatchNormalization Cast Clip Concat Constant Conv Div Exp Expand Flatten Gather Gemm "
    "Identity MatMul Max MaxPool Min Mul Neg Pad Pow Range Reciprocal ReduceL2 ReduceMax ReduceMean ReduceSum Relu "
    "Reshape Resize Round Shape Slice Softmax Split Sqrt Squeeze Sub Sum Transpose Unsqueeze Where"
)


@pytest.fixture(scope="module")
def network():
    return small()


@pytest.fixture(scope="module")
def network_of(network):
    """Return a function that gives the network of an exported file."""
    plus = small_plus()
    return lambda name: plus if name.startswith("plus") else network


def label_all(model, frames, window, **options):
    return [labels for _, labels in streamseg.label_frames(model, frames, window, **options)]


def share_of_equal(one, other):
    return sum((a == b).double().mean().item() for a, b in zip(one, other, strict=True)) / len(one)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("any.onnx", (65, 65)),
        ("any.onnx", (72, 96)),
        ("any.onnx", (97, 131)),
        ("fixed.xml", SIZE),
        ("fixed.pt2", SIZE),
        # of any shape: the grids of the pyramid pooling depend on it
        *(("plus-any.onnx", size) for size in ((86, 86), (97, 131), (86, 500), (400, 90), (360, 480))),
        ("plus.xml", SIZE),
        ("plus.pt2", SIZE),
    ],
)
def test_a_file_gives_the_labels_of_the_network(exported, network_of, name, size):
    network = network_of(name)
    file = open_exported(exported(name), trust=True)
    image = moving(1, *size)[0][None]
    ((expected, sure),), context = predict(network, image)
    ((labels, confidence),), found = predict(file, image)
    assert (labels.dtype, labels.shape) == (torch.uint8, size)
    assert (labels == expected).double().mean() > MIN_SAME_LABELS
    assert (confidence.int() - sure.int()).abs().max() <= 1
    # rounded, not truncated, which would be half of one less
    assert (confidence.int() - sure.int()).double().mean().abs() < 0.1
    torch.testing.assert_close(found, context, atol=1e-5, rtol=1e-4)


def predict(model, image):
    """The labels, confidence and context of an image."""
    predictions, (state,) = step_batch(model, image, [None], 2, sizes=[tuple(image.shape[-2:])], with_confidence=True)
    return [prediction[:2] for prediction in predictions], state.contexts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["any.onnx", "fixed.xml", "fixed.pt2", "plus-any.onnx", "plus.xml", "plus.pt2"])
def test_over_50_frames_a_file_carries_the_state_of_the_network(exported, network_of, name):
    network = network_of(name)
    file = open_exported(exported(name), trust=True)
    frames = moving(50, 96, 128) if name == "plus-any.onnx" else moving(50)
    expected = label_all(network, frames, LastFrames(3))
    assert share_of_equal(label_all(file, frames, LastFrames(3)), expected) > MIN_SAME_LABELS
    assert (
        share_of_equal(label_all(file, frames[:5], Fading(0.5)), label_all(network, frames[:5], Fading(0.5)))
        > MIN_SAME_LABELS
    )
    # without the state the labels differ
    assert share_of_equal(label_all(network, frames[:5], 1), expected[:5]) < 0.99


def test_a_file_without_state_labels_images_as_the_network_does(exported, network):
    frames = moving(3)
    assert (
        share_of_equal(label_all(open_exported(exported("still.onnx")), frames, 1), label_all(network, frames, 1)) == 1
    )


def test_inputs_and_outputs_have_the_documented_names_types_and_shapes(exported):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(exported("any.onnx")).graph

    def ports(values):
        for value in values:
            kind = value.type.tensor_type
            shape = [side.dim_value or side.dim_param for side in kind.shape.dim]
            yield value.name, onnx.TensorProto.DataType.Name(kind.elem_type), shape

    state = [(8, 64), (8, 128), (8, 256), (8, 512)]
    assert [*ports(graph.input)] == [
        ("frame", "UINT8", [1, "height", "width", 3]),
        *((f"past{i}", "FLOAT", [1, *shape]) for i, shape in enumerate(state, 1)),
        ("weight", "FLOAT", [1]),
    ]
    assert [*ports(graph.output)] == [
        ("labels", "UINT8", [1, "height", "width"]),
        ("confidence", "UINT8", [1, "height", "width"]),
        *((f"context{i}", "FLOAT", [1, *shape]) for i, shape in enumerate(state, 1)),
    ]


def test_small_frames_are_enlarged_to_the_least_size_of_a_file_for_any(exported):
    (frame,) = moving(1, 32, 200)
    file = open_exported(exported("plus-any.onnx"))
    sizes = []
    file.run, run = lambda inputs: (sizes.append(inputs["frame"].shape), run(inputs))[1], file.run
    assert streamseg.label_frame(file, frame)[0].shape == (32, 200)
    assert sizes == [(1, 86, 200, 3)]


@pytest.mark.parametrize("name", ["any.onnx", "still.onnx", "plus-any.onnx"])
def test_onnx_files_use_only_operators_that_tensorrt_supports(exported, name):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(exported(name))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", export.OPSET)]
    assert {node.op_type for node in model.graph.node} <= {*TENSORRT.split()}
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type.startswith("Reduce"):
            assert node.input[1] in constants
        if node.op_type == "Resize":
            assert (attributes["mode"], attributes["coordinate_transformation_mode"]) == (b"linear", b"half_pixel")
            assert not attributes.get("antialias")


def test_uint8_inputs_and_outputs_are_cast_at_once_for_tensorrt(exported):
    onnx = pytest.importorskip("onnx")
    nodes = onnx.load(exported("still.onnx")).graph.node
    assert [node.op_type for node in nodes if "frame" in node.input] == ["Cast"]
    (last,) = [node for node in nodes if "labels" in node.output]
    (before,) = [node for node in nodes if last.input[0] in node.output]
    assert (last.op_type, before.op_type, before.attribute[0].i) == ("Cast", "Cast", onnx.TensorProto.FLOAT)


@pytest.mark.parametrize("name", ["any.onnx", "fixed.xml", "fixed.pt2", "still.onnx"])
def test_a_file_has_a_manifest_and_no_paths_of_this_machine(exported, name):
    about = open_exported(exported(name), trust=True).manifest
    assert about.classes == streamseg.CAMVID
    assert about.size == (None if name.startswith("any") else SIZE)
    assert (about.window, about.averages, about.source) == (3, True, "a test")
    assert bool(about.state) == about.confidence == (name != "still.onnx")
    assert str(Path(streamseg.__file__).parent).encode() not in exported(name).read_bytes()


@pytest.mark.slow
def test_the_verb_writes_an_int8_file_with_state_that_segment_takes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    options = ("--confidence", "--size", "128x256", "--int8", "--pictures", SAMPLES)
    assert run(monkeypatch, "export", "--video", "a.onnx", *options) == 0
    output = capsys.readouterr().out
    # compared on every other one of the samples; the rest were for calibration
    assert re.match(r"a.onnx: \d\d.* % of the labels match the network's on 3 pictures \(mean IoU \d\d", output)
    assert output.endswith(" % over a clip of 50 frames\n")
    about, bundled = open_exported("a.onnx").manifest, streamseg.describe(find_weights())
    assert (about.precision, about.size, about.averages) == ("int8", (128, 256), bundled.variant.averages)
    assert (about.classes, about.window, about.source) == (bundled.classes, bundled.window, bundled.source)
    assert [*about.inputs] == ["frame", "past1", "past2", "weight"]
    assert Path("a.onnx").stat().st_size < 16e6
    assert largest_weights("a.onnx") == {64}
    command = ("segment", SAMPLES / "suburb-1.jpg", "--size", "128x256", "--labels", "--no-overlay")
    assert run(monkeypatch, *command, "network.png") == 0
    assert run(monkeypatch, *command, "int8.png", "--weights", "a.onnx", "--confidence") == 0
    one, other = (streamseg.read_image(f"{name}-labels.png") for name in ("network", "int8"))
    assert one.shape == other.shape == (3, 1080, 1920)
    assert (one == other).double().mean() > 0.95
    written = {"a.onnx", "network-labels.png", "int8-labels.png", "int8-confidence.png"}
    assert {path.name for path in tmp_path.iterdir()} == written


def largest_weights(path):
    """The largest of each convolution's int8 weights; beyond 64, processors without VNNI would sum them wrongly."""
    onnx = pytest.importorskip("onnx")
    tensors = [tensor for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 4]
    found = [onnx.numpy_helper.to_array(tensor) for tensor in tensors if tensor.data_type == onnx.TensorProto.INT8]
    assert len(found) == 23  # of 44
    return {int(abs(weight.astype(int)).max()) for weight in found}


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, b"an older file"])
def test_a_file_that_disagrees_is_not_kept(exported, tmp_path, monkeypatch, before):
    monkeypatch.setattr(export, "export_program", lambda *_: None)
    monkeypatch.setitem(export.WRITERS, "onnx", lambda _, __, path: shutil.copyfile(exported("still.onnx"), path))
    path = tmp_path / "a.onnx"
    if before:
        path.write_bytes(before)
    with pytest.raises(
        ValueError, match=r"^Only .*% of the file's labels match the network's; expected 99\.9%\. It was not kept"
    ):
        export_model(small(seed=1), streamseg.CAMVID, path, size=SIZE)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([before] if before else [])
    export_model(small(), streamseg.CAMVID, path, size=SIZE)
    assert path.read_bytes() == exported("still.onnx").read_bytes()


def test_an_int8_file_is_compared_by_its_mean_iou(exported, network):
    file = open_exported(exported("still.onnx"))
    file.manifest = replace(file.manifest, precision="int8")
    assert compare_labels(network, file, moving(2)).miou == 1
    with pytest.raises(
        ValueError,
        match="The int8 file has a mean IoU of .* with the network's labels; expected 80%.*: calibrate with more",
    ):
        compare_labels(small(seed=1), file, moving(2))


def test_an_int8_file_is_compared_on_pictures_that_it_was_not_calibrated_with(exported, tmp_path, monkeypatch):
    """write_int8 is replaced: it takes half a minute, and has its own tests."""
    for i, frame in enumerate(moving(7)):
        write_image(tmp_path / f"{i}.png", frame)
    calibrated, compared = [], []

    def write(program, about, path, frames):
        calibrated.extend(frames)
        shutil.copyfile(exported("still.onnx"), path)

    def compare(model, file, frames, mask):
        compared.extend(frames)
        return compare_labels(model, file, frames)

    monkeypatch.setattr(export, "export_program", lambda *_: None)
    monkeypatch.setattr(export, "write_int8", write)
    monkeypatch.setattr(export, "compare_labels", compare)
    export_model(small(), streamseg.CAMVID, tmp_path / "a.onnx", size=SIZE, int8=True, pictures=tmp_path)
    assert len(calibrated) == 4
    assert len(compared) == 3
    assert not any(one.equal(other) for one in calibrated for other in compared)


@pytest.mark.slow
def test_a_file_that_loses_the_state_over_a_clip_is_rejected(exported, network):
    file = open_exported(exported("fixed.xml"))
    assert compare_labels(network, file, moving(1)).clip > MIN_SAME_LABELS
    run = file.run

    def forgetful(given):
        return run({name: tensor if name == "frame" else torch.zeros_like(tensor) for name, tensor in given.items()})

    file.run = forgetful
    with pytest.raises(ValueError, match="match the network's; expected"):
        compare_labels(network, file, moving(1))


def test_the_clip_pans_over_the_picture():
    frames = list(pan(moving(1)[0], (48, 64)))
    assert len(frames) == 50
    assert {tuple(frame.shape) for frame in frames} == {(3, 48, 64)}
    assert not frames[0].equal(frames[-1])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("export a.tflite", "a.tflite does not have an export suffix; expected .onnx, .xml, .pt2."),
        ("export a.onnx --to openvino", "a.onnx does not have an export suffix; expected .xml."),
        (
            "export a.onnx --to coreml",
            "--to is 'coreml'; choose one of: 'onnx', 'openvino', 'torch', 'aotinductor'.",
        ),
        ("export", "There is nothing to write: give OUT, such as model.onnx."),
        ("export a b c.onnx", "3 names are too many"),
        ("export a.onnx -o b.onnx", "OUT is given twice, as a.onnx and as --out b.onnx: leave out one."),
        ("export a b.onnx --out c.onnx", "OUT is given twice, as b.onnx and as --out c.onnx: leave out one."),
        ("export nowhere.safetensors -o b.onnx", "No weights at nowhere.safetensors"),
        ("export nowhere.safetensors a.onnx", "No weights at nowhere.safetensors"),
        ("export nowhere/a.onnx", "No folder nowhere to write a.onnx into"),
        ("export a.onnx --size 31x64", "--size is '31x64'"),
        (
            "export a.onnx --int8",
            "--int8 is calibrated on pictures like those to label: give them with --pictures DIR.",
        ),
        ("export a.xml --int8 --pictures .", "int8 needs an ONNX file"),
        ("export a.onnx --pictures nowhere", "nowhere"),
        (
            "export attentionless.safetensors a.onnx --video",
            "A network with NoAttention has no context for later frames",
        ),
    ],
)
def test_wrong_options_are_one_sentence_and_write_nothing(tmp_path, monkeypatch, capsys, command, sentence):
    monkeypatch.chdir(tmp_path)
    if "attentionless" in command:
        network = streamseg.fanet18(classes=11, attention=NoAttention)
        streamseg.save(network, streamseg.CAMVID, "attentionless.safetensors")
    before = sorted(tmp_path.iterdir())
    assert sentence in complaint(monkeypatch, capsys, *command.split())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", ["a.onnx", "a.xml"])
def test_a_missing_library_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch, capsys, path):
    monkeypatch.setattr("streamseg.engine.runtime.find_spec", lambda _: None)
    shown = complaint(monkeypatch, capsys, "export", tmp_path / path)
    assert shown == "streamseg: ONNX files need onnx: pip install 'streamseg[export]'\n"


def test_a_network_that_cannot_be_exported_is_one_sentence(network, tmp_path):
    with pytest.raises(ValueError, match="has 11 classes, but 19 names were given"):
        export_model(network, streamseg.CITYSCAPES, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match=r"is in torch\.float16; expected fp32: call model\.float\(\) first"):
        export_model(small().half(), streamseg.CAMVID, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="is in training mode"):
        export_model(small().train(), streamseg.CAMVID, tmp_path / "a.onnx")
    assert not [*tmp_path.iterdir()]


def test_aotinductor_needs_a_compiler(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    shown = complaint(monkeypatch, capsys, "export", tmp_path / "a.pt2", "--to", "aotinductor", "--device", "cpu")
    assert "and none was found: install g++." in shown


@pytest.mark.parametrize("kind", ["plus", "fanet"])
def test_a_mask_is_built_into_a_file(network_of, tmp_path, kind):
    network = network_of(kind)
    looked_at = torch.ones(SIZE, dtype=torch.bool)
    looked_at[48:] = False
    path = tmp_path / "masked.onnx"
    found = export_model(
        network, streamseg.CAMVID, path, size=SIZE, confidence=True, video=True, mask=looked_at, window=2
    )
    assert found.pixels > MIN_SAME_LABELS
    assert found.clip > MIN_SAME_LABELS
    file, frames = open_exported(path), moving(3)
    ours, theirs = label_all(file, frames, 2), label_all(network, frames, 2, mask=looked_at)
    assert share_of_equal(ours, theirs) > MIN_SAME_LABELS
    assert ours[0][48:].eq(255).all()
    hidden = frames[0].clone()
    hidden[:, 48:] = 0
    (labels, same), (state, after) = streamseg.label_frame(file, frames[0]), streamseg.label_frame(file, hidden)
    assert labels.equal(state)
    assert same.contexts.equal(after.contexts)
    with pytest.raises(ValueError, match="looks at all pixels: export it with --mask"):
        streamseg.label_frame(file, frames[0], mask=looked_at)


def test_a_mask_needs_a_size(network, tmp_path):
    mask = torch.ones(SIZE, dtype=torch.bool)
    mask[0] = False
    with pytest.raises(ValueError, match=r"is built in for frames of one size: give their size \(--size\) too"):
        export_model(network, streamseg.CAMVID, tmp_path / "x.onnx", mask=mask)
    with pytest.raises(ValueError, match="which are other proportions"):
        export_model(network, streamseg.CAMVID, tmp_path / "x.onnx", size=(96, 96), mask=mask)


def test_files_look_together_like_the_network(exported, network):
    file, frames = open_exported(exported("any.onnx")), moving(40)
    pair = (frames[0], frames[-1])
    ours, states = label_together(file, pair, window=2)
    theirs, expected = label_together(network, pair, window=2)
    assert share_of_equal(ours, theirs) > MIN_SAME_LABELS
    torch.testing.assert_close(states[0].contexts, expected[0].contexts, atol=1e-4, rtol=1e-2)
