"""Step time of a traced workload on a card that nobody needs to own.

`costs` says what an operator asks of a GPU: arithmetic, bytes, launches. `rates` says what a card offers. `kernels` turns both
into seconds, with constants that were fitted to measured operators (data/speed.json, tools/fit_speed.py). `host` is what the
processor takes to launch them, and `step_time` adds it all up. Pure functions of trace, card and constants; no torch.
"""
