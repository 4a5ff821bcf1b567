import io
import json
from pathlib import Path

import hostile
import pytest
import torch
from exports import SIZE
from PIL import Image
from serving import FRAME, PICTURE, read_labels, run_server, running as running, to_png
from waiting import PATIENCE
from websockets.sync.client import connect

import streamseg
from streamseg.draw import overlay
from streamseg.io.images import to_frame
from streamseg.io.masks import Mask
from streamseg.io.pictures import encode_labels
from streamseg.serve.gate import RequestError, ServedModel
from streamseg.serve.segment import choose_media_type, encode_answer
from streamseg.stream.label_frames import label_frame


def test_a_picture_is_answered_with_labels_an_overlay_or_json(running):
    expected, _ = label_frame(running.engine.engine, FRAME)
    answer = running.ask("/segment", PICTURE)
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert read_labels(answer.body).equal(expected)
    assert Image.open(io.BytesIO(answer.body)).getpalette()[3:6] == [*streamseg.CAMVID.colours[1]]
    answer = running.ask("/segment?alpha=1", PICTURE, Accept="image/jpeg")
    drawn = to_frame(Image.open(io.BytesIO(answer.body)))
    assert (drawn.float() - overlay(FRAME, expected, streamseg.CAMVID, 1.0).float()).abs().mean() < 20
    shares = running.ask("/segment", PICTURE, Accept="application/json").json
    assert (shares["height"], shares["width"]) == SIZE
    assert [entry["name"] for entry in shares["classes"]] == [*streamseg.CAMVID.names]
    expected_shares = [(expected == i).float().mean().item() for i in range(11)]
    assert [entry["share"] for entry in shares["classes"]] == pytest.approx(expected_shares, abs=1e-5)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "image/png"),
        ("image/*", "image/png"),
        ("image/jpeg, */*;q=0.1", "image/jpeg"),
        ("image/png;q=0.2, application/json;q=0.3", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.8", "application/json"),
        ("IMAGE/PNG;q=0, image/*", "image/jpeg"),
    ],
)
def test_the_answer_is_of_the_type_that_the_accept_header_prefers(accept, media_type):
    assert choose_media_type(accept) == media_type


def test_media_types_that_are_not_available_are_rejected():
    for accept in ("text/html", "*/*;q=0", ""):
        with pytest.raises(RequestError, match="accept one of image/png"):
            choose_media_type(accept)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "The request has no picture"),
        (b"hello", 415, "The data is no picture: send a PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "The data is no picture"),
        (PICTURE[:200], 400, "The picture is damaged or cut short"),
        (hostile.bomb(30_000, 30_000), 413, "The picture has more than 32,000,000 pixels"),
        (hostile.bomb(6_000, 6_000), 413, "The picture has more than 32,000,000 pixels"),
        (bytes(33 * 2**20), 413, "The picture has more than 33,554,432 bytes"),
        ((bytes(2**20) for _ in range(33)), 413, "The picture has more than 33,554,432 bytes"),
    ],
)
def test_a_body_that_cannot_be_labelled_gets_a_status_and_a_sentence(running, body, status, sentence):
    answer = running.ask("/segment", body)
    assert answer.status == status
    assert [*answer.json] == ["error"]
    assert sentence in answer.json["error"]


@pytest.mark.parametrize(
    ("query", "accept", "status", "sentence"),
    [
        ("", "text/html", 406, "accept one of image/png, image/jpeg, application/json."),
        ("?alpha=2", "*/*", 422, "alpha: Input should be less than or equal to 1."),
        ("?alpha=nan", "*/*", 422, "alpha: "),
    ],
)
def test_wrong_parameters_get_a_status_and_a_sentence(running, query, accept, status, sentence):
    answer = running.ask(f"/segment{query}", PICTURE, Accept=accept)
    assert (answer.status, [*answer.json]) == (status, ["error"])
    assert sentence in answer.json["error"]


def test_a_picture_too_wide_for_jpeg_is_labelled_as_png_only(running):
    strip = to_png(torch.zeros(3, 1, 70_000, dtype=torch.uint8))
    assert read_labels(running.ask("/segment", strip).body).shape == (1, 70_000)
    answer = running.ask("/segment", strip, Accept="image/jpeg")
    assert (answer.status, answer.json["error"]) == (406, "A JPEG has at most 65,500 pixels a side: accept image/png.")


def test_a_failure_of_the_network_is_a_500_and_the_next_picture_is_labelled(running, monkeypatch, capfd):
    with monkeypatch.context() as broken, connect(running.stream) as client:
        broken.setattr(running.engine, "engine", None)
        answer = running.ask("/segment", PICTURE)
        assert (answer.status, answer.json["error"]) == (500, "The server failed to label this picture: see its log.")
        client.send(PICTURE)
        assert json.loads(client.recv(PATIENCE))["status"] == 500
    assert running.ask("/segment", PICTURE).status == 200
    assert "A picture of (3, 72, 96) could not be labelled." in capfd.readouterr().err


def test_overlays_have_the_colours_to_draw_and_label_files_the_data_sets_own():
    labels, drawn = torch.full((16, 16), 3, dtype=torch.uint8), streamseg.bright_colours(streamseg.CAMVID)
    frame, served = torch.zeros(3, 16, 16, dtype=torch.uint8), ServedModel(None, streamseg.CAMVID, 1, Path("a"), drawn)
    picture = Image.open(io.BytesIO(encode_answer("image/jpeg", frame, labels, served, 1.0).body))
    assert picture.getpixel((8, 8)) == pytest.approx(drawn.colours[3], abs=6)
    picture = Image.open(io.BytesIO(encode_labels(labels.numpy(), served.classes.colours)))
    assert picture.convert("RGB").getpixel((8, 8)) == streamseg.CAMVID.colours[3]


def test_what_a_mask_hides_has_no_class_and_no_share():
    looked_at = torch.ones(SIZE, dtype=torch.bool)
    looked_at[40:] = False
    with run_server(mask=Mask(looked_at)) as running:
        expected, _ = label_frame(running.engine.engine, FRAME, mask=looked_at)
        labels = read_labels(running.ask("/segment", PICTURE).body)
        assert labels.equal(expected)
        assert labels[40:].eq(255).all()
        shares = running.ask("/segment", PICTURE, Accept="application/json").json["classes"]
        assert sum(entry["share"] for entry in shares) == pytest.approx(1, abs=1e-4)
        answer = running.ask("/segment", to_png(torch.zeros(3, 64, 64, dtype=torch.uint8)))
        assert answer.status == 400
        assert "which are other proportions" in answer.json["error"]
