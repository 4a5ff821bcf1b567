import io

from PIL import Image
from serving import running as running

from streamseg.serve.samples import find_samples


def test_a_thumbnail_is_the_sample_in_small(running):
    name, path = next(iter(find_samples().items()))
    answer = running.ask(f"/samples/{name}?width=64")
    assert answer.headers["content-type"] == "image/jpeg"
    small, whole = Image.open(io.BytesIO(answer.body)).convert("RGB"), Image.open(path).convert("RGB")
    assert small.size == (64, round(64 * whole.height / whole.width))
    expected = whole.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    found = small.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert all(abs(a - b) <= 3 for a, b in zip(found, expected, strict=True))
    assert running.ask(f"/samples/{name}").body == path.read_bytes()


def test_a_thumbnail_of_a_wrong_width_or_of_no_sample_is_refused(running):
    name = next(iter(find_samples()))
    for width in ("0", "9999", "wide"):
        answer = running.ask(f"/samples/{name}?width={width}")
        assert answer.status == 422
        assert answer.json["error"].startswith("width: ")
    assert running.ask("/samples/none.jpg?width=64").status == 404
