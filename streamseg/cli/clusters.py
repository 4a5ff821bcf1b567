"""segment --ray: videos are labelled on a Ray cluster, into a folder."""

from collections.abc import Sequence

from streamseg.cli.messages import clear_line, loading, print_error
from streamseg.cli.options import default_device, weights_on_cluster
from streamseg.cli.segmenting import SegmentOptions, open_model


def segment_on_cluster(names: Sequence[str], out: str, options: SegmentOptions) -> int:
    """Label videos on a Ray cluster and report; return 1 if any had a problem."""
    from streamseg.cli.progress import show_archive_progress

    if not out or out == "-":
        raise ValueError("--ray writes to a folder: give its name as the last name, or with --out.")
    names_of_refused = (
        "json",
        "show",
        "tile",
        "deadline",
        "raw_size",
        "rate",
        "fleet",
        "hardware_decoding",
        "mask",
        "together",
    )
    refused = [f"--{name.replace('_', '-')}" for name in names_of_refused if getattr(options, name)]
    if refused:
        raise ValueError(f"--ray labels videos into a folder: leave out {', '.join(refused)}.")
    with loading(options.quiet):
        from streamseg.deploy import archive
        from streamseg.engine.engine import VideoEngine

        settings, style = open_model(options)  # as each worker will do: errors show at once
    if options.window is not None and isinstance(settings.model, VideoEngine):
        raise ValueError("--ray runs a video method with the key interval of its weights: leave out --window.")
    job = archive.ArchiveSettings(
        weights_on_cluster(options.weights),
        settings.policy,
        options.precision,
        options.cut,
        settings.size,
        options.overlay,
        options.labels,
        options.confidence,
        style,
        options.trust,
        options.colours,
    )
    gpus = (options.device or default_device(options.weights)) != "cpu"
    progress = show_archive_progress(options.quiet)
    report = archive.segment_archive(names, out, job, options.ray, gpus=gpus, progress=progress)
    if not options.quiet:
        clear_line()
        print(archive.format_report(report))
        print(out)
    for problem in report.problems.values():
        print_error(problem)
    return int(bool(report.problems))
