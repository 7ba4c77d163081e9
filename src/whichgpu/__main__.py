"""`python -m whichgpu` is the `whichgpu` command."""

import sys

# As for the command: a json.py in the current folder must not stand in for Python's own. `-m` puts that folder first.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from whichgpu.cli import main

if __name__ == "__main__":
    main()
