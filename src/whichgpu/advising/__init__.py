"""Advice: which cards to buy, to rent, to do without, chosen from a ranking by what somebody wishes for.

`wishes` holds what is asked for and what contradicts itself; `prices` what a card costs under it; `costs` what a run costs and
when buying pays; `cards` joins these with the ranking, card by card; `limits` says which wish leaves nothing and by how much to
relax it; `choice` picks the short list; `reasons` writes the one line of each card; `sources` names where each figure comes
from; `records` is what comes out, and `advice` puts it together. Nothing here traces, predicts or prints.
"""
