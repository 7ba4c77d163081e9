"""`python -m whichgpu` is the `whichgpu` command."""

from whichgpu.cli import main

if __name__ == "__main__":
    main()
