import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from waiting import PATIENCE

from streamseg.parallel import distributed

CPU = torch.device("cpu")

# in double precision, whose rounding is too small to grow within a few iterations; the second of two processes can be
# told to die once, within the second iteration
PROGRAM = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
import torch

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double

from streamseg.train import loop, runlog, setup
from streamseg.train.config import TrainConfig

setup.AUTOCAST_DTYPES["fp32"] = torch.float64
runlog.EVERY = 1
runlog.plot.curves_plot = lambda *_: None
config = TrainConfig(
    dataset="folder", network="fanet18", crop=(64, 64), iterations=2, batch=4, learning_rate=0.002, auxiliary_loss=0.4,
    class_weighting=0.3, iou_loss=1.0, classmix=0.5, precision="fp32", validate_every=1,
)
second = Path(sys.argv[3]) if sys.argv[3] else None
if second:
    config = replace(config, with_dataset="folder", with_share=0.4, light=1.0, loss_stride=2, auxiliary_stride=4)
update_ema = loop.update_ema

def die(ema, current, decay, step):
    update_ema(ema, current, decay, step)
    if step == 1 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[4:]:
    loop.update_ema = die
loop.train(
    config, Path(sys.argv[1]), Path(sys.argv[2]), with_data=second, device=torch.device("cpu"), initial="nothing",
    save_seconds=0,
)
# a thread of Gloo that is left may abort the process at its end
names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]  # none but on Linux
assert not [name for name in names if "gloo" in name], names
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]


@pytest.mark.slow
def test_two_processes_train_and_measure_as_one_even_if_one_dies_and_all_start_again(toy, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, how, more in (("one", [], []), ("two", TORCHRUN, []), ("again", TORCHRUN, ["die"])):
        command = [sys.executable, *how, tmp_path / "program.py", toy, tmp_path / name, "", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE)
        assert done.returncode == 0, done.stderr
    for name in ("loss", "val_miou"):
        one, two, again = (entries(tmp_path / run, name) for run in ("one", "two", "again"))
        assert len(one) == 2
        assert two == pytest.approx(one, rel=1e-9)
        assert again == two
    one, two, again = (torch.load(tmp_path / run / "state.pt", weights_only=True) for run in ("one", "two", "again"))
    torch.testing.assert_close(two["trainee"], one["trainee"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(two["average"], one["average"], rtol=1e-6, atol=1e-9)
    assert again.pop("settings") == two.pop("settings")
    torch.testing.assert_close(again, two, rtol=0, atol=0)
    sessions = json.loads((tmp_path / "again" / "run.json").read_text())["sessions"]
    assert [session["from_iteration"] for session in sessions] == [0, 1]


@pytest.mark.slow
def test_two_processes_train_on_two_data_sets_as_one(toy, paint, tmp_path):
    other = paint(tmp_path / "other", [(72, 80)] * 5)
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, how in (("one", []), ("two", TORCHRUN)):
        command = [sys.executable, *how, tmp_path / "program.py", toy, tmp_path / name, other]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE)
        assert done.returncode == 0, done.stderr
    for name in ("loss", "val_miou", "with_val_miou"):
        assert entries(tmp_path / "two", name) == pytest.approx(entries(tmp_path / "one", name), rel=1e-9)
        assert len(entries(tmp_path / "one", name)) == 2
    one, two = (torch.load(tmp_path / run / "state.pt", weights_only=True) for run in ("one", "two"))
    torch.testing.assert_close(two["average"], one["average"], rtol=1e-6, atol=1e-9)


def entries(out, name):
    logged = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [entry[name] for entry in logged if name in entry]


def normalise(norm, x, upstream):
    """Output of a batch norm, the gradient of its input, weight and bias, and its statistics afterwards."""
    x = x.clone().requires_grad_()
    y = norm(x)
    (y * upstream).sum().backward()
    return y.detach(), x.grad, norm.weight.grad, norm.bias.grad, *norm.buffers()


def make_norm():
    norm = nn.BatchNorm2d(3, momentum=0.3)
    norm.weight.data = torch.tensor([0.5, 1.0, 2.0])
    return norm


def normalise_a_share(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    norm = nn.Sequential(make_norm())
    distributed.use_sync_batch_norm(norm)
    assert type(norm[0]) is distributed.SyncBatchNorm
    x, upstream = torch.load(folder / "joined.pt", weights_only=True)
    # shares of different sizes, and far from 0
    mine = slice(0, 1) if rank == 0 else slice(1, 4)
    torch.save([*normalise(norm[0], x[mine], upstream[mine])], folder / f"{rank}.pt")
    assert distributed.all_reduce_sum(torch.tensor(rank + 1)) == 3
    distributed.leave_process_group()


@pytest.mark.slow
def test_batch_norm_over_two_processes_is_that_of_the_joined_batch(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x, upstream = 5 + torch.randn(4, 3, 6, 5, generator=generator), torch.randn(4, 3, 6, 5, generator=generator)
    torch.save([x, upstream], tmp_path / "joined.pt")
    multiprocessing.spawn(normalise_a_share, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    output, gradient, weight_gradient, bias_gradient, mean, variance, count = normalise(make_norm(), x, upstream)
    torch.testing.assert_close(torch.cat([first[0], second[0]]), output)
    torch.testing.assert_close(torch.cat([first[1], second[1]]), gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first[2] + second[2], weight_gradient, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first[3] + second[3], bias_gradient)
    for share in (first, second):
        torch.testing.assert_close(share[4:], [mean, variance, count])


def test_a_synchronised_batch_norm_is_an_ordinary_one_in_use():
    norm = nn.Sequential(make_norm()).eval()
    x = torch.randn(2, 3, 4, 4)
    before = norm(x)
    distributed.use_sync_batch_norm(norm)
    assert norm(x).equal(before)


def test_a_process_on_its_own_is_the_first_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert distributed.join_process_group(CPU) == (0, 1)
    value = torch.tensor(3.0, requires_grad=True)
    assert distributed.all_reduce_sum(value) == 3
    assert not distributed.all_reduce_sum(value).requires_grad
    distributed.leave_process_group()
