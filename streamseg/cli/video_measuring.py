"""evaluate --video: how steady the labels of a video without true labels are."""

from pathlib import Path
from typing import TYPE_CHECKING

from streamseg.cli.masks import check_mask_file, find_mask
from streamseg.cli.messages import clear_line, loading, open_messages, pick_progress, print_error, write_figures
from streamseg.cli.options import (
    check_exported,
    check_source,
    default_device,
    parse_steady,
    pick_device,
    pick_policy,
    set_key_interval,
)

if TYPE_CHECKING:
    from streamseg.cli.measuring import EvaluateOptions

FOR_LABELS = ("data", "dataset", "split", "only", "scales", "flip", "class_table", "plots", "ray")
"""Options of evaluate for a data set, which do not go with a video."""


def check_video_options(options: "EvaluateOptions", defaults: "EvaluateOptions") -> None:
    """Raise an error if options do not go together with --video, or need it."""
    if not options.video:
        for name in ("slice", "row"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} is for a video: give --video FILE too.")
        return
    given = [name for name in FOR_LABELS if getattr(options, name) != getattr(defaults, name)]
    if given:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--video measures a video without true labels: leave out {listed}.")
    if options.row is not None and options.slice is None:
        raise ValueError("--row is the row of a slice: give --slice FILE too.")


def evaluate_unlabelled(weights: Path | None, options: "EvaluateOptions") -> int:
    """Label a video, and print how steady its labels are; return 1 if it is damaged."""
    check_source(options.video)
    check_mask_file(options.mask)
    with loading(options.quiet):
        from streamseg.engine import runtime
        from streamseg.engine.open import open_engine
        from streamseg.engine.steadying import name_steadiness
        from streamseg.evaluate import video_file
        from streamseg.evaluate.slice import SliceRecorder, check_slice, write_slice
        from streamseg.stream.state import LastFrames

    source = video_file.find_video(options.video)
    if options.slice:
        check_slice(options.slice, source.paths)
    steady = parse_steady(options.steady)
    policy = pick_policy(options.window, options.half_life, steady)
    device = pick_device(options.device or default_device(weights))
    engine, classes, trained = open_engine(
        weights, device, options.precision or "fp32", eager=not options.precision, trust=options.trust
    )
    size = None
    if isinstance(engine, runtime.ExportedEngine):
        check_exported(engine, policy, precision=options.precision, steady=steady, mask=bool(options.mask))
        size = engine.manifest.size
        exported = name_steadiness(engine.manifest.steady or 0.0)
        if exported in ("low", "high") and not options.steady:
            print_error(
                f"{engine.path} was exported with --steady {exported} and is measured frame by frame: give --steady "
                f"{exported} to measure the labels that segment writes."
            )
    policy = set_key_interval(engine, policy) or LastFrames(trained, steady=steady)
    mask = find_mask(options.mask, source, engine, classes, size, print_error)
    messages = open_messages(options.quiet, options.json)
    recorder = SliceRecorder(options.row) if options.slice else None
    problems: list[str] = []
    found = video_file.evaluate_video_file(
        engine,
        video_file.until_cut(video_file.read_video(source), problems),
        policy,
        size=size,
        mask=mask,
        recorder=recorder,
        progress=pick_progress(options.quiet),
    )
    if not options.quiet:
        clear_line()
    print(video_file.format_video_file_evaluation(found), file=messages)
    write_figures(options.json, video_file.video_file_evaluation_to_json(found), messages)
    if options.slice and recorder:
        write_slice(options.slice, recorder.result(), classes)
        print(options.slice, file=messages)
    for problem in problems:
        print_error(problem)
    return int(bool(problems))
