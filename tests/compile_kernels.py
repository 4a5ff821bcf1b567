"""Compile every Triton kernel for two GPU generations, without a GPU, and print its shared memory."""

import itertools

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile as compile_kernel

from streamseg.engine import steadying
from streamseg.engine.kernels import (
    attention,
    averaging,
    boxes,
    brightness,
    colour_kernels,
    convolution,
    drawing_kernels,
    labels,
    language,
    motion,
    patches,
    pyramid,
    resize,
    stem,
)

HALVES, FLOATS, BYTES, SHORTS, NUMBERS, SUMS, FLOAT = "*fp16", "*fp32", "*u8", "*i16", "*i32", "*i64", "fp32"
SHARED = {86: 99, 90: 227}
"""Limit of shared memory per program, in KiB, by compute capability."""

RARE = {"RARE_NEW": steadying.RARE_NEW, "RARE_OLD": steadying.RARE_OLD}

KERNELS = [
    *(
        (
            stem.unfold_kernel,
            {"BLOCK": 128, "RESIZE": resize, "MIRROR": mirror},
            {"frame": BYTES, "mean": FLOATS, "out": HALVES, "mirrored": FLOATS},
            {},
        )
        for resize, mirror in itertools.product((False, True), repeat=2)
    ),
    (
        stem.stem_kernel,
        {"C": 64, "BLOCK": 128, "STRIP": 6},
        dict.fromkeys(("unfolded", "weight", "bias", "out"), HALVES),
        {"num_warps": 8},
    ),
    (
        convolution.convolve_kernel,
        {"C": 256, "N": 256, "SIDE": 3, "STRIDE": 1, "PADDING": 1, "PIXELS": 64, "CHANNELS": 64, "DEPTH": 128}
        | {"SPLITS": 3, "SHORTCUT": True, "RELU": True},
        dict.fromkeys(("x", "weight", "bias", "shortcut", "out"), HALVES) | {"sums": FLOATS, "counters": NUMBERS},
        {"num_stages": 3},
    ),
    (
        convolution.convolve_kernel,
        {"C": 128, "N": 256, "SIDE": 3, "STRIDE": 1, "PADDING": 1, "PIXELS": 64, "CHANNELS": 128, "DEPTH": 64}
        | {"SPLITS": 1, "SHORTCUT": True, "RELU": True},
        dict.fromkeys(("x", "weight", "bias", "shortcut", "out"), HALVES) | {"sums": FLOATS, "counters": NUMBERS},
        {"num_stages": 3},
    ),
    (
        attention.context_kernel,
        {"C": 512, "D": 32, "MASKED": False, "TILES": 2, "TILE": 64, "COLUMNS": 64, "DEPTH": 64},
        dict.fromkeys(("x", "weight", "bias"), HALVES) | {"shares": FLOATS, "partial": FLOATS},
        {},
    ),
    (
        attention.context_kernel,
        {"C": 512, "D": 32, "MASKED": True, "TILES": 2, "TILE": 64, "COLUMNS": 64, "DEPTH": 64},
        dict.fromkeys(("x", "weight", "bias"), HALVES) | {"shares": FLOATS, "partial": FLOATS},
        {},
    ),
    (
        attention.total_kernel,
        {"C": 512, "D": 32, "MASKED": False, "COLUMNS": 64, "PARTS": 8},
        dict.fromkeys(("partial", "past", "scale", "counts", "context"), FLOATS) | {"total": HALVES},
        {},
    ),
    (
        attention.total_kernel,
        {"C": 512, "D": 32, "MASKED": True, "COLUMNS": 64, "PARTS": 8},
        dict.fromkeys(("partial", "past", "scale", "counts", "context"), FLOATS) | {"total": HALVES},
        {},
    ),
    (
        attention.attend_kernel,
        {"C": 512, "D": 32, "TILE": 64, "COLUMNS": 64, "DEPTH": 64},
        dict.fromkeys(("x", "weight", "bias", "total", "out_weight", "out_bias", "out"), HALVES),
        {},
    ),
    (
        pyramid.cells_kernel,
        {"C": 128, "N": 32, "TILE": 16, "BLOCK": 64, "BLOCKS": 5},
        dict.fromkeys(("x", "level_weight", "level_bias", "fuse_weight", "cells"), HALVES),
        {},
    ),
    (
        pyramid.merge_kernel,
        {"C": 128, "TILE": 16, "BLOCK": 64, "BLOCKS": 3},
        dict.fromkeys(("x", "cells", "own_weight", "bias", "out"), HALVES),
        {},
    ),
    (
        convolution.classify_kernel,
        {"C": 64, "N": 64, "K": 24, "CLASSES": 32, "SIDE": 3, "PADDING": 1, "PIXELS": 128, "DEPTH": 64},
        dict.fromkeys(("x", "weight", "bias", "class_weight", "class_bias", "scores"), HALVES),
        {"num_stages": 3},
    ),
    (resize.average_kernel, {"C": 256, "BLOCK": 4}, dict.fromkeys(("x", "out"), HALVES), {}),
    (resize.resize_kernel, {"C": 64, "BLOCK": 32, "ADD": True}, dict.fromkeys(("small", "out", "add"), HALVES), {}),
    (
        labels.label_kernel,
        {"CLASSES": 19, "ROWS": 8, "BLOCK": 64, "CONFIDENCE": True, "STEADY": False} | RARE,
        {"scores": HALVES, "margin": HALVES, "shares": HALVES}
        | dict.fromkeys(("labels", "confidence", "previous", "changes"), BYTES),
        {"num_warps": 2},
    ),
    (
        labels.label_kernel,
        {"CLASSES": 13, "ROWS": 8, "BLOCK": 64, "CONFIDENCE": True, "STEADY": True} | RARE,
        dict.fromkeys(("scores", "margin", "shares"), FLOATS)
        | dict.fromkeys(("labels", "confidence", "previous"), BYTES)
        | {"changes": SUMS},
        {"num_warps": 2},
    ),
    (
        brightness.rows_kernel,
        {"TAPS": 9, "BLOCK": 512},
        {"images": BYTES, "rows": FLOATS} | dict.fromkeys(("red", "green", "blue"), FLOAT),
        {},
    ),
    (
        brightness.pyramid_kernel,
        {"TAPS": 9, "SIDE": 16, "LEVELS": 5},
        dict.fromkeys(("rows", "level0", "level1", "level2", "level3", "level4"), FLOATS),
        {"num_warps": 2},
    ),
    (
        motion.correct_kernel,
        {"SIDE": 16, "STEP": 10, "NEAR": 1, "CORRECTIONS": 2, "NOISE": 7.0, "FIRST": True},
        dict.fromkeys(("pair", "coarse", "out"), FLOATS),
        {"num_warps": 4},
    ),
    (
        motion.correct_kernel,
        {"SIDE": 16, "STEP": 12, "NEAR": 1, "CORRECTIONS": 1, "NOISE": 7.0, "FIRST": False},
        dict.fromkeys(("pair", "coarse", "out"), FLOATS),
        {"num_warps": 2},
    ),
    (
        motion.compare_kernel,
        {"SIDE": 32, "SCALE": 1},
        dict.fromkeys(("pair", "found", "small", "alike", "still", "parts"), FLOATS)
        | dict.fromkeys(("tolerance", "stillness"), FLOAT),
        {},
    ),
    (
        motion.compare_kernel,
        {"SIDE": 32, "SCALE": 2},
        dict.fromkeys(("pair", "found", "small", "alike", "still", "parts"), FLOATS)
        | dict.fromkeys(("tolerance", "stillness"), FLOAT),
        {},
    ),
    (labels.share_kernel, {"BLOCKS": 5, "BLOCK": 1024}, {"labels": BYTES, "out": FLOATS}, {}),
    (
        averaging.move_kernel,
        {"CUT": 0.6, "SAME_SCENE": 0.75, "PARTS": 256, "CHUNK": 5, "BLOCK": 128},
        dict.fromkeys(("earlier", "motion", "alike", "still", "found", "weight", "out", "likeness", "margin"), FLOATS)
        | {"changes": SUMS, "max_margin": FLOAT},
        {},
    ),
    *(
        (
            averaging.average_kernel,
            {"UNIT": averaging.UNIT, "CHUNK": 5, "BLOCK": 128, "MIRROR": mirror},
            dict.fromkeys(("likeness", "moved", "out", "mirrored", "next_mirrored"), FLOATS)
            | {"scores": HALVES, "changes": SUMS, "share": FLOAT},
            {},
        )
        for mirror in (False, True)
    ),
    (
        colour_kernels.rgb_kernel,
        {"REPEAT": True, "BLOCK": 256},
        {"pixels": BYTES, "scales": FLOATS, "rgb": BYTES},
        {},
    ),
    (
        colour_kernels.rgb_kernel,
        {"REPEAT": False, "BLOCK": 256},
        {"pixels": SHORTS, "scales": FLOATS, "rgb": BYTES},
        {},
    ),
    (colour_kernels.yuv_kernel, {"BLOCK": 256}, {"frame": BYTES, "scales": FLOATS, "pixels": BYTES}, {}),
    (
        drawing_kernels.blend_kernel,
        {"HIDES": True, "BORDERS": True, "LEVEL": 216, "RED": 22, "GREEN": 42, "BLUE": 8, "BLOCK": 256},
        dict.fromkeys(("frame", "labels", "table", "hidden", "drawn"), BYTES),
        {},
    ),
]

for kernel, constants, pointers, settings in KERNELS:
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if "*" in pointers.get(name, "")
    }
    for generation, most in SHARED.items():
        early = generation >= 90 and "EARLY" in kernel.arg_names
        known = constants | ({"EARLY": early} if "EARLY" in kernel.arg_names else {})
        types = {name: "constexpr" if name in known else pointers.get(name, "i32") for name in kernel.arg_names}
        source = ASTSource(kernel, types, known, aligned)
        compiled = compile_kernel(source, GPUTarget("cuda", generation, 32), settings | {"launch_pdl": early})
        taken = compiled.metadata.shared / 1024
        assert taken <= most, f"{kernel.__name__} takes {taken} KiB"
        print(f"{kernel.__name__} for {generation / 10}: {taken:.0f} KiB")

if language.gl is not None:  # for Hopper alone
    from triton.experimental.gluon._runtime import GluonASTSource

    channels, sides = patches.CHANNELS, (patches.ROWS, patches.COLUMNS)
    parts = {"x": [1, *sides, channels], "edge": [1, 2, sides[1], channels], "weight": [channels, channels]}
    parts["class_weight"] = [32, channels]
    for element in ("fp16", "bf16"):
        for shortcut, classes in ((False, 0), (True, 0), (False, 24)):
            known = {
                "C": channels,
                "K": classes,
                "CLASSES": 32 if classes else 0,
                "ROWS": sides[0],
                "COLUMNS": sides[1],
                "STAGES": patches.STAGES,
            }
            known |= {"SHORTCUT": shortcut, "RELU": True, "EARLY": True}
            types = dict.fromkeys(patches.patches_kernel.arg_names, "i32") | dict.fromkeys(known, "constexpr")
            types |= dict.fromkeys(("bias", "class_bias", "shortcut", "out"), f"*{element}")
            for name, part in parts.items():
                types[name] = f"tensordesc<{element}{part},{patches.layout_of(len(part))!r}>"
            source = GluonASTSource(patches.patches_kernel, types, known)
            compiled = compile_kernel(
                source, GPUTarget("cuda", 90, 32), {"num_warps": patches.WARPS, "launch_pdl": True}
            )
            taken = compiled.metadata.shared / 1024
            assert taken <= SHARED[90], f"patches_kernel takes {taken} KiB"
            print(f"patches_kernel for 9.0, {element}: {taken:.0f} KiB")
        for width, plan in boxes.PLANS.items():
            for shortcut in (False, True):
                known = {"C": width, "ROWS": plan.rows, "COLUMNS": plan.columns, "DEPTH": boxes.DEPTH}
                known |= {"STAGES": boxes.STAGES, "SHORTCUT": shortcut, "RELU": True, "EARLY": True}
                types = dict.fromkeys(boxes.boxes_kernel.arg_names, "i32") | dict.fromkeys(known, "constexpr")
                types |= dict.fromkeys(("bias", "shortcut", "out"), f"*{element}")
                for name, part in (("x", [1, plan.rows, plan.columns, boxes.DEPTH]), ("weight", [width, boxes.DEPTH])):
                    types[name] = f"tensordesc<{element}{part},{patches.layout_of(len(part))!r}>"
                source = GluonASTSource(boxes.boxes_kernel, types, known)
                settings = {"num_warps": plan.warps, "launch_pdl": True}
                compiled = compile_kernel(source, GPUTarget("cuda", 90, 32), settings)
                taken = compiled.metadata.shared / 1024
                assert taken <= SHARED[90], f"boxes_kernel takes {taken} KiB"
                print(f"boxes_kernel for 9.0, {element}: {taken:.0f} KiB")
