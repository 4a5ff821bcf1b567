"""What `make demo` runs: the weights that ship, over the sample pictures."""

from pathlib import Path

from streamseg.cli import segment

out = Path("out/demo")
out.mkdir(parents=True, exist_ok=True)
for picture in sorted(Path("samples").glob("*.jpg")):
    segment(picture, out)
print(f"\nOpen the overlays in {out}. The same by hand, with a picture of yours:")
print("  .venv/bin/streamseg segment IMAGE")
