"""What is assumed where nothing is said, and where from; light, as the help of the command names it."""

from __future__ import annotations

# USD per kWh: what homes in the USA pay in 2026 as the U.S. Energy Information Administration foresaw it in its
# Short-Term Energy Outlook of December 2025 (18.02 cents)
POWER_USD_PER_KWH = 0.18
POWER_SOURCE = "U.S. EIA, Short-Term Energy Outlook, 2025-12: homes in the USA, 2026"
# Share of the price that is had back when the card is sold: of the cards in the catalogue that are offered used and had a
# launch price, the median is sold at 0.6 of it two to five years later; less is assumed.
RESALE = 0.5
RESALE_SOURCE = "used cards of the catalogue are offered at a median of 0.6 of their launch price"
