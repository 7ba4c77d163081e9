"""`python -m whichgpu` is the `whichgpu` command."""

import sys

# As for the command: a json.py in the current folder must not stand in for Python's own. `-m` puts that folder first.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it like any other."""
    try:
        from whichgpu import cli  # noqa: PLC0415
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
