"""Steadiness on videos without labels, read from files."""

import json
import math
from itertools import pairwise

import pytest
import torch
from clips import cut, make_clip
from make_datasets import save_frame
from textures import texture

from streamseg.classes import IGNORE
from streamseg.engine.engine import EagerEngine, ImageEngine
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW
from streamseg.evaluate.motion import estimate_motion
from streamseg.evaluate.slice import SliceRecorder
from streamseg.evaluate.steadiness import Steadiness, SteadinessTally
from streamseg.evaluate.video_file import (
    TimedFrame,
    VideoFileEvaluation,
    evaluate_video_file,
    find_video,
    format_video_file_evaluation,
    read_video,
    until_cut,
    video_file_evaluation_to_json,
)
from streamseg.stream.label_frames import label_frame, label_frames
from streamseg.stream.state import FadingInTime, LastFrames


def pan(frames, size=(64, 96)):
    """Frames of a camera that turns by three pixels a frame."""
    wall = texture(size[0], size[1] + 64)
    return [TimedFrame(wall[:, :, 3 * i : 3 * i + size[1]], i / 10) for i in range(frames)]


class ByColour(ImageEngine):
    """Labels each pixel by its red: labels that move with the picture."""

    def __init__(self, model):
        super().__init__(model, lambda images: torch.eye(11)[(images[:, 0] // 24).long()].permute(0, 3, 1, 2))


@pytest.mark.parametrize("window", [3, LastFrames(1, steady=3.0), FadingInTime(0.2)])
def test_both_columns_are_those_of_label_frames_along_one_motion(model, window):
    video = pan(5)
    frames = [frame.picture for frame in video]
    streamed = [labels for _, labels in label_frames(model, frames, window, times=[frame.seconds for frame in video])]
    alone = [label_frame(model, frame)[0] for frame in frames]
    found = evaluate_video_file(model, video, window)
    motions = [estimate_motion(now, before) for before, now in pairwise(frames)]
    for maps, steadiness in ((streamed, found.steadiness), (alone, found.alone)):
        tally = SteadinessTally(11, torch.device("cpu"))
        for (before, now), motion in zip(pairwise(maps), motions, strict=True):
            tally.add(before, now, motion)
        assert steadiness == tally.result()
    assert found.visible == pytest.approx(100 * torch.stack([m.visible.float().mean() for m in motions]).mean().item())
    assert (found.frames, found.size) == (5, (64, 96))


def test_frame_by_frame_there_is_one_column(model):
    found = evaluate_video_file(model, pan(3), 1)
    assert found.alone is None
    assert found.steadiness == evaluate_video_file(model, pan(3), LastFrames(1, steady=1.0)).alone


def test_a_still_video_is_wholly_consistent_and_never_flips(model):
    still = [TimedFrame(pan(1)[0].picture, i / 25) for i in range(4)]
    found = evaluate_video_file(model, still, 1)
    assert (found.visible, found.steadiness.consistency, found.steadiness.flip_rate) == (100, 100, 0)
    assert found.steadiness.boundary_shift == 0


def test_labels_that_follow_the_picture_are_consistent_along_its_estimated_motion(model):
    found = evaluate_video_file(ByColour(model), pan(5, (128, 192)), 1)
    assert found.steadiness.consistency > 99
    assert found.steadiness.flip_rate > 40
    assert found.visible > 80


def test_the_motion_may_be_estimated_by_others(model):
    def none(current, previous):
        return torch.zeros(1, 2, *current.shape[2:])

    found = evaluate_video_file(ByColour(model), pan(3), 1, flow=none)
    assert found.steadiness.consistency < 95


def test_a_slice_is_recorded_and_progress_told(model):
    recorder, told = SliceRecorder(row=9), []
    video = [TimedFrame(*frame[:2], total=2) for frame in pan(3)]
    evaluate_video_file(model, video, 2, recorder=recorder, progress=lambda *counts: told.append(counts))
    assert recorder.result().pictures.equal(torch.stack([frame.picture[:, 9] for frame in video], dim=1))
    assert recorder.result().alone[0].equal(label_frame(model, video[0].picture)[0][9])
    assert told == [(1, 2), (2, 2), (3, 3)]


def test_the_network_input_may_have_another_size(model):
    small = evaluate_video_file(EagerEngine(model), pan(3), 1, size=(32, 48))
    assert small.size == (64, 96)
    assert small.steadiness != evaluate_video_file(model, pan(3), 1).steadiness


def hide(rows, columns, size=(64, 96)):
    """A mask that hides a rectangle."""
    looked_at = torch.ones(size, dtype=torch.bool)
    looked_at[slice(*rows), slice(*columns)] = False
    return looked_at


BONNET = hide((44, 64), (10, 80))
POLICIES = [1, 3, LastFrames(1, steady=3.0), LastFrames(1, steady=STEADY_LOW), FadingInTime(0.2, steady=STEADY_HIGH)]


def with_noise(video, mask):
    """The same video with other noise in each frame where a mask hides it."""
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randint(0, 256, f.picture.shape, generator=generator).byte() for f in video]
    return [f._replace(picture=torch.where(mask, f.picture, n)) for f, n in zip(video, noise, strict=True)]


@pytest.mark.parametrize("window", POLICIES)
def test_figures_do_not_depend_on_what_a_mask_hides(model, window):
    video = pan(4)
    noisy = with_noise(video, BONNET)
    found = evaluate_video_file(model, video, window, mask=BONNET)
    assert evaluate_video_file(model, noisy, window, mask=BONNET) == found
    assert evaluate_video_file(model, noisy, window) != evaluate_video_file(model, video, window)


@pytest.mark.parametrize("window", POLICIES)
def test_figures_with_a_mask_are_those_of_the_other_pixels(model, window):
    video = pan(4)
    frames = [frame.picture for frame in video]
    times = [frame.seconds for frame in video]
    maps = [labels for _, labels in label_frames(model, frames, window, times=times, mask=BONNET)]
    painted = [frame.masked_fill(~BONNET, 114) for frame in frames]
    same, compared, flips, pixels = 0, 0, 0, 0
    for i in range(1, 4):
        flow, visible = estimate_motion(painted[i], painted[i - 1])
        for y, x in BONNET.nonzero().tolist():
            label = maps[i][y, x]
            pixels, flips = pixels + 1, flips + (label != maps[i - 1][y, x]).item()
            b, a = y + int(flow[1, y, x]), x + int(flow[0, y, x])
            if visible[y, x] and BONNET[b, a]:
                compared, same = compared + 1, same + (label == maps[i - 1][b, a]).item()
    found = evaluate_video_file(model, video, window, mask=BONNET)
    assert found.steadiness.flip_rate == pytest.approx(100 * flips / pixels)
    assert found.steadiness.consistency == pytest.approx(100 * same / compared)
    assert found.visible == pytest.approx(100 * compared / pixels)


def test_a_mask_that_hides_nothing_changes_no_figure(model):
    video, policy = pan(3), LastFrames(2, steady=STEADY_LOW)
    white = torch.ones(64, 96, dtype=torch.bool)
    assert evaluate_video_file(model, video, policy, mask=white) == evaluate_video_file(model, video, policy)


def test_a_mask_holds_for_labels_frame_by_frame_and_for_the_slice(model):
    video, recorder = pan(3), SliceRecorder(row=50)
    policy = LastFrames(1, steady=STEADY_HIGH)
    found = evaluate_video_file(model, video, policy, mask=BONNET, recorder=recorder)
    assert found.alone == evaluate_video_file(model, video, 1, mask=BONNET).steadiness
    drawn = recorder.result()
    for labels in (drawn.labels, drawn.alone):
        assert (labels == IGNORE).equal(~BONNET[50].expand(3, -1))
    assert drawn.pictures.equal(torch.stack([frame.picture[:, 50] for frame in video], dim=1))


def test_a_file_with_a_mask_built_in_is_measured_as_a_network_with_the_mask(model):
    class Masked(ByColour):
        def predict(self, batch):
            predictions, contexts = super().predict(batch)
            return [one._replace(labels=one.labels.masked_fill(~BONNET, IGNORE)) for one in predictions], contexts

    video = pan(4)
    found = evaluate_video_file(Masked(model), with_noise(video, BONNET), 1)
    assert found == evaluate_video_file(ByColour(model), video, 1, mask=BONNET)


def test_a_mask_of_other_proportions_is_refused(model):
    with pytest.raises(ValueError, match="the mask has 64 x 64 pixels and the frames 64 x 96, which are other"):
        evaluate_video_file(model, pan(3), 1, mask=hide((0, 9), (0, 9), (64, 64)))


@pytest.mark.parametrize(
    ("steady", "name"),
    [(0.0, "off"), (0.5, "0.5"), (2, "2"), (STEADY_LOW, "low"), (STEADY_HIGH.unmirrored(), "high")],
)
def test_an_evaluation_says_how_steady_labels_were_kept(model, steady, name):
    found = evaluate_video_file(model, pan(2), LastFrames(1, steady=steady))
    assert video_file_evaluation_to_json(found)["steady"] == name
    assert format_video_file_evaluation(found).endswith(f"% of the pixels compared; --steady {name}")


@pytest.mark.parametrize(("frames", "said"), [(1, "1 frame"), (0, "0 frames")])
def test_a_video_of_one_frame_is_refused(model, frames, said):
    with pytest.raises(ValueError, match=f"^The video has {said}; steadiness is measured .* of two or more.$"):
        evaluate_video_file(model, pan(frames), 1)


def test_frames_of_another_size_are_refused(model):
    video = [*pan(2), TimedFrame(torch.zeros(3, 64, 64, dtype=torch.uint8), 0.3)]
    with pytest.raises(ValueError, match="^Frame 3 is 64 x 64 pixels and the one before 64 x 96; expected frames"):
        evaluate_video_file(model, video, LastFrames(2, steady=1.0))


def test_a_video_is_read_from_a_file_numbered_pictures_or_a_folder(tmp_path):
    clip = read_video(find_video(str(make_clip(tmp_path / "a.mp4", 4))))
    assert [(frame.picture.shape, frame.seconds, frame.total) for frame in clip] == [
        ((3, 48, 64), pytest.approx(i / 25), 4) for i in range(4)
    ]
    for i in range(3):
        save_frame(tmp_path / "frames" / f"f{i:02}.png", size=(8, 12))
    for name in ("frames/f%02d.png", "frames"):
        found = list(read_video(find_video(str(tmp_path / name))))
        assert [frame.seconds for frame in found] == [0, 1 / 25, 2 / 25]
        assert found[0].picture.shape == (3, 8, 12)


def test_what_is_no_video_is_refused(tmp_path):
    save_frame(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png is a picture; expected a video"):
        find_video(str(tmp_path / "a.png"))
    with pytest.raises(ValueError, match="^0 is live; expected a video with an end: record it first.$"):
        find_video("0")
    with pytest.raises(FileNotFoundError, match=r"^Nothing at .*none\.mp4"):
        find_video(str(tmp_path / "none.mp4"))
    (tmp_path / "two").mkdir()
    for name in ("a.mp4", "b.mp4"):
        make_clip(tmp_path / "two" / name, 2)
    with pytest.raises(ValueError, match="two holds 2 videos; expected one: give its name"):
        find_video(str(tmp_path / "two"))


def test_a_video_that_changes_its_size_is_refused(tmp_path):
    first, second = make_clip(tmp_path / "a.h264", 5), make_clip(tmp_path / "b.h264", 5, size=(96, 160))
    path = tmp_path / "both.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(ValueError, match=r"both\.ts changes its size from 48 x 64 to 96 x 160 pixels; expected frames"):
        list(read_video(find_video(str(path))))


def test_the_frames_before_a_damage_are_measured_and_the_damage_is_told(tmp_path):
    path, problems = cut(make_clip(tmp_path / "a.mkv", 40), 0.7), []
    frames = list(until_cut(read_video(find_video(str(path))), problems))
    assert 2 <= len(frames) < 40
    assert len(problems) == 1
    assert "a.mkv" in problems[0]


STEADY = Steadiness(97.5, math.nan, 1.25, 3.0)


def test_an_evaluation_is_strict_json():
    one = VideoFileEvaluation(5, (64, 96), 90.0, STEADY, None)
    figures = {"consistency": 97.5, "consistency_miou": None, "boundary_shift": 1.25, "flip_rate": 3.0}
    expected = {"frames": 5, "size": [64, 96], "visible": 90.0, "steady": "off", **figures}
    assert json.loads(json.dumps(video_file_evaluation_to_json(one), allow_nan=False)) == expected
    two = VideoFileEvaluation(5, (64, 96), 90.0, STEADY, STEADY, "low")
    assert video_file_evaluation_to_json(two) == {**expected, "steady": "low", "frame_by_frame": figures}


def test_an_evaluation_is_a_table():
    assert format_video_file_evaluation(VideoFileEvaluation(5, (64, 96), 90.0, STEADY, None)).splitlines() == [
        "consistency, %               97.50",
        "consistency, mean IoU, %         -",
        "boundary shift, pixels       1.250",
        "flip rate, %                  3.00",
        "",
        "5 frames of 64 x 96; 90.0 % of the pixels compared; --steady off",
    ]
    two = format_video_file_evaluation(VideoFileEvaluation(5, (64, 96), 90.0, STEADY, STEADY)).splitlines()
    assert two[:2] == [
        "                              frame by frame  with these options",
        "consistency, %                         97.50               97.50",
    ]
