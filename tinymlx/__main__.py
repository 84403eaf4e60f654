"""`python -m tinymlx` is `tinymlx`."""

from tinymlx.cli import main

main()
