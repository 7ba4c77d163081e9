"""`whichgpu explain` from the command line to the tracing process and back, and snapshots in PyTorch's own viewer."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = {
    "model_type": "bert",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
MINE = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 64)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))


def setup(device):
    model = torch.nn.Sequential(*(Block() for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch_size):
        x = torch.randn(batch_size, 64, device=device)
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""


class Asked:
    """The command in a folder of its own; its cache is there too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "WHICHGPU_CACHE": str(folder / "cache")}

    def run(self, *arguments: str, command: str = "explain") -> subprocess.CompletedProcess[str]:
        """What the command says."""
        words = [sys.executable, "-m", "whichgpu", command, *arguments]
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=500, check=False
        )

    def report(self, *arguments: str, command: str = "explain") -> dict[str, Any]:
        """What it answers as JSON."""
        done = self.run(*arguments, "--json", command=command)
        # a slow machine is told after a minute that work goes on
        said = [line for line in done.stderr.splitlines() if not line.startswith("still at work after ")]
        assert (0, []) == (done.returncode, said)
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A folder with a small BERT's configuration and a step of the user's."""
    folder = tmp_path_factory.mktemp("explain")
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text(json.dumps(SMALL))
    (folder / "mine.py").write_text(MINE)
    for path in (folder / "small" / "config.json", folder / "mine.py"):
        os.utime(path, (0, 0))
    return Asked(folder)


@pytest.fixture(scope="module")
def small(asked: Asked) -> dict[str, Any]:
    """The explanation of the small BERT on a card, with a snapshot."""
    name = "hf:./small?precision=fp32&seq=128"
    return asked.report(name, "--batch-size", "256", "--gpu", "RTX 3060", "--snapshot", "s.pickle")


@pytest.fixture(scope="module")
def mine(asked: Asked) -> dict[str, Any]:
    """The explanation of the user's step."""
    return asked.report("mine.py", "--batch-size", "8192")


def by_remedy(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The remedies by name."""
    return {remedy["remedy"]: remedy for remedy in report["remedies"]}


def test_holders_add_up(small: dict[str, Any], mine: dict[str, Any]) -> None:
    """What is listed and all others are the allocated peak, to the byte."""
    for report in (small, mine):
        held = sum(holder["bytes"] for holder in report["holders"]) + report["others"]["bytes"]
        assert report["peak_allocated_bytes"] == held


def test_layers_of_a_library_are_folded(small: dict[str, Any]) -> None:
    """The four layers are one holder each, with a line of the library's code."""
    folded = [held for held in small["holders"] if held["module"] and ".layer.*." in held["module"]]
    assert folded
    assert {4} == {held["modules"] for held in folded}
    assert any((held["source"] or "").startswith("transformers/models/bert/") for held in folded)


def test_the_users_line_is_named(mine: dict[str, Any]) -> None:
    """The activations of the four blocks come from the one line that makes them."""
    wide = next(held for held in mine["holders"] if held["category"] == "activation")
    number = next(n for n, line in enumerate(MINE.splitlines(), 1) if "torch.relu" in line)
    assert ("aten.relu.default", "*", 4) == (wide["op"], wide["module"], wide["modules"])
    assert f"mine.py:{number}" == wide["source"]
    assert 4 * 8192 * 4096 * 4 == wide["bytes"]


def test_each_remedy_of_a_library_is_traced(small: dict[str, Any]) -> None:
    """A model of transformers has options for all but the 8-bit optimizer; those that must save something do."""
    remedies = by_remedy(small)
    assert {
        "bf16 autocast": "precision=bf16",
        "activation checkpointing": "checkpoint=1",
        "fused optimizer": "fused=1",
        "smaller samples": "seq=64",
        "gradient accumulation": "2 micro batches of 128",
    } == {name: remedy["change"] for name, remedy in remedies.items()}
    assert ["8-bit optimizer"] == [left_out["remedy"] for left_out in small["left_out"]]
    for name in ("bf16 autocast", "activation checkpointing", "smaller samples", "gradient accumulation"):
        assert remedies[name]["saved_bytes"] > 0
        for key in ("max_batch_size", "max_batch_size_safe"):
            assert remedies[name][key] > small[key]
    for remedy in remedies.values():
        assert small["peak_reserved_bytes"] - remedy["saved_bytes"] == remedy["peak_reserved_bytes"]


def test_an_option_that_is_set_gives_what_the_remedy_foretold(asked: Asked, small: dict[str, Any]) -> None:
    """Whoever follows the advice gets the figures that it named."""
    name = "hf:./small?precision=fp32&seq=128&checkpoint=1"
    (row,) = asked.report(name, "--batch-size", "256", "--gpu", "RTX 3060", command="fit")["gpus"]
    foretold = by_remedy(small)["activation checkpointing"]
    for key in ("peak_reserved_bytes", "peak_allocated_bytes", "verdict", "max_batch_size", "max_batch_size_safe"):
        assert foretold[key] == row[key]


def test_a_step_of_the_users_is_changed_from_outside(mine: dict[str, Any]) -> None:
    """Autocast, a fused optimizer and two micro batches are traced; what cannot be done says why."""
    remedies = by_remedy(mine)
    assert {"bf16 autocast", "fused optimizer", "gradient accumulation"} == set(remedies)
    assert remedies["bf16 autocast"]["saved_bytes"] > 0
    assert remedies["gradient accumulation"]["saved_bytes"] > 0
    reasons = {left_out["remedy"]: left_out["reason"] for left_out in mine["left_out"]}
    assert {"activation checkpointing", "8-bit optimizer", "smaller samples"} == set(reasons)
    assert "mine.py" not in reasons["activation checkpointing"]


def test_without_a_card_nothing_is_said_of_one(mine: dict[str, Any]) -> None:
    """Memory has no limit then, and there is no largest batch."""
    keys = ("gpu", "memory_bytes", "context_bytes", "verdict", "max_batch_size")
    assert [None] * 5 == [mine[key] for key in keys]
    assert {None} == {remedy["max_batch_size"] for remedy in mine["remedies"]}


def test_traces_of_remedies_are_kept(asked: Asked, mine: dict[str, Any]) -> None:
    """Asked again, the answer is the same, and no trace is made."""
    traces = sorted(path.name for path in (asked.folder / "cache" / "traces").iterdir())
    again = asked.report("mine.py", "--batch-size", "8192")
    assert again["trace"]["cached"]
    assert {**mine, "trace": None} == {**again, "trace": None}
    assert traces == sorted(path.name for path in (asked.folder / "cache" / "traces").iterdir())


def test_a_batch_that_does_not_fit_is_explained_with_room_for_it(asked: Asked) -> None:
    """The card's memory does not cut the explanation short."""
    report = asked.report("mine.py", "--batch-size", "400000", "--gpu", "RTX 3060", "--snapshot", "large.pickle")
    assert "no" == report["verdict"]
    assert 0 < report["max_batch_size"] < 400_000
    assert report["peak_reserved_bytes"] > report["memory_bytes"]
    assert (asked.folder / "large.pickle").exists()


def test_the_text_names_what_the_record_has(asked: Asked, mine: dict[str, Any]) -> None:
    """In a pipe: the phases, the peak, the holders and the remedies, in 80 columns."""
    done = asked.run("mine.py", "--batch-size", "8192")
    assert 0 == done.returncode
    for words in ("later steps", "< peak", "activation of *", "mine.py:", "bf16 autocast", "Not tried:"):
        assert words in done.stdout
    assert [] == [line for line in done.stdout.splitlines() if len(line) > 80]


# ---- the viewer -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def snapshot(asked: Asked, small: dict[str, Any]) -> dict[str, Any]:
    """The snapshot of the small BERT, read as the viewer reads it."""
    assert "s.pickle" == small["snapshot"]
    return dict(pickle.loads((asked.folder / "s.pickle").read_bytes()))


def test_pytorchs_own_tools_read_a_snapshot(snapshot: dict[str, Any]) -> None:
    """The plots, the summary of segments (which checks its sums), the list of events and the flame graph work."""
    from torch.cuda import _memory_viz

    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    lines = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "modeling_bert.py" in lines or "aten." in lines


def test_the_viewers_command_writes_its_page(asked: Asked, snapshot: dict[str, Any]) -> None:
    """`python -m torch.cuda._memory_viz trace_plot FILE` makes a page of it."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.cuda._memory_viz", "trace_plot", "s.pickle"]
    subprocess.run([*command, "-o", "page.html"], cwd=asked.folder, check=True, capture_output=True, timeout=120)
    assert "snapshot.pickle" in (asked.folder / "page.html").read_text()


def test_events_have_the_keys_of_pytorchs(snapshot: dict[str, Any]) -> None:
    """Each event says what, where and how much, with frames of file, line and name."""
    (entries,) = snapshot["device_traces"]
    actions = {"segment_alloc", "alloc", "free_requested", "free_completed"}
    assert actions == {entry["action"] for entry in entries}
    for entry in entries:
        assert {"action", "addr", "size", "stream", "frames"} <= set(entry)
    frames = [frame for entry in entries for frame in entry["frames"]]
    assert {("filename", "line", "name")} == {tuple(sorted(frame)) for frame in frames}
    assert any(frame["name"].startswith("bert.encoder.layer.3.") for frame in frames)


# ---- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("mine.py --gpu RTX-9999", "RTX-9999"),
        ("mine.py --batch-size 0", "batch size '0'"),
        ("mine.py --batch-size many", "batch size 'many'"),
        ("mine.py --snapshot none/s.pickle", "there is no folder none"),
        ("mine.py --snapshot small", "small is a folder"),
        ("mine.py --snapshot /dev/null", "not a regular file"),
        ("mine.py:nothing", "no function nothing"),
        ("none.py", "no such file"),
        ("hf:gpt2?seq=0", "seq=0"),
        ("bert-bas", "did you mean bert-base"),
    ],
)
def test_mistakes_are_told_in_one_line(asked: Asked, arguments: str, said: str) -> None:
    """Whatever is wrong, one line says so, the exit code is 2, and no file is made."""
    before = sorted(path.name for path in asked.folder.iterdir())
    done = asked.run(*arguments.split())
    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n")
    assert said in done.stderr
    assert {path.name for path in asked.folder.iterdir()} - {"cache"} == set(before) - {"cache"}
