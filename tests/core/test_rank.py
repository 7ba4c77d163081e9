"""`rank` from end to end, with made-up traces in place of the tracing process."""

from __future__ import annotations

import io
from typing import Any

import pytest
from made_up_tracer import World
from synthetic import MIB, Call, Made

import whichgpu
from whichgpu import advice, api, catalogue, outlook, render
from whichgpu.errors import InputError

GIB = 1 << 30

SMALL = (Call((Made(100 * MIB, 0, "weight"),)), Call((Made(0, MIB),)))
HUGE = (Call((Made(60 * GIB, 0, "weight"),)), Call((Made(0, GIB),)))


def test_ranking_has_every_card_and_every_workload(world: World) -> None:
    """Each CUDA card once, and each workload's largest batch on it as `fit` has it."""
    world.calls = {"gpt2": SMALL}
    report = whichgpu.rank(["bert-base", "gpt2"])
    by_name = {row.gpu: row for row in report.gpus}
    card = catalogue.load().find("RTX 3090").name

    assert sorted(card.name for card in catalogue.load().gpus if card.cuda) == sorted(by_name)
    assert ("bert-base", "gpt2") == report.workloads == tuple(report.traces)
    for name in ("bert-base", "gpt2"):
        (fitted,) = api.fit(name, batch_size=8, gpus=["RTX 3090"]).gpus
        assert fitted.max_batch_size == by_name[card].max_batch_size[name]
        assert fitted.max_batch_size_pow2 == by_name[card].max_batch_size_pow2[name]


def test_the_first_card_trains_all_and_none_like_it_is_cheaper(world: World) -> None:
    """First comes the supported card that runs all workloads for the least of today's money; old prices come later."""
    world.calls = {"gpt2": HUGE}
    report = api.rank(["bert-base", "gpt2"])
    first = report.gpus[0]
    rivals = [row for row in report.gpus if row.tier == "all" and row.supported and row.buy is not None]

    assert ("all", True, 2) == (first.tier, first.supported, first.trains)
    assert first.buy is not None
    today = [row.buy.usd for row in rivals if row.buy is not None and advice.is_current(row.buy)]
    old = [row.buy.usd for row in rivals if row.buy is not None and not advice.is_current(row.buy)]
    assert [*sorted(today), *sorted(old)] == [row.buy.usd for row in rivals if row.buy is not None]
    assert first.buy.usd == today[0] == min(today)
    supported = [row for row in report.gpus if row.supported]
    assert supported == list(report.gpus[: len(supported)])
    tiers = [("all", "most", "poor").index(row.tier) for row in supported]
    assert tiers == sorted(tiers)


def test_cards_that_the_wheels_do_not_serve_are_marked_and_last(world: World) -> None:
    """bfloat16 steps leave Turing and older out of the recommendation, with the reason beside them."""
    world.facts = {"dtypes": ["bfloat16"]}
    report = api.rank(["bert-base"])
    marked = [row for row in report.gpus if not row.supported]

    assert marked
    assert list(report.gpus[-len(marked) :]) == marked
    assert all(row.notes for row in marked)
    assert all(float(row.compute_capability) >= 8 for row in report.gpus if row.supported)


def test_workloads_named_twice_are_ranked_once(world: World) -> None:
    """The same name twice is one workload and one set of traces."""
    world.same_for = ("9.0", "8.0", "8.6", "7.0", "6.0")
    report = api.rank(["bert-base", "bert-base"])

    assert ("bert-base",) == report.workloads
    assert 3 == len(world.asked)


def test_notes_of_a_ranking_name_the_workload(world: World) -> None:
    """Caveats of one workload are told with its name."""
    world.facts = {"backward_calls": 0}

    *notes, left_out = api.rank(["bert-base"]).notes
    assert notes
    assert all(note.startswith("bert-base: ") for note in notes)
    assert left_out.endswith("are left out")
    assert api.rank(["bert-base"]).notes


def test_an_empty_ranking_is_refused(world: World) -> None:
    """No workload, no answer."""
    with pytest.raises(InputError, match="at least one workload"):
        api.rank([])


@pytest.mark.parametrize("names", ["cnn.py", "bert-base", None, 3, ["bert-base", 4]])
def test_a_ranking_wants_a_list_of_names(names: Any, world: World) -> None:
    """A single text is no list of its letters."""
    with pytest.raises(InputError, match=r"is no list of workloads|4 is no workload's name"):
        api.rank(names)
    assert [] == world.asked


def test_what_no_card_can_compute_in_is_not_traced(world: World) -> None:
    """A step in bfloat16 is known to be none for Turing: its batches stay unknown, with the reason, and others are traced."""
    report = api.rank(["llama3-8b", "bert-base", "gpt2?precision=fp16"], gpus=["T4", "RTX 2080"])
    assert ("llama3-8b",) == report.untraced
    assert {"bert-base", "gpt2?precision=fp16"} == set(report.traces)
    assert all("no bfloat16 in hardware" in row.problems["llama3-8b"][0] for row in report.gpus)
    assert any(note.startswith("llama3-8b: not traced") for note in report.notes)
    assert () == api.rank(["llama3-8b"], gpus=["T4", "RTX 3090"]).untraced
    file = io.StringIO()
    console = render.make_console(file, width=80)
    with render.trimmed(console):
        render.print_rank(api.rank(["llama3-8b"], gpus=["T4"]), console)
    assert "T4 -, " in file.getvalue()
    assert "*  not even batch size 1 fits" not in file.getvalue()


def test_who_interrupts_gets_what_is_known_by_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads that were answered stay answered, and the others are named; before the first one there is nothing to say."""
    monkeypatch.setattr(outlook, "expected_seconds", lambda _: 60.0)

    def stop(line: str) -> None:
        if line.startswith("2 of 3"):
            raise KeyboardInterrupt

    names = ["bert-base", "resnet50", "vit-base"]
    report = api.rank(names, gpus=["RTX 3090"], partial=True, on_progress=stop)
    assert (("bert-base",), ("resnet50", "vit-base")) == (report.workloads, report.missing)
    assert ["bert-base"] == list(report.gpus[0].max_batch_size) == list(report.traces)
    with pytest.raises(KeyboardInterrupt):
        api.rank(names, gpus=["RTX 3090"], on_progress=stop)
    with pytest.raises(KeyboardInterrupt):
        api.rank(names[1:], gpus=["RTX 3090"], partial=True, on_progress=_at_once)


def _at_once(_: str) -> None:
    raise KeyboardInterrupt
