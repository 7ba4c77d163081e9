"""What the pages show of commands' output is cut as their tool cuts it, and is not out of date as far as that costs no tracing."""

from __future__ import annotations

import re
from pathlib import Path

import refresh_readme
from whichgpu.advising.prices import Prices
from whichgpu.advising.wishes import Wishes
from whichgpu.catalogue import load

ROOT = Path(__file__).parents[2]
ADVISE = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
SHOWN = """```console
$ whichgpu advise w
What to buy: as of 2026-01-01

Fastest: old card
  slow
[...]
- a note
```
"""
PRINTED = """What to buy: as of 2026-12-01

Best value: new card
  cheap

Fastest: new card
  fast

Trains it (3)
  three cards

Not supported
  one card

- another note
- a third one"""


def test_advice_is_cut_to_the_sections_that_a_page_shows() -> None:
    """Their figures are new, and what stands between them is a cut; a page that shows all goes on showing all."""
    found = refresh_readme.refreshed(SHOWN, 80, lambda *_: PRINTED)
    assert [
        "What to buy: as of 2026-12-01\n[...]",
        "Fastest: new card\n  fast\n[...]",
        "- another note\n- a third one\n```\n",
    ] == found.removeprefix("```console\n$ whichgpu advise w\n").split("\n\n")
    assert found == refresh_readme.refreshed(found, 80, lambda *_: PRINTED)
    assert PRINTED in refresh_readme.refreshed(SHOWN.replace("[...]\n", ""), 80, lambda *_: PRINTED)


def test_output_on_pages_is_no_wider_than_it_was_printed() -> None:
    """100 columns in the README, 80 elsewhere."""
    for page, width in refresh_readme.PAGES.items():
        blocks = re.findall(r"^```console\n\$ [^\n]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        assert blocks
        assert max(len(line) for block in blocks for line in block.splitlines()) <= width


def test_prices_of_the_page_of_advice_are_those_of_the_catalogue() -> None:
    """The prices of used cards that it shows are what is known on its day: python tools/refresh_readme.py advise.md."""
    (day,) = set(re.findall(r"as of (\d{4}-\d\d-\d\d)", ADVISE))
    cards = load().as_of(day)
    prices = Prices(cards, Wishes(way="buy", condition="used"))
    listed = re.findall(r"^Trains it \(\d+\)\n(.*?)\n  no used price", ADVISE, re.MULTILINE | re.DOTALL)[0]
    shown = {name: float(usd.replace(",", "")) for name, usd in re.findall(r"(\w[\w ]*) ([\d,]+)(?:,\s|$)", listed)}
    assert len(shown) > 4
    assert shown == {name: price.usd for name in shown if (price := prices.buy(cards.find(name))) is not None}
